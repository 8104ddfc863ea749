"""The policy editor: every number of the loop, what a change of them would do, its history.

The filled form is a GET, so that its address keeps what was typed; confirming is the POST. The form
carries the version and the values that its reader saw. Where the policy is another by then, nothing
is written: the page of the conflict shows both changes and what they were made from (S-55).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache

from console import approval_words, policies, policy_effects
from console.changes import CONFLICT, UNPROCESSABLE, VIA, policy_of, undone_by
from console.knob_words import GROUPS, KNOBS, as_typed, range_words, value_words
from console.roles import operators_only, readable, role_of
from routing import commands, knobs
from routing.approvals import gate
from routing.knobs import RANGES, OneOf, Whole
from routing.models import Action, Policy

VERSIONS_PER_PAGE = 20
LOOKED_BACK = 300
"""Changes of the past among which it is sought who set a number last."""
REASON_MAX = 500


@dataclass(frozen=True)
class Typed:
    """What a form holds: texts by knob, the policy it was made from, and what could be read of it.

    `values` are those that can be meant, None where a field is empty: the default; `errors` say by
    name why the others cannot.
    """

    texts: Mapping[str, str]
    base: Mapping[str, Any]
    version: int | None
    reason: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, Any]:
        """What differs from what its reader saw; None: back to the default."""
        saw, defaults = knobs.effective(dict(self.base)), knobs.effective({})
        return {
            name: None if value == defaults[name] else value
            for name, value in self.values.items()
            if value != saw[name]
        }


@readable
@never_cache
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """Look at the policy; as an operator change it."""
    policy = policy_of(fleet)
    if request.method == "POST":
        return _change(request, fleet=fleet)
    sent = request.GET
    if "version" not in sent or not role_of(request.user, fleet).can_operate:
        return _page(request, policy, _fresh(policy, sent), Looked())
    typed = read(sent)
    if typed.version != policy.version:
        return _conflict(request, policy, typed)
    return _page(request, policy, typed, Looked(asked=True))


@operators_only
def _change(request: HttpRequest, fleet: str) -> HttpResponse:
    policy, typed = policy_of(fleet), read(request.POST)
    if typed.version != policy.version:
        return _conflict(request, policy, typed)
    reason = typed.reason.strip()
    no_reason = "" if reason else _("Say why: it stands in the history with your name.")
    if typed.errors or not typed.changes or no_reason:
        looked = Looked(asked=True, no_reason=no_reason)
        return _page(request, policy, typed, looked, status=UNPROCESSABLE)
    try:
        after = commands.set_policy(
            fleet=fleet,
            changes={"knobs": typed.changes},
            if_version=policy.version,
            actor=request.user.get_username(),
            via=VIA,
            reason=reason,
            now=timezone.now(),
        )
    except commands.Stale:
        return _conflict(request, policy_of(fleet), typed)
    except commands.Refused as refused:
        name = refused.field.removeprefix("knobs.")
        wrong = Typed(
            typed.texts, typed.base, typed.version, reason, errors={name: refused.message}
        )
        return _page(request, policy, wrong, Looked(asked=True), status=UNPROCESSABLE)
    n = len(typed.changes)
    done = ngettext(
        "%(n)s number changed: the policy is v%(version)s. The next tick goes by it.",
        "%(n)s numbers changed: the policy is v%(version)s. The next tick goes by it.",
        n,
    ) % {"n": n, "version": after.version}
    newest = Action.objects.filter(fleet=fleet, verb="policy.change").order_by("-id").first()
    back = f"{reverse('policy', args=[fleet])}?before={newest.pk if newest else ''}"
    messages.success(request, undone_by(done, back, _("Undo: the numbers before it")))
    return _to(fleet)


def _to(fleet: str) -> HttpResponse:
    response = HttpResponse(status=302)
    response["Location"] = reverse("policy", args=[fleet])
    return response


def read(sent: QueryDict) -> Typed:
    """What a form says, as far as it can be read. Pure."""
    texts = {name: sent[name].strip() for name in RANGES if name in sent}
    values, errors = {}, {}
    for name, text in texts.items():
        try:
            values[name] = _value(name, text)
        except knobs.KnobError as exc:
            errors[name] = exc.message
    if not errors:
        try:
            knobs.checked(_set(values))
        except knobs.KnobError as exc:
            errors[exc.name] = exc.message
    version = sent.get("version", "")
    return Typed(
        texts=texts,
        base=_base(sent.get("base", "")),
        version=int(version) if version.isdecimal() and len(version) < 10 else None,
        reason=sent.get("reason", "")[:REASON_MAX],
        values=values,
        errors=errors,
    )


def _value(name: str, text: str) -> Any:
    """Raises KnobError."""
    if not text:
        return knobs.effective({})[name]
    kind = RANGES[name]
    if isinstance(kind, OneOf):
        return kind.check(name, text)
    plain = text.replace(",", "")
    try:
        value = int(plain) if isinstance(kind, Whole) else float(plain)
    except ValueError:
        whole = _("must be a whole number") if isinstance(kind, Whole) else _("must be a number")
        raise knobs.KnobError(name, text, whole) from None
    return kind.check(name, value)


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not defaults."""
    defaults = knobs.effective({})
    return {name: value for name, value in values.items() if value != defaults[name]}


