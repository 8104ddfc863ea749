"""Was a plan good for anybody? Each is looked at once; one that did harm is taken back for a while.

A check begins with its plan and falls due when its effect has been seen for `WINDOW_S`. Plans that
follow each other faster are one change, compared with what ran before the first. What gates counted
before and after is judged by `core.harm`. Harm done by the loop's own choice becomes a hold on the
last known good plan: owner `system`, with reason, evidence and expiry, so that the next ticks do
not overwrite it and it ends by itself (S-56). Nothing is taken back from a person, nor what a
failed link forced. The only writer of EffectCheck.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import logging
from collections.abc import Callable, Sequence

from django.db import transaction
from django.db.models import QuerySet

from routing import audit, commands, delivery, fleets
from routing.core import harm
from routing.core.forced import URGENT
from routing.core.harm import Counted, Evidence
from routing.models import Decision, EffectCheck, Fleet, Hold, Policy
from telemetry import counters, store, wire
from telemetry.store import Reading

SETTLES_S = 30.0
"""After a plan: requests that came before it are still answered."""
WINDOW_S = 180.0
ONE_CHANGE_S = 900.0
"""Plans that follow each other for longer are no longer compared with what was before them all."""
BIN_S = 10.0
REVERT_S, MOST_REVERT_S = 3600.0, 24 * 3600.0
"""How long a plan is taken back: doubled with each time in the day before, up to the second."""
GIVEN_UP_S = 900.0
"""A check that nobody made by then says nothing any more: the traffic is other."""
_NOT_OURS = {"Held", "Initial", "EpochRaised", *URGENT}
"""Reasons of plans that are never taken back: a person's, a first one, what a failure forced."""
_WORDS = 500

log = logging.getLogger(__name__)


def begin(decision: Decision, now: datetime.datetime) -> None:
    """Look at this plan later, together with those before it that were not looked at yet.

    Call it in the transaction of the decision.
    """
    pending = EffectCheck.objects.filter(
        decision__fleet_id=decision.fleet_id, outcome="pending"
    ).exclude(decision=decision)
    first = pending.order_by("compared_at").first()
    compared_at = now
    if first is not None and (now - first.compared_at).total_seconds() < ONE_CHANGE_S:
        compared_at = first.compared_at
    text = f"plan {decision.epoch}.{decision.version} followed before its effect could be seen"
    pending.update(outcome="unknown", text=text, checked_at=now)
    due_at = now + datetime.timedelta(seconds=SETTLES_S + WINDOW_S)
    EffectCheck.objects.get_or_create(
        decision=decision, defaults={"due_at": due_at, "compared_at": compared_at}
    )


def check_due(clock: Callable[[], datetime.datetime]) -> list[EffectCheck]:
    """Make every check that is due, each once however many workers come; those that were made."""
    now = clock()
    due = EffectCheck.objects.filter(outcome="pending", due_at__lte=now).order_by("due_at")
    made = []
    for row in list(due.select_related("decision__fleet", "decision__tick")):
        try:
            found = _check(row, now)
        except Exception:
            log.exception("the check of decision %s failed and is tried again", row.decision_id)
        else:
            made += [] if found is None else [found]
    return made


def _check(row: EffectCheck, now: datetime.datetime) -> EffectCheck | None:
    """One check that is due; None where another worker makes it."""
    # Readings are read before the transaction, which would hold their tables until its end.
    in_time = (now - row.due_at).total_seconds() <= GIVEN_UP_S
    evidence = _evidence(row.decision, row.compared_at) if in_time else {}
    with transaction.atomic():
        locked = EffectCheck.objects.select_for_update(skip_locked=True, of=("self",))
        found = locked.filter(pk=row.pk, outcome="pending").first()
        if found is not None:
            found.decision = row.decision
            _judge(found, evidence, now)
    return found


def last_known_good(fleet: Fleet, before: datetime.datetime | None = None) -> Decision | None:
    """The newest plan that ran everywhere and whose check found no harm; of those before `before`.

    One still pending, or of which nothing could be said, does not count as good.
    """
    found = good(fleet)
    return (found if before is None else found.filter(created_at__lt=before)).first()


