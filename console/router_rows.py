"""Routers, and what plans did, as rows: states in words, lists side by side, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Case, Count, OuterRef, Q, QuerySet, Subquery, When, Window
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import figures
from console.context import BAD, GOOD, OFF, WARN, Mark
from console.plans import cluster_words
from routing import delivery, effect_checks, fleets, managed, managed_steps
from routing.models import Decision, EffectCheck, Fleet, ManagedRouter

CHECKS = 5
MOST_LATE = 10
"""Routers that are named for not running the plan in force yet."""
PER_PAGE = 20
ENGINES_LISTED = 12
"""Of each router on the page of all of them; its own page has every one."""
TROUBLE = ("drifted", "unreachable", "pending_restart", "applying", "read_only", "unread")
"""States of routers that are not as desired, the worst first: so the list is ordered."""
_STATES = {
    "sync": Mark(*GOOD, _lazy("as desired")),
    "drifted": Mark(*BAD, _lazy("drifted")),
    "applying": Mark("info", "wait", _lazy("applying")),
    "pending_restart": Mark(*WARN, _lazy("pending restart")),
    "read_only": Mark(*OFF, _lazy("read only")),
    "unreachable": Mark(*BAD, _lazy("unreachable")),
    "unread": Mark(*OFF, _lazy("not read yet")),
}
_OUTCOMES = {
    "pending": Mark("info", "wait", _lazy("being watched")),
    "good": Mark(*GOOD, _lazy("no harm seen")),
    "harm": Mark(*BAD, _lazy("did harm")),
    "unknown": Mark(*OFF, _lazy("not known")),
}
_OPERATIONS = {
    "asked": Mark("info", "wait", _lazy("asked for")),
    "sent": Mark("info", "wait", _lazy("sent")),
    "accepted": Mark("info", "wait", _lazy("accepted, not proven yet")),
    "applied": Mark(*GOOD, _lazy("applied, read back")),
    "failed": Mark(*BAD, _lazy("failed")),
    "expired": Mark(*BAD, _lazy("deadline passed")),
    "cancelled": Mark(*OFF, _lazy("cancelled")),
    "superseded": Mark(*OFF, _lazy("superseded")),
}
_THRESHOLDS = {
    "live": "t: live",
    "roll": _lazy("t: by rolling its decode workers"),
    "restart": _lazy("t: by a restart"),
    "patch": _lazy("t: by a patch that others apply"),
    "none": _lazy("t: none of its own"),
}
_ROLES = {
    "live": _lazy("roles: live, in place"),
    "replace": _lazy("roles: taken out and put in again"),
    "patch": _lazy("roles: by a patch that others apply"),
    "none": _lazy("roles: cannot be changed from here"),
}
_DRAINS = {
    "until_idle": _lazy("drain: requests finish"),
    "fixed": _lazy("drain: requests are cut after a while"),
    "none": _lazy("drain: not known"),
}


_EVIDENCE = (
    (_lazy("Requests"), "requests", figures.significant),
    (_lazy("Rate"), "rate_rps", figures.rate),
    (_lazy("Mean prompt"), "mean_tokens", figures.tokens),
    (_lazy("TTFT p90"), "ttft_p90_s", figures.duration),
    (_lazy("Errors"), "error_ratio", figures.percent),
    (_lazy("Remote share"), "remote_ratio", figures.percent),
)
"""Of a plan's effect check: label, field of `core.harm.Figures`, how it is written."""


def overridden(gates: list[dict[str, Any]], now: datetime) -> list[dict[str, Any]]:
    """Those of these gates (`sources.gates_under`) on which a person set another rule than the
    plan's."""
    return [
        {
            "state": gate,
            "name": gate["name"],
            "words": cluster_words(found),
            "until": datetime.fromtimestamp(found["until_s"], UTC),
            "releasing": gate["release"] == found["id"],
        }
        for gate in gates
        if (found := gate["override"]) is not None and found["until_s"] > now.timestamp()
    ]


