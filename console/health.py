"""Is it alive, is it ready, how does it do: for probes and for Prometheus, without a login.

All answers come from the database and the broker, so every web process gives the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from console import figures
from console.missing import CLOCK_AHEAD_S
from routing import delivery, fleets, rights
from routing.models import Decision, Fleet, RouterState, Tick
from telemetry import tokens

READY_TICKS = 5
"""Ticks that may be missing before the loop counts as stopped."""
_BROKER_TIMEOUT_S = 2.0
_LOOPBACK = ("127.0.0.1", "::1")


@login_not_required
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """This process answers."""
    return JsonResponse({"ok": True})


@login_not_required
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Database, broker and loop work: 200, or 503 with the reasons."""
    reasons = [*_database_reasons(), *_broker_reasons()]
    status = 503 if reasons else 200
    return JsonResponse({"ok": not reasons, "reasons": reasons}, status=status)


def _database_reasons() -> list[str]:
    try:
        return _loop_reasons()
    except DatabaseError as exc:
        return [f"the database does not answer: {exc.__class__.__name__}"]


def _loop_reasons() -> list[str]:
    limit = timedelta(seconds=READY_TICKS * settings.ENV["CONSOLE_TICK_S"])
    now = timezone.now()
    reasons = []
    for fleet in Fleet.objects.order_by("name"):
        tick = fleets.newest_tick(fleet)
        age = now - (tick.at if tick else fleet.created_at)
        if age < -timedelta(seconds=CLOCK_AHEAD_S):
            at = figures.stamp(now - age)
            reasons.append(f"{fleet}: the clock was set back, the last tick is of {at}")
        elif age > limit:
            what = "the last tick was" if tick else "no tick yet, and it was made"
            reasons.append(f"{fleet}: {what} {age.total_seconds():.0f} s ago")
    return reasons


def _broker_reasons() -> list[str]:
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=_BROKER_TIMEOUT_S,
        socket_connect_timeout=_BROKER_TIMEOUT_S,
    )
    try:
        with client:
            client.ping()
    except redis.RedisError as exc:
        return [f"the broker does not answer: {exc.__class__.__name__}"]
    return []


@login_not_required
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Prometheus metrics, for this host or a token that may read."""
    if not (_from_this_host(request) or _may_read(request)):
        return HttpResponse("a token with scope read is needed\n", status=401)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LoopCollector())
    # The default registry holds what this very process counts: ingest and sockets.
    text = generate_latest(registry) + generate_latest()
    return HttpResponse(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)


def _from_this_host(request: HttpRequest) -> bool:
    # Behind a proxy everybody comes from this host: then only a token counts.
    proxied = "X-Forwarded-For" in request.headers or "Forwarded" in request.headers
    return request.META.get("REMOTE_ADDR") in _LOOPBACK and not proxied


def _may_read(request: HttpRequest) -> bool:
    secret = tokens.bearer(request.headers.get("Authorization", ""))
    token = tokens.find(secret, timezone.now()) if secret else None
    return token is not None and rights.of_token(token.scopes, token.fleet).may("read")


class LoopCollector(Collector):
    """The loop and its routers, read from the tables at each scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        now = timezone.now()
        age = GaugeMetricFamily(
            "prfaas_console_tick_age_seconds", "Age of the newest tick.", labels=["fleet"]
        )
        duration = GaugeMetricFamily(
            "prfaas_console_tick_duration_seconds", "How long it took.", labels=["fleet"]
        )
        for fleet in Fleet.objects.order_by("name"):
            newest = Tick.objects.filter(fleet=fleet).order_by("-at").only("at", "duration_ms")
            tick = newest.first()
            if tick is not None:
                age.add_metric([fleet.pk], (now - tick.at).total_seconds())
                duration.add_metric([fleet.pk], tick.duration_ms / 1000.0)
        yield age
        yield duration
        decisions = CounterMetricFamily(
            "prfaas_console_decisions", "Decisions recorded.", labels=["fleet", "kind", "reason"]
        )
        counted = Decision.objects.values_list("fleet", "kind", "reason").annotate(Count("id"))
        for fleet, kind, reason, n in counted.order_by("fleet", "kind", "reason"):
            decisions.add_metric([fleet, kind, reason], n)
        yield decisions
        yield from self._gates(now)

    def _gates(self, now: timezone.datetime) -> Iterator[GaugeMetricFamily]:
        known = GaugeMetricFamily("prfaas_console_gates", "Gates heard of.", labels=["fleet"])
        applied = GaugeMetricFamily(
            "prfaas_console_gates_applied", "Of those, gates on the newest plan.", labels=["fleet"]
        )
        for fleet in Fleet.objects.order_by("name"):
            newest = fleets.newest_adopted(fleet)
            recent = RouterState.objects.filter(
                fleet=fleet, last_seen_at__gte=now - delivery.EXPECTED_WITHIN
            )
            known.add_metric([fleet.pk], recent.count())
            on_newest = (
                recent.filter(epoch_running=newest.epoch, version_running=newest.version).count()
                if newest
                else 0
            )
            applied.add_metric([fleet.pk], on_newest)
        yield known
        yield applied
