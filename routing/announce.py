"""Tells whoever listens that something new is in the database.

A message is a hint: every listener re-reads the database by itself, so a lost one costs an interval
and a failure here is logged and never reaches the transaction it follows.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import redis
from django.conf import settings

CHANNEL = "routing"
_TIMEOUT_S = 1.0

log = logging.getLogger(__name__)


def publish(message: dict[str, Any]) -> None:
    """Send `message` as strict JSON on the channel `routing`. Call it after the commit."""
    publish_all([message])


def publish_all(messages: Sequence[dict[str, Any]]) -> None:
    """Send each, in order, in one round trip. Call it after the commit."""
    try:
        with _client().pipeline(transaction=False) as pipe:
            for message in messages:
                pipe.publish(CHANNEL, msgspec.json.encode(message))
            pipe.execute()
    except redis.RedisError as exc:
        first = messages[0]
        more = f" and {len(messages) - 1} more" if messages[1:] else ""
        log.warning("%s of %s%s not announced: %s", first["type"], first.get("fleet"), more, exc)


@functools.cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
