"""Backtests in words: what was asked, what was simulated, how it stands, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from console import figures
from console.context import BAD, GOOD, OFF, WARN, Mark
from routing.backtest_asked import LIVED, ORACLE, Asked
from routing.backtest_results import Progress
from routing.models import Backtest, BacktestRun

NAMES = {
    "adaptive": "adaptive",
    "paper": "paper",
    "always_local": "always local",
    "always_remote": "always remote",
    "least_loaded": "least loaded",
    LIVED: "as lived",
}
_STATES = {
    "queued": Mark("info", "wait", "queued"),
    "running": Mark("info", "wait", "running"),
    "cancelling": Mark(*WARN, "cancelling"),
    "done": Mark(*GOOD, "done"),
    "failed": Mark(*BAD, "failed"),
    "cancelled": Mark(*OFF, "cancelled"),
}
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    # metric, header, kind
    ("goodput_rps", "Goodput", "rate"),
    ("good_fraction", "Within SLO", "percent"),
    ("ttft_mean_s", "TTFT mean", "duration"),
    ("ttft_p90_s", "TTFT P90", "duration"),
    ("remote_fraction", "Remote", "percent"),
)
_TAIL: tuple[tuple[str, str, str], ...] = (
    ("plan_changes", "Plan changes", "number"),
    ("gpu_hours", "GPU-hours", "number"),
    ("cost", "Cost", "number"),
)
_WRITE = {
    "rate": figures.rate,
    "percent": figures.percent,
    "duration": figures.duration,
    "gbps": figures.gbps,
    "number": figures.significant,
}
_DIFFERS: dict[str, tuple[float, str]] = {
    # A difference of shares is in points; its interval is in the same unit and does not repeat it.
    "rate": (1.0, " req/s"),
    "percent": (100.0, " points"),
    "duration": (1.0, " s"),
    "gbps": (1.0, " Gbps"),
    "number": (1.0, ""),
}
_LONG_S = 100.0
_FEW = 2
_SAYS = {"better": Mark(*GOOD, "better"), "worse": Mark(*BAD, "worse")}


def policy(name: str) -> str:
    """A policy as people read it."""
    if name.startswith("static:"):
        return f"static t {figures.significant(float(name.removeprefix('static:')))}"
    return NAMES.get(name, name)


def state(word: str) -> Mark:
    return _STATES[word]


def title(backtest: Backtest) -> str:
    """What is simulated, in one line."""
    asked = Asked.from_json(backtest.asked)
    if asked.workload == "trace":
        what = backtest.trace.name if backtest.trace else "a trace that is no longer kept"
    elif asked.workload == "recorded":
        kept = backtest.prepared
        since, until = (datetime.fromtimestamp(kept[k], UTC) for k in ("from_s", "until_s"))
        what = f"Recorded {since:%Y-%m-%d %H:%M} to {until:%H:%M} UTC"
    else:
        what = f"Scenario traffic, {figures.duration(asked.duration_s)}"
    return what + scale(asked) + changed(asked)


def changed(asked: Asked) -> str:
    """Which numbers are not the scenario's, few of them by name."""
    if len(asked.numbers) > _FEW:
        return f", {len(asked.numbers)} numbers changed"
    return "".join(f", {_arrow(name)} = {_number(v)}" for name, v in asked.numbers.items())


def scale(asked: Asked) -> str:
    if asked.scale == "factor":
        return "" if asked.scale_value == 1.0 else f" × {figures.significant(asked.scale_value)}"
    how = ", thinned" if asked.scale == "load_thinned" else ""
    return f" at {figures.percent(asked.scale_value)} of the best plan's capacity{how}"


def runs_sentence(progress: Progress, word: str) -> str:
    """`17 of 25 runs done`, and what became of the others."""
    parts = [f"{progress.states['done']} of {progress.n} runs done"]
    for name in ("failed", "cancelled", "running"):
        if progress.states[name]:
            parts.append(f"{progress.states[name]} {name}")
    if word in ("queued", "running") and progress.states["queued"]:
        parts.append(f"{progress.states['queued']} waiting")
    return ", ".join(parts)


