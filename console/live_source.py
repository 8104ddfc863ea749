"""Where a live view starts from: the newest rows of the database, as a FleetState.

Used by the hub when it begins to watch a fleet and by the REST snapshot, so both show the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings

from console.live_state import FORGET_S, Ack, FleetState, is_down
from console.missing import Finding
from console.router_window import SHARE_WINDOW_S
from routing import fleets, scheduler
from routing.models import Fleet, RouterState, Tick
from telemetry import store
from telemetry.models import Agent, Source

_WINDOW_BIN_S = 5.0
_TROUBLE_BIN_S = 15.0
_MOST_LOOKED_UP = 50
"""Sources whose troubles are followed back to their beginning; of more, the time of the newest
reading has to do."""


def load(fleet_name: str, *, now_s: float) -> FleetState:
    """The fleet as the database knows it at `now_s`. Raises Fleet.DoesNotExist."""
    fleet = Fleet.objects.get(pk=fleet_name)
    state = _empty(fleet)
    # A router's shares need a minute of readings, everything else only the newest.
    recent = store.window(
        "router",
        prefix=f"{fleet.pk}/",
        since_s=now_s - SHARE_WINDOW_S - _WINDOW_BIN_S,
        until_s=now_s + store.FUTURE_S,
        bin_s=_WINDOW_BIN_S,
    )
    newest = _newest(state, now_s)
    _apply(
        state,
        [
            *(reading for reading in newest["router"] if reading.path not in recent),
            *(reading for readings in recent.values() for reading in readings),
            *newest["instance"],
            *newest["link"],
        ],
        now_s,
    )
    tick = fleets.newest_tick(fleet)
    if tick is not None:
        plan = fleets.newest_adopted(fleet)
        issued_at = plan.created_at if plan else tick.at
        message = scheduler.tick_message(tick, plan)
        state.apply_loop(message, plan_since_s=issued_at.timestamp())
    state.forget(now_s)
    return state


def missing_now(fleet: Fleet, *, now_s: float) -> list[Finding]:
    """What is missing at `now_s` as the first frame will tell it, for a page before its socket is
    open: nothing is read that only figures need."""
    state = _empty(fleet)
    newest = _newest(state, now_s)
    _apply(state, [*newest["router"], *newest["instance"], *newest["link"]], now_s)
    tick = (
        Tick.objects.filter(fleet=fleet)
        .order_by("-seq")
        .values("at", "mode", "action", "reason")
        .first()
    )
    if tick is not None:
        at = tick.pop("at")
        plan = fleets.adopted(fleet).values("epoch", "version", "created_at").first()
        issued_at = plan.pop("created_at") if plan else at
        loop = {**tick, "at_s": at.timestamp(), "plan": plan}
        state.apply_loop(loop, plan_since_s=issued_at.timestamp())
    state.forget(now_s)
    return state.missing(now_s)


def _empty(fleet: Fleet) -> FleetState:
    links = {
        f"{link['from']}->{link['to']}": link["gbps"] for link in fleet.scenario.get("links", [])
    }
    return FleetState(
        fleet.pk,
        link_gbps=links,
        pds=[c["name"] for c in fleet.scenario.get("clusters", []) if c["kind"] == "pd"],
        tick_s=settings.ENV["CONSOLE_TICK_S"],
    )


def _newest(state: FleetState, now_s: float) -> dict[str, list[store.Reading]]:
    """By kind the newest reading of everything of the fleet."""
    prefix = f"{state.fleet}/"
    found = store.latest_of(
        {"router": prefix, "instance": prefix, "link": ""}, now_s=now_s, within_s=FORGET_S
    )
    links = [reading for reading in found["link"] if reading.path in state.link_gbps]
    return {**found, "link": links}


def _apply(state: FleetState, readings: list[store.Reading], now_s: float) -> None:
    """Readings with since when they are in trouble, who reads what, and what routers said."""
    since_s = _troubles(readings, now_s)
    for reading in readings:
        failing_s, down_s = since_s.get((reading.kind, reading.path), (None, None))
        state.apply(reading, failing_since_s=failing_s, down_since_s=down_s)
    sources = _sources(f"{state.fleet}/", state)
    for kind, path, agent in sources:
        state.apply_reader(agent, kind, path)
    for agent in Agent.objects.filter(name__in={name for _, _, name in sources}):
        state.apply_agent(agent.name, agent.last_seen_at.timestamp(), agent.skew_s)
    state.acks = acks(state.fleet).get(state.fleet, [])


def snapshot(fleet_name: str, *, now_s: float) -> dict[str, Any]:
    """One frame of the live socket, from the database alone. Raises Fleet.DoesNotExist."""
    state = load(fleet_name, now_s=now_s)
    return {
        "type": "frame",
        "stream": None,
        "seq": None,
        "at_s": now_s,
        "snapshot": True,
        **state.body(now_s),
        "missing": [finding.jsonable() for finding in state.missing(now_s)],
        "events": [],
    }


def acks(fleet: str | None = None) -> dict[str, list[Ack]]:
    """By fleet (or of one only), what its routers acknowledged last. Raises DatabaseError where
    nothing answers."""
    rows = RouterState.objects.all() if fleet is None else RouterState.objects.filter(fleet=fleet)
    found: dict[str, list[Ack]] = {}
    for name, router, heard_at, epoch, version in rows.values_list(
        "fleet_id", "router", "last_seen_at", "epoch_running", "version_running"
    ):
        plan = None if epoch is None or version is None else (epoch, version)
        ack = Ack(router=router, heard_s=heard_at.timestamp(), plan=plan)
        found.setdefault(name, []).append(ack)
    return found


def _sources(prefix: str, state: FleetState) -> list[tuple[str, str, str]]:
    """(kind, path, agent) of everything of this fleet that an agent reads."""
    sources = Source.objects.filter(path__startswith=prefix) | Source.objects.filter(
        kind="link", path__in=list(state.link_gbps)
    )
    return list(sources.values_list("kind", "path", "agent"))


def _failed(reading: store.Reading) -> bool:
    return reading.state != "ok"


def _troubles(
    readings: list[store.Reading], now_s: float
) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """By kind and path of the first sources in trouble: since when they cannot be read, and since
    when they are down, FORGET_S ago at most; None: they are not."""
    newest = {(reading.kind, reading.path): reading for reading in readings}
    found = [r for r in newest.values() if _failed(r) or is_down(r)][:_MOST_LOOKED_UP]
    since_s: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    for kind in sorted({reading.kind for reading in found}):
        of_kind = [reading for reading in found if reading.kind == kind]
        earlier = store.window(
            kind,
            paths={reading.path for reading in of_kind},
            since_s=now_s - FORGET_S,
            until_s=now_s + store.FUTURE_S,
            bin_s=_TROUBLE_BIN_S,
        )
        for reading in of_kind:
            rows = earlier.get(reading.path, [])
            since_s[kind, reading.path] = (
                _since_s(reading, _failed, rows),
                _since_s(reading, is_down, rows),
            )
    return since_s


def _since_s(
    reading: store.Reading, trouble: Callable[[store.Reading], bool], rows: list[store.Reading]
) -> float | None:
    """Since when `rows`, the readings of a source up to its newest, show a trouble; None if not."""
    if not trouble(reading):
        return None
    began_s = reading.received_s
    for earlier in reversed(rows):
        if not trouble(earlier):
            break
        began_s = min(began_s, earlier.received_s)
    return began_s
