"""The other half of Dynamo's planner handshake: decisions shown, and reported once they are done.

A Dynamo worker has its role from its start, so no decision is carried out from here: it is shown as
what to start and to end, and who runs the site does that. The planner decides nothing more until it
is told so. It is told once the frontend lists as many ready workers of each role as it decided, and
never of a decision that breaks the cluster's floors or budget.

What was told is in the audit log alone, written before it is sent and again once it is read back:
a worker that dies between the two leaves a report that the next one finds sent, and takes for ours.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from django.db import connection, transaction

from routing import audit
from routing.adapters.dynamo import Dynamo
from routing.adapters.dynamo_planner import Decision, Done, OtherWriter, Planner, Superseded
from routing.adapters.rendered import Rendered
from routing.adapters.surface import ROLES, Actual, SurfaceError
from routing.managed_sites import Read
from routing.managed_steps import WRITER
from routing.models import Action, Fleet
from routing.rebalance_plan import beyond

_SENT: Final = "planner.report"
_ENDED: Final = "planner.report.end"
_LOCK: Final = 1885757190
"""With the planner's name, so that one worker at a time speaks to one planner."""


@dataclass(frozen=True)
class _Told:
    """What the newest audit row of a planner says: `ours` was reported last, and `sent` (id and
    revision of a decision) is a report that may have arrived or not."""

    row: int | None = None
    ours: Done | None = None
    sent: tuple[int, int] | None = None

    def known(self, done: Done | None) -> Done | None:
        """Our newest report as far as the planner shows it."""
        if self.sent is not None and done is not None:
            id, revision = self.sent
            if done.id == id and done.revision > revision:
                return done
        return self.ours


@dataclass(frozen=True)
class _Found:
    """What there is to say: findings, who else reports, what waits for others."""

    findings: tuple[str, ...] = ()
    writer: str = ""
    decided: Rendered | None = None


def followed(fleet: Fleet, read: Read) -> Read:
    """The reading with what its planner waits for; a decision that it shows done is reported.

    Any other router's comes back as it is.
    """
    surface, actual = read.site.surface, read.actual
    if actual is None or not isinstance(surface, Dynamo) or not surface.settings.act_for_planner:
        return read
    planner = surface.settings.planner
    assert planner is not None, "the settings were checked"
    try:
        found = _follow(fleet, read, surface, planner, actual)
    except SurfaceError as exc:
        found = _Found((str(exc),))
    facts = {**actual.facts, WRITER: found.writer} if found.writer else actual.facts
    findings = (*actual.findings, *found.findings)
    seen = dataclasses.replace(actual, findings=findings, facts=facts)
    return dataclasses.replace(read, actual=seen, decided=found.decided)


def _follow(fleet: Fleet, read: Read, surface: Dynamo, planner: Planner, actual: Actual) -> _Found:
    # The workers were counted before this is read: a newer decision never counts as done by them.
    shown = planner.read()
    told = _told(planner)
    ours = told.known(shown.done)
    other = shown.other_writer(ours)
    if other is not None:
        key = f"v1/{planner.namespace}/planner/scaled_decision_id"
        return _Found(
            (
                f"{other}: nothing is reported from here. Once nobody else acts for this planner, "
                f"delete {key} in {planner.etcd_url}",
            ),
            writer="whoever reports to its planner",
        )
    if told.sent is not None and ours != told.ours:
        _end(fleet, planner, told, ours, "found sent by a worker that did not come to note it")
        return _Found()
    wanted = shown.pending
    if wanted is None:
        return _since(shown.decision if shown.is_settled else None, surface, actual)
    refused = _refused(wanted, read, actual)
    if refused:
        return _Found(
            (f"decision {wanted.id} of its planner is refused and not reported: {refused}",)
        )
    left = surface.rendered_decision(wanted, actual)
    if left is not None:
        return _Found(decided=left)
    if fleet.policy.mode != "active":
        waits = f"is done, and is not reported while the fleet is {fleet.policy.mode}"
        return _Found((f"decision {wanted.id} of its planner {waits}",))
    return _Found(_report(fleet, planner, told, ours, wanted, actual))


