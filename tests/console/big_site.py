"""A site at full size: 3,000 engines in 56 clusters, 300 links, 200 gates, 100 fleets, and a past.

Made by bulk inserts within seconds, for tests that count queries and bytes and for the bench of
pages. Ticks are what the loop writes of this fleet, one real pass of it copied into the past.
Names that people and machines choose are as bad as the doors let them be.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, models
from django.utils import timezone

from routing import scheduler
from routing.models import (
    Decision,
    EffectCheck,
    Fleet,
    ManagedRouter,
    Policy,
    Rebalance,
    RoleMove,
    RouterState,
    Tick,
)
from tests.console import big_costs, big_people
from tests.console.big_people import FORMULA, HOSTILE, MARKUP
from tests.console.big_readings import Place, Plant
from tests.routing.cases import SCENARIO

FLEET = "atlas"
N_FLEETS, N_PD, N_PRFAAS, N_GATES_A_PD = 100, 50, 6, 4
PD_SIZE, PD_PREFILL, PRFAAS_SIZES = 56, 20, (34, 34, 33, 33, 33, 33)
ODD_PD = f"pd-{MARKUP}"
TICK_S = 2.0
N_TICKS, N_DECISIONS, N_REBALANCES = 1800, 120, 200
MOMENTS_S = (*range(-330, -60, 30), *range(-60, 1, 5))
"""When everything reported before now: enough for every window that a page looks back."""


@dataclass(frozen=True)
class Site:
    """What was made. `plant` goes on reporting if asked to; `fleet` is the large one."""

    fleet: Fleet
    plant: Plant
    now: datetime

    def newest(self, model: type[models.Model]) -> Any:
        """The newest row of the large fleet."""
        return model.objects.filter(fleet=self.fleet).order_by("-pk")[0]  # type: ignore[attr-defined]


def pd_names() -> list[str]:
    return [*(f"pd-{i:02d}" for i in range(N_PD - 1)), ODD_PD]


def scenario() -> dict[str, Any]:
    """The large fleet's document."""
    document = copy.deepcopy(SCENARIO)
    document["fleet"]["name"] = FLEET
    prfaas = [f"prfaas-{i}" for i in range(N_PRFAAS)]
    start = {"n_prefill": PD_PREFILL, "threshold_tokens": 19_800}
    document["clusters"] = [
        {"name": name, "kind": "prefill", "profile": "h200", "instances": n}
        for name, n in zip(prfaas, PRFAAS_SIZES, strict=True)
    ] + [
        {"name": name, "kind": "pd", "profile": "h20", "instances": PD_SIZE, "start": start}
        for name in pd_names()
    ]
    document["links"] = [
        {"from": near, "to": far, "gbps": 100.0, "rtt_ms": 5.0}
        for near in prfaas
        for far in pd_names()
    ]
    workload = document.pop("workload") | {"rate_rps": 2.4}
    document["workloads"] = [{"cluster": name, **workload} for name in pd_names()]
    return document


def plant() -> Plant:
    """Its engines, links and gates; the first of each hostile kind is in `pd-00`."""
    engines = [
        Place(f"{FLEET}/prfaas-{i}/h200-{n:03d}", "prefill")
        for i, size in enumerate(PRFAAS_SIZES)
        for n in range(size)
    ]
    for cluster in pd_names():
        names = [f"h20-{n:03d}" for n in range(PD_SIZE)]
        if cluster == "pd-00":
            names[: len(HOSTILE)] = HOSTILE
        engines += [
            Place(f"{FLEET}/{cluster}/{name}", "prefill" if n < PD_PREFILL else "decode")
            for n, name in enumerate(names)
        ]
    gates = [
        Place(f"{FLEET}/{cluster}/gw-{n}", "gate")
        for cluster in pd_names()
        for n in range(N_GATES_A_PD)
    ]
    gates[0] = Place(f"{FLEET}/pd-00/{MARKUP}", "gate")
    links = [Place(f"{link['from']}->{link['to']}", "") for link in scenario()["links"]]
    failing = frozenset(place.path for place in engines[500:520])
    return Plant(engines, links, gates, failing, odd_agent=f"agent {MARKUP}")


def make(now: datetime | None = None) -> Site:
    """All of it, up to `now`, in the database that Django is connected to."""
    now = now or timezone.now()
    fleet = _fleets()
    reporting = plant()
    reporting.register(now.timestamp())
    reporting.report(now.timestamp() + before_s for before_s in MOMENTS_S)
    _gates(fleet, reporting, now)
    first = scheduler.run_tick(fleet.pk, now=now - timedelta(hours=2), tick_s=TICK_S)
    newest = scheduler.run_tick(fleet.pk, now=now, tick_s=TICK_S)
    assert first is not None
    assert newest is not None
    _small_ticks(now)
    _decisions(fleet, newest, now)
    _managed(fleet, now)
    _moves(fleet, now)
    big_people.make(fleet, pd_names(), now)
    big_costs.make(fleet, pd_names(), now)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return Site(fleet, reporting, now)


