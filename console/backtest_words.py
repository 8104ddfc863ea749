"""Backtests in words: what was asked, what was simulated, how it stands, what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures
from console.context import BAD, GOOD, OFF, WARN, Mark
from routing.backtest_asked import LIVED, ORACLE, Asked
from routing.backtest_results import Progress
from routing.models import Backtest, BacktestRun

NAMES = {
    "adaptive": _lazy("adaptive"),
    "paper": _lazy("paper"),
    "always_local": _lazy("always local"),
    "always_remote": _lazy("always remote"),
    "least_loaded": _lazy("least loaded"),
    LIVED: _lazy("as lived"),
}
_STATES = {
    "queued": Mark("info", "wait", _lazy("queued")),
    "running": Mark("info", "wait", _lazy("running")),
    "cancelling": Mark(*WARN, _lazy("cancelling")),
    "done": Mark(*GOOD, _lazy("done")),
    "failed": Mark(*BAD, _lazy("failed")),
    "cancelled": Mark(*OFF, _lazy("cancelled")),
}
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    # metric, header, kind
    ("goodput_rps", _lazy("Goodput"), "rate"),
    ("good_fraction", _lazy("Within SLO"), "percent"),
    ("ttft_mean_s", _lazy("TTFT mean"), "duration"),
    ("ttft_p90_s", _lazy("TTFT P90"), "duration"),
    ("remote_fraction", _lazy("Remote"), "percent"),
)
_TAIL: tuple[tuple[str, str, str], ...] = (
    ("plan_changes", _lazy("Plan changes"), "number"),
    ("gpu_hours", _lazy("GPU-hours"), "number"),
    ("cost", _lazy("Cost"), "number"),
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
_SAYS = {"better": Mark(*GOOD, _lazy("better")), "worse": Mark(*BAD, _lazy("worse"))}


def policy(name: str) -> str:
    """A policy as people read it."""
    if name.startswith("static:"):
        return _("static t %(significant)s") % {
            "significant": figures.significant(float(name.removeprefix("static:")))
        }
    return str(NAMES.get(name, name))


def state(word: str) -> Mark:
    return _STATES[word]


def title(backtest: Backtest) -> str:
    """What is simulated, in one line."""
    asked = Asked.from_json(backtest.asked)
    if asked.workload == "trace":
        what = backtest.trace.name if backtest.trace else _("a trace that is no longer kept")
    elif asked.workload == "recorded":
        kept = backtest.prepared
        since, until = (datetime.fromtimestamp(kept[k], UTC) for k in ("from_s", "until_s"))
        what = _("Recorded %(since)s to %(until)s UTC") % {
            "since": f"{since:%Y-%m-%d %H:%M}",
            "until": f"{until:%H:%M}",
        }
    else:
        what = _("Scenario traffic, %(duration_s)s") % {
            "duration_s": figures.duration(asked.duration_s)
        }
    return what + scale(asked) + changed(asked)


def changed(asked: Asked) -> str:
    """Which numbers are not the scenario's, few of them by name."""
    if len(asked.numbers) > _FEW:
        return _(", %(n)s numbers changed") % {"n": len(asked.numbers)}
    return "".join(f", {_arrow(name)} = {_number(v)}" for name, v in asked.numbers.items())


def scale(asked: Asked) -> str:
    if asked.scale == "factor":
        return "" if asked.scale_value == 1.0 else f" × {figures.significant(asked.scale_value)}"
    load = {"load": figures.percent(asked.scale_value)}
    if asked.scale == "load_thinned":
        return " " + _("at %(load)s of the best plan's capacity, thinned") % load
    return " " + _("at %(load)s of the best plan's capacity") % load


