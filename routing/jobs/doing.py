"""What a job does, by the same commands as people, and what it would do."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from routing import commands, role_commands
from routing.approvals.asking import Proposed
from routing.commands import Refused
from routing.forecast import forecasts
from routing.jobs.document import Do, JobDocument
from routing.models import Fleet, Policy
from routing.refits import proposals
from routing.role_commands import Roles, Seen
from routing.windows import refusing
from routing.windows.document import Of


@dataclass(frozen=True)
class Done:
    """In words; the hold that was placed; whether instances are being moved for it; the proposal
    that a second person is to decide on first."""

    text: str
    hold: int | None = None
    moves: bool = False
    proposal: int | None = None


def act(
    document: JobDocument,
    *,
    actor: str,
    via: str,
    key: str,
    due_at: datetime.datetime,
    now: datetime.datetime,
) -> Done:
    """Do it, or propose it where it needs a second person. Raises Refused.

    What it holds ends `for_s` after `due_at`, however late it was found: a job that is due at that
    very moment finds nothing held.
    """
    try:
        return _act(document, actor=actor, via=via, key=key, due_at=due_at, now=now)
    except Proposed as proposed:
        pk = proposed.kept().pk
        return Done(f"asked for a second person: proposal {pk}", proposal=pk)


def _act(
    document: JobDocument,
    *,
    actor: str,
    via: str,
    key: str,
    due_at: datetime.datetime,
    now: datetime.datetime,
) -> Done:
    do, reason = document.do, f"Job {document.name}: {document.reason}"
    who = {"actor": actor, "via": via, "reason": reason, "now": now}
    if do.kind == "mode":
        return _mode(document, who)
    if do.kind == "refit_profiles":
        asked_fit = proposals.ask(
            fleet=document.fleet, span=datetime.timedelta(seconds=do.span_s), **who
        )
        return Done(f"profiles are being fitted: see proposal {asked_fit.pk}")
    expires_at = due_at + datetime.timedelta(seconds=do.for_s)
    if do.kind == "plan":
        hold = commands.place_hold(
            fleet=document.fleet,
            cluster=do.cluster,
            mode=do.mode,
            threshold_tokens=do.threshold_tokens,
            owner=actor,
            expires_at=expires_at,
            **who,
        )
        return Done(f"held {_plan_words(do)} until {expires_at:%F %H:%M} UTC", hold.pk)
    present, to = _roles(document, Seen.of(Fleet.objects.get(pk=document.fleet)), now)
    if present == to:
        return Done(f"{do.cluster} has {role_commands.words(to)} already")
    asked = role_commands.move_roles(
        fleet=document.fleet,
        cluster=do.cluster,
        to=to,
        expected=present,
        expires_at=expires_at,
        key=key,
        **who,
    )
    return Done(f"asked for {role_commands.words(to)}", asked.hold.pk, moves=True)


def preview(document: JobDocument, *, now: datetime.datetime) -> Done:
    """What it would do now. Raises Refused where it could not."""
    do = document.do
    policy = Policy.objects.select_related("fleet").get(fleet=document.fleet)
    if do.kind == "mode":
        return Done(f"dry run: would set {document.fleet} {do.mode}, it is {policy.mode}")
    if do.kind == "refit_profiles":
        proposals.check_span(datetime.timedelta(seconds=do.span_s))
        return Done(f"dry run: would fit profiles to the last {do.span_s / 3600:g} h")
    refusing.allowed(document.fleet, *_kinds(do), actor=actor_of(document), now=now)
    if do.kind == "plan":
        commands.check_hold(
            policy,
            cluster=do.cluster,
            mode=do.mode,
            threshold_tokens=do.threshold_tokens,
            expires_at=now + datetime.timedelta(seconds=do.for_s),
            now=now,
        )
        return Done(f"dry run: would hold {_plan_words(do)}")
    seen = Seen.of(policy.fleet)
    present, to = _roles(document, seen, now)
    if present == to:
        return Done(f"dry run: {do.cluster} has {role_commands.words(to)} already")
    for field, text in role_commands.why_not(
        policy, do.cluster, to, seen, now, actor=actor_of(document)
    ):
        raise Refused(field, do.cluster, text)
    return Done(
        f"dry run: would move {do.cluster} from {role_commands.words(present)}"
        f" to {role_commands.words(to)}"
    )


def _kinds(do: Do) -> tuple[Of, ...]:
    """As what a freeze forbids it."""
    return ("people",) if do.kind == "plan" else ("roles", "people")


def actor_of(document: JobDocument) -> str:
    """Who does what a job does at its time."""
    return f"job {document.name}"


def _mode(document: JobDocument, who: dict[str, object]) -> Done:
    policy = Policy.objects.get(fleet=document.fleet)
    if policy.mode == document.do.mode:
        return Done(f"{document.fleet} is {policy.mode} already")
    commands.set_policy(
        fleet=document.fleet,
        changes={"mode": document.do.mode},
        if_version=policy.version,
        **who,  # type: ignore[arg-type]
    )
    return Done(f"{document.fleet} is {document.do.mode}")


def _roles(document: JobDocument, seen: Seen, now: datetime.datetime) -> tuple[Roles, Roles]:
    """What the cluster has, and what the job wants of it. Raises Refused."""
    do = document.do
    present = seen.roles(do.cluster)
    if present is None:
        raise Refused("cluster", do.cluster, "has no plan yet: nothing says which roles it has")
    if do.kind == "forecast":
        return present, forecasts.advised(document.fleet, do.cluster, now) or present
    if do.n_prefill is None:
        raise Refused("n_prefill", None, "is missing")
    if do.n_decode is not None:
        return present, (do.n_prefill, do.n_decode)
    n_prefill = max(do.n_prefill, present[0])
    return present, (n_prefill, sum(present) - n_prefill)


def _plan_words(do: Do) -> str:
    where = do.cluster or "every PD cluster"
    if do.mode == "threshold":
        return f"t = {do.threshold_tokens} in {where}"
    return f"{do.mode.replace('_', ' ')} in {where}"