def _fleets() -> Fleet:
    small = []
    for i in range(N_FLEETS - 1):
        document = copy.deepcopy(SCENARIO)
        document["fleet"]["name"] = f"fleet-{i:02d}"
        small.append(Fleet(name=f"fleet-{i:02d}", scenario=document))
    made = Fleet.objects.bulk_create([Fleet(name=FLEET, scenario=scenario()), *small])
    Policy.objects.bulk_create(
        Policy(fleet=fleet, mode="active" if fleet.pk == FLEET else "advisory") for fleet in made
    )
    return Fleet.objects.select_related("policy").get(pk=FLEET)


def copies(model: type[models.Model], pk: int, n: int, **sql: str) -> None:
    """`n` copies of a row, made by the database; `sql` are columns by the number `i` (0..n-1)."""
    columns = [field.column for field in model._meta.concrete_fields if not field.primary_key]
    values = ", ".join(sql.get(column, f"row.{column}") for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {model._meta.db_table} ({', '.join(columns)}) SELECT {values}"
            f" FROM {model._meta.db_table} row, generate_series(0, {n - 1}) AS i"
            f" WHERE row.id = {pk}"
        )


def _small_ticks(now: datetime) -> None:
    """Each other fleet had a tick just now, and half a minute of them before."""
    small = scheduler.run_tick("fleet-00", now=now, tick_s=TICK_S)
    assert small is not None
    copies(
        Tick,
        small.pk,
        (N_FLEETS - 1) * 15,
        seq="row.seq - 1 - i % 15",
        at=f"row.at - interval '1 s' * {TICK_S} * (1 + i % 15)",
        fleet_id="'fleet-' || lpad((i / 15)::text, 2, '0')",
    )


