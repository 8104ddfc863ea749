"""Pages of approvals: what waits for a second person, what it would do, and the word about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Case, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from console import approval_words, policies, policy_page
from console.audit import inside
from console.changes import CONFLICT, UNPROCESSABLE, VIA
from console.effects import Effect, Effects
from console.roles import (
    administrators_across,
    approvers_across,
    operators_across,
    readable_across,
    role_of,
)
from routing import rights
from routing.approvals import people, proposals, rows
from routing.approvals.models import Proposal
from routing.commands import Refused
from routing.knobs import RANGES
from routing.rights import Rights

PER_PAGE = 50
MOST_CHANGES = 20
"""Changes of one proposal that its page shows; a document that is applied may make more."""


class WordForm(forms.Form):
    """What somebody says about a proposal."""

    reason = forms.CharField(max_length=500, required=False)
    confirm = forms.CharField(max_length=200, required=False)


@readable_across
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """Proposals, those that wait first."""
    now, may = timezone.now(), rights.of(request.user)
    chosen = {name: request.GET.get(name, "") for name in ("state", "fleet", "by")}
    found = Paginator(_chosen(may, chosen), PER_PAGE).get_page(request.GET.get("page"))
    waiting = may.within("read", Proposal.objects.filter(state="open", expires_at__gt=now))
    context = {
        "page": found,
        "rows": [_row(row, now) for row in found],
        "chosen": chosen,
        "states": [(name, _state_word(name)) for name in rows.STATES],
        "n_waiting": waiting.count(),
    }
    return render(request, "approvals.html", context)


@readable_across
@never_cache
def one(request: HttpRequest, proposal_id: int) -> HttpResponse:
    """One proposal: who wants what, how far it goes, what would change; approve or reject it."""
    return _page(request, _readable(request, proposal_id))


@approvers_across
@never_cache
def approve(request: HttpRequest, proposal_id: int) -> HttpResponse:
    """Carry it out, as its second person."""
    return _decide(request, proposal_id, "approve", proposals.approve)


@approvers_across
@never_cache
def reject(request: HttpRequest, proposal_id: int) -> HttpResponse:
    """Say no, and why."""
    return _decide(request, proposal_id, "approve", proposals.reject)


@operators_across
@never_cache
def withdraw(request: HttpRequest, proposal_id: int) -> HttpResponse:
    """Take back one's own."""
    return _decide(request, proposal_id, "operate", proposals.withdraw)


@administrators_across
@never_cache
def break_glass(request: HttpRequest, proposal_id: int) -> HttpResponse:
    """Carry it out alone, in an emergency."""
    typed = request.POST.get("confirm", "").strip()

    def alone(**said: Any) -> Proposal:
        return proposals.break_glass(confirm=typed, **said)

    return _decide(request, proposal_id, "admin", alone)


def _decide(
    request: HttpRequest, proposal_id: int, scope: str, word: Callable[..., Proposal]
) -> HttpResponse:
    row = _readable(request, proposal_id)
    rights.demand(request.user, scope, row.fleet)
    if request.method != "POST":
        return redirect("approval", row.pk)
    form = WordForm(request.POST)
    if not form.is_valid():
        return _page(request, row, error=" ".join(form.errors["reason"]), status=UNPROCESSABLE)
    try:
        ended = word(
            proposal_id=row.pk,
            actor=request.user.get_username(),
            via=VIA,
            reason=form.cleaned_data["reason"].strip(),
            now=timezone.now(),
        )
    except Refused as refused:
        row.refresh_from_db()
        return _page(request, row, error=f"{refused.field}: {refused.message}", status=CONFLICT)
    _tell(request, ended)
    return redirect("approval", row.pk)


def _tell(request: HttpRequest, ended: Proposal) -> None:
    if ended.state == "done":
        messages.success(request, _("It is done, as %(who)s asked.") % {"who": ended.asked_by})
    elif ended.state == "failed":
        messages.warning(request, _("It could not be done any more; nothing has changed."))
    else:
        messages.success(request, _("Nothing has changed, and nothing will by this proposal."))


