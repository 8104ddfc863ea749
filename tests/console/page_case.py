"""A fleet with a past: ticks, decisions and deliveries as the loop writes them."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from routing.core.jsonable import to_jsonable
from routing.core.types import (
    Alternative,
    Bottleneck,
    Clamp,
    ClusterPlan,
    LengthHistogram,
    LinkObservation,
    Memory,
    Observation,
    PdObservation,
    Plan,
    Prediction,
    PrefillObservation,
    StageLoad,
    Verdict,
)
from routing.models import Decision, Delivery, Fleet, RouterState, Tick
from tests.routing.cases import make_fleet

_seq = itertools.count(1)
GATES = ("gw-1", "gw-2")


def plan(fleet: str, version: int, threshold_tokens: int | None) -> Plan:
    mode = "always_local" if threshold_tokens is None else "threshold"
    cluster = ClusterPlan(
        mode=mode,
        threshold_tokens=threshold_tokens,
        n_prefill=3,
        n_decode=5,
        remote={"prfaas": 1.0},
    )
    return Plan(fleet=fleet, epoch=1, version=version, clusters={"pd": cluster})


def observation(fleet: str, at_s: float, **pd: Any) -> Observation:
    lengths = LengthHistogram(edges=(1e3, 1e4), counts=(1.0, 2.0, 3.0), n_effective=6, n_seen=900)
    facts = {"demand_rps": 2.5, "demand_state": "value", "lengths": lengths, "remote_share": 0.48}
    return Observation(
        now_s=at_s,
        fleet=fleet,
        pd={"pd": PdObservation(**{**facts, "n_prefill": 3, "n_decode": 5, "age_s": 1.0, **pd})},
        prefill={"prfaas": PrefillObservation(n_prefill=4, queue_prefill=2.0, age_s=1.0)},
        links={
            "prfaas->pd": LinkObservation(
                capacity_gbps=100.0, tx_gbps=9.4, state="value", retransmit_ratio=0.0, age_s=1.0
            )
        },
    )


def prediction(headroom: float, remote_fraction: float = 0.49) -> Prediction:
    stages = (
        StageLoad("local_prefill:pd", headroom * 2.5, 1 / headroom),
        StageLoad("link:prfaas->pd", 25.0, 0.1),
    )
    return Prediction(
        lambda_max_rps=headroom * 2.5,
        headroom=headroom,
        remote_fraction=remote_fraction,
        bottleneck="local_prefill:pd",
        stages=stages,
        link_gbps={"prfaas->pd": 9.4},
        link_utilisation_ratio={"prfaas->pd": 0.094},
    )


LIMITS = Bottleneck("decode", "decode:pd", "97% of decode's KV memory is used", True)


def tick(fleet: Fleet, at: datetime, **verdict: Any) -> Tick:
    """A pass that holds with `WithinNoise`, unless `verdict` says otherwise."""
    facts: dict[str, Any] = {
        "action": "hold",
        "reason": "WithinNoise",
        "message": "t is within 2 % of the best.",
        "plan": plan(fleet.pk, 1, 4000),
        "memory": Memory(),
        "current": prediction(1.2),
        "bottleneck": LIMITS,
        "bottlenecks": {"pd": LIMITS},
    }
    value = Verdict(**{**facts, **verdict})
    return Tick.objects.create(
        fleet=fleet,
        seq=next(_seq),
        at=at,
        observed=to_jsonable(observation(fleet.pk, at.timestamp())),
        verdict=to_jsonable(value),
        mode="active",
        action=value.action,
        reason=value.reason,
        duration_ms=21.5,
    )


def decision(
    fleet: Fleet,
    at: datetime,
    version: int | None,
    threshold_tokens: int,
    *,
    previous: int | None = None,
    reason: str = "PrefillImbalance",
    message: str = "Raised t because local prefill was 14 % busier than remote.",
) -> Decision:
    """A decision with its tick; a pushed one is applied by both gates."""
    adopted = plan(fleet.pk, version or 1, threshold_tokens)
    made_by = tick(
        fleet,
        at,
        action="adopt",
        reason=reason,
        message=message,
        plan=adopted,
        adopted=prediction(1.26),
        best=prediction(1.3, 0.5),
        best_plan=plan(fleet.pk, 0, 19_800).clusters,
        clamps=(Clamp("t_max_step_factor", 19_800, threshold_tokens),),
        alternatives=(
            Alternative("stay", "pd t = 4,000, 3/5", 1.2, 9.4, 0.0, "decode:pd", "changed"),
            Alternative("step", f"pd t = {threshold_tokens:,}, 3/5", 1.26, 9.4, 0.05),
            Alternative(
                "forbidden",
                "pd 3/5 -> 4/4",
                1.3,
                8.0,
                0.08,
                "local_prefill:pd",
                "pd: decode limits, which forbids adding prefill",
            ),
        ),
    )
    row = Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=version,
        tick=made_by,
        kind="adopted" if version else "advised",
        plan=to_jsonable(adopted),
        previous=None if previous is None else to_jsonable(plan(fleet.pk, 1, previous)),
        reason=reason,
        message=message,
        created_at=at,
    )
    for name in GATES if version else ():
        Delivery.objects.create(
            decision=row,
            router=f"{fleet.pk}/pd/{name}",
            state="applied",
            sent_at=at,
            applied_at=at + timedelta(milliseconds=120),
            updated_at=at,
        )
    return row


def busy_fleet(name: str = "f1", *, mode: str = "active") -> Fleet:
    """Twenty minutes of past: v1, v2, one piece of advice, quiet ticks, two gates on v2."""
    fleet = make_fleet(name, mode=mode)
    now = timezone.now()
    decision(fleet, now - timedelta(minutes=20), 1, 4000, reason="Initial", message="The start.")
    decision(fleet, now - timedelta(minutes=18), 2, 6000, previous=4000)
    decision(
        fleet, now - timedelta(minutes=17), None, 9000, previous=6000, message="Would raise t."
    )
    for minutes in (17.0, 13.0, 3.0, 0.05):
        tick(fleet, now - timedelta(minutes=minutes) + timedelta(seconds=1))
    for gate in GATES:
        RouterState.objects.create(
            router=f"{fleet.pk}/pd/{gate}",
            fleet=fleet,
            cluster="pd",
            epoch_running=1,
            version_running=2,
            state="running",
            transport="socket",
            last_seen_at=now,
        )
    return fleet
