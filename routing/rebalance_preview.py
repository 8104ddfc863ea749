"""What a move of roles would do, before anybody asks for it: from what was read last.

Which instances go is what the planner of rebalances says of these readings (`rebalance_plan`,
`rebalance_room`); its driver looks at routers and engines anew when the move begins.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing import commands, fleets, managed_sites, rebalance_looks, role_commands
from routing.adapters.engines import Engine
from routing.adapters.surface import ROLES, Actual, Capabilities, Listed
from routing.core.roles import asked
from routing.core.roles.drain import drain_s
from routing.core.scenario.document import Cluster, Scenario
from routing.managed_sites import Read
from routing.models import Fleet, ManagedRouter, Policy, Rebalance
from routing.rebalance_plan import Done, plan, unable
from routing.rebalance_room import room
from routing.rebalance_steps import Abort, Wait
from routing.role_commands import Roles, Seen
from telemetry import store

FRESH_S = 15.0
"""An instance or a router that was not read for longer is not judged by."""


@dataclass(frozen=True)
class Going:
    """One instance in the order in which they would go; `requests` None: nobody counts them."""

    instance: str
    from_role: str
    to_role: str
    unit: str
    requests: int
    drain_s: float


@dataclass(frozen=True)
class Preview:
    """`refused` by field: it cannot be asked for. `waits`: it would begin later, and why.
    `unknown`: why nobody can say which instances go."""

    fleet: str
    cluster: str
    present: Roles | None
    to: Roles
    refused: tuple[tuple[str, str], ...] = ()
    waits: str = ""
    warnings: tuple[str, ...] = ()
    going: tuple[Going, ...] = ()
    unknown: str = ""
    outlook: asked.Outlook | None = None
    seen_at: datetime.datetime | None = None

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.going)

    @property
    def drain_s(self) -> float:
        """One unit after the other; those of a unit together."""
        units: dict[str, float] = {}
        for each in self.going:
            unit = each.unit or each.instance
            units[unit] = max(units.get(unit, 0.0), each.drain_s)
        return sum(units.values())


def preview(
    policy: Policy, cluster: str, to: Roles, seen: Seen, now: datetime.datetime, *, actor: str
) -> Preview:
    """What it would do now if the actor moved `cluster` to these roles."""
    fleet, scenario = policy.fleet, fleets.scenario_of(policy.fleet)
    present = seen.roles(cluster)
    found = Preview(
        fleet=fleet.pk,
        cluster=cluster,
        present=present,
        to=to,
        refused=tuple(role_commands.why_not(policy, cluster, to, seen, now, actor=actor)),
    )
    described = scenario.cluster(cluster)
    if described is None or described.kind != "pd" or present in (None, to):
        return found
    found = _expected(found, policy, scenario, seen, now)
    if not described.routers or sum(to) != sum(present or ()):
        return found
    return _instances(found, fleet, scenario, described, now)


def _expected(
    found: Preview, policy: Policy, scenario: Scenario, seen: Seen, now: datetime.datetime
) -> Preview:
    """What the model expects at the traffic of the newest tick."""
    tick, running, observation = seen.tick, seen.running, seen.observation
    if tick is None or running is None or observation is None:
        return found
    holds = commands.open_holds(policy.fleet, now)
    expected = asked.outlook(
        observation,
        fleets.plan_of(running),
        fleets.memory_after(tick),
        dataclasses.replace(fleets.params_of(policy, holds), mode="active"),
        scenario,
        cluster=found.cluster,
        to=found.to,
    )
    warnings = () if expected is None else expected.warnings
    return dataclasses.replace(found, outlook=expected, warnings=warnings, seen_at=tick.at)


def _instances(
    found: Preview, fleet: Fleet, scenario: Scenario, cluster: Cluster, now: datetime.datetime
) -> Preview:
    """Which instances would go, as routers and engines were read last."""
    routers = rebalance_looks.of_reads(fleet, cluster, _reads(fleet, cluster, now))
    if routers.unanswered is not None:
        return dataclasses.replace(found, unknown=routers.unanswered)
    wrong = unable(routers)
    if wrong is not None:
        return _refused(found, wrong.reason)
    listed = {id for ids in routers.listings().values() for id in ids}
    said, silent = _engines(fleet, cluster, listed, now)
    wanted = Rebalance(
        fleet=fleet, cluster=cluster.name, to_n_prefill=found.to[0], to_n_decode=found.to[1]
    )
    planned = plan(wanted, routers, said, silent)
    if isinstance(planned, Abort):
        return _refused(found, planned.reason)
    if isinstance(planned, Wait):
        return dataclasses.replace(found, waits=planned.sentence)
    if isinstance(planned, Done):
        return dataclasses.replace(found, unknown="engines report these roles already")
    meets = room(planned, routers, scenario)
    going = [
        Going(
            instance=move.instance,
            from_role=move.from_role,
            to_role=move.to_role,
            unit=move.unit,
            requests=planned.looks[move.instance].requests,
            drain_s=drain_s(
                scenario, cluster.name, move.from_role, planned.looks[move.instance].requests
            ),
        )
        for move in planned.moves
    ]
    return dataclasses.replace(
        found,
        going=tuple(going),
        waits=meets.wait or "",
        warnings=(*found.warnings, *meets.facts["warnings"]),
    )


def _refused(found: Preview, text: str) -> Preview:
    return dataclasses.replace(found, refused=(*found.refused, ("cluster", text)))


def _reads(fleet: Fleet, cluster: Cluster, now: datetime.datetime) -> list[Read]:
    """The cluster's routers as rows keep what they showed last."""
    rows = {row.url: row for row in ManagedRouter.objects.filter(fleet=fleet, cluster=cluster.name)}
    sites = [site for site in managed_sites.sites(fleet) if site.cluster.name == cluster.name]
    return [_read(site, rows.get(site.url), now) for site in sites]


