"""Decisions and their verdicts as rows: lists, inputs, stages, alternatives, what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from console import figures, link_states
from console.context import BAD, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.plans import headline
from routing import delivery
from routing.core.types import LinkMemory
from routing.models import Decision, RouterState, Tick

_STAGE_WORDS = {
    "local_prefill": "Local prefill",
    "remote_prefill": "Remote prefill",
    "decode": "Decode",
    "link": "Link",
}
_ALTERNATIVES = {
    "stay": "Running",
    "best": "Best, unclamped",
    "step": "Adopted",
    "forbidden": "Forbidden",
    "more_prefill": "One more for prefill",
    "more_decode": "One more for decode",
}
_DELIVERY_MARKS = {
    "applied": GOOD,
    "accepted": ("info", "wait"),
    "sent": ("info", "wait"),
    "failed": BAD,
    "superseded": OFF,
    "cancelled": OFF,
    "advised": OFF,
}
_SET_ASIDE = (
    ("Silent, prefill", "prefill_silent"),
    ("Silent, decode", "decode_silent"),
    ("Warming up, prefill", "prefill_warming"),
    ("Warming up, decode", "decode_warming"),
)
_STATE_MARKS = {"value": GOOD, "idle": OFF, "missing": WARN, "failed": BAD}


@dataclass(frozen=True)
class Row:
    """A named value with its unit, exact value for the hover, state and age."""

    name: str
    value: str
    title: str = ""
    state: Mark | None = None
    age: str = ""


def stage_name(name: str) -> str:
    """`local_prefill:pd` as `Local prefill pd`."""
    kind, _, where = name.partition(":")
    return f"{_STAGE_WORDS.get(kind, kind)} {where.replace('->', ' → ')}".strip()


def _stage_hue(name: str) -> str:
    kind = name.partition(":")[0]
    return {"local_prefill": "local", "decode": "decode"}.get(kind, "remote")


def gain_ratio(verdict: dict[str, Any]) -> float | None:
    """Predicted change in headroom of what is adopted against what runs."""
    current, adopted = verdict.get("current"), verdict.get("adopted")
    if not current or not adopted or not current["headroom"] or adopted["headroom"] is None:
        return None
    return adopted["headroom"] / current["headroom"] - 1


def delivery_mark(state: str) -> Mark:
    return Mark(*_DELIVERY_MARKS.get(state, WARN), state)


def _summary_mark(summary: dict[str, Any]) -> Mark:
    """`applied 2/2` with the worst state's colour. Advised decisions were never sent."""
    words = {"advised": "not pushed", "unclaimed": "no gate to run it"}
    state = summary["state"]
    tone = _DELIVERY_MARKS.get(state, WARN)
    if state in words:
        return Mark(*tone, words[state])
    if state == "cancelled":  # the others run it
        n = f"{summary['n_applied']}/{summary['n_routers']}"
        return Mark(*tone, f"applied {n}, else cancelled")
    return Mark(*tone, f"{state} {summary['n_applied']}/{summary['n_routers']}")


def delivery_rows(
    decision: Decision, summary: dict[str, Any], *, newest: bool, now: datetime
) -> list[dict[str, Any]]:
    """Each gate's way to this plan; of the `newest` also gates that were too silent to be sent it.

    `pending_since` is set where the gate is still waited for.
    """
    heard = {row.router: row for row in RouterState.objects.filter(fleet_id=decision.fleet_id)}
    rows = []
    for sent in summary["routers"]:
        pending = sent["state"] in delivery.OPEN
        took_s = None
        if sent["sent_at"] is not None and sent["applied_at"] is not None:
            took_s = (sent["applied_at"] - sent["sent_at"]).total_seconds()
        rows.append(
            {
                **sent,
                "name": sent["router"].removeprefix(f"{decision.fleet_id}/"),
                "mark": delivery_mark(sent["state"]),
                "took_s": took_s,
                "pending_since": sent["sent_at"] if pending else None,
                "note": _gate_words(heard.get(sent["router"]), now) if pending else "",
            }
        )
    asked = {row["router"] for row in rows}
    for router, state in sorted(heard.items()) if newest else ():
        if router not in asked:
            rows.append(
                {
                    "router": router,
                    "name": router.removeprefix(f"{decision.fleet_id}/"),
                    "mark": Mark(*WARN, "not sent"),
                    "note": f"{_gate_words(state, now)}; it gets the newest plan when it is back",
                }
            )
    return rows