def _base(text: str) -> dict[str, Any]:
    """The chosen numbers that the form was made from. A form's word: only shown and compared."""
    try:
        found = json.loads(text)
        return knobs.checked(found) if isinstance(found, dict) else {}
    except (ValueError, RecursionError):
        return {}


def _fresh(policy: Policy, sent: QueryDict) -> Typed:
    """The form before anybody typed: the policy, or the numbers of one in its history."""
    wanted = dict(policy.knobs)
    for which in ("before", "after"):
        asked = sent.get(which, "")
        if asked.isdecimal() and len(asked) < 18:
            row = Action.objects.filter(
                pk=int(asked), fleet=policy.fleet_id, verb="policy.change"
            ).first()
            if row is not None:
                wanted = dict(getattr(row, which)["knobs"])
    wanted = {name: value for name, value in wanted.items() if name in RANGES}
    values = knobs.effective(wanted)
    texts = {name: as_typed(value) for name, value in values.items()}
    # A link from elsewhere may name single numbers, and why.
    texts |= {name: sent[name] for name in RANGES if name in sent}
    return Typed(
        texts, dict(policy.knobs), policy.version, sent.get("reason", "")[:REASON_MAX], values
    )


@dataclass(frozen=True)
class Looked:
    """Whether it was asked what the numbers would do, and what else is wrong."""

    asked: bool = False
    no_reason: str = ""


def _page(
    request: HttpRequest, policy: Policy, typed: Typed, looked: Looked, status: int = 200
) -> HttpResponse:
    rows = Action.objects.filter(fleet=policy.fleet_id, verb="policy.change").order_by("-id")
    history = Paginator(rows, VERSIONS_PER_PAGE).get_page(request.GET.get("page"))
    may = role_of(request.user, policy.fleet_id).can_operate
    expected = None
    if looked.asked and not typed.errors and typed.changes:
        before = {"mode": policy.mode, "knobs": policy.knobs}
        would = gate.Would("policy.change", before, before | {"knobs": _set(typed.values)})
        expected = approval_words.asked_first(
            policy_effects.of_knobs(policy, _set(typed.values), timezone.now()),
            gate.needed(policy.fleet_id, would),
        )
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "groups": groups(policy.knobs, typed, _set_by(policy)),
        "typed": typed,
        "base": json.dumps(dict(typed.base), sort_keys=True),
        "changed": diff_rows(typed.base, typed.values, typed.values) if not typed.errors else [],
        "n_errors": len(typed.errors),
        "asked": looked.asked,
        "no_reason": looked.no_reason,
        "effects": expected,
        "page": history,
        "history": [
            {"action": row, "changes": policies.action_changes(row.before, row.after)}
            for row in history
        ],
        "may": may,
    }
    return render(request, "policy.html", context, status=status)


