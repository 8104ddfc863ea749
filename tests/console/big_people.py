"""What people did at the large site: holds, audit, tokens, refusals, backtests, alerts.

Names and reasons are as bad as the doors let them be.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import connection

from routing.alerts.models import AlertRule, Incident, Notification, Receiver, Silence
from routing.approvals.models import Proposal
from routing.backtest_asked import Asked
from routing.jobs.models import Job, JobRun
from routing.jobs.when import DAYS
from routing.models import Action, Backtest, BacktestRun, Fleet, Hold, TraceFile
from routing.windows.models import Maintenance, Window
from telemetry.models import ApiToken, Refusal
from tests.rewriting import rewriting_audit
from tests.routing.alerts import case as alerting
from tests.routing.backtesting import mooncake
from tests.routing.jobs.case import MORNING
from tests.routing.windows.case import FREEZE

MARKUP = "<img src=x onerror=alert(1)>"
FORMULA = "=HYPERLINK(\"evil\",'x')"
RIGHT_TO_LEFT = "עברית مرحبا"
HOSTILE = (MARKUP, FORMULA, RIGHT_TO_LEFT, "n" * 240)
N_ACTIONS, N_TOKENS, N_HOLDS, N_OPEN_HOLDS, N_REFUSALS = 5_000, 300, 300, 6, 60
N_RULES, N_INCIDENTS, N_OPEN_INCIDENTS, N_SILENCES = 40, 600, 80, 60
N_BACKTESTS, N_TRACES = 120, 30
N_JOBS, N_JOB_RUNS = 60, 600
N_PROPOSALS, N_OPEN_PROPOSALS = 600, 120
N_WINDOWS, N_MAINTENANCE = 60, 300


def make(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """All of it, of a fleet with these PD clusters, up to `now`."""
    people(fleet, clusters, now)
    backtests(fleet, now)
    alerts(fleet, clusters, now)
    jobs(fleet, clusters, now)
    proposals(fleet, clusters, now)
    windows(fleet, clusters, now)


def people(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """What people and machines did, hold, and sign with."""
    Hold.objects.bulk_create(
        Hold(
            fleet=fleet,
            cluster=clusters[n % len(clusters)],
            mode="threshold",
            threshold_tokens=18_000,
            owner=f"ada {MARKUP}",
            reason=HOSTILE[n % 4],
            expires_at=now + timedelta(hours=1 if n < N_OPEN_HOLDS else -1 - n),
        )
        for n in range(N_HOLDS)
    )
    verbs = ("policy.set", "hold.place", "hold.release", "breaker.reset", "delivery.cancel")
    made = Action.objects.bulk_create(
        Action(
            actor=f"person-{n % 40:02d}" if n % 97 else MARKUP,
            via=("ui", "rest", "loop")[n % 3],
            verb=verbs[n % len(verbs)],
            fleet=fleet.pk if n % 3 else f"fleet-{n % 99:02d}",
            target=f"policy {HOSTILE[n % 4] if n % 50 == 0 else n}",
            before={"mode": "active", "knobs": {"t_min": 1000}, "version": n},
            after={"mode": "paused", "knobs": {"t_min": 2000, "t_max": 9e4}, "version": n + 1},
            reason=HOSTILE[n % 4] if n % 50 == 1 else "drill",
        )
        for n in range(N_ACTIONS)
    )
    # `at` is the clock's, for all of them the same.
    with rewriting_audit(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE routing_action SET at = %s - interval '7 s' * (%s - id) WHERE id >= %s",
            [now, made[-1].pk, made[0].pk],
        )
    ApiToken.objects.bulk_create(
        ApiToken(
            name=HOSTILE[n % 4][:120] if n % 60 == 0 else f"agent-{n:04d}",
            prefix=f"pfx{n:05d}",
            digest=n.to_bytes(32, "big"),
            scopes=["ingest"] if n % 3 else ["read", "operate"],
            fleet="" if n % 5 else fleet.pk,
            created_by="ada",
            expires_at=now + timedelta(days=30 - n),
            revoked_at=now if n % 20 == 3 else None,
            last_used_at=now - timedelta(minutes=n),
        )
        for n in range(N_TOKENS)
    )
    Refusal.objects.bulk_create(
        Refusal(
            agent=f"agent-{n:04d}" if n else MARKUP,
            token=f"pfx{n:05d}",
            status=(401, 409, 413, 422)[n % 4],
            field=f"instances[{n}].signals.requests_running",
            count=n + 1,
            error=f"must be at least 0 {MARKUP}",
            first_at=now - timedelta(hours=2),
            last_at=now - timedelta(seconds=7 * n),
        )
        for n in range(N_REFUSALS)
    )


def backtests(fleet: Fleet, now: datetime) -> None:
    """Backtests of policies on the scenario's traffic and on traces, most of them over."""
    packed = gzip.compress(mooncake(500))
    traces = TraceFile.objects.bulk_create(
        TraceFile(
            fleet=fleet,
            name=HOSTILE[n % 4][:200] if n % 10 == 0 else f"trace-{n}.jsonl",
            sha256=f"{n:064x}",
            n_bytes=4_000_000,
            data=packed,
            uploaded_by="ada",
            created_at=now - timedelta(hours=n),
        )
        for n in range(N_TRACES)
    )
    policies = ["paper", "adaptive", "always_local"]
    asked = Asked("trace", policies=tuple(policies), baseline="paper", seeds=3).to_json()
    made = Backtest.objects.bulk_create(
        Backtest(
            fleet=fleet,
            scenario=fleet.scenario,
            asked=asked,
            trace=traces[n % N_TRACES],
            note=HOSTILE[n % 4][:200],
            requested_by=f"ada {MARKUP}",
            created_at=now - timedelta(minutes=11 * n),
        )
        for n in reversed(range(N_BACKTESTS))
    )
    BacktestRun.objects.bulk_create(
        BacktestRun(
            backtest=one,
            policy=policy,
            place=place,
            seed=seed,
            state="queued" if one is made[-1] else "done",
            report=None if one is made[-1] else {},
        )
        for one, (place, policy), seed in itertools.product(made, enumerate(policies), range(1, 4))
    )


