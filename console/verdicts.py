"""Decisions and their verdicts as rows: lists, delivery, stages, alternatives, what binds."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import figures, timeline
from console.context import BAD, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from routing import delivery
from routing.models import Decision, RouterState

_STAGE_WORDS = {
    "local_prefill": _lazy("Local prefill"),
    "remote_prefill": _lazy("Remote prefill"),
    "decode": _lazy("Decode"),
    "link": _lazy("Link"),
}
_ALTERNATIVES = {
    "stay": _lazy("Running"),
    "best": _lazy("Best, unclamped"),
    "step": _lazy("Adopted"),
    "forbidden": _lazy("Forbidden"),
    "more_prefill": _lazy("One more for prefill"),
    "more_decode": _lazy("One more for decode"),
}
_LABELS = {
    "decode": _lazy("decode"),
    "prefill": _lazy("prefill"),
    "link": _lazy("link"),
    "flow": _lazy("connections"),
    "burst": _lazy("bursts"),
    "unknown": _lazy("not known"),
}
"""What limits a cluster (`core.bottleneck`)."""
_DELIVERY_MARKS = {
    "applied": GOOD,
    "accepted": ("info", "wait"),
    "sent": ("info", "wait"),
    "pending_restart": WARN,
    "failed": BAD,
    "refused": BAD,
    "expired": BAD,
    "superseded": OFF,
    "cancelled": OFF,
    "advised": OFF,
}
_DELIVERY_WORDS = {
    "applied": _lazy("applied"),
    "accepted": _lazy("accepted"),
    "sent": _lazy("sent"),
    "pending": _lazy("pending"),
    "pending_restart": _lazy("pending restart"),
    "failed": _lazy("failed"),
    "refused": _lazy("refused"),
    "expired": _lazy("expired"),
    "superseded": _lazy("superseded"),
    "cancelled": _lazy("cancelled"),
}
_KINDS = {"advised": _lazy("advised"), "refused": _lazy("refused"), "reverted": _lazy("reverted")}
_ACCEPTED = ("accepted", "applied", "pending_restart")
"""States of a router that has the plan."""


def stage_name(name: str) -> str:
    """`local_prefill:pd` as `Local prefill pd`."""
    kind, _, where = name.partition(":")
    return f"{_STAGE_WORDS.get(kind, kind)} {where.replace('->', ' → ')}".strip()


def stage_hue(name: str) -> str:
    """The colour of a stage, by its name."""
    kind = name.partition(":")[0]
    return {"local_prefill": "local", "decode": "decode"}.get(kind, "remote")


def gain_ratio(before: float | None, after: float | None) -> float | None:
    """Predicted change in headroom of what is adopted against what runs."""
    return None if not before or after is None else after / before - 1


def delivery_mark(state: str) -> Mark:
    return Mark(*_DELIVERY_MARKS.get(state, WARN), delivery_words(state))


def delivery_words(state: str) -> str:
    return str(_DELIVERY_WORDS.get(state, state.replace("_", " ")))


def _summary_mark(summary: dict[str, Any]) -> Mark:
    """`applied 2/2` with the worst state's colour. Advised decisions were never sent."""
    words = {
        "advised": _("not pushed"),
        "refused": _("not issued: no gate could run it"),
        "unclaimed": _("no gate to run it"),
    }
    state = summary["state"]
    tone = _DELIVERY_MARKS.get(state, WARN)
    if state in words:
        return Mark(*tone, words[state])
    if state == "cancelled":  # the others run it
        n = f"{summary['n_applied']}/{summary['n_routers']}"
        return Mark(*tone, _("applied %(n)s, else cancelled") % {"n": n})
    return Mark(*tone, f"{delivery_words(state)} {summary['n_applied']}/{summary['n_routers']}")


def delivery_rows(
    decision: Decision, summary: dict[str, Any], *, newest: bool, now: datetime
) -> list[dict[str, Any]]:
    """Each gate's way to this plan; of the `newest` also gates that were too silent to be sent it.

    `pending_since` is set where the gate is still waited for.
    """
    heard = {row.router: row for row in RouterState.objects.filter(fleet_id=decision.fleet_id)}
    rows = []
    for sent in summary["routers"]:
        pending = sent["state"] in delivery.CANCELLABLE
        took_s = None
        if sent["sent_at"] is not None and sent["applied_at"] is not None:
            took_s = (sent["applied_at"] - sent["sent_at"]).total_seconds()
        rows.append(
            {
                **sent,
                "name": sent["router"].removeprefix(f"{decision.fleet_id}/"),
                "mark": delivery_mark(sent["state"]),
                "took_s": took_s,
                "accepted": sent["state"] in _ACCEPTED,
                "pending_since": sent["sent_at"] if pending else None,
                "note": _gate_words(heard.get(sent["router"]), now) if pending else "",
                "reads_back": _runs_words(heard.get(sent["router"]), now),
            }
        )
    asked = {row["router"] for row in rows}
    for router, state in sorted(heard.items()) if newest else ():
        if router not in asked:
            rows.append(
                {
                    "router": router,
                    "name": router.removeprefix(f"{decision.fleet_id}/"),
                    "mark": Mark(*WARN, _("not sent")),
                    "note": _("%(state)s; it gets the newest plan when it is back")
                    % {"state": _gate_words(state, now)},
                }
            )
    return rows


def _runs_words(router: RouterState | None, now: datetime) -> str:
    """What a gate says it runs, and when it said so; empty where it is not heard of."""
    if router is None or router.version_running is None:
        return ""
    age_s = (now - router.last_seen_at).total_seconds()
    return f"v{router.version_running}, {figures.age(age_s)}"