def facts(backtest: Backtest, *, is_over: bool) -> list[tuple[str, str]]:
    """What was simulated, as names and values."""
    asked, found = Asked.from_json(backtest.asked), backtest.prepared
    rows: list[tuple[str, str]] = []
    if found is None:
        unread = "was never read to its end" if is_over else "the first run reads the whole trace"
        rows.append(("Traffic", unread))
    else:
        rows += _traffic(asked, found)
    rows.append(("Seeds", _seeds(asked, found)))
    rows.append(("Prefix cache", _cache(backtest, asked, found)))
    if asked.workload != "scenario":
        rows.append(("Fixed plans are best for", _plan_for(asked)))
    if "adaptive" in asked.policies:
        rows.append(("Adaptive begins with", _begins(asked)))
    slo = backtest.scenario["fleet"]["slo"]
    good = f"first token within {figures.duration(slo.get('ttft_s'))}"
    rows.append(("Good means", f"{good}, {figures.significant(slo.get('tokens_per_s'))} tok/s"))
    if asked.numbers:
        told = ", ".join(f"{_arrow(name)} = {_number(v)}" for name, v in asked.numbers.items())
        rows.append(("Changed numbers", told))
    if asked.knobs:
        knobs = ", ".join(f"{name} = {_number(v)}" for name, v in asked.knobs.items())
        rows.append(("Knobs of the policy", knobs))
    if backtest.scenario.get("faults"):
        n = len(backtest.scenario["faults"])
        rows.append(("Faults", f"{n} of the scenario's are simulated"))
    return rows


