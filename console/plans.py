"""Plans in words: one cluster's plan, what changed between two, the colour of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from console import figures

_PLAN_FIELDS = (
    ("mode", "Mode"),
    ("threshold_tokens", "Threshold t"),
    ("band", "Band"),
    ("n_prefill", "Prefill instances"),
    ("n_decode", "Decode instances"),
    ("remote", "Remote weights"),
    ("cache_mode", "Cache mode"),
    ("max_remote_in_flight", "Most remote in flight"),
)
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
            was, now = (before or {}).get(field), after.get(field)
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


def _plan_value(field: str, value: Any) -> str:
    if value is None:
        return "not set"
    if field == "mode":
        return _MODE_WORDS[value]
    if field == "threshold_tokens":
        return figures.tokens(value)
    if field == "band":
        return " … ".join(figures.tokens(bound) for bound in value)
    if field == "remote":
        return ", ".join(f"{name} {figures.significant(w)}" for name, w in value.items()) or "none"
    return str(value)


def headline(previous: dict[str, Any] | None, plan: dict[str, Any]) -> list[dict[str, str]]:
    """What changed per cluster in few words, for lists: `pd: t 17.9K tok → t 19.6K tok`."""
    before_all = (previous or {}).get("clusters", {})
    several = len(plan["clusters"]) > 1
    parts = []
    for cluster, after in plan["clusters"].items():
        before, now = cluster_words(before_all.get(cluster)), cluster_words(after)
        roles = _roles_words(before_all.get(cluster), after)
        if before == now and not roles and previous is not None:
            continue
        parts.append(
            {
                "cluster": cluster if several else "",
                "before": "" if before == now else before,
                "after": now,
                "roles": roles,
            }
        )
    return parts


def _roles_words(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    if before is None:
        return ""
    was, now = ((p["n_prefill"], p["n_decode"]) for p in (before, after))
    return "" if was == now else f"roles {was[0]}/{was[1]} → {now[0]}/{now[1]}"


def hue(cluster_kind: str, role: str) -> str:
    """The colour a pool has on every page: local prefill, remote prefill, decode."""
    if role == "decode":
        return "decode"
    return "remote" if cluster_kind == "prefill" else "local"