def good(fleet: Fleet) -> QuerySet[Decision]:
    """Plans that ran everywhere and whose checks found no harm, newest first."""
    return delivery.applied_everywhere(fleet).filter(effect_check__outcome="good")


def _judge(row: EffectCheck, evidence: dict[str, Evidence], now: datetime.datetime) -> None:
    """Write down what `evidence` says, and act on harm."""
    row.checked_at = now
    row.evidence = {name: dataclasses.asdict(found) for name, found in evidence.items()}
    row.outcome = harm.together(list(evidence.values()))
    row.text = " ".join(f"{name}: {found.text}." for name, found in evidence.items())[:_WORDS]
    if not evidence:
        row.text = "nobody looked in time"
    if row.outcome == "harm":
        row.hold = _take_back(row, evidence, now)
    row.save()


def _evidence(decision: Decision, compared_at: datetime.datetime) -> dict[str, Evidence]:
    """By PD cluster."""
    at_s, before_s = decision.created_at.timestamp(), compared_at.timestamp()
    readings = store.window(
        "router",
        prefix=f"{decision.fleet_id}/",
        since_s=before_s - WINDOW_S - BIN_S,
        until_s=at_s + SETTLES_S + WINDOW_S,
        bin_s=BIN_S,
    )
    scenario = fleets.scenario_of(decision.fleet)
    headroom = _headroom_before(decision, compared_at)
    found = {}
    for cluster in (c.name for c in scenario.clusters if c.kind == "pd"):
        gates = [
            [r for r in rows if r.state == "ok"]
            for path, rows in readings.items()
            if path.split("/")[1] == cluster and rows[-1].engine == wire.GATE_KIND
        ]
        found[cluster] = harm.judge(
            _counted(gates, before_s - WINDOW_S - BIN_S, before_s),
            _counted(gates, at_s + SETTLES_S, at_s + SETTLES_S + WINDOW_S),
            expected_remote_ratio=_expected(decision, len(scenario.workloads)),
            headroom_before=headroom,
        )
    return found


def _headroom_before(decision: Decision, compared_at: datetime.datetime) -> float | None:
    """The least the model gave the running plan while it was changed; None: it never judged it."""
    changes = Decision.objects.filter(
        fleet=decision.fleet,
        version__isnull=False,
        created_at__range=(compared_at, decision.created_at),
    ).select_related("tick")
    predicted = [row.tick.verdict.get("current") for row in changes if row.tick is not None]
    known = [found["headroom"] for found in predicted if found and found["headroom"] is not None]
    return min(known, default=None)


def _expected(decision: Decision, n_clusters: int) -> float | None:
    """What the verdict predicted of the share; of a fleet, so only where it has one PD cluster."""
    adopted = decision.tick and decision.tick.verdict.get("adopted")
    if not adopted or n_clusters > 1:
        return None
    return float(adopted["remote_fraction"])