def _gate_words(router: RouterState | None, now: datetime) -> str:
    """What is known of a gate that does not run the plan yet."""
    if router is None:
        return _("never heard of since")
    runs = _("runs no plan")
    if router.version_running is not None:
        runs = _("runs v%(version_running)s") % {"version_running": router.version_running}
    if (now - router.last_seen_at).total_seconds() > STALE_AFTER_S:
        return _("silent since %(last_seen_at)s, %(runs)s") % {
            "last_seen_at": figures.clock(router.last_seen_at),
            "runs": runs,
        }
    return _("answers, %(runs)s") % {"runs": runs}


def decision_row(decision: Decision, summary: dict[str, Any]) -> dict[str, Any]:
    """A decision of `timeline.listed` as lists show it; `summary` is its delivery's."""
    gain = gain_ratio(decision.headroom_before, decision.headroom_after)
    back_to = timeline.back_to(decision.reason, decision.message)
    return {
        "decision": decision,
        "tag": _KINDS.get(decision.kind, decision.kind)
        if decision.version is None
        else f"v{decision.version}",
        "parts": timeline.parts(decision),
        "delivery": _summary_mark(summary),
        "gain": figures.change(gain) if gain is not None else "",
        "who": timeline.who(decision.reason, decision.message),
        "back_to": back_to and f"v{back_to[1]}",
    }


def stages(prediction: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Stages of a prediction by name, tightest first. One in use without capacity is full."""
    if not prediction:
        return {}
    found = sorted(prediction["stages"], key=lambda stage: -_used(stage))
    return {
        stage["name"]: {
            "binding": stage["name"] == prediction["bottleneck"],
            "capacity_rps": stage["capacity_rps"],
            "utilisation_ratio": stage["utilisation_ratio"],
            "percent": min(100.0, 100 * _used(stage)),
            "over": _used(stage) > 1,
        }
        for stage in found
    }


def over_capacity(verdict: dict[str, Any]) -> list[str]:
    """Names of the stages of which the plan that runs asks more than they carry, by name."""
    predicted = verdict.get("current")
    found = predicted["stages"] if predicted else ()
    return sorted(stage["name"] for stage in found if _used(stage) > 1)


def _used(stage: dict[str, Any]) -> float:
    return math.inf if stage["utilisation_ratio"] is None else stage["utilisation_ratio"]


def binds(verdict: dict[str, Any]) -> dict[str, Any]:
    """How full each stage is under the plan that ran, and under the one that was chosen.

    One column where nothing was chosen, or the model expects the same of both.
    """
    plans = [(_("Running plan"), verdict.get("current"))]
    chosen = verdict.get("adopted")
    if chosen and stages(chosen) != stages(verdict.get("current")):
        plans[0] = (_("Before: the plan that ran"), verdict.get("current"))
        plans.append((_("After: the plan chosen"), chosen))
    columns = [(title, plan, stages(plan)) for title, plan in plans if plan]
    names = dict.fromkeys(name for _, _, column in columns for name in column)
    return {
        "plans": [{"title": title, "headroom": plan["headroom"]} for title, plan, _ in columns],
        "same": bool(chosen) and len(plans) == 1,
        "stages": [
            {
                "name": stage_name(name),
                "hue": stage_hue(name),
                "columns": [column.get(name) for _, _, column in columns],
            }
            for name in names
        ],
    }


def alternatives(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans that were weighed, what the model expects of each, and why it was not taken.

    `percent` is a headroom as a share of the greatest among them.
    """
    weighed = verdict.get("alternatives", [])  # a tick of an earlier release knows of none
    most = max((row["headroom"] or 0.0 for row in weighed), default=0.0)
    return [
        {
            "name": _ALTERNATIVES.get(row["name"], row["name"]),
            "text": row["text"].replace("->", "→"),
            "headroom": row["headroom"],
            "percent": 100 * (row["headroom"] or 0.0) / most if most else 0.0,
            "gain": figures.NONE if row["name"] == "stay" else figures.change(row["gain_ratio"]),
            "remote_gbps": row["remote_gbps"],
            "bottleneck": stage_name(row["bottleneck"]),
            "why_not": row["why_not"],
            "taken": not row["why_not"],
        }
        for row in weighed
    ]


def bottlenecks(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """What limits each PD cluster under the plan that runs: label, stage and the signs for it.

    `by_model` is the stage that the model finds tightest there, where what was measured points to
    another: what the loop says of a change goes by the model.
    """
    tightest_first = list(stages(verdict.get("current")))
    return [
        {
            "cluster": cluster,
            "label": _LABELS.get(found["label"], found["label"]),
            "stage": stage_name(found["stage"]),
            "signs": found["signs"],
            "measured": found["measured"],
            "by_model": _otherwise(tightest_first, cluster, found),
        }
        for cluster, found in verdict.get("bottlenecks", {}).items()
    ]


def _otherwise(tightest_first: list[str], cluster: str, found: dict[str, Any]) -> str:
    """The stage of a cluster that the model finds tightest, unless the signs say the same."""
    own = _own(tightest_first, cluster)
    known = [name for name in tightest_first if name in own]
    if not found["measured"] or not known or found["stage"] == known[0]:
        return ""
    return stage_name(known[0])


def _own(every: list[str], cluster: str) -> set[str]:
    """Names of the stages that a cluster's requests pass."""
    links = {n for n in every if n.startswith("link:") and n.endswith(f"->{cluster}")}
    remotes = {f"remote_prefill:{name.removeprefix('link:').split('->')[0]}" for name in links}
    return {f"local_prefill:{cluster}", f"decode:{cluster}"} | links | remotes