def _since(done: Decision | None, surface: Dynamo, actual: Actual) -> _Found:
    """Nothing is asked for; do the workers of the last decision still run?"""
    if done is None or surface.rendered_decision(done, actual) is None:
        return _Found()
    n_prefill, n_decode = (len(actual.ready(role)) for role in ROLES.values())
    return _Found(
        (
            f"decision {done.id} of its planner was carried out, and since then it has come to "
            f"{n_prefill} prefill and {n_decode} decode workers",
        )
    )


def _refused(wanted: Decision, read: Read, actual: Actual) -> str:
    """Why the cluster must not be so, whoever asks; empty if it may."""
    n_prefill = len(actual.ready("prefill")) if wanted.n_prefill is None else wanted.n_prefill
    n_decode = len(actual.ready("decode")) if wanted.n_decode is None else wanted.n_decode
    wrong = beyond(read.site.cluster, (n_prefill, n_decode))
    return "" if wrong is None else wrong.reason


def _report(
    fleet: Fleet,
    planner: Planner,
    told: _Told,
    ours: Done | None,
    wanted: Decision,
    actual: Actual,
) -> tuple[str, ...]:
    """Tell the planner, once. What could not be told, in words; another pass tries again."""
    if told.sent != (wanted.id, wanted.revision):
        counts = {f"n_{role}": len(actual.ready(role)) for role in ("prefill", "decode")}
        with transaction.atomic():
            if not _is_alone(planner, told):
                return ()
            told = _write(
                fleet, planner, _SENT, {**_plain(ours), **dataclasses.asdict(wanted)}, seen=counts
            )
    with transaction.atomic():
        if not _is_alone(planner, told):
            return ()
        try:
            done = planner.report_done(wanted, ours=told.ours)
        except (OtherWriter, Superseded) as exc:
            _write(fleet, planner, _ENDED, _plain(told.ours), reason=str(exc))
            return (str(exc),)
        _write(fleet, planner, _ENDED, _plain(done))
    return ()


def _end(fleet: Fleet, planner: Planner, told: _Told, ours: Done | None, reason: str) -> None:
    with transaction.atomic():
        if _is_alone(planner, told):
            _write(fleet, planner, _ENDED, _plain(ours), reason=reason)


def _is_alone(planner: Planner, told: _Told) -> bool:
    """Nobody else speaks to the planner until this transaction ends, nor has since `told`."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s, hashtext(%s))", [_LOCK, _at(planner)])
        [is_ours] = cursor.fetchone()
    return bool(is_ours) and _told(planner) == told


def _told(planner: Planner) -> _Told:
    row = Action.objects.filter(verb__in=(_SENT, _ENDED), target=_at(planner)).order_by("id").last()
    return _Told() if row is None else _read_back(row)


def _read_back(row: Action) -> _Told:
    said: dict[str, Any] = row.after
    ours = said["ours"] and Done(**said["ours"])
    return _Told(row.pk, ours, (said["id"], said["revision"]) if row.verb == _SENT else None)


def _write(
    fleet: Fleet,
    planner: Planner,
    verb: str,
    after: dict[str, Any],
    *,
    seen: dict[str, int] | None = None,
    reason: str = "",
) -> _Told:
    row = audit.record(
        actor=audit.SYSTEM,
        via="scheduler",
        verb=verb,
        fleet=fleet.pk,
        target=_at(planner),
        before=seen,
        after=after,
        reason=reason[:500],
    )
    return _read_back(row)


def _plain(ours: Done | None) -> dict[str, Any]:
    return {"ours": ours and dataclasses.asdict(ours)}


def _at(planner: Planner) -> str:
    return f"planner {planner.namespace} in {planner.etcd_url}"[:300]
