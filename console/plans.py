"""Plans in words: one cluster's plan, what changed between two, the colour of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures

_PLAN_FIELDS = (
    ("mode", _lazy("Mode")),
    ("threshold_tokens", _lazy("Threshold t")),
    ("band", _lazy("Band around t")),
    ("roles", _lazy("Roles")),
    ("remote", _lazy("Remote weights")),
    ("cache_mode", _lazy("Caches")),
    ("moves", _lazy("Prefixes moved")),
    ("max_remote_in_flight", _lazy("Remote in flight, a gate")),
    ("transport", _lazy("KV transport")),
)
_BY_PATH = ("remote", "moves", "transport")
"""Fields that hold something for each PrfaaS cluster, or for each link."""
_ALSO = (
    ("band", _lazy("band")),
    ("moves", _lazy("prefixes moved")),
    ("max_remote_in_flight", _lazy("remote in flight")),
    ("remote", _lazy("remote weights")),
    ("transport", _lazy("KV transport")),
)
_CACHE_WORDS = {
    "scarce": _lazy("scarce: each cluster's own"),
    "abundant": _lazy("abundant: prefixes may move"),
}
_MODE_WORDS = {
    "always_local": _lazy("everything local"),
    "always_remote": _lazy("everything remote"),
    "threshold": _lazy("by threshold"),
}


@dataclass(frozen=True)
class Change:
    """One field of one cluster before and after; `title` is the exact value for the hover.

    `path` is the PrfaaS cluster or link that the field is of, empty where it is the cluster's own.
    """

    cluster: str
    label: str
    before: str
    after: str
    title: str
    changed: bool
    path: str = ""


@dataclass(frozen=True)
class ClusterChanges:
    """What of one cluster differs between two plans, and what is the same."""

    cluster: str
    changed: tuple[Change, ...]
    same: tuple[Change, ...]


def cluster_words(plan: dict[str, Any] | None) -> str:
    """A cluster's plan in two words: `t 19.6K tok` or its mode."""
    if plan is None:
        return _("no plan")
    if plan["mode"] == "threshold":
        return f"t {figures.tokens(plan['threshold_tokens'])}"
    return str(_MODE_WORDS[plan["mode"]])


def set_words(runs: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What making every cluster run what `wanted` asks of its mode and t changes of what `runs`:
    `t from 9,800 to 6,100 tokens`; nothing where they run it already."""
    found = []
    for cluster, plan in wanted.items():
        was = runs.get(cluster)
        if cluster_words(was) == cluster_words(plan) and _t(was) == _t(plan):
            continue
        if was is not None and was["mode"] == plan["mode"] == "threshold":
            text = _("t from %(was)s to %(now)s tokens")
            said = {"was": figures.exact(_t(was)), "now": figures.exact(_t(plan))}
        else:
            text = _("from %(was)s to %(now)s")
            said = {"was": cluster_words(was), "now": cluster_words(plan)}
        found.append((f"{cluster} " if len(wanted) > 1 else "") + text % said)
    return found


def _t(plan: dict[str, Any] | None) -> int | None:
    return plan["threshold_tokens"] if plan and plan["mode"] == "threshold" else None


def hold_words(hold: Any) -> str:
    """What a hold (a row) pins: `t 19.6K tok`, or `roles 4/4`."""
    if not hold.mode:
        return f"roles {hold.n_prefill}/{hold.n_decode}"
    return cluster_words({"mode": hold.mode, "threshold_tokens": hold.threshold_tokens})


def plan_changes(previous: dict[str, Any] | None, plan: dict[str, Any]) -> list[Change]:
    """Every field of every cluster of either plan, before and after; what neither sets is left out.

    A field that holds something for each PrfaaS cluster or link is one row for each of them.
    """
    before_all = (previous or {}).get("clusters", {})
    rows = []
    for cluster in [*plan["clusters"], *(c for c in before_all if c not in plan["clusters"])]:
        before, after = before_all.get(cluster), plan["clusters"].get(cluster)
        for field, label in _PLAN_FIELDS:
            was, now = _field(before or {}, field), _field(after or {}, field)
            if was is None and now is None:
                continue
            for path in _paths(field, was, now):
                old, new = (_at(value, path) for value in (was, now))
                rows.append(
                    Change(
                        cluster=cluster,
                        label=label,
                        before=_said(before, field, path, old),
                        after=_said(after, field, path, new),
                        title=_exact(field, old, new),
                        changed=old != new,
                        path=path.replace("->", " → "),
                    )
                )
    return rows


def by_cluster(rows: Iterable[Change]) -> list[ClusterChanges]:
    """Rows of `plan_changes` gathered: what changed of each cluster, and what did not."""
    found: dict[str, list[Change]] = {}
    for row in rows:
        found.setdefault(row.cluster, []).append(row)
    return [
        ClusterChanges(
            cluster,
            tuple(row for row in each if row.changed),
            tuple(row for row in each if not row.changed),
        )
        for cluster, each in found.items()
    ]


def _paths(field: str, was: Any, now: Any) -> list[str]:
    """What a field is said for, one by one; `""` for one that is the cluster's own."""
    if field not in _BY_PATH:
        return [""]
    return sorted({*(was or {}), *(now or {})}) or [""]


def _at(value: Any, path: str) -> Any:
    """The part of a value that is `path`'s, as a value of the same field."""
    if not path:
        return value
    return {path: value[path]} if value and path in value else None


def _said(plan: dict[str, Any] | None, field: str, path: str, value: Any) -> str:
    if plan is None:
        return "none"
    words = _plan_value(field, value)
    # The path stands beside it already.
    return words.removeprefix(path.replace("->", " → ")).strip() if path else words


def _exact(field: str, was: Any, now: Any) -> str:
    if field != "threshold_tokens":
        return ""
    return _("%(was)s → %(now)s tokens") % {"was": figures.exact(was), "now": figures.exact(now)}


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
            "band": _("none: t decides"),
            "moves": _("none"),
            "max_remote_in_flight": _("no limit"),
            "transport": _("no hint"),
            "remote": _("nothing"),
        }
        return unset.get(field, _("not set"))
    match field:
        case "mode":
            return str(_MODE_WORDS[value])
        case "threshold_tokens":
            return figures.tokens(value)
        case "band":
            return _("%(value)s: the shorter wait decides") % {"value": _span(value)}
        case "roles":
            return _("%(value)s prefill, %(value2)s decode") % {
                "value": value[0],
                "value2": value[1],
            }
        case "remote":
            shares = (f"{name} {figures.significant(w)}" for name, w in value.items())
            return ", ".join(shares) or _("none")
        case "cache_mode":
            return str(_CACHE_WORDS[value])
        case "moves":
            return ", ".join(_move_words(link, least) for link, least in value.items())
        case "transport":
            return ", ".join(_hint_words(source, hint) for source, hint in value.items())
        case _:
            return _("at most %(value)s") % {"value": value} if value else _("none let through")