def checks(fleet: Fleet) -> tuple[list[dict[str, Any]], Decision | None]:
    """The newest effect checks, newest first, and the last plan that is known to be good."""
    of_fleet = EffectCheck.objects.filter(decision__fleet=fleet)
    newest = of_fleet.order_by("-decision_id").values("pk")[:CHECKS]
    good = effect_checks.good(fleet).values("pk")[:1]
    rows = list(
        of_fleet.filter(Q(pk__in=newest) | Q(decision__in=good))
        .select_related("decision")
        .annotate(good=Subquery(good))
        .only("outcome", "text", "due_at", "hold_id", "decision__version", "decision__created_at")
        .order_by("-decision_id")
    )
    shown = [{"check": row, "mark": _OUTCOMES[row.outcome]} for row in rows[:CHECKS]]
    return shown, next((row.decision for row in rows if row.decision_id == row.good), None)


def effect_of(decision: Decision) -> dict[str, Any] | None:
    """What a plan did to requests, with the figures before and after it by cluster."""
    check = getattr(decision, "effect_check", None)
    if check is None:
        return None
    lines = []
    for cluster, found in check.evidence.items():
        before, after = found["before"], found["after"]
        for name, field, write in _EVIDENCE:
            lines.append((cluster, name, write(before[field]), write(after[field])))
        expected = figures.percent(found["expected_remote_ratio"])
        lines.append((cluster, _("Remote share predicted"), "", expected))
    return {"check": check, "mark": _OUTCOMES[check.outcome], "lines": lines}


