"""The Celery task of approvals."""

from __future__ import annotations

import logging

from celery import shared_task
from django.utils import timezone

from routing.approvals import proposals

log = logging.getLogger(__name__)


@shared_task(name="approvals.expire")
def expire() -> None:
    """Proposals that nobody decided about in time end."""
    n = proposals.expire(timezone.now())
    if n:
        log.info("%d proposals ran out", n)
