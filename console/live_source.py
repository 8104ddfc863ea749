"""Where a live view starts from: the newest rows of the database, as a FleetState.

Used by the hub when it begins to watch a fleet and by the REST snapshot, so both show the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings

from console.live_state import FORGET_S, Ack, FleetState, is_down
from console.router_window import SHARE_WINDOW_S
from routing import fleets, scheduler
from routing.models import Fleet, RouterState
from telemetry import store
from telemetry.models import Agent, Source

_WINDOW_BIN_S = 5.0
_TROUBLE_BIN_S = 15.0
_MOST_LOOKED_UP = 50
"""Sources whose troubles are followed back to their beginning, a query each; of more, the time of
the newest reading has to do."""


def load(fleet_name: str, *, now_s: float) -> FleetState:
    """The fleet as the database knows it at `now_s`. Raises Fleet.DoesNotExist."""
    fleet = Fleet.objects.get(pk=fleet_name)
    links = {
        f"{link['from']}->{link['to']}": link["gbps"] for link in fleet.scenario.get("links", [])
    }
    state = FleetState(
        fleet.pk,
        link_gbps=links,
        pds=[c["name"] for c in fleet.scenario.get("clusters", []) if c["kind"] == "pd"],
        tick_s=settings.ENV["CONSOLE_TICK_S"],
    )
    prefix = f"{fleet.pk}/"
    # A router's shares need a minute of readings, everything else only the newest.
    recent = store.window(
        "router",
        prefix=prefix,
        since_s=now_s - SHARE_WINDOW_S - _WINDOW_BIN_S,
        until_s=now_s + store.FUTURE_S,
        bin_s=_WINDOW_BIN_S,
    )
    older = store.latest("router", prefix=prefix, now_s=now_s, within_s=FORGET_S)
    newest = [
        *(reading for reading in older if reading.path not in recent),
        *(reading for readings in recent.values() for reading in readings),
        *store.latest("instance", prefix=prefix, now_s=now_s, within_s=FORGET_S),
        *(
            reading
            for reading in store.latest("link", now_s=now_s, within_s=FORGET_S)
            if reading.path in state.link_gbps
        ),
    ]
    n_looked_up = 0
    for reading in newest:
        since_s: tuple[float | None, float | None] = (None, None)
        if n_looked_up < _MOST_LOOKED_UP and (_failed(reading) or is_down(reading)):
            n_looked_up += 1
            since_s = _since_s(reading, _failed, now_s), _since_s(reading, is_down, now_s)
        state.apply(reading, failing_since_s=since_s[0], down_since_s=since_s[1])
    sources = _sources(prefix, state)
    for kind, path, agent in sources:
        state.apply_reader(agent, kind, path)
    for agent in Agent.objects.filter(name__in={name for _, _, name in sources}):
        state.apply_agent(agent.name, agent.last_seen_at.timestamp(), agent.skew_s)
    state.acks = acks().get(fleet.pk, [])
    tick = fleets.newest_tick(fleet)
    if tick is not None:
        plan = fleets.newest_adopted(fleet)
        issued_at = plan.created_at if plan else tick.at
        message = scheduler.tick_message(tick, plan)
        state.apply_loop(message, plan_since_s=issued_at.timestamp())
    state.forget(now_s)
    return state


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


def acks() -> dict[str, list[Ack]]:
    """By fleet, what its routers acknowledged last. Raises DatabaseError where nothing answers."""
    found: dict[str, list[Ack]] = {}
    for row in RouterState.objects.all():
        plan = None
        if row.epoch_running is not None and row.version_running is not None:
            plan = (row.epoch_running, row.version_running)
        ack = Ack(router=row.router, heard_s=row.last_seen_at.timestamp(), plan=plan)
        found.setdefault(row.fleet_id, []).append(ack)
    return found


def _sources(prefix: str, state: FleetState) -> list[tuple[str, str, str]]:
    """(kind, path, agent) of everything of this fleet that an agent reads."""
    sources = Source.objects.filter(path__startswith=prefix) | Source.objects.filter(
        kind="link", path__in=list(state.link_gbps)
    )
    return list(sources.values_list("kind", "path", "agent"))


def _failed(reading: store.Reading) -> bool:
    return reading.state != "ok"


def _since_s(
    reading: store.Reading, trouble: Callable[[store.Reading], bool], now_s: float
) -> float | None:
    """Since when the readings of a source show a trouble, FORGET_S ago at most; None if not."""
    if not trouble(reading):
        return None
    recent = store.window(
        reading.kind,
        prefix=reading.path,
        since_s=now_s - FORGET_S,
        until_s=now_s + store.FUTURE_S,
        bin_s=_TROUBLE_BIN_S,
    ).get(reading.path, [])
    began_s = reading.received_s
    for earlier in reversed(recent):
        if not trouble(earlier):
            break
        began_s = min(began_s, earlier.received_s)
    return began_s