def _span(band: tuple[int, int]) -> str:
    return _("%(significant)s to %(tokens)s") % {
        "significant": figures.significant(band[0]),
        "tokens": figures.tokens(band[1]),
    }


def band_words(plan: dict[str, Any]) -> str:
    """The band around a cluster's t; nothing where t alone decides."""
    band = _field(plan, "band")
    return _span(band) if band else ""


def _move_words(link: str, least_tokens: int) -> str:
    return _("%(replace)s from %(least_tokens)s") % {
        "replace": link.replace("->", " → "),
        "least_tokens": figures.tokens(least_tokens),
    }


def _hint_words(source: str, hint: dict[str, Any]) -> str:
    pacing = figures.significant(hint["pacing_gbps"])
    n = hint["connections"]
    words = ngettext(
        "%(source)s over %(n)s connection, %(pacing)s Gbps",
        "%(source)s over %(n)s connections, %(pacing)s Gbps",
        n,
    )
    return words % {"source": source, "n": n, "pacing": pacing}


def headline(previous: dict[str, Any] | None, plan: dict[str, Any]) -> list[dict[str, str]]:
    """What changed per cluster in few words, for lists: `pd: t 17.9K tok → t 19.6K tok`."""
    before_all = (previous or {}).get("clusters", {})
    changed = {
        cluster: (before_all.get(cluster), after)
        for cluster, after in plan["clusters"].items()
        if before_all.get(cluster) != after
    }
    return parts(changed, several=len(plan["clusters"]) > 1, is_first=previous is None)


def parts(
    changed: Mapping[str, Sequence[Any]], *, several: bool, is_first: bool
) -> list[dict[str, str]]:
    """The same of the clusters that changed, each with its plan before and after. `several`: the
    plan is of more than one; `is_first`: there was none before it."""
    parts = []
    for cluster, (was, after) in changed.items():
        before, now = cluster_words(was), cluster_words(after)
        also = [] if was is None else _also_changed(was, after)
        if before == now and not also and not is_first:
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


def headline_words(previous: dict[str, Any] | None, plan: dict[str, Any]) -> str:
    """The headline as one line of text."""
    return in_a_line(headline(previous, plan))


def in_a_line(parts: Iterable[Mapping[str, str]]) -> str:
    """Parts of a headline as one line of text."""
    words = [
        " ".join(
            filter(
                None,
                (
                    part["cluster"],
                    part["before"] and f"{part['before']} →",
                    part["after"],
                    part["also"],
                ),
            )
        )
        for part in parts
    ]
    return "; ".join(words) or _("same plan")


def _also_changed(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed beside mode and t."""
    words = []
    if roles(was) != roles(now):
        words.append(_("roles %(was)s → %(now)s") % {"was": roles(was), "now": roles(now)})
    if was.get("cache_mode") != now.get("cache_mode"):
        words.append(
            _("caches %(get)s → %(get2)s")
            % {"get": was.get("cache_mode"), "get2": now.get("cache_mode")}
        )
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
            _("caches abundant, moving %(links)s") % {"links": _plan_value("moves", moves)}
            if moves
            else _("caches abundant")
        )
    if band := _field(plan, "band"):
        words.append(_("band %(band)s") % {"band": _span(band)})
    limit = plan.get("max_remote_in_flight")
    if limit is not None:
        words.append(
            _("remote in flight a gate %(plan_value)s")
            % {"plan_value": _plan_value("max_remote_in_flight", limit)}
        )
    return words


def hue(cluster_kind: str, role: str) -> str:
    """The colour a pool has on every page: local prefill, remote prefill, decode."""
    if role == "decode":
        return "decode"
    return "remote" if cluster_kind == "prefill" else "local"