def groups(
    chosen: Mapping[str, Any], typed: Typed, set_by: Mapping[str, Action]
) -> list[dict[str, Any]]:
    """The form's fields by what they are about, each with all that is known of its number. Pure."""
    now, defaults = knobs.effective(dict(chosen)), knobs.effective({})
    found: dict[str, list[dict[str, Any]]] = {group: [] for group in GROUPS}
    for name, kind in RANGES.items():
        knob = KNOBS[name]
        text = typed.texts.get(name, as_typed(now[name]))
        found[knob.group].append(
            {
                "name": name,
                "label": knob.label,
                "meaning": knob.meaning,
                "unit": knob.unit,
                "range": range_words(name),
                "choices": kind.words if isinstance(kind, OneOf) else (),
                "text": text,
                "error": typed.errors.get(name, ""),
                "now": value_words(name, now[name]),
                "default": value_words(name, defaults[name]),
                "default_text": as_typed(defaults[name]),
                "is_set": name in chosen,
                "is_changed": text != as_typed(now[name]),
                "set_by": set_by.get(name),
            }
        )
    return [{"name": g, "label": GROUPS[g], "fields": fields} for g, fields in found.items()]


def _set_by(policy: Policy) -> dict[str, Action]:
    """Of the numbers that differ from their default the change that set each last."""
    rows = Action.objects.filter(fleet=policy.fleet_id, verb="policy.change").order_by("-id")
    return last_changes(policy.knobs, rows[:LOOKED_BACK])


def last_changes(chosen: Iterable[str], newest_first: Iterable[Action]) -> dict[str, Action]:
    """By number the newest change that gave it the value it has. Pure."""
    wanted, found = set(chosen), {}
    for row in newest_first:
        if not wanted:
            break
        before, after = (_knobs_of(each) for each in (row.before, row.after))
        for name in [n for n in wanted if before.get(n) != after.get(n)]:
            found[name] = row
            wanted.discard(name)
    return found


def _knobs_of(values: Any) -> Mapping[str, Any]:
    return (values or {}).get("knobs") or {}


def diff_rows(
    base: Mapping[str, Any], yours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What you or they changed against what both began from, number by number. Pure."""
    was, mine, other = (knobs.effective(_set(dict(each))) for each in (base, yours, theirs))
    rows = []
    for name in RANGES:
        if was[name] == mine[name] == other[name]:
            continue
        by_me, by_them = mine[name] != was[name], other[name] != was[name]
        clash = by_me and by_them and mine[name] != other[name]
        rows.append(
            {
                "name": name,
                "label": KNOBS[name].label,
                "base": value_words(name, was[name]),
                "yours": value_words(name, mine[name]),
                "theirs": value_words(name, other[name]),
                "by_me": by_me,
                "by_them": by_them,
                "clash": clash,
            }
        )
    return rows


def _conflict(request: HttpRequest, policy: Policy, typed: Typed) -> HttpResponse:
    """Somebody was faster: what you saw, what you wanted, what it is now; and the way on."""
    last = (
        Action.objects.filter(fleet=policy.fleet_id, verb="policy.change").order_by("-id").first()
    )
    address = reverse("policy", args=[policy.fleet_id])
    mine = {name: typed.texts[name] for name in typed.changes if name in typed.texts}
    values = knobs.effective(policy.knobs)
    on_top = {name: as_typed(value) for name, value in values.items()} | mine
    query = {
        **on_top,
        "version": str(policy.version),
        "base": json.dumps(policy.knobs, sort_keys=True),
        "reason": typed.reason,
    }
    yours = {**knobs.effective(dict(typed.base)), **typed.values}
    rows = diff_rows(typed.base, yours, policy.knobs)
    context = {
        "fleet": policy.fleet,
        "policy": policy,
        "seen_version": typed.version,
        "last_change": last,
        "diff": rows,
        "n_clashes": sum(row["clash"] for row in rows),
        "on_top": f"{address}?{urlencode(query)}" if mine else "",
        "again": address,
    }
    return render(request, "conflict.html", context, status=CONFLICT)
