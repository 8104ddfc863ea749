"""What the frame around every page tells of the fleet that is open, in one statement.

Each fact is read anew for each page, as the frame must never be older than what it frames; one
statement, because ten round trips would be most of what a small page costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection


@dataclass(frozen=True)
class Held:
    """The open hold of mode and t that ends last; empty cluster: every PD cluster."""

    cluster: str
    owner: str
    reason: str
    expires_at: datetime


@dataclass(frozen=True)
class Facts:
    """Of the open fleet: its policy, when the loop ran last, who reports, what routers run.

    Agents and gates are those heard of lately; `newest_plan` is the newest (epoch, version) that
    any of these gates runs, `n_gates_on_it` are fresh ones that run it. `n_overridden` are gates on
    which a person set another rule; `routers` counts managed routers by state;
    `n_proposed` changes wait for a second person in any fleet where one may be that. `windows` and
    `maintained` are the rows of windows that are not over and of what is worked on now, as JSON:
    few pages read them.
    """

    fleet: str
    mode: str
    policy_version: int
    updated_by: str
    updated_at: datetime
    hold: Held | None
    tick_at: datetime | None
    n_agents: int
    n_agents_fresh: int
    n_gates: int
    n_gates_on_it: int
    n_overridden: int
    newest_plan: tuple[int, int] | None
    routers: Mapping[str, int]
    n_proposed: int
    windows: str
    maintained: str


def read(
    wanted: str | None,
    now: datetime,
    *,
    among: frozenset[str] | None,
    approving: frozenset[str] | None,
    stale_s: float,
    forgotten_s: float,
) -> tuple[list[str], Facts | None]:
    """The names of the fleets `among` those (None: of all), and the facts of `wanted`, or of the
    first fleet if there is none of that name. What waits is counted in the fleets `approving` and,
    with None, what is of several. Silent for `stale_s` is not fresh, for `forgotten_s`
    not counted."""
    with connection.cursor() as cursor:
        cursor.execute(
            _FACTS,
            {
                "wanted": wanted or "",
                "among": None if among is None else sorted(among),
                "approving": None if approving is None else sorted(approving),
                "now": now,
                "now_s": now.timestamp(),
                "fresh": now - timedelta(seconds=stale_s),
                "known": now - timedelta(seconds=forgotten_s),
            },
        )
        row = cursor.fetchone()
    if row is None:
        return [], None
    names, policy, held, counts = row[0], row[1:6], row[6:10], row[10:16]
    newest_plan, routers, n_proposed, windows, maintained = row[16:]
    return names, Facts(
        *policy,
        Held(*held) if held[3] is not None else None,
        *counts,
        newest_plan=None if newest_plan is None else (newest_plan[0], newest_plan[1]),
        routers=json.loads(routers or "{}"),
        n_proposed=n_proposed,
        windows=windows or "[]",
        maintained=maintained or "[]",
    )


_FACTS = """
    SELECT
        (
            SELECT array_agg(name ORDER BY name) FROM routing_fleet
            WHERE %(among)s::text[] IS NULL OR name = ANY(%(among)s::text[])
        ),
        fleet.name, policy.mode, policy.version, policy.updated_by, policy.updated_at,
        held.cluster, held.owner, held.reason, held.expires_at,
        (SELECT at FROM routing_tick WHERE fleet_id = fleet.name ORDER BY seq DESC LIMIT 1),
        agents.n, agents.n_fresh,
        gates.n, gates.n_on_it, gates.n_overridden, gates.newest,
        routers.states,
        (
            SELECT count(*) FROM approvals_proposal
            WHERE state = 'open' AND expires_at > %(now)s
                AND (%(approving)s::text[] IS NULL OR fleet = ANY(%(approving)s::text[]))
        ),
        (
            SELECT jsonb_agg(
                jsonb_build_array(name, document, extract(epoch FROM updated_at)) ORDER BY name
            ) FROM windows_window
            WHERE windows_window.fleet IN ('', fleet.name) AND enabled
                AND (ends_at IS NULL OR ends_at > %(now)s)
        ),
        (
            SELECT jsonb_agg(to_jsonb(worked) ORDER BY ends_at DESC, id)
            FROM windows_maintenance worked
            WHERE worked.fleet = fleet.name AND starts_at <= %(now)s AND ends_at > %(now)s
        )
    FROM (
        SELECT name FROM routing_fleet
        WHERE %(among)s::text[] IS NULL OR name = ANY(%(among)s::text[])
        ORDER BY name = %(wanted)s DESC, name LIMIT 1
    ) fleet
    JOIN routing_policy policy ON policy.fleet_id = fleet.name
    LEFT JOIN LATERAL (
        SELECT cluster, owner, reason, expires_at FROM routing_hold
        WHERE fleet_id = fleet.name AND released_at IS NULL AND expires_at > %(now)s
            AND mode <> ''
        ORDER BY expires_at DESC, id LIMIT 1
    ) held ON true
    CROSS JOIN (
        SELECT count(*) AS n, count(*) FILTER (WHERE last_seen_at >= %(fresh)s) AS n_fresh
        FROM telemetry_agent WHERE last_seen_at > %(known)s
    ) agents
    CROSS JOIN LATERAL (
        SELECT
            count(*) FILTER (WHERE is_known) AS n,
            max(newest) AS newest,
            count(*) FILTER (
                WHERE is_known AND runs = newest AND last_seen_at >= %(fresh)s
            ) AS n_on_it,
            count(*) FILTER (WHERE until_s > %(now_s)s) AS n_overridden
        FROM (
            SELECT
                last_seen_at, last_seen_at > %(known)s AS is_known, until_s, runs,
                max(runs) FILTER (WHERE last_seen_at > %(known)s) OVER () AS newest
            FROM (
                SELECT
                    last_seen_at, (override ->> 'until_s')::float8 AS until_s,
                    CASE WHEN version_running IS NOT NULL
                        THEN ARRAY[epoch_running, version_running] END AS runs
                FROM routing_routerstate WHERE fleet_id = fleet.name
            ) gate
        ) gate
    ) gates
    CROSS JOIN LATERAL (
        SELECT jsonb_object_agg(state, n) AS states FROM (
            SELECT state, count(*) AS n FROM routing_managedrouter
            WHERE fleet_id = fleet.name GROUP BY state
        ) one
    ) routers
"""