def page_of(rows: QuerySet[ManagedRouter], number: int) -> tuple[list[Any], int, int]:
    """A page of routers, which one it is and how many routers there are; past the end, the last.

    Each comes with the URLs of instances that a rebalance has in its hands, in `moving`.
    """
    moving = managed.in_hand().filter(
        rebalance__fleet=OuterRef("fleet"), rebalance__cluster=OuterRef("cluster")
    )
    told = rows.annotate(n_all=Window(Count("pk")), moving=ArraySubquery(moving.values("url")))
    found = list(told[(number - 1) * PER_PAGE : number * PER_PAGE])
    if found or number == 1:
        return found, number, found[0].n_all if found else 0
    return page_of(rows, max(1, -(-rows.count() // PER_PAGE)))


def around(fleet: Fleet, rows: Sequence[Any]) -> managed_steps.Around:
    """What these routers of a fleet (`page_of`) are looked at with, as it was when one was read
    last."""
    read_at = max((row.observed_at for row in rows if row.observed_at), default=None)
    return managed_steps.Around(
        told={} if read_at is None else managed.roles_told(f"{fleet.pk}/", read_at.timestamp()),
        moving={row.cluster: {url.rstrip("/") for url in row.moving} for row in rows},
    )


def confirmed(newest: Decision | None, good: Decision | None) -> dict[str, Any]:
    """How sure the plan in force is, and the `good` plan to fall back to."""
    if newest is None:
        return {"newest": None, "good": good}
    summary = delivery.summaries([newest])[newest.pk]
    late = [row for row in summary["routers"] if row["state"] != "applied"][:MOST_LATE]
    return {
        "newest": newest,
        "good": good,
        "summary": summary,
        "applied": summary["state"] == "applied",
        "late": late,
        "n_late_left": summary["n_routers"] - summary["n_applied"] - len(late),
    }


def _of_another_cluster(entry: dict[str, Any], fleet: str) -> str:
    """`CLUSTER/NAME` of an instance that a stack of ours lists beside its own cluster's."""
    key = str(entry.get("key") or "")
    return key.removeprefix(f"{fleet}/") if key.startswith(f"{fleet}/") else ""


def router(
    row: ManagedRouter,
    *,
    around: managed_steps.Around | None = None,
    most_engines: int | None = None,
) -> dict[str, Any]:
    """A router as it is shown, engines first of which it lists another thing than it should; in a
    list of routers only `most_engines`, and `around` is read once for all."""
    desired, observed = row.desired or {}, row.observed or {}
    applied, seen = row.last_applied or {}, observed.get("workers", {})
    off = {one.url for one in differences(row)}
    cluster = fleets.scenario_of(row.fleet).cluster(row.cluster)
    itself = managed.engine_roles(row, cluster, around) if cluster is not None else {}
    planned = managed.preview(row, around) if row.state == "drifted" else ""
    urls = sorted(desired.keys() | seen.keys(), key=lambda url: (url not in off, url))
    names = {} if cluster is None else managed.instances(row, cluster)
    engines = [
        {
            "url": url,
            "desired": entry(desired.get(url)),
            "applied": entry(applied.get(url)) if row.last_applied else "–",
            "observed": entry(seen.get(url)) if row.observed else "–",
            "requests": seen.get(url, {}).get("requests"),
            "name": names.get(url) or _of_another_cluster(seen.get(url, {}), row.fleet_id),
            "itself": itself.get(url, "–"),
            "off": url in off,
        }
        for url in urls[:most_engines]
    ]
    return {
        "row": row,
        "mark": _STATES[row.state],
        "engines": engines,
        "n_engines_left": len(urls) - len(engines),
        "capabilities": _capabilities(row.capabilities),
        "means": (row.capabilities or {}).get("threshold_means", ""),
        "threshold": observed.get("threshold"),
        "changes": [change for key in ("rendered", "decided") if (change := observed.get(key))],
        "operation": row.operation and _operation(row.operation),
        "operates": managed.operates(row),
        "can_change": (row.capabilities or {}).get("roles") in ("live", "replace"),
        "can_override": row.state == "drifted" and not isinstance(planned, str),
        "todo": _todo(row, planned if isinstance(planned, str) else ""),
    }


def chosen(fleet: Fleet, *, search: str, show: str) -> QuerySet[ManagedRouter]:
    """Routers with `search` in a name or the address, all or those in trouble, which come first."""
    rows = ManagedRouter.objects.filter(fleet=fleet)
    if search:
        words = Q(cluster__icontains=search) | Q(name__icontains=search)
        rows = rows.filter(words | Q(url__icontains=search) | Q(kind__icontains=search))
    if show == "trouble":
        rows = rows.exclude(state="sync")
    worst = Case(
        *(When(state=state, then=place) for place, state in enumerate(TROUBLE)),
        default=len(TROUBLE),
    )
    return rows.order_by(worst, "cluster", "name")


def differences(row: ManagedRouter) -> tuple[managed_steps.Difference, ...]:
    seen = (row.observed or {}).get("workers", {})
    return managed_steps.differences(row.desired or {}, seen, moving=())


def entry(listed: dict[str, Any] | None) -> str:
    """An engine in a router's list, in words: its role, and its status unless that is ready."""
    if listed is None:
        return _("not listed")
    role = listed["role"] or _("no role")
    return role if listed["status"] == "ready" else f"{role}, {listed['status']}"


def _capabilities(can: dict[str, Any] | None) -> list[str]:
    if can is None:
        return []
    said = [_THRESHOLDS[can["threshold"]], _ROLES[can["roles"]], _DRAINS[can["drain"]]]
    said.append(
        _("asks for a key") if can["has_auth"] else _("anybody who reaches it may change it")
    )
    if not can["is_readable"]:
        said.append(_("its state cannot be read"))
    return said


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    return {
        **operation,
        "mark": _OPERATIONS[operation["state"]],
        "asked_at": datetime.fromtimestamp(operation["asked_at_s"], UTC),
        "deadline_at": datetime.fromtimestamp(operation["deadline_at_s"], UTC),
    }


def _todo(row: ManagedRouter, refused: str) -> str:
    """What a person can do about it, in a sentence; empty where nothing is needed. `refused`: why
    it must not be put back."""
    match row.state:
        case "drifted":
            if refused:
                return _("Adopt what is there. It cannot be put back from here: %(refused)s.") % {
                    "refused": refused
                }
            if row.cause == "restart":
                return _("Override to list again what it had, or adopt what it came back with.")
            return _("Find out who changed it; then adopt what is there, or override it.")
        case "unreachable":
            return _(
                "Requests may still flow through it. Check its address, its key and its process."
            )
        case "pending_restart":
            return _("Apply the change below; it counts as applied once the router shows it.")
        case "read_only":
            return _("Look it up in the list of tried versions before changing it by other means.")
    return ""