def _traffic(asked: Asked, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    own = f"{figures.significant(found['n_requests'])} requests in "
    own += f"{figures.duration(found['own_span_s'])}, {figures.rate(found['own_rps'])}"
    if found["n_left_out"]:
        own += f"; {found['n_left_out']:,} calls that had failed are left out"
    rows = [("Traffic", own)]
    run = f"{figures.rate(found['rate_rps'])} for {figures.duration(found['duration_s'])}"
    run += f", {figures.percent(found['load_ratio'])} of the "
    run += f"{figures.rate(found['lambda_max_rps'])} that the best plan carries"
    if found["speed"] != 1.0:
        run += f"; replayed at {figures.significant(found['speed'])} × its speed"
    if found["keep_ratio"] != 1.0:
        run += f"; {figures.percent(found['keep_ratio'])} of the conversations are kept"
    rows.append(("As simulated", run))
    if asked.workload == "recorded":
        rows.append(
            (
                "Resolution",
                "demand by the minute as gates counted it, a mean over the 5 min before: shorter "
                "bursts are not in it. Answers are as long as the scenario says",
            )
        )
    if asked.warmup_ratio:
        rows.append(("Not counted", f"the first {figures.duration(found['warmup_s'])}, to warm up"))
    if any(found.get("n_missing", {}).values()):
        gaps = ", ".join(f"{n} min of {name}" for name, n in found["n_missing"].items() if n)
        rows.append(("Not measured", f"{gaps}: nothing arrives then in the twin"))
    for cluster, seen in found["traffic"].items():
        if seen["buckets"] is None:
            rows.append((f"Requests at {cluster}", "none"))
            continue
        text = f"{figures.rate(seen['rate_rps'])}, {figures.tokens(seen['mean_prompt_tokens'])} "
        text += f"prompt, {figures.tokens(seen['mean_output_tokens'])} answer in the mean"
        if seen["mean_uncached_tokens"] < 0.999 * seen["mean_prompt_tokens"]:
            left = figures.tokens(seen["mean_uncached_tokens"])
            text += f"; an unbounded cache leaves {left} to compute"
        rows.append((f"Requests at {cluster}", text))
    return rows


def _seeds(asked: Asked, found: Mapping[str, Any] | None) -> str:
    if asked.seeds == 1:
        exact = " The trace runs exactly as it was recorded." if asked.workload == "trace" else ""
        return f"1: nothing is said of chance.{exact}"
    if asked.workload != "trace":
        return f"{asked.seeds}: each draws other arrivals and lengths"
    thinned = " and keeps other conversations" if asked.scale == "load_thinned" else ""
    return f"{asked.seeds}: each begins at another row of the trace{thinned}"


def _cache(backtest: Backtest, asked: Asked, found: Mapping[str, Any] | None) -> str:
    table = backtest.scenario.get("cache")
    if table is None:
        return "none: every prompt is computed whole"
    if found is not None and found["block_tokens"] is None:
        return "of no use: this traffic does not say which prompts share a prefix"
    scope = table.get("scope", "cluster")
    capacity = table.get("capacity_tokens")
    size = "unbounded"
    if isinstance(capacity, dict):
        each = ", ".join(f"{name} {figures.tokens(v)}" for name, v in capacity.items())
        size = f"of {each}" + (" each" if scope == "instance" else "")
    elif capacity is not None:
        size = f"of {figures.tokens(capacity)}"
    blocks = "" if found is None else f", in blocks of {found['block_tokens']} tokens"
    return f"one for each {scope}, {size}{blocks}"


def _plan_for(asked: Asked) -> str:
    if asked.plan_for == "scenario":
        return "what the scenario says of rates and lengths"
    return "this traffic's own rates and lengths, as if measured before"


def _begins(asked: Asked) -> str:
    if asked.workload == "recorded":
        return "the plan that gates were asked to run at that moment"
    if asked.workload == "trace" and asked.plan_for == "workload":
        return "the best plan for this traffic"
    return "what the scenario says runs first, else its best plan"


def table(results: Mapping[str, Any], links: Sequence[str]) -> dict[str, Any]:
    """Columns, and a row for each policy with a cell for each column."""
    columns = [*_COLUMNS, *((f"link:{link}", _arrow(link), "gbps") for link in links), *_TAIL]
    metrics = results["comparison"]["metrics"]
    columns = [column for column in columns if _any(metrics, column[0])] or list(_COLUMNS)
    rows = []
    for progress in results["policies"]:
        name = progress["policy"]
        rows.append(
            {
                "policy": name,
                "name": policy(name),
                "is_baseline": name == results["baseline"],
                "n_done": progress["runs"]["done"],
                "n": sum(progress["runs"].values()),
                "cells": [_cell(metrics, name, *column) for column in columns],
            }
        )
    return {"columns": [header for _, header, _ in columns], "rows": rows}


def _any(metrics: Mapping[str, Any], metric: str) -> bool:
    found = metrics.get(metric)
    return found is not None and any(row["n"] for row in found["policies"].values())


def _cell(
    metrics: Mapping[str, Any], name: str, metric: str, header: str, kind: str
) -> dict[str, Any]:
    write = _WRITE[kind]
    row = metrics.get(metric, {"policies": {}})["policies"].get(name)
    if row is None or not row["n"]:
        return {"label": header, "value": figures.NONE, "title": "no run is done yet"}
    difference = row["difference"]
    cell = {
        "label": header,
        "value": write(row["mean"]),
        "title": _range(write, row) or "one seed: nothing is said of chance",
        "says": _SAYS.get(row["says"]),
    }
    if difference is not None and difference["mean"] is not None:
        scale, unit = _DIFFERS[kind]
        if kind == "duration" and abs(difference["mean"]) >= _LONG_S:
            scale, unit = 1.0 / 60.0, " min"
        cell["difference"] = _signed(scale * difference["mean"]) + unit
        cell["interval"] = _interval(scale, difference)
        cell["difference_title"] = (
            f"paired over {difference['n']} seed{'' if difference['n'] == 1 else 's'}"
        )
    return cell


def _signed(value: float) -> str:
    # A percentage carries the dust of its factor 100.
    value = round(value, 9)
    return f"{'+' if value > 0 else '±' if value == 0 else ''}{figures.significant(value)}"


def _interval(scale: float, found: Mapping[str, Any]) -> str:
    if found["low"] is None or found["low"] == found["high"]:
        return ""
    return f"{_signed(scale * found['low'])} to {_signed(scale * found['high'])}"


def _range(write: Any, found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return ""
    return f"95 %: {write(found['low'])} to {write(found['high'])}, {found['n']} seeds"


def _arrow(link: str) -> str:
    return link.replace("->", " → ")


_DRIFT = {
    "demand_rps": ("Demand", figures.rate),
    "remote_fraction": ("Remote share", figures.percent),
    "link_gbps": ("", figures.gbps),
}


def drift(results: Mapping[str, Any], modes: Sequence[str]) -> dict[str, Any] | None:
    """Twin beside live, in one sentence and a table. None where nothing can be said yet."""
    rows = results["drift"]
    if not rows:
        return None
    shown = []
    for row in rows:
        name, write = _DRIFT[row["what"]]
        shown.append(
            {
                "name": name or _arrow(row["where"]),
                "live": write(row["live"]),
                "twin": write(row["twin"]),
                "apart": _apart(row),
                "allowed": _allowed(row),
                "mark": _agrees(row["agrees"]),
            }
        )
    off = [row["name"] for row, found in zip(shown, rows, strict=True) if found["agrees"] is False]
    known = [row for row in rows if row["agrees"] is not None]
    if not known:
        mark, sentence = Mark(*OFF, "not measured"), "Nothing was measured live in this interval."
    elif off:
        mark = Mark(*WARN, "drifts")
        sentence = f"Twin and live are apart in {_listed(off)}: do not trust the twin there yet."
    else:
        mark = Mark(*GOOD, "agrees")
        sentence = (
            f"Twin and live agree in {_listed([row['name'] for row in shown])}. First tokens are "
            "not compared: the ticks do not hold them."
        )
    lived = rows[0]["policy"] == LIVED
    under = "Under the plans that were lived." if lived else (
        "Under the adaptive policy, not the plans that were lived: ask for “as lived” to compare "
        "like with like."
    )  # fmt: skip
    if not lived and "active" not in modes:
        under += " The loop was not active then."
    return {"mark": mark, "sentence": sentence, "under": under, "rows": shown}


def _apart(row: Mapping[str, Any]) -> str:
    if row["apart"] is None:
        return figures.NONE
    if row["what"] == "remote_fraction":
        return f"{_signed(100 * row['apart'])} points"
    return figures.signed_percent(row["apart"])


def _allowed(row: Mapping[str, Any]) -> str:
    if row["what"] == "remote_fraction":
        return f"{figures.significant(100 * row['allowed'])} points"
    return figures.percent(row["allowed"])


def _agrees(agrees: bool | None) -> Mark:
    if agrees is None:
        return Mark(*OFF, "not measured")
    return Mark(*GOOD, "agrees") if agrees else Mark(*WARN, "drifts")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def run_rows(
    runs: Sequence[BacktestRun], policies: Sequence[str], now: datetime
) -> list[dict[str, Any]]:
    """Every run, a row for each policy and a place for each seed."""
    return [
        {
            "name": policy(name),
            "runs": [_run(run, now) for run in runs if run.policy == name],
        }
        for name in policies
    ]


def _run(run: BacktestRun, now: datetime) -> dict[str, Any]:
    text = run.state
    if run.state == "running":
        text = figures.percent(round(run.progress, 2))
        if run.policy == ORACLE and not run.progress:
            text = "searching"
        if run.heartbeat_at is not None and (now - run.heartbeat_at).total_seconds() > 20:
            text += f", silent for {figures.duration((now - run.heartbeat_at).total_seconds())}"
    elif run.state == "done":
        text = figures.duration(run.wall_s)
    tries = f", attempt {run.attempt}" if run.attempt > 1 else ""
    return {
        "seed": run.seed,
        "mark": Mark(_STATES[run.state].tone, _STATES[run.state].icon, text),
        "title": f"seed {run.seed}: {run.state}{tries}",
    }


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
