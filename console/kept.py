"""What takes a second to find out about a large fleet, kept for those who look.

Findings of thousands of engines are a second of computing, what is missing of them a dozen queries.
While somebody looks, a worker finds both out every `EVERY_S` and leaves them in Valkey, and pages
show what they find there, with its time. Of a small fleet it is found out on the spot; so it is of
a large one where nothing recent is kept: for the first who looks, or without worker or broker.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar

import msgspec
import redis
from django.conf import settings
from django.utils import translation

from console import live_source
from console.live_state import MOST_ROWS
from console.missing import Finding
from routing import findings
from routing.core.truth.finding import Report
from routing.models import Fleet

EVERY_S: Final = 10.0
_SHOWN_S: Final = 30
"""Older than that it is not shown."""
_LOOKED_S: Final = 120
"""For so long after the last look it is found out anew."""
_TIMEOUT_S: Final = 0.2
_REPORT, _MISSING = "report", "missing"
Kept = TypeVar("Kept")

log = logging.getLogger(__name__)


def report(fleet: Fleet, *, now_s: float) -> Report:
    """The findings of a fleet; `at_s` says of when."""
    return _kept(fleet, _REPORT, Report, functools.partial(_report, fleet, now_s))


def missing(fleet: Fleet, *, now_s: float) -> list[Finding]:
    """What is missing of a fleet, as its first frame will tell it."""
    return _kept(fleet, _MISSING, list[Finding], functools.partial(_missing, fleet, now_s))


def refresh(clock: Callable[[], float]) -> int:
    """Find out anew what somebody looked at lately; how much that was."""
    makers = ((_REPORT, _report), (_MISSING, _missing))
    large = [f for f in Fleet.objects.select_related("policy").order_by("name") if _is_large(f)]
    n = 0
    for fleet, (what, make) in itertools.product(large, makers):
        keys = {code: _key(fleet, what, "looked", code) for code, _ in settings.LANGUAGES}
        looked = zip(keys, _client().mget(list(keys.values())), strict=True)
        spoken = [code for code, at in looked if at is not None]
        if spoken:
            n += 1
            made = make(fleet, clock())
        for code in spoken:
            with translation.override(code):
                _write(fleet, what, made)
    return n


def _report(fleet: Fleet, now_s: float) -> Report:
    return findings.report(fleet, now=datetime.fromtimestamp(now_s, UTC))


def _missing(fleet: Fleet, now_s: float) -> list[Finding]:
    return live_source.missing_now(fleet, now_s=now_s)


def _kept(fleet: Fleet, what: str, kind: type[Kept], make: Callable[[], Kept]) -> Kept:
    if not _is_large(fleet):
        return make()
    try:
        with _client().pipeline(transaction=False) as pipe:
            pipe.get(_key(fleet, what, "kept"))
            pipe.set(_key(fleet, what, "looked"), 1, ex=_LOOKED_S)
            found, _ = pipe.execute()
        if found is not None:
            return msgspec.json.decode(found, type=kind)
    except (redis.RedisError, msgspec.MsgspecError) as exc:  # away, or written by another release
        log.info("nothing kept of fleet %s is used: %s", fleet.pk, exc)
    made = make()
    _write(fleet, what, made)
    return made


def _write(fleet: Fleet, what: str, made: object) -> None:
    """In the language of now: words that wait for their reader's are spoken here."""
    encoded = msgspec.json.encode(made, enc_hook=str)
    try:
        _client().set(_key(fleet, what, "kept"), encoded, ex=_SHOWN_S)
    except redis.RedisError as exc:
        log.info("nothing is kept of fleet %s: %s", fleet.pk, exc)


def _is_large(fleet: Fleet) -> bool:
    return sum(cluster["instances"] for cluster in fleet.scenario["clusters"]) > MOST_ROWS


def _key(fleet: Fleet, what: str, which: str, language: str | None = None) -> str:
    # A fleet of the same name that was made anew is another one.
    made_s = fleet.created_at.timestamp()
    return f"console:{which}:{what}:{language or translation.get_language()}:{fleet.pk}:{made_s}"


@functools.cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
    )
