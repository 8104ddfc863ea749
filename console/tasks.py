"""The console's own Celery task."""

from __future__ import annotations

import time

import redis
from celery import shared_task

from console import kept


@shared_task(name="console.kept")
def keep() -> None:
    """Find out anew what pages of large fleets show, while somebody looks at them."""
    try:
        kept.refresh(time.time)
    except redis.RedisError:
        return  # without Valkey pages find it out themselves
