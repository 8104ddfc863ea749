"""Celery tasks of the telemetry app: parse nothing, call one function, log what changed."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from telemetry import compaction, partitions, rollups

log = logging.getLogger(__name__)


@shared_task(name="telemetry.partitions")
def keep_partitions() -> None:
    """Make partitions ahead of time and drop those past retention."""
    now = timezone.now()
    made = partitions.ensure(now)
    dropped = partitions.drop_expired(now, partitions.retention())
    if made or dropped:
        log.info("telemetry partitions: %d made, %d dropped", len(made), len(dropped))


@shared_task(name="telemetry.compact")
def compact() -> None:
    """Turn what landed into chunks and roll-ups."""
    compaction.settle_sequences(timezone.now())
    n_batches = compaction.run()
    n_spans = rollups.run(timezone.now())
    if n_batches or n_spans:
        log.info("telemetry: %d batches compacted, %d spans rolled up", n_batches, n_spans)
