"""What reports to this console, as rows of the fleet page: instances, links, gates, agents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.live_state import is_down, path_trouble
from console.plans import hue
from routing import delivery, fleets
from routing.core.scenario.document import Scenario
from routing.models import Fleet
from telemetry import store
from telemetry.models import Agent

PAGE_ROWS = 200


@dataclass(frozen=True)
class Page:
    """One page of rows; `total` after the filter, `all_total` before it."""

    rows: list[Any]
    number: int
    total: int
    all_total: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // PAGE_ROWS))


@dataclass(frozen=True)
class InstanceRow:
    """One engine; figures are None where the reading did not measure them or failed.

    `kind` is its cluster's.
    """

    path: str
    cluster: str
    name: str
    role: str
    kind: str
    hue: str
    mark: Mark
    at: datetime
    running: float | None
    waiting: float | None
    kv_ratio: float | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    engine: str


COLUMNS = (
    ("name", "Instance", False),
    ("role", "Role", False),
    ("state", "State", False),
    ("running", "Running", True),
    ("waiting", "Waiting", True),
    ("kv", "KV in use", True),
    ("prompt", "Prompt", True),
    ("output", "Output", True),
    ("engine", "Engine", False),
    ("age", "Age", True),
)
"""Of the instance table: sort key, label, whether it holds numbers."""
_SORTS = {
    "name": lambda row: row.path,
    "role": lambda row: (row.role, row.path),
    "state": lambda row: (row.mark.text, row.path),
    "running": lambda row: -(row.running or 0.0),
    "waiting": lambda row: -(row.waiting or 0.0),
    "kv": lambda row: -(row.kv_ratio or 0.0),
    "prompt": lambda row: -(row.prompt_tokens_per_s or 0.0),
    "output": lambda row: -(row.generation_tokens_per_s or 0.0),
    "engine": lambda row: (row.engine, row.path),
    "age": lambda row: row.at,
}


def freshness(state: str, error: str | None, received_s: float, now: datetime) -> Mark:
    """A reading that went wrong says how; silence says since when; the rest is fresh."""
    silent_s = now.timestamp() - received_s
    if silent_s > STALE_AFTER_S:
        since = datetime.fromtimestamp(received_s, UTC)
        return Mark(*WARN, f"silent since {since:%H:%M:%S}")
    if state == "ok":
        return Mark(*GOOD, "fresh")
    if state == "slow":
        return Mark(*WARN, error or "unresponsive, maybe busy")
    word = "down" if state == "down" else "read failed"
    return Mark(*BAD, f"{word}: {error}" if error else word)


def columns(sort: str) -> list[dict[str, Any]]:
    """Headers of the instance table; clicking the sorted one turns it round."""
    key, descending = sort.removeprefix("-"), sort.startswith("-")
    shown = []
    for name, label, is_number in COLUMNS:
        chosen = name == key
        # Numbers are asked for with the largest first, which is how their keys sort.
        upwards = descending if is_number else not descending
        shown.append(
            {
                "label": label,
                "num": is_number,
                "sorted": ("ascending" if upwards else "descending") if chosen else "",
                "next": f"-{name}" if chosen and not descending else name,
            }
        )
    return shown


def instances(
    fleet: str, scenario: Scenario, *, search: str, sort: str, page: int, now: datetime
) -> Page:
    """Instances whose path, role, engine or state contains `search`: one page of them."""
    kinds = {cluster.name: cluster.kind for cluster in scenario.clusters}
    found = [_instance(r, kinds, now) for r in newest("instance", f"{fleet}/", now)]
    wanted = search.lower()
    matching = [
        row
        for row in found
        if wanted in f"{row.path} {row.role} {row.engine} {row.mark.text}".lower()
    ]
    descending = sort.startswith("-")
    key = _SORTS.get(sort.removeprefix("-"), _SORTS["name"])
    matching.sort(key=key, reverse=descending)
    pages = max(1, -(-len(matching) // PAGE_ROWS))
    number = min(max(page, 1), pages)
    rows = matching[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
    return Page(rows=rows, number=number, total=len(matching), all_total=len(found))


def _instance(reading: store.Reading, kinds: dict[str, str], now: datetime) -> InstanceRow:
    _, cluster, name = reading.path.split("/", 2)
    signals = reading.signals
    return InstanceRow(
        path=reading.path,
        cluster=cluster,
        name=name,
        role=reading.role,
        kind=kinds.get(cluster, "pd"),
        hue=hue(kinds.get(cluster, "pd"), reading.role),
        mark=freshness(reading.state, reading.error, reading.received_s, now),
        at=datetime.fromtimestamp(reading.received_s, UTC),
        running=signals.requests_running,
        waiting=signals.requests_waiting,
        kv_ratio=signals.kv_cache_usage_ratio,
        prompt_tokens_per_s=signals.prompt_tokens_per_s,
        generation_tokens_per_s=signals.generation_tokens_per_s,
        engine=f"{reading.engine} {reading.engine_version}".strip(),
    )


def links(scenario: Scenario, now: datetime) -> list[dict[str, Any]]:
    """The fleet's links in the scenario's order, measured or not."""
    found = {reading.path: reading for reading in newest("link", "", now)}
    rows = []
    for link in scenario.links:
        reading = found.get(link.id)
        row: dict[str, Any] = {
            "id": link.id,
            "source": link.source,
            "target": link.target,
            "capacity_gbps": link.gbps,
            "signals": None,
        }
        if reading is None:
            row["mark"] = Mark(*OFF, "never read")
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
        return Mark(*BAD, "down")
    return mark


def gates(fleet: Fleet, now: datetime) -> list[dict[str, Any]]:
    """Routers that ever asked for a plan or were read by an agent, with what they run."""
    adopted = fleets.newest_adopted(fleet)
    desired = None if adopted is None else (adopted.epoch, adopted.version)
    rows = []
    for router in delivery.routers(fleet, now):
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


def _gate_mark(
    router: dict[str, Any], running: tuple[int, int] | None, desired: tuple[int, int] | None
) -> Mark:
    if router["last_seen_at"] is None:
        return Mark(*WARN, "never asked for a plan")
    if router["age_s"] > STALE_AFTER_S:
        return Mark(*WARN, f"silent since {router['last_seen_at']:%H:%M:%S}")
    if router["state"] == "refused":
        return Mark(*BAD, "refused the plan")
    if running is None:
        return Mark(*WARN, "no plan: everything local")
    if desired is not None and running > desired:
        return Mark(*BAD, "runs a newer plan than this console knows")
    if desired is not None and running < desired:
        return Mark("info", "wait", f"behind by {_behind(running, desired)}")
    return Mark(*GOOD, "runs the plan")


def _behind(running: tuple[int, int], desired: tuple[int, int]) -> str:
    if running[0] != desired[0]:
        return "an epoch"
    n = desired[1] - running[1]
    return f"{n} version" if n == 1 else f"{n} versions"


def agents(now: datetime) -> list[dict[str, Any]]:
    """Agents by name with how fresh they are and how far their clock is off."""
    rows = []
    for agent in Agent.objects.order_by("name"):
        silent_s = (now - agent.last_seen_at).total_seconds()
        if silent_s > FORGOTTEN_AFTER_S:
            mark = Mark(*OFF, "gone for over a day")
        else:
            mark = freshness("ok", None, agent.last_seen_at.timestamp(), now)
        rows.append({"agent": agent, "mark": mark})
    return rows


def newest(kind: str, prefix: str, now: datetime) -> list[store.Reading]:
    """The newest reading of everything of a kind that was read in the last day."""
    return store.latest(kind, prefix=prefix, now_s=now.timestamp(), within_s=FORGOTTEN_AFTER_S)
