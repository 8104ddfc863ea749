"""What reports to this console, as rows of pages: states of readings, links, gates, agents."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Count, Window
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console import figures
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.live_state import is_down, path_trouble
from routing import fleets, router_states
from routing.core.scenario.document import Scenario
from routing.models import Decision, Fleet
from telemetry import store
from telemetry.models import Agent

MOST_AGENTS: Final = 25
MOST_GATES: Final = 25
AHEAD_S: Final = store.FUTURE_S
"""A reading may be stamped so far ahead of our clock: one that is asked for as the newest is."""


def freshness(state: str, error: str | None, received_s: float, now: datetime) -> Mark:
    """A reading that went wrong says how; silence says since when; the rest is fresh."""
    silent_s = now.timestamp() - received_s
    if silent_s > STALE_AFTER_S:
        return Mark(*WARN, _("silent since %(at)s") % {"at": figures.clock(received_s)})
    return Mark(*GOOD, _("fresh")) if state == "ok" else read_mark(state, error)


def read_mark(state: str, error: str | None) -> Mark:
    """What one reading says of itself, whatever its age."""
    if state == "ok":
        return Mark(*GOOD, _("read"))
    if state == "slow":
        return Mark(*WARN, error or _("unresponsive, maybe busy"))
    words = {"down": _("down"), "gone": _("gone")}
    word = words.get(state, _("read failed"))
    return Mark(*(OFF if state == "gone" else BAD), f"{word}: {error}" if error else word)


def state_of(reading: store.Reading, now: datetime) -> str:
    """`ok`, `slow`, `failed` or `down` as its newest reading says, `silent` where that is old."""
    is_silent = now.timestamp() - reading.received_s > STALE_AFTER_S
    return "silent" if is_silent else reading.state


def links(
    scenario: Scenario, now: datetime, readings: Iterable[store.Reading] | None = None
) -> list[dict[str, Any]]:
    """The fleet's links in the scenario's order, measured or not; `readings` are the newest of
    links where they were read already."""
    if readings is None:
        readings = newest("link", "", now)
    found = {reading.path: reading for reading in readings}
    rows = []
    for link in scenario.links:
        reading = found.get(link.id)
        row: dict[str, Any] = {
            "id": link.id,
            "source": link.source,
            "target": link.target,
            "capacity_gbps": link.gbps,
            "signals": None,
            "reading": reading,
        }
        if reading is None:
            row["mark"] = Mark(*OFF, _("never read"))
        else:
            signals = reading.signals
            capacity = link.gbps if signals.capacity_gbps is None else signals.capacity_gbps
            mark = _link_mark(reading, now)
            row |= {
                "mark": mark,
                "path_trouble": path_trouble(reading) if mark.tone == GOOD[0] else "",
                "at": datetime.fromtimestamp(reading.received_s, UTC),
                "signals": signals,
                "layer": reading.measured_layer,
                "capacity_gbps": capacity,
                "utilisation_ratio": signals.tx_gbps / capacity
                if signals.tx_gbps is not None and capacity
                else None,
            }
        rows.append(row)
    return rows


def _link_mark(reading: store.Reading, now: datetime) -> Mark:
    mark = freshness(reading.state, reading.error, reading.received_s, now)
    if mark.tone == "good" and is_down(reading):
        return Mark(*BAD, _("down"))
    return mark


def gates(fleet: Fleet, now: datetime) -> list[dict[str, Any]]:
    """Routers that ever asked for a plan or were read by an agent, with what they run."""
    return gates_under(fleet, fleets.newest_adopted(fleet), now)


def gates_under(
    fleet: Fleet, adopted: Decision | None, now: datetime, **known: Any
) -> list[dict[str, Any]]:
    """The same; `adopted` is the plan in force, `known` what `router_states.told` need not ask."""
    desired = None if adopted is None else (adopted.epoch, adopted.version)
    rows = []
    for router in router_states.told(fleet, adopted, now, **known):
        running = None
        if router["version_running"] is not None:
            running = (router["epoch_running"], router["version_running"])
        rows.append(
            {
                **router,
                "name": router["router"].split("/", 1)[1],
                "running": running,
                "desired": desired,
                "mark": _gate_mark(router, running, desired),
            }
        )
    return rows


def worst_first(gates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of many gates the first MOST_GATES, those with something to tell before the others; few stay
    as they are."""
    if len(gates) <= MOST_GATES:
        return gates
    told = sorted(gates, key=lambda gate: gate["mark"].tone == GOOD[0] and not gate["findings"])
    return told[:MOST_GATES]


def _gate_mark(
    router: dict[str, Any], running: tuple[int, int] | None, desired: tuple[int, int] | None
) -> Mark:
    if router["last_seen_at"] is None:
        return Mark(*WARN, _("never asked for a plan"))
    if router["age_s"] > STALE_AFTER_S:
        at = figures.clock(router["last_seen_at"])
        return Mark(*WARN, _("silent since %(at)s") % {"at": at})
    if router["state"] == "refused":
        return Mark(*BAD, _("refused the plan"))
    if router["state"] == "overridden":
        return Mark(*BAD, _("overridden on the gate"))
    if running is None:
        return Mark(*WARN, _("no plan: everything local"))
    if desired is not None and running > desired:
        return Mark(*BAD, _("runs a newer plan than this console knows"))
    if desired is not None and running < desired:
        return Mark("info", "wait", _behind(running, desired))
    return Mark(*GOOD, _("runs the plan"))


def _behind(running: tuple[int, int], desired: tuple[int, int]) -> str:
    if running[0] != desired[0]:
        return _("behind by an epoch")
    n = desired[1] - running[1]
    words = ngettext("behind by %(n)s version", "behind by %(n)s versions", n)
    return words % {"n": n}


def agents(now: datetime, among: frozenset[str] | None = None) -> tuple[list[dict[str, Any]], int]:
    """Agents by name with how fresh they are and how far their clock is off, and how many there
    are, among those of these names (None: all).

    Of more than MOST_AGENTS so many, those that were not heard of for the longest.
    """
    rows = []
    known = Agent.objects.all()
    if among is not None:
        known = known.filter(name__in=sorted(among))
    counted = known.annotate(n_all=Window(Count("pk")))
    longest = list(counted.order_by("last_seen_at", "name")[:MOST_AGENTS])
    for agent in sorted(longest, key=lambda agent: agent.name):
        silent_s = (now - agent.last_seen_at).total_seconds()
        if silent_s > FORGOTTEN_AFTER_S:
            mark = Mark(*OFF, _("gone for over a day"))
        else:
            mark = freshness("ok", None, agent.last_seen_at.timestamp(), now)
        rows.append({"agent": agent, "mark": mark})
    return rows, longest[0].n_all if longest else 0


def newest_of_fleet(
    fleet: Fleet, now: datetime, cluster: str = ""
) -> dict[str, list[store.Reading]]:
    """By kind the same of a fleet's instances and routers, or of one cluster's, and of all links,
    in one go."""
    prefix = f"{fleet.pk}/{cluster}/" if cluster else f"{fleet.pk}/"
    return store.latest_of(
        {"instance": prefix, "link": "", "router": prefix},
        now_s=now.timestamp(),
        within_s=FORGOTTEN_AFTER_S,
    )


def newest(kind: str, prefix: str, now: datetime) -> list[store.Reading]:
    """The newest reading of everything of a kind that was read in the last day."""
    return store.latest(kind, prefix=prefix, now_s=now.timestamp(), within_s=FORGOTTEN_AFTER_S)
