"""What a document would change, and what is wrong with it, in words and rows for its page. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import approval_words
from console.context import Mark
from console.effects import Effect, Effects
from routing.approvals.limits import Beyond
from routing.declared.diff import Change, Difference, differences
from routing.declared.document import KINDS, Wrong
from routing.declared.lines import line_of, lines_of
from routing.declared.text import Format

MOST_CHANGES: Final = 200
MOST_FIELDS: Final = 50
MOST_WRONG: Final = 200
_LONGEST: Final = 300
_KINDS: Final = {
    "fleets": (_lazy("Fleets"), _lazy("what each is made of, as its scenario")),
    "policies": (_lazy("Policies"), _lazy("mode and numbers of each fleet's loop")),
    "receivers": (_lazy("Receivers"), _lazy("where alerts are told; never their keys")),
    "jobs": (_lazy("Jobs"), _lazy("what is done at a time")),
    "alert_rules": (_lazy("Alert rules"), _lazy("what is watched, and whom that is told")),
    "prices": (_lazy("Prices"), _lazy("what hours and links of a fleet cost")),
    "approval_limits": (
        _lazy("Limits of approvals"),
        _lazy("from which reach on a change needs a second person"),
    ),
    "windows": (_lazy("Freezes and change windows"), _lazy("when nothing may change, when it may")),
}
_MARKS: Final = {
    "create": ("good", "ok", _lazy("made")),
    "change": ("warn", "action", _lazy("changed")),
    "delete": ("bad", "stop", _lazy("deleted")),
}


@dataclass(frozen=True)
class WrongRow:
    """One thing that is wrong: its line where that is known, its path, what stood there."""

    line: int | None
    path: str
    value: str
    message: str


@dataclass(frozen=True)
class FieldRow:
    path: str
    before: str
    after: str


@dataclass(frozen=True)
class ChangeRow:
    """One object: field by field, all of it where it is made or deleted."""

    name: str
    action: str
    mark: Mark
    because: str
    refused: str
    fields: list[FieldRow] = field(default_factory=list)
    n_more: int = 0


@dataclass(frozen=True)
class KindRow:
    name: str
    label: str
    changes: list[ChangeRow]


def kinds() -> list[tuple[str, str, str]]:
    """Each kind as a document names it, and what that is."""
    return [(kind, str(_KINDS[kind][0]), str(_KINDS[kind][1])) for kind in KINDS]


def short(value: Any) -> str:
    """A value as JSON has it, bounded; empty where there is none."""
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def wrong(found: Sequence[Wrong], text: str, format_: Format) -> list[WrongRow]:
    """Everything that is wrong, in the order of its lines."""
    lines = lines_of(text, format_)
    rows = [
        WrongRow(line_of(each.path, lines), each.path, short(each.value), each.message)
        for each in found
    ]
    return sorted(rows, key=lambda row: (row.line is None, row.line or 0))


def by_kind(changes: Sequence[Change], refused: Iterable[Wrong]) -> list[KindRow]:
    """The first `MOST_CHANGES` of them, of each kind together, as the document orders kinds."""
    why = {each.path: each.message for each in refused}
    shown = changes[:MOST_CHANGES]
    rows = []
    for kind in KINDS:
        mine = [
            _row(each, why.get(f"{kind}.{each.name}", "")) for each in shown if each.kind == kind
        ]
        if mine:
            rows.append(KindRow(kind, str(_KINDS[kind][0]), mine))
    return rows


def _row(change: Change, refused: str) -> ChangeRow:
    tone, icon, word = _MARKS[change.action]
    found = list(differences(change.before or {}, change.after or {}))
    return ChangeRow(
        name=change.name,
        action=change.action,
        mark=Mark(tone, icon, str(word)),
        because=change.because,
        refused=refused,
        fields=[_field(each) for each in found[:MOST_FIELDS]],
        n_more=max(len(found) - MOST_FIELDS, 0),
    )


def _field(each: Difference) -> FieldRow:
    return FieldRow(each.path, short(each.before), short(each.after))


def refusals(found: Iterable[Wrong]) -> list[tuple[str, str]]:
    """What a freeze forbids: the object, and by what until when."""
    return [(each.path, each.message) for each in found]


def summary(changes: Sequence[Change], n_same: int | None) -> str:
    """How many of each; `n_same` is not known where a freeze forbids it."""
    said = _counts(changes)
    if not said:
        return _("Everything is as declared already: nothing would change.")
    text = _("It would change %(n)s: %(counts)s.") % {"n": len(changes), "counts": said}
    if n_same is None:
        return text
    same = ngettext("%(n)s is as declared.", "%(n)s are as declared.", n_same) % {"n": n_same}
    return f"{text} {same}"


def done(changes: Sequence[Change]) -> str:
    """What was done, for the page after it."""
    said = _counts(changes)
    if not said:
        return _("Everything was as declared already: nothing has changed.")
    return _("Applied: %(counts)s.") % {"counts": said}


def _counts(changes: Sequence[Change]) -> str:
    n = {action: sum(each.action == action for each in changes) for action in _MARKS}
    words = {
        "create": ngettext("%(n)s made", "%(n)s made", n["create"]),
        "change": ngettext("%(n)s changed", "%(n)s changed", n["change"]),
        "delete": ngettext("%(n)s deleted", "%(n)s deleted", n["delete"]),
    }
    return ", ".join(words[action] % {"n": n[action]} for action in _MARKS if n[action])


def effects(changes: Sequence[Change], beyond: Iterable[Beyond]) -> Effects:
    """What confirming does."""
    items = [Effect.changes(_("what stands below, all of it or nothing, in one transaction."))]
    if any((each.kind, each.action) == ("fleets", "delete") for each in changes):
        items.append(
            Effect.stops(
                _(
                    "the loop of each fleet that goes. Its gates run their plan until that expires "
                    "and then serve everything locally; its tokens are revoked."
                )
            )
        )
    items += [
        Effect.goes_on(_("everything else as it is: what the document does not name, and holds.")),
        Effect.undo(_("apply the document that you export now, before you confirm.")),
    ]
    return approval_words.asked_first(Effects(tuple(items)), dict.fromkeys(beyond))
