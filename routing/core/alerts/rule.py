"""One alert rule, read strictly: what is watched, where, when it is too much, who hears of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from routing.core.scenario.tables import Table, refuse

SEVERITIES = ("page", "warn", "info")
"""`page`: somebody gets up. `warn`: somebody looks today. `info`: it is written down."""
GROUPS = ("rule", "cluster", "source")
_KEYS = (
    *("name", "fleet", "signal", "where", "is", "threshold", "back_at", "for_s", "keep_firing_s"),
    *("no_data_for_s", "severity", "group_by", "repeat_s", "runbook_url", "summary", "receivers"),
)
_WHERE = ("cluster", "role", "source")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_PATTERN = re.compile(r"[A-Za-z0-9._*?/>:-]{1,200}")
_LONGEST_S = 7 * 86400.0
_MAX_TEXT = 500


@dataclass(frozen=True)
class Source:
    """What figures are of: an instance, a link, a router, a fleet's loop, or a change that waits to
    be approved. `name` is its path."""

    fleet: str
    cluster: str
    role: str
    name: str


@dataclass(frozen=True)
class Rule:
    """`signal` is KIND.NAME. It is too much when its figure `is` above or below `threshold` for
    `for_s`; it is over when the figure was back beyond `back_at` for `keep_firing_s`.

    `no_data_for_s`: a source without a figure for so long is an alert of its own kind; None: never.
    `repeat_s`: an incident that nobody acknowledged is told again so often; None: once.
    """

    name: str
    signal: str
    above: bool
    threshold: float
    back_at: float
    for_s: float
    keep_firing_s: float
    no_data_for_s: float | None
    severity: Literal["page", "warn", "info"]
    group_by: Literal["rule", "cluster", "source"]
    fleet: str = ""
    cluster: str = "*"
    role: str = "*"
    source: str = "*"
    repeat_s: float | None = None
    runbook_url: str = ""
    summary: str = ""
    receivers: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        return self.signal.partition(".")[0]

    def watches(self, source: Source) -> bool:
        """Patterns are of the shell's kind and match whole names, case and all."""
        return (
            self.fleet in ("", source.fleet)
            and fnmatchcase(source.cluster, self.cluster)
            and fnmatchcase(source.role, self.role)
            and fnmatchcase(source.name, self.source)
        )

    def group_of(self, source: Source) -> str:
        """Which incident an alert of this source belongs to."""
        if self.group_by == "source":
            return source.name
        if self.group_by == "cluster":
            return f"{source.fleet}/{source.cluster}"
        return source.fleet


def read_rule(document: Any, *, units: Mapping[str, str]) -> Rule:
    """A rule as people write it. `units` are all signals there are, with their units.

    Raises ScenarioError, which names field and value.
    """
    table = Table(document, "", known=_KEYS)
    name = table.text("name")
    if not _NAME.fullmatch(name):
        refuse(table.error("name", "must be small letters, digits, - and _, 80 at most"))
    signal = table.text("signal")
    if signal not in units:
        near = sorted(known for known in units if known.split(".")[-1] == signal.split(".")[-1])
        hint = f" (did you mean {' or '.join(near)}?)" if near else ""
        refuse(table.error("signal", f"is no signal there is{hint}"))
    above = table.one_of("is", ("above", "below")) == "above"
    threshold = table.number("threshold", low=-1e300)
    back_at = table.number("back_at", threshold, low=-1e300)
    if back_at > threshold if above else back_at < threshold:
        refuse(table.error("back_at", "must lie on the well side of threshold"), depends=True)
    where = table.table("where", _WHERE, optional=True)
    return Rule(
        name=name,
        signal=signal,
        above=above,
        threshold=threshold,
        back_at=back_at,
        for_s=_span(table, "for_s", 0.0),
        keep_firing_s=_span(table, "keep_firing_s", 60.0),
        no_data_for_s=_optional_span(table, "no_data_for_s"),
        severity=_word(table, "severity", SEVERITIES, "warn"),
        group_by=_word(table, "group_by", GROUPS, "cluster"),
        fleet=_text(table, "fleet"),
        **{key: _pattern(where, key) for key in _WHERE},
        repeat_s=_optional_span(table, "repeat_s"),
        runbook_url=_url(table, "runbook_url"),
        summary=_text(table, "summary"),
        receivers=_names(table, "receivers"),
    )


def written(rule: Rule) -> dict[str, Any]:
    """The document that reads as this rule; what is as it would be anyway is left out."""
    said: dict[str, Any] = {
        "name": rule.name,
        "signal": rule.signal,
        "is": "above" if rule.above else "below",
        "threshold": rule.threshold,
        "for_s": rule.for_s,
        "keep_firing_s": rule.keep_firing_s,
        "severity": rule.severity,
        "group_by": rule.group_by,
    }
    where = {key: getattr(rule, key) for key in _WHERE if getattr(rule, key) != "*"}
    more = {
        "where": where,
        "back_at": None if rule.back_at == rule.threshold else rule.back_at,
        "no_data_for_s": rule.no_data_for_s,
        "repeat_s": rule.repeat_s,
        "fleet": rule.fleet,
        "runbook_url": rule.runbook_url,
        "summary": rule.summary,
        "receivers": list(rule.receivers),
    }
    return said | {key: value for key, value in more.items() if value not in (None, "", {}, [])}


def _span(table: Table, key: str, *default: float) -> float:
    span_s = table.number(key, *default, low=0.0, inclusive=True)
    if span_s > _LONGEST_S:
        refuse(table.error(key, "must be at most 7 days"))
    return span_s


def _optional_span(table: Table, key: str) -> float | None:
    return _span(table, key) if table.data.get(key) is not None else None


def _word(table: Table, key: str, words: tuple[str, ...], default: str) -> Any:
    return table.one_of(key, words) if key in table.data else default


def _text(table: Table, key: str) -> str:
    text = table.take(key, "")
    if not isinstance(text, str) or len(text) > _MAX_TEXT or not (text.isprintable()):
        refuse(table.error(key, f"must be a line of at most {_MAX_TEXT} characters"))
        return ""
    return text


def _pattern(table: Table, key: str) -> str:
    text = table.take(key, "*")
    if not isinstance(text, str) or not _PATTERN.fullmatch(text):
        refuse(table.error(key, "must be a name, in which * and ? stand for any"))
        return "*"
    return text


def _url(table: Table, key: str) -> str:
    url = _text(table, key)
    if url and not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url):
        refuse(table.error(key, "must be http://... or https://..."))
    return url


def _names(table: Table, key: str) -> tuple[str, ...]:
    names = table.take(key, [])
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _NAME.fullmatch(name) for name in names
    ):
        refuse(table.error(key, "must be a list of names of receivers"))
        return ()
    if len(set(names)) < len(names):
        refuse(table.error(key, "names one twice"))
    return tuple(names)
