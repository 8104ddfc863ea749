"""Plans in words: one cluster's plan, what changed between two, the colour of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from console import figures

_PLAN_FIELDS = (
    ("mode", "Mode"),
    ("threshold_tokens", "Threshold t"),
    ("band", "Band around t"),
    ("roles", "Roles"),
    ("remote", "Remote weights"),
    ("cache_mode", "Caches"),
    ("moves", "Prefixes moved"),
    ("max_remote_in_flight", "Remote in flight, a gate"),
    ("transport", "KV transport"),
)
_ALSO = (
    ("band", "band"),
    ("moves", "prefixes moved"),
    ("max_remote_in_flight", "remote in flight"),
    ("remote", "remote weights"),
    ("transport", "KV transport"),
)
_CACHE_WORDS = {
    "scarce": "scarce: each cluster's own",
    "abundant": "abundant: prefixes may move",
}
_MODE_WORDS = {
    "always_local": "everything local",
    "always_remote": "everything remote",
    "threshold": "by threshold",
}


@dataclass(frozen=True)
class Change:
    """One field of one cluster before and after; `title` is the exact value for the hover."""

    cluster: str
    label: str
    before: str
    after: str
    title: str
    changed: bool


def cluster_words(plan: dict[str, Any] | None) -> str:
    """A cluster's plan in two words: `t 19.6K tok` or its mode."""
    if plan is None:
        return "no plan"
    if plan["mode"] == "threshold":
        return f"t {figures.tokens(plan['threshold_tokens'])}"
    return _MODE_WORDS[plan["mode"]]


def plan_changes(previous: dict[str, Any] | None, plan: dict[str, Any]) -> list[Change]:
    """Every field of every cluster of `plan` with what it was; fields never set are left out."""
    before_all = (previous or {}).get("clusters", {})
    rows = []
    for cluster, after in plan["clusters"].items():
        before = before_all.get(cluster)
        for field, label in _PLAN_FIELDS:
            was, now = _field(before or {}, field), _field(after, field)
            if was is None and now is None:
                continue
            rows.append(
                Change(
                    cluster=cluster,
                    label=label,
                    before="none" if before is None else _plan_value(field, was),
                    after=_plan_value(field, now),
                    title=f"{figures.exact(was)} → {figures.exact(now)} tokens"
                    if field == "threshold_tokens"
                    else "",
                    changed=was != now,
                )
            )
    return rows


def _field(plan: dict[str, Any], field: str) -> Any:
    """A field's value; None where it is not set, or set to what it is without being set."""
    if field == "roles":
        return (plan["n_prefill"], plan["n_decode"]) if plan else None
    if field == "band":
        band = plan.get("band")
        return None if band is None or band[0] == band[1] else tuple(band)
    if field in ("moves", "transport"):
        return plan.get(field) or None
    return plan.get(field)


def _plan_value(field: str, value: Any) -> str:
    if value is None:
        unset = {
            "band": "none: t decides",
            "moves": "none",
            "max_remote_in_flight": "no limit",
            "transport": "no hint",
        }
        return unset.get(field, "not set")
    match field:
        case "mode":
            return _MODE_WORDS[value]
        case "threshold_tokens":
            return figures.tokens(value)
        case "band":
            return f"{_span(value)}: the shorter wait decides"
        case "roles":
            return f"{value[0]} prefill, {value[1]} decode"
        case "remote":
            shares = (f"{name} {figures.significant(w)}" for name, w in value.items())
            return ", ".join(shares) or "none"
        case "cache_mode":
            return _CACHE_WORDS[value]
        case "moves":
            return ", ".join(_move_words(link, least) for link, least in value.items())
        case "transport":
            return ", ".join(_hint_words(source, hint) for source, hint in value.items())
        case _:
            return f"at most {value}" if value else "none let through"


def _span(band: tuple[int, int]) -> str:
    return f"{figures.significant(band[0])} to {figures.tokens(band[1])}"


def _move_words(link: str, least_tokens: int) -> str:
    return f"{link.replace('->', ' → ')} from {figures.tokens(least_tokens)}"


def _hint_words(source: str, hint: dict[str, Any]) -> str:
    pacing = figures.significant(hint["pacing_gbps"])
    n = hint["connections"]
    return f"{source} over {n} connection{'' if n == 1 else 's'}, {pacing} Gbps"


def headline(previous: dict[str, Any] | None, plan: dict[str, Any]) -> list[dict[str, str]]:
    """What changed per cluster in few words, for lists: `pd: t 17.9K tok → t 19.6K tok`."""
    before_all = (previous or {}).get("clusters", {})
    several = len(plan["clusters"]) > 1
    parts = []
    for cluster, after in plan["clusters"].items():
        was = before_all.get(cluster)
        before, now = cluster_words(was), cluster_words(after)
        also = [] if was is None else _also_changed(was, after)
        if before == now and not also and previous is not None:
            continue
        parts.append(
            {
                "cluster": cluster if several else "",
                "before": "" if before == now else before,
                "after": now,
                "also": ", ".join(also),
            }
        )
    return parts


def _also_changed(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed beside mode and t."""
    words = []
    if roles(was) != roles(now):
        words.append(f"roles {roles(was)} → {roles(now)}")
    if was.get("cache_mode") != now.get("cache_mode"):
        words.append(f"caches {was.get('cache_mode')} → {now.get('cache_mode')}")
    for field, label in _ALSO:
        value = _field(now, field)
        if _field(was, field) != value:
            words.append(f"{label} {_plan_value(field, value)}")
    return words


def roles(plan: dict[str, Any]) -> str:
    """Prefill and decode instances: `4/4`."""
    return f"{plan['n_prefill']}/{plan['n_decode']}"


def extras(plan: dict[str, Any]) -> list[str]:
    """What a cluster's plan asks beside mode, t and roles, in words; nothing where it is plain."""
    words = []
    if plan.get("cache_mode") == "abundant":
        moves = _field(plan, "moves")
        words.append(
            "caches abundant" + (f", moving {_plan_value('moves', moves)}" if moves else "")
        )
    if band := _field(plan, "band"):
        words.append(f"band {_span(band)}")
    limit = plan.get("max_remote_in_flight")
    if limit is not None:
        words.append(f"remote in flight a gate {_plan_value('max_remote_in_flight', limit)}")
    return words


def hue(cluster_kind: str, role: str) -> str:
    """The colour a pool has on every page: local prefill, remote prefill, decode."""
    if role == "decode":
        return "decode"
    return "remote" if cluster_kind == "prefill" else "local"
