"""How far a change reaches, and from where on it needs a second person. Pure.

A change is judged by what the audit says of it: its verb, what was before and what is after. What
makes a fleet safer has no entry here: pausing, advising only, releasing a hold, cancelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from routing.core.scenario.tables import Table, refuse

FIGURES: Final = ("share_moved", "instances_moved", "gates_switched", "hold_s")
"""What is measured of a change; the limit of that name is the most that one person may do."""
CHANGES: Final = (
    *("activate", "always_remote", "policy", "jobs", "breakers", "routers", "scenario", "epoch"),
    "maintenance",
)
"""Kinds of change that may need a second person however small they are."""
LOOSENED: Final = "approvals"
"""To loosen limits that stand always needs one: else whoever is held by them would lift them."""
EXPIRES_S: Final = 86_400.0
_KEYS = (*FIGURES, "changes", "expires_s")
_LONGEST_S = 7 * 86_400.0
_RANK = {"paused": 0, "advisory": 1, "active": 2}
_SUMMED = ("instances_moved", "gates_switched")


@dataclass(frozen=True)
class Limits:
    """`most` by figure; `changes` need a second person always; proposals wait for `expires_s`."""

    most: Mapping[str, float] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    expires_s: float = EXPIRES_S

    @property
    def is_empty(self) -> bool:
        return not self.most and not self.changes


@dataclass(frozen=True)
class Reach:
    """How far a change goes: `kinds` of change, and figures by name."""

    kinds: frozenset[str] = frozenset()
    figures: Mapping[str, float] = field(default_factory=dict)


NOTHING: Final = Reach()


@dataclass(frozen=True)
class Beyond:
    """One limit that a change goes beyond: a figure that `is` more than `most`, or a kind of
    change, for which both are None."""

    limit: str
    value: float | None = None
    most: float | None = None


def read_limits(document: Any, path: str = "limits") -> Limits:
    """Raises ScenarioError, which names field and value; `path` is where the limits stand."""
    table = Table(document, path, known=_KEYS)
    most: dict[str, float] = {}
    for name in FIGURES:
        if table.take(name, None) is None:
            continue
        if name in _SUMMED:
            most[name] = table.count(name, low=0)
        else:
            most[name] = table.number(name, low=0.0, inclusive=True)
    if most.get("share_moved", 0.0) > 1.0:
        refuse(table.error("share_moved", "must be a share, at most 1"))
    expires_s = table.number("expires_s", EXPIRES_S, low=0.0)
    if not 60.0 <= expires_s <= _LONGEST_S:
        refuse(table.error("expires_s", "must be between a minute and 7 days"))
    return Limits(most, _changes(table), expires_s)


def _changes(table: Table) -> frozenset[str]:
    named = table.take("changes", [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        refuse(table.error("changes", f"must be a list of some of {', '.join(CHANGES)}"))
        return frozenset()
    for each in named:
        if each not in CHANGES:
            refuse(table.error("changes", f"{each[:80]!r} is none of {', '.join(CHANGES)}"))
    return frozenset(named)


def loosens(before: Limits, after: Limits) -> bool:
    """Whether anything may be done alone after it that may not be before."""
    return bool(before.changes - after.changes) or any(
        name not in after.most or after.most[name] > most for name, most in before.most.items()
    )


def reach_of(verb: str, before: Any, after: Any, measured: Mapping[str, float]) -> Reach:
    """How far one audited change reaches. `measured` are figures that before and after do not
    tell."""
    judge = _JUDGES.get(verb)
    return NOTHING if judge is None else judge(before or {}, after or {}, measured)


def total(reaches: Iterable[Reach]) -> Reach:
    """What several changes of one command amount to."""
    kinds: frozenset[str] = frozenset()
    figures: dict[str, float] = {}
    for each in reaches:
        kinds |= each.kinds
        for name, value in each.figures.items():
            known = figures.get(name, 0.0)
            figures[name] = known + value if name in _SUMMED else max(known, value)
    return Reach(kinds, figures)


def beyond(limits: Limits, reach: Reach) -> tuple[Beyond, ...]:
    """Every limit that the change goes beyond; none: one person may do it."""
    always = (limits.changes | {LOOSENED}) & reach.kinds
    found = [Beyond(kind) for kind in (*CHANGES, LOOSENED) if kind in always]
    for name in FIGURES:
        most, value = limits.most.get(name), reach.figures.get(name)
        if most is not None and value is not None and value > most:
            found.append(Beyond(name, value, most))
    return tuple(found)


def words(found: Sequence[Beyond]) -> list[str]:
    """Each limit that is passed, as the API says it."""
    return [_words(each) for each in found]


def _words(each: Beyond) -> str:
    if each.value is None or each.most is None:
        return _KINDS[each.limit]
    if each.limit == "share_moved":
        return f"it moves {each.value:.0%} of a cluster's instances at once, over {each.most:.0%}"
    if each.limit == "hold_s":
        return f"it holds for {each.value / 60:.0f} min, over {each.most / 60:.0f} min"
    noun = "instances" if each.limit == "instances_moved" else "gates to another plan mode"
    return f"it moves {each.value:.0f} {noun} at once, over {each.most:.0f}"


_KINDS: Final = {
    "activate": "it lets the loop do more than now",
    "always_remote": "it sends everything remote",
    "policy": "it changes numbers of the loop",
    "jobs": "it changes what is done at a time",
    "breakers": "it closes the breaker of a link by hand",
    "routers": "it changes what a router lists",
    "scenario": "it changes what the fleet is made of",
    "epoch": "it starts a new plan epoch",
    "maintenance": "it takes traffic away from a cluster or a link",
    LOOSENED: "it lets one person do more alone",
}


def _policy(before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    kinds = {"activate"} if _rises(before, after) else set()
    if before.get("knobs") != after.get("knobs"):
        kinds.add("policy")
    return Reach(frozenset(kinds))


def _fleet(before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    kinds = {"activate"} if _rises(before, after) else set()
    if before.get("scenario") != after.get("scenario"):
        kinds.add("scenario")
    return Reach(frozenset(kinds))


def _rises(before: Any, after: Any) -> bool:
    return _RANK.get(after.get("mode"), 0) > _RANK.get(before.get("mode"), 0)


def _held(before: Any, after: Any, measured: Mapping[str, float]) -> Reach:
    if before and after["expires_at_s"] <= before["expires_at_s"]:
        return NOTHING  # it ends sooner than it would
    kinds = {"always_remote"} if after.get("mode") == "always_remote" else set()
    return Reach(frozenset(kinds), dict(measured))


def _roles(before: Any, after: Any, measured: Mapping[str, float]) -> Reach:
    n_moved = abs(after["n_prefill"] - before["n_prefill"])
    share = n_moved / max(before["n_prefill"] + before["n_decode"], 1)
    return Reach(
        figures={"instances_moved": float(n_moved), "share_moved": share, **measured},
    )


def _job(_before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    """By what it does when it is due, as far as that is known before."""
    if not after.get("enabled") or after["document"].get("dry_run"):
        return NOTHING
    do, kinds = after["document"]["do"], {"jobs"}
    if do.get("mode") == "always_remote":
        kinds.add("always_remote")
    if do.get("mode") == "active":
        kinds.add("activate")
    figures = {"hold_s": float(do["for_s"])} if "for_s" in do else {}
    return Reach(frozenset(kinds), figures)


def _drift(_before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    return Reach(frozenset({"routers"})) if after.get("on_drift") != "show" else NOTHING


def _worked_on(before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    was, now = (datetime.fromisoformat(each["ends_at"]) for each in (before, after))
    return Reach(frozenset({"maintenance"})) if now > was else NOTHING


def _limits(before: Any, after: Any, _measured: Mapping[str, float]) -> Reach:
    """Limits that are deleted are as loose as can be."""
    if not before:
        return NOTHING
    was, now = read_limits(before["limits"]), read_limits(after.get("limits", {}))
    return Reach(frozenset({LOOSENED})) if loosens(was, now) else NOTHING


def _always(kind: str) -> Any:
    return lambda _before, _after, _measured: Reach(frozenset({kind}))


_JUDGES: Final[Mapping[str, Any]] = {
    "policy.change": _policy,
    "fleet.update": _fleet,
    "fleet.delete": _always("scenario"),
    "hold.place": _held,
    "hold.extend": _held,
    "roles.move": _roles,
    "job.create": _job,
    "job.update": _job,
    "breaker.reset": _always("breakers"),
    "router.adopt": _always("routers"),
    "router.override": _always("routers"),
    "router.policy": _drift,
    "epoch.raise": _always("epoch"),
    "maintenance.plan": _always("maintenance"),
    "maintenance.extend": _worked_on,
    "approval_limits.update": _limits,
    "approval_limits.delete": _limits,
}
