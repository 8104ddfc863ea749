"""A document made so, in one transaction: all of it or nothing, by the commands that people use.

Everything is tried before anything is kept, so a document that cannot be meant changes nothing and
is told every reason at once; a dry run is the same with its changes taken back. What is as declared
is not touched: a document that is applied again writes no row, of the audit neither.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.db import connection, transaction

from routing import commands, fleet_removal
from routing.alerts import receivers, rules
from routing.alerts.signals import UNITS
from routing.approvals import gate, limits_rows
from routing.approvals.asking import proposable
from routing.approvals.limits import Beyond, words
from routing.commands import Outdated, Refused
from routing.costs import prices
from routing.declared.diff import OF_FLEETS, Change, changes, fleet_of, n_same
from routing.declared.document import KINDS, Declared, NotMeant, Wrong, kept, read_declared
from routing.declared.state import State, read_state
from routing.jobs import jobs
from routing.windows import refusing, windows

_ONE_AT_A_TIME: Final = 7_240_301
"""The key of the lock that a document is applied under."""


@dataclass(frozen=True)
class Applied:
    """`digest_before` and `digest` are of the state; the same in a dry run. `beyond` are the limits
    for which a second person is needed, of a dry run: else it is asked for (`approvals`)."""

    dry_run: bool
    changes: list[Change]
    n_same: int
    digest_before: str
    digest: str
    beyond: tuple[Beyond, ...] = ()

    @property
    def needs_approval(self) -> tuple[str, ...]:
        """Why a second person is needed, as the API says it."""
        return tuple(dict.fromkeys(words(self.beyond)))


@dataclass
class _Work:
    """One document as it is being applied: `who` changes it, and what was wrong so far."""

    declared: Declared
    state: State
    who: dict[str, Any]
    wrong: list[Wrong] = field(default_factory=list)


@proposable
def apply(
    *,
    document: dict[str, Any],
    prune: bool = False,
    confirmed: Sequence[str] = (),
    if_digest: str = "",
    actor: str,
    via: str,
    reason: str,
    now: datetime.datetime,
) -> Applied:
    """`confirmed` names fleets that may go with their history; `if_digest` is the state that the
    document was written for, empty for any.

    Raises NotMeant with every error, Outdated when the state is another than was declared on,
    Proposed where it reaches too far for one person.
    """
    declared = read_declared(document, units=UNITS)
    who = {"actor": actor, "via": via, "reason": reason or "applied a document", "now": now}
    with transaction.atomic():
        work, todo = _tried(declared, prune, confirmed, if_digest, who)
        for change in todo:
            if change.kind == "fleets" and change.action == "delete":
                fleet_removal.remove(fleet=change.name, **who)
        return _done(work, todo, digest=read_state().digest if todo else work.state.digest)


def dry_run(
    *,
    document: dict[str, Any],
    prune: bool = False,
    confirmed: Sequence[str] = (),
    if_digest: str = "",
    actor: str,
    via: str,
    now: datetime.datetime,
) -> Applied:
    """What `apply` would do: it is tried, and taken back. Raises NotMeant, Outdated."""
    declared = read_declared(document, units=UNITS)
    who = {"actor": actor, "via": via, "reason": "dry run", "now": now}
    with transaction.atomic(), gate.watching(via) as watch:
        work, todo = _tried(declared, prune, confirmed, if_digest, who)
        beyond = _beyond(watch, todo, via)
        transaction.set_rollback(True)
    return _done(work, todo, beyond=beyond)


def _beyond(watch: gate.Watch, todo: list[Change], via: str) -> tuple[Beyond, ...]:
    """Which limits are passed, by what was tried and by the fleets that would go."""
    for change in todo:
        if change.kind == "fleets" and change.action == "delete":
            said: dict[str, Any] = {"before": change.before, "after": None, "measured": {}}
            name = change.name
            gate.note(verb="fleet.delete", fleet=name, target=name, via=via, **said)
    try:
        watch.settle()
    except gate.NeedsApproval as exc:
        return exc.asked.beyond
    return ()


def _tried(
    declared: Declared,
    prune: bool,
    confirmed: Sequence[str],
    if_digest: str,
    who: dict[str, Any],
) -> tuple[_Work, list[Change]]:
    """All changes are made but for fleets that go: that may take long, and cannot be refused then.
    Raises NotMeant, Outdated."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_ONE_AT_A_TIME])
    work = _Work(declared, read_state(), who, list(declared.wrong))
    todo = changes(declared.tables, work.state.tables, prune=prune)
    todo = [change for change in todo if (change.kind, change.name) not in declared.broken]
    if todo and if_digest not in ("", work.state.digest):
        message = f"the state is {work.state.digest:.12} now; export it and look again"
        raise Outdated("document", if_digest, message)
    _check_fleets(work, todo, confirmed)
    _check_frozen(work, todo)
    for change in todo:
        if change.kind != "fleets" or change.action != "delete":
            _try(work, change, _writing(work, change))
    if work.wrong:
        raise NotMeant(work.wrong, todo)
    return work, todo


def _done(
    work: _Work, todo: list[Change], *, digest: str = "", beyond: tuple[Beyond, ...] = ()
) -> Applied:
    return Applied(
        dry_run=not digest,
        changes=todo,
        n_same=n_same(work.declared.tables, work.state.tables),
        digest_before=work.state.digest,
        digest=digest or work.state.digest,
        beyond=beyond,
    )


