"""A fleet in which everything happens at once, so that every page has something to show.

Rows only: it needs no server, and pages without a browser are tested on it as well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group, User
from django.utils import timezone

from routing import commands, token_commands
from routing.alerts import receivers, silences
from routing.alerts.models import Incident, Receiver
from routing.core.types import LinkMemory, Memory
from routing.jobs.when import DAYS
from routing.models import Fleet, Hold, ManagedRouter, RouterState
from routing.windows import maintenance
from routing.windows.models import Maintenance, Window
from tests.console import onboarding_case, page_case
from tests.console.test_rebalances import moving
from tests.routing import backtesting, cases, routers_case
from tests.routing.alerts import case as alerting
from tests.routing.approvals import case as approving
from tests.routing.costs import case as costing
from tests.routing.jobs import case as planned
from tests.routing.windows import case as windowed

WHO: dict[str, Any] = {"actor": "ana", "via": "ui", "reason": "link maintenance"}
_ENGINES = {routers_case.P0: "prefill", routers_case.D0: "decode", routers_case.D1: "decode"}
_LINK = "prfaas->pd"


@dataclass(frozen=True)
class Scene:
    """The fleet, and what addresses are filled with: `arguments` in paths (those of one page
    alone by `page.argument`), `named` in queries."""

    fleet: Fleet
    arguments: dict[str, Any]
    named: dict[str, str]


def build(fleet: Fleet) -> Scene:
    """Everything a busy fleet can have: holds, moves, drift, an override, a backtest, readings."""
    readings(fleet)
    now = timezone.now()
    judged = LinkMemory(label="down", breaker="open", breaker_at_s=time.time() - 20, n_openings=2)
    rebalance = moving(fleet)
    last = page_case.tick(fleet, now, memory=Memory(links={_LINK: judged}))
    token = token_commands.issue_token(
        name="gates", scopes=["router"], fleet=fleet.pk, expires_at=None, now=now, **WHO
    )[0]
    overridden = RouterState.objects.get(router=f"{fleet.pk}/pd/gw-2")
    overridden.state, overridden.override = "overridden", _override(now.timestamp())
    overridden.save()
    rule = alerting.put(alerting.FULL)
    job = planned.put(planned.MORNING | {"name": f"morning-{fleet.pk}", "fleet": fleet.pk})
    costing.month_so_far(fleet, now)
    v2 = fleet.decisions.get(version=2)
    v2.deliveries.filter(router=overridden.router).update(state="sent", applied_at=None)
    return Scene(
        fleet,
        {
            "fleet": fleet.pk,
            "decision_id": v2.pk,
            "seq": last.seq,
            "hold_id": _hold(fleet).pk,
            "rebalance_id": rebalance.pk,
            "router_id": drifted_router(fleet).pk,
            "backtest_id": _backtest(fleet),
            "token_id": token.pk,
            "user_id": somebody(fleet).pk,
            "incident_id": incident(fleet).pk,
            "rebalance-asked.hold_id": _hold_of_roles(fleet).pk,
            "alert-rule.name": rule.pk,
            "receiver.name": receiver().pk,
            "window.name": window(fleet).pk,
            "maintenance_id": worked_on(fleet).pk,
            "proposal_id": approving.waiting(fleet).pk,
            "name": job.pk,
        },
        {
            "gate": overridden.router,
            "router": "pd/gw-1",
            "cluster": "pd",
            "remote": "prfaas",
            "link": _LINK,
            "instance": "pd/h20-5",
        },
    )


def somebody(fleet: Fleet) -> User:
    """Who operates this fleet, and has a token."""
    user = User.objects.create_user(f"zoe-{fleet.pk}", email="zoe@example.com")
    user.groups.add(Group.objects.get_or_create(name=f"operator:{fleet.pk}")[0])
    return user


def receiver() -> Receiver:
    """Where alerts are told, by e-mail; the same for every scene."""
    known = Receiver.objects.filter(pk="on-call").first()
    return known or receivers.put(
        name="on-call",
        kind="email",
        target="on-call@example.com",
        if_version=None,
        now=timezone.now(),
        **WHO,
    )


def readings(fleet: Fleet) -> None:
    """A minute of every engine, the link and a gate, with an agent that tells of them."""
    at_s = time.time() - cases.NOW_S
    for ago_s in (60.0, 40.0, 20.0, 1.0):
        cases.feed(
            [
                cases.instance(f"{fleet.pk}/pd/h20-5", role="prefill", at_s=at_s - ago_s),
                cases.instance(f"{fleet.pk}/pd/h20-7", role="decode", at_s=at_s - ago_s),
                cases.link(at_s=at_s - ago_s, tx_gbps=98.0, capacity_gbps=100.0),
            ]
        )
    onboarding_case.well(fleet.pk)
    onboarding_case.agent("a2", silent_s=90.0, skew_s=77.0)
    onboarding_case.source(f"{fleet.pk}/pd/h20-9", role="decode", by="a2", silent_s=90.0)
    onboarding_case.report(
        "a2",
        onboarding_case.tells(
            f"{fleet.pk}/pd/h20-9", role="decode", unmatched=["vllm:odd"], n_unmatched=1
        ),
    )
    onboarding_case.refusal(
        422, name=f"{fleet.pk}-a3", field="instances[].signals", error="must be finite"
    )


def drifted_router(fleet: Fleet, **changes: Any) -> ManagedRouter:
    """A router of another make that somebody changed by hand."""
    now = timezone.now()
    listed = {url: {"role": role, "status": "ready"} for url, role in _ENGINES.items()}
    seen = {url: {**facts, "key": "", "requests": 3} for url, facts in listed.items()}
    seen[routers_case.D1]["role"] = "prefill"
    facts: dict[str, Any] = {
        "cluster": "pd",
        "name": "r1",
        "kind": "smg",
        "url": routers_case.URL,
        "make_version": "1.13.0",
        "capabilities": {
            **{"why": "", "drain": "until_idle", "roles": "live", "has_auth": True},
            **{"threshold": "none", "is_readable": True, "tried_versions": ["1.13.0"]},
            "threshold_means": routers_case.CAN.threshold_means,
        },
        "desired": listed,
        "desired_by": "system",
        "desired_at": now,
        "observed": {
            **{"facts": {}, "decided": None, "workers": seen, "findings": []},
            **{"rendered": None, "threshold": None},
        },
        "observed_at": now,
        "state": "drifted",
        "since": now - timedelta(minutes=3),
        "findings": [f"lists {routers_case.D1} as prefill, not decode"],
        "cause": "change",
        "other_writer": "an autoscaler of the site",
    }
    return ManagedRouter.objects.create(fleet=fleet, **{**facts, **changes})


def _hold(fleet: Fleet) -> Hold:
    now = timezone.now()
    return commands.place_hold(
        fleet=fleet.pk,
        cluster="pd",
        mode="threshold",
        threshold_tokens=8000,
        owner="ana",
        expires_at=now + timedelta(hours=1),
        now=now,
        **WHO,
    )


def _hold_of_roles(fleet: Fleet) -> Hold:
    """What asks for a move of roles; over, as it may not stand beside the other hold."""
    now = timezone.now()
    roles = {"n_prefill": 4, "n_decode": 4, "owner": "ana", "reason": "long prompts all week"}
    return Hold.objects.create(
        fleet=fleet, cluster="pd", expires_at=now + timedelta(hours=1), released_at=now, **roles
    )


def window(fleet: Fleet) -> Window:
    """Change windows that are open now."""
    every = {"zone": "UTC", "days": list(DAYS), "from": "00:00", "to": "00:00"}
    document = windowed.CHANGES | {"fleet": fleet.pk, "when": every}
    return windowed.put(document, now=timezone.now())


def worked_on(fleet: Fleet) -> Maintenance:
    """The link, now."""
    now = timezone.now()
    return maintenance.plan(
        fleet=fleet.pk, link=_LINK, ends_at=now + timedelta(hours=2), now=now, **WHO
    )


def incident(fleet: Fleet, **more: Any) -> Incident:
    """One that fires now, told to nobody yet; a silence that covers others."""
    now = timezone.now()
    silences.begin(
        fleet=fleet.pk,
        rule="link-*",
        cluster="*",
        severity="*",
        ends_at=now + timedelta(hours=2),
        now=now,
        **WHO,
    )
    facts = {"group": f"{fleet.pk}/pd", "fleet": fleet.pk, "opened_at": now, "seen_at": now}
    return alerting.incident(**{**facts, **more})


def _override(now_s: float) -> dict[str, Any]:
    return {
        **{"id": "o1", "mode": "threshold", "threshold_tokens": 12_000, "by": "bo"},
        **{"since_s": now_s - 60, "until_s": now_s + 3600, "reason": "trying a higher t"},
    }


def _backtest(fleet: Fleet) -> int:
    made = backtesting.scenario_backtest(fleet, policies=("paper",), seeds=1)
    backtesting.work_all()
    return made.pk