def runs_sentence(progress: Progress, word: str) -> str:
    """`17 of 25 runs done`, and what became of the others."""
    parts = [_("%(done)s of %(n)s runs done") % {"done": progress.states["done"], "n": progress.n}]
    for name in ("failed", "cancelled", "running"):
        if progress.states[name]:
            parts.append(f"{progress.states[name]} {_STATES[name].text}")
    if word in ("queued", "running") and progress.states["queued"]:
        parts.append(_("%(queued)s waiting") % {"queued": progress.states["queued"]})
    return ", ".join(parts)


def facts(backtest: Backtest, *, is_over: bool) -> list[tuple[str, str]]:
    """What was simulated, as names and values."""
    asked, found = Asked.from_json(backtest.asked), backtest.prepared
    rows: list[tuple[str, str]] = []
    if found is None:
        unread = (
            _("was never read to its end") if is_over else _("the first run reads the whole trace")
        )
        rows.append((_("Traffic"), unread))
    else:
        rows += _traffic(asked, found)
    rows.append((_("Seeds"), _seeds(asked, found)))
    rows.append((_("Prefix cache"), _cache(backtest, asked, found)))
    if asked.workload != "scenario":
        rows.append((_("Fixed plans are best for"), _plan_for(asked)))
    if "adaptive" in asked.policies:
        rows.append((_("Adaptive begins with"), _begins(asked)))
    slo = backtest.scenario["fleet"]["slo"]
    good = _("first token within %(duration)s") % {"duration": figures.duration(slo.get("ttft_s"))}
    rows.append((_("Good means"), f"{good}, {figures.significant(slo.get('tokens_per_s'))} tok/s"))
    if asked.numbers:
        told = ", ".join(f"{_arrow(name)} = {_number(v)}" for name, v in asked.numbers.items())
        rows.append((_("Changed numbers"), told))
    if asked.knobs:
        knobs = ", ".join(f"{name} = {_number(v)}" for name, v in asked.knobs.items())
        rows.append((_("Knobs of the policy"), knobs))
    if backtest.scenario.get("faults"):
        n = len(backtest.scenario["faults"])
        rows.append((_("Faults"), _("%(n)s of the scenario's are simulated") % {"n": n}))
    return rows


