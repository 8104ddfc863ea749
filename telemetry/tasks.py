"""Celery tasks of the telemetry app: parse nothing, call one function, log what changed."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from telemetry import partitions

log = logging.getLogger(__name__)


@shared_task(name="telemetry.partitions")
def keep_partitions() -> None:
    """Make sample partitions ahead of time and drop those past retention."""
    now = timezone.now()
    made = partitions.ensure(now)
    dropped = partitions.drop_expired(now, retention=partitions.retention())
    if made or dropped:
        log.info("sample partitions: %d made, %d dropped", len(made), len(dropped))
