"""Proposals to put measured prefill times into a scenario. The one writer of ProfileProposal.

Asking is a row; a worker fits it (`profiling`), because a night of a large fleet is minutes of
reading. Nothing changes the scenario but a person who applies one.
"""

from __future__ import annotations

import copy
import datetime
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta
from typing import Any, Final

from django.db import transaction

from routing import audit, commands, profiling
from routing.approvals.asking import proposable
from routing.commands import Outdated, Refused
from routing.core.model.profile_fit import Fit
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet
from routing.pools import WARM_UP_S
from routing.profiling import Measured
from routing.refits.models import ProfileProposal

OPEN: Final = ("queued", "ready")
LONGEST: Final = timedelta(days=3)
"""Raw readings are kept for so long; roll-ups hold no single requests."""

log = logging.getLogger(__name__)


def ask(
    *,
    fleet: str,
    span: timedelta,
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> ProfileProposal:
    """Queue a fit of the span that ends now; those that nobody applied are replaced by it."""
    check_span(span)
    with transaction.atomic():
        Fleet.objects.select_for_update(no_key=True).get(pk=fleet)
        ProfileProposal.objects.filter(fleet=fleet, state__in=OPEN).update(state="replaced")
        row = ProfileProposal.objects.create(
            fleet=fleet, since=now - span, until=now, requested_by=actor, created_at=now
        )
        audit.record(
            actor=actor,
            via=via,
            verb="profile.fit",
            fleet=fleet,
            target=f"proposal {row.pk}",
            after={"since": row.since.isoformat(), "until": row.until.isoformat()},
            reason=reason,
        )
    return row


def check_span(span: timedelta) -> None:
    """Raises Refused for a span of which no raw readings are kept."""
    if not timedelta(0) < span <= LONGEST:
        raise Refused("span_s", span.total_seconds(), "must be above 0 and at most 3 days")


def work(clock: Callable[[], datetime.datetime]) -> int:
    """Fit what is queued; how many were."""
    n = 0
    for row in ProfileProposal.objects.filter(state="queued").order_by("pk"):
        try:
            _fit(row, clock)
        except Exception as exc:
            log.exception("proposal %s failed", row.pk)
            _end(row, "failed", clock(), text=f"{type(exc).__name__}: {exc}"[:500])
        n += 1
    return n


@proposable
def apply(
    *, proposal: ProfileProposal, actor: str, via: str, reason: str, now: datetime.datetime
) -> Fleet:
    """Put a ready proposal into the fleet's scenario. Raises Refused, Outdated."""
    with transaction.atomic():
        fleet = Fleet.objects.select_for_update(no_key=True).get(pk=proposal.fleet)
        row = ProfileProposal.objects.select_for_update().get(pk=proposal.pk)
        if row.state != "ready":
            raise Refused("proposal", row.pk, f"is {row.state}: only a ready one can be applied")
        scenario = copy.deepcopy(fleet.scenario)
        for name, change in row.profiles.items():
            if scenario["profiles"].get(name) != change["before"]:
                message = f"profile {name} was changed since it was fitted: fit it again"
                raise Outdated("proposal", row.pk, message)
            scenario["profiles"][name] = change["after"]
        changed = commands.create_fleet(
            scenario=scenario, actor=actor, via=via, reason=reason or f"proposal {row.pk}", now=now
        )
        ProfileProposal.objects.filter(pk=row.pk).update(
            state="applied", applied_by=actor, applied_at=now
        )
    return changed


def _fit(row: ProfileProposal, clock: Callable[[], datetime.datetime]) -> None:
    fleet = Fleet.objects.get(pk=row.fleet)
    try:
        measured = profiling.measure(
            fleet,
            cluster=None,
            since_s=row.since.timestamp(),
            until_s=row.until.timestamp(),
            warmup_s=WARM_UP_S,
        )
    except ScenarioError as exc:
        _end(row, "failed", clock(), text=str(exc)[:500])
        return
    clusters = {each.cluster.name: told(each) for each in measured}
    profiles = proposed(fleet.scenario, measured, clock())
    if profiles:
        _end(row, "ready", clock(), clusters=clusters, profiles=profiles)
    else:
        _end(row, "failed", clock(), clusters=clusters, text="no cluster could be fitted")


def _end(row: ProfileProposal, state: str, now: datetime.datetime, **values: Any) -> None:
    # One that was replaced meanwhile stays so.
    ProfileProposal.objects.filter(pk=row.pk, state="queued").update(
        state=state, fitted_at=now, **values
    )


def told(measured: Measured) -> dict[str, Any]:
    """How a cluster was fitted, or why it was not, as plain values."""
    fit = measured.outcome
    head: dict[str, Any] = {
        "profile": profile_name(measured),
        "engines": list(measured.engines),
        "refused": None,
    }
    if not isinstance(fit, Fit):
        return head | {"refused": {"reason": fit.reason, "message": fit.message}}
    return head | {
        "fit": [fit.constant_s, fit.linear_s, fit.square_s],
        "range_tokens": list(fit.range_tokens),
        "n_requests": fit.n_requests,
        "spread_ratio": fit.spread_ratio,
    }


def proposed(
    scenario: Mapping[str, Any], measured: list[Measured], now: datetime.datetime
) -> dict[str, Any]:
    """By profile, its table before and after. Of clusters that share one, the one with the most
    requests counts."""
    best: dict[str, Measured] = {}
    for each in measured:
        name, fit = profile_name(each), each.outcome
        if not isinstance(fit, Fit) or name not in scenario["profiles"]:
            continue
        known = best.get(name)
        if known is None or fit.n_requests > _fit_of(known).n_requests:
            best[name] = each
    return {
        name: {
            "before": scenario["profiles"][name],
            "after": _after(scenario["profiles"][name], each, now),
        }
        for name, each in best.items()
    }


def profile_name(measured: Measured) -> str:
    """The profile's name in the document: parsed ones at a context are called NAME@CLUSTER."""
    return measured.cluster.profile.partition("@")[0]


def _fit_of(measured: Measured) -> Fit:
    assert isinstance(measured.outcome, Fit), "only fits are compared"
    return measured.outcome


def _after(before: Mapping[str, Any], measured: Measured, now: datetime.datetime) -> dict[str, Any]:
    fit = _fit_of(measured)
    engine, _, version = measured.engines[0].partition(" ")
    low, high = fit.range_tokens
    after = {
        **before,
        "prefill": {
            "fit": [fit.constant_s, fit.linear_s, fit.square_s],
            "range_tokens": [round(low), round(high)],
        },
        "measured_on": f"{now.astimezone(UTC):%F}",
    }
    return after | {k: v for k, v in (("engine", engine), ("engine_version", version)) if v}
