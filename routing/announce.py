"""Tells whoever listens that something new is in the database.

A message is a hint: every listener re-reads the database by itself, so a lost one costs an interval
and a failure here is logged and never reaches the transaction it follows.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import msgspec
import redis
from django.conf import settings

CHANNEL = "routing"
_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


def publish(message: dict[str, Any]) -> None:
    """Send `message` as strict JSON on the channel `routing`. Call it after the commit."""
    try:
        _client().publish(CHANNEL, msgspec.json.encode(message))
    except redis.RedisError as exc:
        log.warning("%s of %s not announced: %s", message["type"], message.get("fleet"), exc)


@functools.cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