def alerts(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """Rules, incidents open and past with what was told of them, silences, receivers."""
    AlertRule.objects.bulk_create(
        AlertRule(
            name=f"rule-{n:02d}",
            document=alerting.FULL | {"name": f"rule-{n:02d}"},
            updated_at=now,
            updated_by=f"ada {MARKUP}",
        )
        for n in range(N_RULES)
    )
    made = Incident.objects.bulk_create(
        Incident(
            rule=f"rule-{n % N_RULES:02d}",
            kind="figure",
            group=f"{fleet.pk}/{clusters[n % len(clusters)]}/{n}",
            fleet=fleet.pk,
            cluster=clusters[n % len(clusters)],
            severity=("page", "warn", "info")[n % 3],
            sentence=f"KV in use is 97 % on 12 engines, above 95 % {HOSTILE[n % 4]}",
            signal="instance.kv_cache_usage_ratio",
            n=12,
            most=30,
            members=[
                {"source": f"{fleet.pk}/pd-00/h20-{m:03d}", "value": 0.97, "since_s": 60.0}
                for m in range(12)
            ],
            opened_at=now - timedelta(minutes=3 * n),
            seen_at=now - timedelta(minutes=2 * n),
            resolved_at=None if n < N_OPEN_INCIDENTS else now - timedelta(minutes=2 * n),
        )
        for n in range(N_INCIDENTS)
    )
    Notification.objects.bulk_create(
        Notification(
            incident=one,
            receiver=f"receiver-{n}",
            event="opened",
            state="sent",
            created_at=one.opened_at,
            due_at=one.opened_at,
        )
        for one in made
        for n in range(2)
    )
    Silence.objects.bulk_create(
        Silence(
            fleet=fleet.pk if n % 2 else "",
            rule=f"rule-{n % N_RULES:02d}",
            reason=HOSTILE[n % 4],
            created_by=f"ada {MARKUP}",
            created_at=now - timedelta(hours=n),
            ends_at=now + timedelta(hours=6 - n),
        )
        for n in range(N_SILENCES)
    )
    Receiver.objects.bulk_create(
        Receiver(
            name=f"receiver-{n}",
            kind="webhook",
            target=f"https://example.org/{n}",
            updated_at=now,
            updated_by="ada",
        )
        for n in range(10)
    )


def jobs(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """One job for each cluster, and what became of them."""
    Job.objects.bulk_create(
        Job(
            name=f"job-{n:02d}",
            fleet=fleet.pk,
            document=MORNING
            | {
                "name": f"job-{n:02d}",
                "fleet": fleet.pk,
                "do": MORNING["do"] | {"cluster": clusters[n % len(clusters)]},
                "reason": HOSTILE[n % 4],
            },
            since=now - timedelta(days=10),
            updated_at=now,
            updated_by=f"ada {MARKUP}",
        )
        for n in range(N_JOBS)
    )
    JobRun.objects.bulk_create(
        JobRun(
            job=f"job-{n % N_JOBS:02d}",
            fleet=fleet.pk,
            due_at=now - timedelta(hours=n),
            state=("done", "failed", "skipped")[n % 3],
            text=f"canary failed {MARKUP}",
            began_at=now - timedelta(hours=n),
            ended_at=now - timedelta(hours=n),
        )
        for n in range(N_JOB_RUNS)
    )


def proposals(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """Holds that somebody wants and may not place alone; most were decided about."""
    Proposal.objects.bulk_create(
        Proposal(
            fleet=fleet.pk,
            command="commands.place_hold",
            arguments={"fleet": fleet.pk},
            changes=[
                {
                    "verb": "hold.place",
                    "fleet": fleet.pk,
                    "target": f"hold {n} on {clusters[n % len(clusters)]}",
                    "before": None,
                    "after": {
                        "cluster": clusters[n % len(clusters)],
                        "mode": "threshold",
                        "threshold_tokens": 18_000,
                        "owner": HOSTILE[n % 4],
                        "reason": HOSTILE[n % 4],
                        "expires_at_s": (now + timedelta(hours=9)).timestamp(),
                    },
                }
            ],
            reach={"kinds": [], "figures": {"hold_s": 32_400.0}},
            beyond=[{"limit": "hold_s", "value": 32_400.0, "most": 3600.0}],
            seen={},
            digest=str(n),
            asked_by=HOSTILE[n % 4][:150],
            via="ui",
            reason=HOSTILE[n % 4],
            asked_at=now - timedelta(hours=n),
            expires_at=now + timedelta(hours=9),
            state="open" if n < N_OPEN_PROPOSALS else ("done", "failed", "rejected")[n % 3],
            ended_at=None if n < N_OPEN_PROPOSALS else now - timedelta(hours=n),
            ended_by="" if n < N_OPEN_PROPOSALS else HOSTILE[n % 4][:150],
            text=HOSTILE[n % 4] if n % 3 == 1 else "",
        )
        for n in range(N_PROPOSALS)
    )


def windows(fleet: Fleet, clusters: Sequence[str], now: datetime) -> None:
    """Roles are frozen all day, by many; each cluster was worked on, and five are."""
    always = {"zone": "Europe/Paris", "days": list(DAYS), "from": "00:00", "to": "00:00"}
    Window.objects.bulk_create(
        Window(
            name=f"window-{n:02d}",
            fleet=fleet.pk if n % 2 else "",
            document=FREEZE
            | {
                "name": f"window-{n:02d}",
                "fleet": fleet.pk if n % 2 else "",
                "of": ["roles"],
                "when": always,
                "reason": HOSTILE[n % 4],
            },
            updated_at=now - timedelta(days=1),
            updated_by=f"ada {MARKUP}",
        )
        for n in range(N_WINDOWS)
    )
    Maintenance.objects.bulk_create(
        Maintenance(
            fleet=fleet.pk,
            cluster=clusters[n % len(clusters)],
            reason=HOSTILE[n % 4],
            owner=f"ada {MARKUP}",
            created_at=now - timedelta(days=n + 2),
            starts_at=now - timedelta(days=n + 1),
            ends_at=now + timedelta(hours=2) if n < 5 else now - timedelta(days=n),
        )
        for n in range(N_MAINTENANCE)
    )
