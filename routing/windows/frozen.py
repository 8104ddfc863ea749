"""Is something frozen, by what, until when: freezes and change windows together. Pure: no clock.

A freeze forbids within its spans. Change windows forbid outside theirs: where there is one, what it
is of changes within one of them only. One that is over for good forbids nothing any more. Where a
freeze and a change window meet, the freeze forbids.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, replace

from routing.windows.document import ALL, Of, WindowDocument
from routing.windows.spans import AHEAD, FAR, Span, Weekly, spans


@dataclass(frozen=True)
class Rule:
    """A window that people keep, since when as it is."""

    document: WindowDocument
    kept_at: datetime.datetime


@dataclass(frozen=True)
class Frozen:
    """Of one kind nothing may change, from `since` to `until`; `name` is the window that forbids it
    now, and `why` the reason that people gave."""

    of: Of
    name: str
    why: str
    since: datetime.datetime
    until: datetime.datetime

    @property
    def text(self) -> str:
        return f"frozen by {self.name} until {self.until:%F %H:%M} UTC: {self.why}"


def everything(rules: Iterable[Rule], now: datetime.datetime) -> dict[Of, Frozen]:
    """What is frozen now, each until it is allowed again."""
    known = [(rule, _around(rule.document, now)) for rule in rules]
    found = {of: _frozen(known, of, now) for of in ALL}
    return {of: each for of, each in found.items() if each is not None}


def of_rule(rule: WindowDocument, after: datetime.datetime, until: datetime.datetime) -> list[Span]:
    """The spans of one window: a freeze's are as long as they may be meant, others as short."""
    return spans(rule.when, after, until, longest=rule.kind == "freeze")


def following(rule: WindowDocument, at: datetime.datetime, n: int) -> list[Span]:
    """Its span of now, if it has one, and those after it: `n` at most."""
    return of_rule(rule, at, at + (AHEAD * n if isinstance(rule.when, Weekly) else FAR))[:n]


_Known = list[tuple[Rule, list[Span]]]


def _around(rule: WindowDocument, now: datetime.datetime) -> list[Span]:
    """Its spans of a week before and a week after; of what comes once, that one."""
    return of_rule(rule, now - AHEAD, now + (AHEAD if isinstance(rule.when, Weekly) else FAR))


def _frozen(known: _Known, of: Of, now: datetime.datetime) -> Frozen | None:
    asked = [(rule, spans) for rule, spans in known if of in rule.document.of]
    found = _cause(asked, of, now)
    if found is None:
        return None
    # What follows on each other ends where the last does; beyond a week nobody looked.
    until = found.until
    while (following := _cause(asked, of, until)) is not None and until < now + AHEAD:
        until = following.until
    return replace(found, until=until)


def _cause(known: _Known, of: Of, at: datetime.datetime) -> Frozen | None:
    freezes = [
        (span, rule)
        for rule, spans in known
        if rule.document.kind == "freeze"
        for span in spans
        if span.holds(at)
    ]
    if freezes:
        span, rule = max(freezes, key=lambda each: each[0].end)
        return _told(of, rule, min(max(span.begin, rule.kept_at), at), span.end)
    windows = [
        (span, rule) for rule, spans in known if rule.document.kind == "changes" for span in spans
    ]
    to_come = [(span, rule) for span, rule in windows if span.end > at]
    if not to_come or any(span.holds(at) for span, _ in to_come):
        return None
    span, rule = min(to_come, key=lambda each: each[0].begin)
    before = [earlier.end for earlier, _ in windows if earlier.end <= at]
    return _told(of, rule, min(max([rule.kept_at, *before]), at), span.begin)


def _told(of: Of, rule: Rule, since: datetime.datetime, until: datetime.datetime) -> Frozen:
    return Frozen(of, rule.document.name, rule.document.reason, since, until)