def _gate_words(router: RouterState | None, now: datetime) -> str:
    """What is known of a gate that does not run the plan yet."""
    if router is None:
        return "never heard of since"
    runs = "runs no plan"
    if router.version_running is not None:
        runs = f"runs v{router.version_running}"
    if (now - router.last_seen_at).total_seconds() > STALE_AFTER_S:
        return f"silent since {figures.clock(router.last_seen_at)}, {runs}"
    return f"answers, {runs}"


def decision_row(decision: Decision, summary: dict[str, Any]) -> dict[str, Any]:
    """A decision as lists show it; `summary` is its delivery's."""
    verdict = decision.tick.verdict if decision.tick else {}
    gain = gain_ratio(verdict)
    return {
        "decision": decision,
        "tag": "advised" if decision.version is None else f"v{decision.version}",
        "parts": headline(decision.previous, decision.plan),
        "delivery": _summary_mark(summary),
        "gain": figures.signed_percent(gain) if gain is not None else "",
    }


def inputs(
    observed: dict[str, Any], judged: Mapping[str, LinkMemory]
) -> list[tuple[str, list[Row]]]:
    """What the loop saw, grouped by cluster and link, each value with its state and age.

    `judged` is what it found each link to be, by id.
    """
    groups = [(f"Cluster {name}", _pd_rows(pd)) for name, pd in observed["pd"].items()]
    groups += [(f"Cluster {n}", _prefill_rows(p)) for n, p in observed["prefill"].items()]
    groups += [
        (f"Link {name.replace('->', ' → ')}", _link_rows(link, judged.get(name)))
        for name, link in observed["links"].items()
    ]
    return groups


def _pd_rows(pd: dict[str, Any]) -> list[Row]:
    age = figures.age(pd["age_s"])
    rows = [
        Row(
            "Demand",
            figures.rate(pd["demand_rps"]),
            figures.exact(pd["demand_rps"]),
            Mark(*_STATE_MARKS[pd["demand_state"]], pd["demand_state"]),
            age,
        ),
        _measured("Remote share, last minute", pd["remote_share"], figures.percent, age),
    ]
    lengths = pd["lengths"]
    if lengths is None:
        rows.append(Row("Uncached lengths", figures.NONE, "", Mark(*WARN, "missing"), age))
    else:
        rows.append(
            Row(
                "Uncached lengths",
                f"{figures.significant(lengths['n_effective'])} requests",
                f"{figures.exact(lengths['n_seen'])} requests seen in all; "
                f"the oldest used is {figures.duration(lengths['oldest_s'])} old",
                Mark(*GOOD, "value"),
                age,
            )
        )
    rows += [
        _measured("Waiting for prefill", pd["queue_prefill"], _requests, age),
        _measured("Waiting for decode", pd["queue_decode"], _requests, age),
        _measured("Decode's KV memory", pd.get("decode_kv_usage_ratio"), figures.percent, age),
        _measured("Put back by decode", pd.get("preemptions_per_s"), figures.rate, age),
        Row("Instances", f"{pd['n_prefill']} prefill, {pd['n_decode']} decode"),
    ]
    for title, key in _SET_ASIDE:
        if pd.get(key):
            rows.append(Row(title, ", ".join(pd[key]), state=Mark(*WARN, "taken as full")))
    if pd["gates_silent"]:
        rows.append(
            Row("Silent gates", ", ".join(pd["gates_silent"]), state=Mark(*WARN, "last value kept"))
        )
    return rows


def _prefill_rows(cluster: dict[str, Any]) -> list[Row]:
    age = figures.age(cluster["age_s"])
    return [
        _measured("Waiting for prefill", cluster["queue_prefill"], _requests, age),
        Row("Instances", f"{cluster['n_prefill']} prefill"),
    ]


def _link_rows(link: dict[str, Any], judged: LinkMemory | None) -> list[Row]:
    age = figures.age(link["age_s"])
    rows = [
        Row(
            "Egress",
            figures.gbps(link["tx_gbps"]),
            figures.exact(link["tx_gbps"]),
            Mark(*_STATE_MARKS[link["state"]], link["state"]),
            age,
        ),
        Row(
            "Capacity",
            figures.gbps(link["capacity_gbps"]),
            figures.exact(link["capacity_gbps"]),
            Mark(*BAD, "down") if link["capacity_gbps"] == 0 else None,
        ),
        _measured("Retransmits", link["retransmit_ratio"], figures.percent, age),
        _measured("Round trip", link["rtt_s"], figures.duration, age),
    ]
    if judged is not None:
        found = link_states.mark(judged.label)
        rows.append(Row("Judged", judged.signs or "no sign of trouble", state=found))
    return rows