def _check_fleets(work: _Work, todo: list[Change], confirmed: Sequence[str]) -> None:
    """Fleets that go: that they may, and that nothing which is declared is of them."""
    going = {c.name for c in todo if (c.kind, c.action) == ("fleets", "delete")}
    for name in sorted(going):
        refused = fleet_removal.why_not(name, confirmed=name in confirmed)
        if refused:
            work.wrong.append(Wrong(f"fleets.{name}", None, refused))
    broken = {name for kind, name in work.declared.broken if kind == "fleets"}
    there = work.state.tables["fleets"].keys() | work.declared.tables.get("fleets", {}).keys()
    for kind in KINDS[1:]:
        for name, values in work.declared.tables.get(kind, {}).items():
            fleet = fleet_of(kind, name, values)
            if fleet and fleet not in broken and fleet not in there - going:
                path = f"{kind}.{name}" + ("" if kind in OF_FLEETS else ".fleet")
                work.wrong.append(Wrong(path, fleet, "is no fleet, of the document or kept"))


def _check_frozen(work: _Work, todo: list[Change]) -> None:
    """Fleets that go: that no freeze forbids it now. Asked before their windows go along."""
    who = {"actor": work.who["actor"], "now": work.who["now"]}
    for change in todo:
        if change.kind == "fleets" and change.action == "delete":
            try:
                refusing.allowed(change.name, "people", **who)
            except refusing.FrozenNow as exc:
                work.wrong.append(_frozen(f"fleets.{change.name}", exc))


def _frozen(path: str, exc: refusing.FrozenNow) -> Wrong:
    return Wrong(path, None, exc.message, frozen=True)


def _try(work: _Work, change: Change, write: Callable[[], object] | None) -> None:
    """Do it within a savepoint; what is refused is noted."""
    path = f"{change.kind}.{change.name}"
    if write is None or any(f"{each.path}.".startswith(f"{path}.") for each in work.wrong):
        return
    try:
        with transaction.atomic():
            write()
    except Outdated:
        raise
    except refusing.FrozenNow as exc:
        work.wrong.append(_frozen(path, exc))
    except Refused as exc:
        at = f"{path}.{exc.field}" if change.action != "delete" else path
        work.wrong.append(Wrong(at, exc.value, exc.message))


def _writing(work: _Work, change: Change) -> Callable[[], object] | None:
    """What makes a change so; None where the fleet that it is of is broken itself."""
    name, values, who = change.name, change.after, work.who
    version = work.state.versions.get((change.kind, name), 0)
    if values is None:
        return _deleting(change, version, who)
    if ("fleets", fleet_of(change.kind, name, values)) in work.declared.broken:
        return None
    if change.kind == "fleets":
        policy = work.declared.tables.get("policies", {}).get(name)
        mode = policy["mode"] if policy and change.action == "create" else None
        return lambda: commands.create_fleet(scenario=values, mode=mode, **who)
    if change.kind == "policies":
        return lambda: _set_policy(work, name, values)
    if change.kind == "receivers":
        receiver = {"secret_file": "", **values}
        return lambda: receivers.put(name=name, **receiver, if_version=version, **who)
    if change.kind == "prices":
        return lambda: prices.put(fleet=name, document=values, if_version=version, **who)
    if change.kind == "approval_limits":
        return lambda: limits_rows.put(fleet=name, limits=values, if_version=version, **who)
    document, enabled = kept(name, values)
    put = _PUT[change.kind]
    return lambda: put(document=document, enabled=enabled, if_version=version, **who)


_PUT: Final[dict[str, Callable[..., object]]] = {
    "jobs": jobs.put,
    "alert_rules": rules.put,
    "windows": windows.put,
}


def _set_policy(work: _Work, name: str, values: dict[str, Any]) -> None:
    """Knobs that are not declared return to their defaults."""
    policy = commands.locked_policy(name)
    wanted = values.get("knobs", {})
    commands.set_policy(
        fleet=name,
        changes={"mode": values["mode"], "knobs": dict.fromkeys(policy.knobs) | wanted},
        # A fleet that this document made has no version that anybody could have seen.
        if_version=work.state.versions.get(("policies", name), policy.version),
        **work.who,
    )


def _deleting(change: Change, version: int, who: dict[str, Any]) -> Callable[[], object]:
    without_now = {key: value for key, value in who.items() if key != "now"}
    because = {"reason": change.because} if change.because else {}
    if change.kind == "receivers":
        return lambda: receivers.delete(name=change.name, **without_now)
    if change.kind == "alert_rules":
        return lambda: rules.delete(name=change.name, if_version=version, **who | because)
    delete, key = _DELETE[change.kind]
    return lambda: delete(**{key: change.name}, if_version=version, **without_now | because)


_DELETE: Final[dict[str, tuple[Callable[..., object], str]]] = {
    "jobs": (jobs.delete, "name"),
    "prices": (prices.delete, "fleet"),
    "approval_limits": (limits_rows.delete, "fleet"),
    "windows": (windows.delete, "name"),
}
"""What forgets one of them, and how it calls its name."""