def _counted(gates: Sequence[Sequence[Reading]], since_s: float, until_s: float) -> Counted:
    """What the gates counted together between two moments."""
    total = Counted(0.0, 0.0, 0.0)
    began_s = since_s + BIN_S  # the first reading of each gate is what it is counted from
    for rows in gates:
        inside = [r for r in rows if since_s < r.at_s <= until_s]
        if len(inside) > 1:
            elapsed_s = max(total.elapsed_s, inside[-1].at_s - inside[0].at_s)
            total = dataclasses.replace(total, elapsed_s=elapsed_s)
        for before, after in itertools.pairwise(inside):
            n = max(int((after.at_s - began_s) // harm.BLOCK_S), 0)
            total = _more(total, before, after, n)
    return total


def _more(total: Counted, before: Reading, after: Reading, n: int) -> Counted:
    """`total` with what one gate gained between two readings, in block `n`."""
    restarted = before.epoch_s != after.epoch_s
    was, now = before.signals, after.signals
    arrived = counters.keyed_increases(
        was.requests_total or {}, now.requests_total or {}, restarted=restarted
    )
    failed = counters.keyed_increases(was.errors_total, now.errors_total, restarted=restarted)
    tokens = counters.increase(
        was.prompt_tokens_total, now.prompt_tokens_total, restarted=restarted
    )
    edges, counts = total.edges, total.counts
    missing = [harm.Block()] * (n + 1 - len(total.blocks))
    blocks = [*total.blocks, *missing]
    for side, histogram in (now.ttft_seconds or {}).items():
        began = (was.ttft_seconds or {}).get(
            side, wire.Histogram(histogram.edges, [0.0] * len(histogram.counts), 0.0)
        )
        more = counters.histogram_increase(began, histogram, restarted=restarted)
        # Sums of unlike buckets would be a guess.
        if more is not None and edges in ((), more.edges):
            edges = more.edges
            counts = _sum(counts, more.counts)
            blocks[n] = dataclasses.replace(blocks[n], counts=_sum(blocks[n].counts, more.counts))
    requests, errors = sum((arrived or {}).values()), sum((failed or {}).values())
    blocks[n] = dataclasses.replace(
        blocks[n], requests=blocks[n].requests + requests, errors=blocks[n].errors + errors
    )
    return dataclasses.replace(
        total,
        requests=total.requests + requests,
        remote=total.remote
        + sum(n for key, n in (arrived or {}).items() if key.startswith("remote|")),
        errors=_added(total.errors, None if failed is None else errors),
        tokens=_added(total.tokens, tokens),
        edges=edges,
        counts=counts,
        blocks=tuple(blocks),
    )


def _sum(known: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    known = known or (0.0,) * len(more)
    return tuple(a + b for a, b in zip(known, more, strict=True))


def _added(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + more


def _take_back(
    row: EffectCheck, evidence: dict[str, Evidence], now: datetime.datetime
) -> Hold | None:
    """Hold the harmed clusters at the last known good plan; None, and why in `text`, if not."""
    decision = row.decision
    good = last_known_good(decision.fleet, before=row.compared_at)
    harmed = [name for name, found in evidence.items() if found.outcome == "harm"]
    policy = Policy.objects.get(fleet_id=decision.fleet_id)
    refused = _why_not(decision, good, policy)
    hold = None
    if not refused and good is not None:
        until = now + datetime.timedelta(seconds=_span_s(decision.fleet, now))
        try:
            with transaction.atomic():
                for name in harmed:
                    plan = good.plan["clusters"][name]
                    hold = commands.place_hold(
                        fleet=decision.fleet_id,
                        cluster=name,
                        mode=plan["mode"],
                        threshold_tokens=plan["threshold_tokens"],
                        owner=audit.SYSTEM,
                        expires_at=until,
                        actor=audit.SYSTEM,
                        via="scheduler",
                        reason=_reason(decision, good, evidence[name]),
                        now=now,
                    )
        except (commands.Refused, KeyError) as exc:
            hold, refused = None, str(exc)
    if refused:
        row.text = f"{row.text} Not taken back: {refused}."[:_WORDS]
    audit.record(
        actor=audit.SYSTEM,
        via="scheduler",
        verb="plan.harm",
        fleet=decision.fleet_id,
        target=f"plan {decision.epoch}.{decision.version}",
        before={"good": good and f"{good.epoch}.{good.version}"},
        after={"held": bool(hold), "evidence": row.evidence},
        reason=row.text,
    )
    return hold


def _why_not(decision: Decision, good: Decision | None, policy: Policy) -> str:
    newest = fleets.newest_adopted(decision.fleet)
    if newest is None or newest.pk != decision.pk:
        return "it is not in force any more"
    if policy.mode != "active":
        return f"the loop is {policy.mode}"
    if decision.reason in _NOT_OURS:
        return f"a plan for {decision.reason} is not the loop's own choice"
    if good is None:
        return "no earlier plan is known to be good"
    return ""


def _reason(decision: Decision, good: Decision, found: Evidence) -> str:
    return (
        f"Back to plan {good.epoch}.{good.version}: after {decision.epoch}.{decision.version} "
        f"{found.text}."
    )[:_WORDS]


def _span_s(fleet: Fleet, now: datetime.datetime) -> float:
    day = now - datetime.timedelta(days=1)
    n = EffectCheck.objects.filter(
        decision__fleet=fleet, hold__isnull=False, checked_at__gt=day
    ).count()
    return float(min(REVERT_S * 2**n, MOST_REVERT_S))