def _measured(name: str, value: float | None, write: Any, age: str) -> Row:
    state = Mark(*WARN, "missing") if value is None else Mark(*GOOD, "value")
    return Row(name, write(value), figures.exact(value), state, age)


def _requests(value: float | None) -> str:
    return figures.with_unit(value, "request" if value == 1 else "requests")


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


def _used(stage: dict[str, Any]) -> float:
    return math.inf if stage["utilisation_ratio"] is None else stage["utilisation_ratio"]


def binds(verdict: dict[str, Any]) -> dict[str, Any]:
    """How full each stage is under the plan that ran, and under the one that was chosen.

    One column where nothing was chosen, or the model expects the same of both.
    """
    plans = [("Running plan", verdict.get("current"))]
    chosen = verdict.get("adopted")
    if chosen and stages(chosen) != stages(verdict.get("current")):
        plans[0] = ("Before: the plan that ran", verdict.get("current"))
        plans.append(("After: the plan chosen", chosen))
    columns = [(title, plan, stages(plan)) for title, plan in plans if plan]
    names = dict.fromkeys(name for _, _, column in columns for name in column)
    return {
        "plans": [{"title": title, "headroom": plan["headroom"]} for title, plan, _ in columns],
        "same": bool(chosen) and len(plans) == 1,
        "stages": [
            {
                "name": stage_name(name),
                "hue": _stage_hue(name),
                "columns": [column.get(name) for _, _, column in columns],
            }
            for name in names
        ],
    }


def alternatives(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """The plans that were weighed, what the model expects of each, and why it was not taken."""
    return [
        {
            "name": _ALTERNATIVES.get(row["name"], row["name"]),
            "text": row["text"].replace("->", "→"),
            "headroom": row["headroom"],
            "gain": figures.signed_percent(row["gain_ratio"]),
            "remote_gbps": row["remote_gbps"],
            "bottleneck": stage_name(row["bottleneck"]),
            "why_not": row["why_not"],
            "taken": not row["why_not"],
        }
        # A tick of an earlier release knows of none.
        for row in verdict.get("alternatives", [])
    ]


def bottlenecks(verdict: dict[str, Any]) -> list[dict[str, Any]]:
    """What limits each PD cluster under the plan that runs: label, stage and the signs for it."""
    return [
        {
            "cluster": cluster,
            "label": found["label"],
            "stage": stage_name(found["stage"]),
            "signs": found["signs"],
            "measured": found["measured"],
        }
        for cluster, found in verdict.get("bottlenecks", {}).items()
    ]


def outcome(
    predicted: dict[str, Any] | None, links: list[str], later: list[tuple[str, Tick | None, str]]
) -> list[dict[str, Any]]:
    """Predicted beside what later ticks saw. `later`: (label, tick or None, note)."""
    if not predicted:
        return []
    rows = [
        _outcome_row("Remote share", figures.percent, predicted["remote_fraction"], later, _share),
        _outcome_row("Headroom", _times, predicted["headroom"], later, _headroom),
        _outcome_row("Capacity", figures.rate, predicted["lambda_max_rps"], later, _capacity),
    ]
    for link in links:
        rows.append(
            _outcome_row(
                f"Link {link.replace('->', ' → ')}",
                figures.gbps,
                predicted["link_gbps"].get(link),
                later,
                lambda tick, link=link: (tick.observed["links"].get(link) or {}).get("tx_gbps"),
            )
        )
    return rows


def _outcome_row(
    name: str, write: Any, expected: float | None, later: list[Any], read: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "expected": write(expected),
        "seen": [
            {"label": label, "value": write(read(tick)), "note": note}
            if tick
            else {"label": label, "value": note, "note": ""}
            for label, tick, note in later
        ],
    }


def _times(value: float | None) -> str:
    return figures.NONE if value is None else f"×{figures.significant(value)}"


def _share(tick: Tick) -> float | None:
    """Fleet-wide: each cluster's share weighted by its demand."""
    weighted = [
        (pd["remote_share"], pd["demand_rps"])
        for pd in tick.observed["pd"].values()
        if pd["remote_share"] is not None and pd["demand_rps"]
    ]
    demand = sum(d for _, d in weighted)
    return sum(share * d for share, d in weighted) / demand if demand else None


def _headroom(tick: Tick) -> float | None:
    return (tick.verdict.get("current") or {}).get("headroom")


def _capacity(tick: Tick) -> float | None:
    return (tick.verdict.get("current") or {}).get("lambda_max_rps")