def _traffic(asked: Asked, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    own = _("%(n)s requests in %(span)s, %(rate)s") % {
        "n": figures.significant(found["n_requests"]),
        "span": figures.duration(found["own_span_s"]),
        "rate": figures.rate(found["own_rps"]),
    }
    if found["n_left_out"]:
        left_out = f"{found['n_left_out']:,}"
        own += _("; %(n)s calls that had failed are left out") % {"n": left_out}
    rows = [(_("Traffic"), own)]
    run = _("%(rate)s for %(span)s, %(load)s of the %(most)s that the best plan carries") % {
        "rate": figures.rate(found["rate_rps"]),
        "span": figures.duration(found["duration_s"]),
        "load": figures.percent(found["load_ratio"]),
        "most": figures.rate(found["lambda_max_rps"]),
    }
    if found["speed"] != 1.0:
        run += _("; replayed at %(speed)s × its speed") % {
            "speed": figures.significant(found["speed"])
        }
    if found["keep_ratio"] != 1.0:
        run += _("; %(keep_ratio)s of the conversations are kept") % {
            "keep_ratio": figures.percent(found["keep_ratio"])
        }
    rows.append((_("As simulated"), run))
    if asked.workload == "recorded":
        rows.append(
            (
                _("Resolution"),
                _(
                    "demand by the minute as gates counted it, a mean over the 5 "
                    "min before: shorter bursts are not in it. Answers are as "
                    "long as the scenario says"
                ),
            )
        )
    if asked.warmup_ratio:
        rows.append(
            (
                _("Not counted"),
                _("the first %(warmup_s)s, to warm up")
                % {"warmup_s": figures.duration(found["warmup_s"])},
            )
        )
    if any(found.get("n_missing", {}).values()):
        gaps = ", ".join(
            _("%(n)s min of %(name)s") % {"n": n, "name": name}
            for name, n in found["n_missing"].items()
            if n
        )
        rows.append(
            (_("Not measured"), _("%(gaps)s: nothing arrives then in the twin") % {"gaps": gaps})
        )
    for cluster, seen in found["traffic"].items():
        if seen["buckets"] is None:
            rows.append((_("Requests at %(cluster)s") % {"cluster": cluster}, _("none")))
            continue
        text = _("%(rate)s, %(prompt)s prompt, %(output)s answer in the mean") % {
            "rate": figures.rate(seen["rate_rps"]),
            "prompt": figures.tokens(seen["mean_prompt_tokens"]),
            "output": figures.tokens(seen["mean_output_tokens"]),
        }
        if seen["mean_uncached_tokens"] < 0.999 * seen["mean_prompt_tokens"]:
            left = figures.tokens(seen["mean_uncached_tokens"])
            text += _("; an unbounded cache leaves %(left)s to compute") % {"left": left}
        rows.append((_("Requests at %(cluster)s") % {"cluster": cluster}, text))
    return rows


def _seeds(asked: Asked, found: Mapping[str, Any] | None) -> str:
    if asked.seeds == 1:
        one = _("1: nothing is said of chance.")
        if asked.workload != "trace":
            return one
        return f"{one} " + _("The trace runs exactly as it was recorded.")
    if asked.workload != "trace":
        return _("%(seeds)s: each draws other arrivals and lengths") % {"seeds": asked.seeds}
    if asked.scale == "load_thinned":
        return _(
            "%(seeds)s: each begins at another row of the trace and keeps other conversations"
        ) % {"seeds": asked.seeds}
    return _("%(seeds)s: each begins at another row of the trace") % {"seeds": asked.seeds}


def _cache(backtest: Backtest, asked: Asked, found: Mapping[str, Any] | None) -> str:
    table = backtest.scenario.get("cache")
    if table is None:
        return _("none: every prompt is computed whole")
    if found is not None and found["block_tokens"] is None:
        return _("of no use: this traffic does not say which prompts share a prefix")
    scope = table.get("scope", "cluster")
    capacity = table.get("capacity_tokens")
    size = _("unbounded")
    if isinstance(capacity, dict):
        each = ", ".join(f"{name} {figures.tokens(v)}" for name, v in capacity.items())
        size = (_("of %(sizes)s each") if scope == "instance" else _("of %(sizes)s")) % {
            "sizes": each
        }
    elif capacity is not None:
        size = _("of %(sizes)s") % {"sizes": figures.tokens(capacity)}
    one = _("one for each instance") if scope == "instance" else _("one for each cluster")
    if found is None:
        return f"{one}, {size}"
    blocks = _("in blocks of %(n)s tokens") % {"n": found["block_tokens"]}
    return f"{one}, {size}, {blocks}"


def _plan_for(asked: Asked) -> str:
    if asked.plan_for == "scenario":
        return _("what the scenario says of rates and lengths")
    return _("this traffic's own rates and lengths, as if measured before")


def _begins(asked: Asked) -> str:
    if asked.workload == "recorded":
        return _("the plan that gates were asked to run at that moment")
    if asked.workload == "trace" and asked.plan_for == "workload":
        return _("the best plan for this traffic")
    return _("what the scenario says runs first, else its best plan")


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
        return {"label": header, "value": figures.NONE, "title": _("no run is done yet")}
    difference = row["difference"]
    cell = {
        "label": header,
        "value": write(row["mean"]),
        "title": _range(write, row) or _("one seed: nothing is said of chance"),
        "says": _SAYS.get(row["says"]),
    }
    if difference is not None and difference["mean"] is not None:
        scale, unit = _DIFFERS[kind]
        if kind == "duration" and abs(difference["mean"]) >= _LONG_S:
            scale, unit = 1.0 / 60.0, " min"
        cell["difference"] = _signed(scale * difference["mean"]) + unit
        cell["interval"] = _interval(scale, difference)
        n = difference["n"]
        paired = ngettext("paired over %(n)s seed", "paired over %(n)s seeds", n)
        cell["difference_title"] = paired % {"n": n}
    return cell


def _signed(value: float) -> str:
    # A percentage carries the dust of its factor 100.
    value = round(value, 9)
    return f"{'+' if value > 0 else '±' if value == 0 else ''}{figures.significant(value)}"


def _interval(scale: float, found: Mapping[str, Any]) -> str:
    if found["low"] is None or found["low"] == found["high"]:
        return ""
    return _("%(signed)s to %(signed2)s") % {
        "signed": _signed(scale * found["low"]),
        "signed2": _signed(scale * found["high"]),
    }


def _range(write: Any, found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return ""
    return _("95 %%: %(low)s to %(high)s, %(n)s seeds") % {
        "low": write(found["low"]),
        "high": write(found["high"]),
        "n": found["n"],
    }


def _arrow(link: str) -> str:
    return link.replace("->", " → ")


_DRIFT = {
    "demand_rps": (_lazy("Demand"), figures.rate),
    "remote_fraction": (_lazy("Remote share"), figures.percent),
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
                "name": str(name) or _arrow(row["where"]),
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
        mark, sentence = (
            Mark(*OFF, _("not measured")),
            _("Nothing was measured live in this interval."),
        )
    elif off:
        mark = Mark(*WARN, _("drifts"))
        sentence = _("Twin and live are apart in %(off)s: do not trust the twin there yet.") % {
            "off": _listed(off)
        }
    else:
        mark = Mark(*GOOD, _("agrees"))
        sentence = _(
            "Twin and live agree in %(listed)s. First tokens are not "
            "compared: the ticks do not hold them."
        ) % {"listed": _listed([row["name"] for row in shown])}
    lived = rows[0]["policy"] == LIVED
    under = _("Under the plans that were lived.")
    if not lived:
        under = _(
            "Under the adaptive policy, not the plans that were lived: ask for “as lived” to "
            "compare like with like."
        )
    if not lived and "active" not in modes:
        under += " " + _("The loop was not active then.")
    return {"mark": mark, "sentence": sentence, "under": under, "rows": shown}


def _apart(row: Mapping[str, Any]) -> str:
    if row["apart"] is None:
        return figures.NONE
    if row["what"] == "remote_fraction":
        return _("%(signed)s points") % {"signed": _signed(100 * row["apart"])}
    return figures.signed_percent(row["apart"])


def _allowed(row: Mapping[str, Any]) -> str:
    if row["what"] == "remote_fraction":
        return _("%(significant)s points") % {
            "significant": figures.significant(100 * row["allowed"])
        }
    return figures.percent(row["allowed"])


def _agrees(agrees: bool | None) -> Mark:
    if agrees is None:
        return Mark(*OFF, _("not measured"))
    return Mark(*GOOD, _("agrees")) if agrees else Mark(*WARN, _("drifts"))


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return _("%(some)s and %(last)s") % {"some": ", ".join(names[:-1]), "last": names[-1]}


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
    text = str(_STATES[run.state].text)
    if run.state == "running":
        text = figures.percent(round(run.progress, 2))
        if run.policy == ORACLE and not run.progress:
            text = _("searching")
        if run.heartbeat_at is not None and (now - run.heartbeat_at).total_seconds() > 20:
            text += _(", silent for %(duration)s") % {
                "duration": figures.duration((now - run.heartbeat_at).total_seconds())
            }
    elif run.state == "done":
        text = figures.duration(run.wall_s)
    tries = _(", attempt %(attempt)s") % {"attempt": run.attempt} if run.attempt > 1 else ""
    return {
        "seed": run.seed,
        "mark": Mark(_STATES[run.state].tone, _STATES[run.state].icon, text),
        "title": _("seed %(seed)s: %(state)s%(tries)s")
        % {"seed": run.seed, "state": _STATES[run.state].text, "tries": tries},
    }


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)