def _read(site: managed_sites.Site, row: ManagedRouter | None, now: datetime.datetime) -> Read:
    if row is None or row.observed is None or row.observed_at is None or row.capabilities is None:
        return Read(site, now, error=f"{site.name} was never read")
    silent_s = (now - row.observed_at).total_seconds()
    if silent_s > FRESH_S:
        return Read(site, row.observed_at, error=f"{site.name} was not read for {silent_s:.0f} s")
    workers = {url: _listed(url, entry) for url, entry in row.observed["workers"].items()}
    can = {**row.capabilities, "tried_versions": tuple(row.capabilities["tried_versions"])}
    return Read(site, row.observed_at, Actual(row.make_version, workers), Capabilities(**can))


def _listed(url: str, entry: Mapping[str, Any]) -> Listed:
    return Listed(
        url=url,
        role=ROLES.get(entry["role"] or ""),
        status=entry["status"],
        key=entry.get("key") or "",
        requests=entry.get("requests"),
    )


def _engines(
    fleet: Fleet, cluster: Cluster, listed: set[str], now: datetime.datetime
) -> tuple[dict[str, Engine], dict[str, str]]:
    """What telemetry last said of each engine, and of those that are silent why."""
    now_s = now.timestamp()
    readings = {
        reading.path: reading
        for reading in store.latest("instance", prefix=f"{fleet.pk}/{cluster.name}/", now_s=now_s)
    }
    said, silent = {}, {}
    for id in sorted(listed):
        reading = readings.get(id)
        if reading is None:
            silent[id] = "no agent reads it"
        elif reading.state != "ok" or now_s - reading.received_s > FRESH_S:
            silent[id] = f"not read for {now_s - reading.received_s:.0f} s"
        else:
            role = ROLES.get(reading.role) if cluster.role_switch == "engine" else None
            counts = (reading.signals.requests_running, reading.signals.requests_waiting)
            said[id] = Engine(role, round(sum(n or 0.0 for n in counts)))
    return said, silent