def _decisions(fleet: Fleet, newest: Tick, now: datetime) -> None:
    """An hour of ticks, a plan every minute, delivered to every gate."""
    copies(
        Tick,
        newest.pk,
        N_TICKS,
        seq="row.seq - 1 - i",
        at=f"row.at - interval '1 s' * {TICK_S} * (1 + i)",
        action="CASE i / 40 % 3 WHEN 0 THEN 'hold' ELSE row.action END",
        reason="(ARRAY['WithinNoise', 'Dwell', 'WarmingUp', 'RolesDwell'])[1 + i / 40 % 4]",
    )
    Rebalance.objects.filter(fleet=fleet).delete()
    Decision.objects.filter(tick=newest).delete()
    first = Decision.objects.get(fleet=fleet)
    ticks = Tick.objects.filter(fleet=fleet, decision=None, seq__lt=newest.seq).order_by("-seq")
    ids = list(ticks.values_list("pk", flat=True)[10 :: N_TICKS // N_DECISIONS])
    rows, was = [], first.plan
    for n, tick_id in enumerate(reversed(ids[: N_DECISIONS - 1]), start=2):
        advised = n % 10 == 0
        plan = copy.deepcopy(was) | {"version": n}
        for cluster in list(plan["clusters"])[n % 7 :: 7]:
            moved = plan["clusters"][cluster]
            moved["threshold_tokens"] = 12_000 + 100 * ((n * 13) % 90)
            moved["mode"] = "threshold"
        rows.append(
            Decision(
                fleet=fleet,
                epoch=1,
                version=None if advised else n,
                tick_id=tick_id,
                kind="advised" if advised else "adopted",
                plan=plan,
                previous=was,
                reason=("PrefillImbalance", "LinkCongested", "Headroom")[n % 3],
                message=f"Raised t because local prefill was busier ({HOSTILE[n % 3]}).",
                created_at=now - timedelta(minutes=N_DECISIONS - n + 1) / 2,
            )
        )
        was = was if advised else plan
    rows[-1].version, rows[-1].kind = N_DECISIONS, "adopted"
    made = Decision.objects.bulk_create(rows)
    for one in made:
        if one.version is not None:
            _deliver(one, now)
    EffectCheck.objects.bulk_create(
        EffectCheck(
            decision=one,
            outcome=("good", "harm", "unknown", "pending")[one.version % 4],
            text=f"TTFT P90 rose from 3.9 s to 4.4 s {MARKUP}",
            compared_at=one.created_at,
            due_at=one.created_at + timedelta(minutes=5),
        )
        for one in made
        if one.version is not None
    )


def _deliver(decision: Decision, now: datetime) -> None:
    """To every gate; of the newest plans a few are late or refused it."""
    failed = "router LIKE '%%/gw-3'"
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            INSERT INTO routing_delivery
                (decision_id, router, state, error, sent_at, applied_at, updated_at)
            SELECT %(pk)s, router,
                CASE WHEN {failed} AND %(pk)s %% 5 = 0 THEN 'expired' ELSE 'applied' END,
                CASE WHEN {failed} AND %(pk)s %% 5 = 0 THEN %(error)s ELSE '' END,
                %(at)s, %(at)s, %(at)s
            FROM routing_routerstate WHERE fleet_id = %(fleet)s
            """,
            {
                "pk": decision.pk,
                "error": f"not applied within 30 s {MARKUP}",
                "at": decision.created_at,
                "fleet": decision.fleet_id,
            },
        )


def _gates(fleet: Fleet, reporting: Plant, now: datetime) -> None:
    rows = []
    for n, place in enumerate(reporting.gates):
        late = n % 40 == 7
        rows.append(
            RouterState(
                router=place.path,
                fleet=fleet,
                cluster=place.path.split("/")[1],
                epoch_running=1,
                version_running=N_DECISIONS - 2 if late else N_DECISIONS,
                state="refused" if n == 11 else "running",
                error=f"does not know pd {MARKUP}" if n == 11 else "",
                transport="socket",
                override=_override(now) if n in (0, 3) else None,
                last_seen_at=now - timedelta(minutes=9 if n % 50 == 13 else 0),
            )
        )
    RouterState.objects.bulk_create(rows)


def _override(now: datetime) -> dict[str, Any]:
    return {
        "id": "o1",
        "mode": "threshold",
        "threshold_tokens": 8_000,
        "by": f"ada {MARKUP}",
        "reason": FORMULA,
        "since_s": now.timestamp() - 60.0,
        "until_s": now.timestamp() + 3600.0,
    }


_CAN = {
    "threshold": "none",
    "roles": "live",
    "drain": "until_idle",
    "has_auth": True,
    "is_readable": True,
    "tried_versions": ["1.13.0"],
    "threshold_means": "It has none: every prompt goes where its plan's gate sends it.",
    "why": "",
}
_STATES = ("sync", "sync", "drifted", "unreachable", "pending_restart", "applying", "read_only")


def _managed(fleet: Fleet, now: datetime) -> None:
    """One router of another make for each PD cluster, a third of them not as desired."""
    rows = []
    for i, cluster in enumerate(pd_names()):
        state = "drifted" if i % 4 == 1 else _STATES[i % len(_STATES)]
        urls = [f"http://10.{i}.0.{n}:8000" for n in range(PD_SIZE)]
        desired = {
            url: {"role": "prefill" if n < PD_PREFILL else "decode", "status": "ready"}
            for n, url in enumerate(urls)
        }
        seen = {
            url: {**entry, "requests": n % 9, "key": f"{FLEET}/{cluster}/h20-{n:03d}"}
            for n, (url, entry) in enumerate(desired.items())
        }
        if state == "drifted":
            seen[urls[0]]["role"] = "decode"
            del seen[urls[5]]
        rows.append(
            ManagedRouter(
                fleet=fleet,
                cluster=cluster,
                name=HOSTILE[i][:100] if i < len(HOSTILE) else "smg-0",
                kind="smg",
                url=f"http://10.{i}.1.1:9300",
                make_version="1.13.0",
                capabilities=_CAN,
                desired=desired,
                desired_by="loop",
                desired_at=now - timedelta(hours=1),
                last_applied=desired,
                applied_at=now - timedelta(hours=1),
                observed={"workers": seen, "threshold": None, "findings": []},
                observed_at=now,
                state=state,
                since=now - timedelta(minutes=5),
                findings=[f"lists {urls[0]} as decode, not prefill {MARKUP}"],
                cause="person" if state == "drifted" else "",
                away_since=now - timedelta(minutes=5) if state == "unreachable" else None,
                on_drift="override" if i % 10 == 3 else "show",
            )
        )
    ManagedRouter.objects.bulk_create(rows)


def _moves(fleet: Fleet, now: datetime) -> None:
    """Rebalances of the last days; three are under way."""
    decision, names = Decision.objects.filter(fleet=fleet).latest("pk"), pd_names()
    rows = []
    for n in range(N_REBALANCES):
        open_ = n < 3
        at = now - timedelta(minutes=7 * n)
        rows.append(
            Rebalance(
                fleet=fleet,
                cluster=names[n % N_PD],
                decision=decision,
                from_n_prefill=PD_PREFILL,
                from_n_decode=PD_SIZE - PD_PREFILL,
                to_n_prefill=PD_PREFILL + 1,
                to_n_decode=PD_SIZE - PD_PREFILL - 1,
                state="open" if open_ else ("done", "aborted", "failed")[n % 3],
                reason="" if open_ else f"canary failed {MARKUP}",
                waiting_for="37 requests on h20-041 to end" if open_ else "",
                requested_by="loop",
                drain_timeout_s=120.0,
                created_at=at,
                deadline_at=at + timedelta(minutes=10),
                updated_at=at,
                finished_at=None if open_ else at + timedelta(minutes=2),
            )
        )
    made = Rebalance.objects.bulk_create(rows)
    RoleMove.objects.bulk_create(
        RoleMove(
            rebalance=one,
            seq=seq,
            instance=f"{FLEET}/{one.cluster}/h20-{40 + seq:03d}",
            url=f"http://10.0.0.{40 + seq}:8000",
            from_role="decode",
            to_role="prefill",
            step="draining" if one.finished_at is None else "done",
            requests=37,
            started_at=one.created_at,
            step_since=one.created_at,
            finished_at=one.finished_at,
        )
        for one in made
        for seq in (1, 2)
    )
