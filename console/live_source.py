"""Where a live view starts from: the newest rows of the database, as a FleetState.

Used by the hub when it begins to watch a fleet and by the REST snapshot, so both show the same.
"""

from __future__ import annotations

from typing import Any

from console.live_state import FORGET_S, SHARE_WINDOW_S, FleetState
from routing import fleets, scheduler
from routing.models import Fleet
from telemetry import store
from telemetry.models import Agent, Source

_WINDOW_BIN_S = 5.0


def load(fleet_name: str, *, now_s: float) -> FleetState:
    """The fleet as the database knows it at `now_s`. Raises Fleet.DoesNotExist."""
    fleet = Fleet.objects.get(pk=fleet_name)
    links = {
        f"{link['from']}->{link['to']}": link["gbps"] for link in fleet.scenario.get("links", [])
    }
    state = FleetState(fleet.pk, link_gbps=links)
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
    for reading in newest:
        state.apply(reading)
    for agent in _agents(prefix, state):
        state.apply_agent(agent.name, agent.last_seen_at.timestamp(), agent.skew_s)
    tick = fleets.newest_tick(fleet)
    if tick is not None:
        state.loop = scheduler.tick_message(tick, fleets.newest_adopted(fleet))
    state.forget(now_s)
    return state


def snapshot(fleet_name: str, *, now_s: float) -> dict[str, Any]:
    """One frame of the live socket, from the database alone. Raises Fleet.DoesNotExist."""
    return {
        "type": "frame",
        "stream": None,
        "seq": None,
        "at_s": now_s,
        "snapshot": True,
        **load(fleet_name, now_s=now_s).body(now_s),
        "events": [],
    }


def _agents(prefix: str, state: FleetState) -> list[Agent]:
    """The agents that report something of this fleet."""
    sources = Source.objects.filter(path__startswith=prefix) | Source.objects.filter(
        kind="link", path__in=list(state.link_gbps)
    )
    return list(Agent.objects.filter(name__in=sources.values("agent")))