def _page(
    request: HttpRequest, row: Proposal, *, error: str = "", status: int = 200
) -> HttpResponse:
    now = timezone.now()
    who = request.user.get_username()
    is_open = row.state == "open" and row.expires_at > now
    role = role_of(request.user, row.fleet)
    is_own = people.same(who, row.asked_by) if is_open else False
    context = {
        "proposal": row,
        "row": _row(row, now),
        "why": approval_words.why(rows.beyond_of(row)),
        "changes": [_change(change) for change in row.changes[:MOST_CHANGES]],
        "n_more": max(len(row.changes) - MOST_CHANGES, 0),
        "effects": _effects(row) if is_open else None,
        "is_open": is_open,
        "is_own": is_own,
        "may_approve": is_open and role.can_approve and not is_own,
        "may_withdraw": is_open and role.can_operate and is_own,
        "may_break_glass": is_open and role.can_administer,
        "confirmation": proposals.confirmation(row),
        "made": approval_words.made(row),
        "error": error,
        "typed": {name: request.POST.get(name, "") for name in ("reason", "confirm")},
    }
    return render(request, "approval.html", context, status=status)


def _readable(request: HttpRequest, proposal_id: int) -> Proposal:
    readable_rows = rights.of(request.user).within("read", Proposal.objects.all())
    return get_object_or_404(readable_rows, pk=proposal_id)


def _chosen(may: Rights, chosen: dict[str, str]) -> QuerySet[Proposal]:
    """Open ones first, then the newest."""
    found = may.within("read", Proposal.objects.all())
    if chosen["state"]:
        found = found.filter(state=chosen["state"])
    if chosen["fleet"]:
        found = found.filter(fleet=chosen["fleet"])
    if chosen["by"]:
        found = found.filter(asked_by=chosen["by"])
    first = Case(When(state="open", then=Value(0)), default=Value(1))
    return found.defer("arguments", "seen").order_by(first, "-pk")


def _row(row: Proposal, now: datetime) -> dict[str, Any]:
    return {
        "proposal": row,
        "title": approval_words.title(row),
        "mark": approval_words.mark(row, now),
        "why": "; ".join(approval_words.why(rows.beyond_of(row))),
    }


def _state_word(state: str) -> str:
    return str(approval_words.STATES[state][1])


def _change(change: dict[str, Any]) -> dict[str, Any]:
    """One change it would make, field by field."""
    before, after = change["before"], change["after"]
    if change["verb"] == "policy.change":
        return {**change, "fields": _policy_fields(before, after)}
    # A hold that was not placed has no number yet.
    target = "" if change["verb"] == "hold.place" else change["target"]
    fields = [*policies.action_changes(before, after), *inside(before, after)]
    return {**change, "target": target, "fields": fields}


def _policy_fields(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """Mode and numbers in words, as the policy's own page has them. Pure."""
    # A number of another release has no words.
    was, now = (
        {name: value for name, value in each["knobs"].items() if name in RANGES}
        for each in (before, after)
    )
    mode = {"name": _("Mode"), "before": before["mode"], "after": after["mode"]}
    return [
        *([mode] if before["mode"] != after["mode"] else []),
        *(
            {"name": row["label"], "before": row["base"], "after": row["yours"]}
            for row in policy_page.diff_rows(was, now, now)
        ),
    ]


def _effects(row: Proposal) -> Effects:
    """What approving it does. Pure."""
    goes_on = _("everything as it is until somebody decides, or it runs out.")
    guarded = _(
        "only from what it was asked on: where anything of that has changed by then, nothing is "
        "done, and whoever wants it looks and asks again."
    )
    return Effects(
        (
            Effect.changes(_("what stands on this page, at once when it is approved.")),
            Effect.goes_on(goes_on),
            Effect("", "wait", _("Guarded:"), guarded),
        )
    )
