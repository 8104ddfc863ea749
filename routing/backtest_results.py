"""What came of a backtest: how far it is, policies side by side, minute by minute, and beside what
the fleet itself did."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routing.backtest_asked import LIVED
from routing.models import Backtest, BacktestRun
from routing.twin.compare import METRICS, Metric, compare

STATES = ("queued", "running", "done", "failed", "cancelled")
COLUMNS = ("goodput_rps", "ttft_p50_s", "ttft_p90_s", "remote_fraction")

AGREES = {"remote_fraction": 0.02, "link_gbps": 0.03, "demand_rps": 0.03}
"""How far twin and live may be apart: points of the remote share, else of the live value."""

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """Runs of one policy, or of all: how many in each state; `ratio` of the work that is done."""

    n: int
    ratio: float
    states: dict[str, int]

    @property
    def is_over(self) -> bool:
        return not (self.states["queued"] or self.states["running"])


def state_of(states: Mapping[str, int], *, cancel_requested: bool) -> str:
    """One word for a backtest, from its runs."""
    if states["queued"] or states["running"]:
        if cancel_requested:
            return "cancelling"
        return "running" if states["running"] or states["done"] else "queued"
    if cancel_requested and states["cancelled"]:
        return "cancelled"
    return "failed" if states["failed"] else "done"


def progress_of(runs: Iterable[BacktestRun]) -> Progress:
    found = list(runs)
    states = dict.fromkeys(STATES, 0)
    for run in found:
        states[run.state] += 1
    done = sum(1.0 if run.state == "done" else run.progress for run in found)
    return Progress(len(found), done / len(found) if found else 0.0, states)


def results(
    backtest: Backtest, runs: Sequence[BacktestRun], *, baseline: str | None = None
) -> dict[str, Any]:
    """Everything the page shows, as plain values.

    Comparisons are over finished runs; series over these and what is known of the others so far,
    each policy's mean over its seeds. Raises ValueError for a baseline that is not among the
    policies.
    """
    policies = list(backtest.asked["policies"])
    whole = progress_of(runs)
    by_policy = {policy: [run for run in runs if run.policy == policy] for policy in policies}
    reports = {
        policy: {run.seed: run.report for run in found if run.state == "done" and run.report}
        for policy, found in by_policy.items()
    }
    series = {policy: mean_series(_known(found)) for policy, found in by_policy.items()}
    return {
        "id": backtest.pk,
        "state": state_of(whole.states, cancel_requested=backtest.cancel_requested),
        "progress": whole.ratio,
        "runs": whole.states,
        "baseline": baseline or backtest.asked["baseline"],
        "policies": [
            {
                "policy": policy,
                "progress": progress_of(found).ratio,
                "runs": progress_of(found).states,
                "errors": sorted({run.error for run in found if run.error}),
            }
            for policy, found in by_policy.items()
        ],
        "comparison": compare(
            reports,
            baseline=baseline or backtest.asked["baseline"],
            metrics=metrics_of(reports),
        ),
        "series": series,
        "live": None if backtest.recording is None else backtest.recording["live"],
        "drift": drift(backtest, reports),
    }


def metrics_of(reports: Mapping[str, Mapping[int, Report]]) -> tuple[Metric, ...]:
    """Those of every comparison, and the mean rate of each link."""
    first = next((report for runs in reports.values() for report in runs.values()), None)
    links = () if first is None else tuple(first["links"])
    return METRICS + tuple(
        Metric(f"link:{link}", ("links", link, "mean_gbps"), None) for link in links
    )


def mean_series(reports: Sequence[tuple[Report, bool]]) -> dict[str, Any] | None:
    """The mean over seeds of each column, row by row, of (report, whether it is final).

    Of a partial report the last row, which is not over, and the one before, whose requests are
    under way, are left out. Rows are one length: a report with shorter ones (of a run not far
    enough yet) is left out. None without any row.
    """
    rows_s = [report["series"]["row_s"] for report, _ in reports]
    if not rows_s:
        return None
    row_s = max(rows_s)
    kept = [
        (report["series"], final) for report, final in reports if report["series"]["row_s"] == row_s
    ]
    lengths = [len(series["at_s"]) - (0 if final else 2) for series, final in kept]
    lengths = [max(length, 0) for length in lengths]
    n = max(lengths)
    if n < 1:
        return None

    def mean(columns: Sequence[Sequence[float | None]]) -> list[float | None]:
        cut = [column[:length] for column, length in zip(columns, lengths, strict=True)]
        return [_mean([column[i] for column in cut if i < len(column)]) for i in range(n)]

    tables = [series for series, _ in kept]
    first = tables[0]
    return {
        "row_s": row_s,
        "n_seeds": len(kept),
        "at_s": [i * row_s for i in range(n)],
        "arrivals_rps": mean([[a / row_s for a in table["arrivals"]] for table in tables]),
        **{column: mean([table[column] for table in tables]) for column in COLUMNS},
        "link_gbps": {
            link: mean([table["link_gbps"].get(link, []) for table in tables])
            for link in first["link_gbps"]
        },
        "threshold_tokens": {
            cluster: mean([table["threshold_tokens"].get(cluster, []) for table in tables])
            for cluster in first["threshold_tokens"]
        },
    }


def drift(
    backtest: Backtest, reports: Mapping[str, Mapping[int, Report]]
) -> list[dict[str, Any]] | None:
    """Twin beside live over the interval without its warm-up, under the plans that were lived if
    that policy was asked for, else under the loop's. None without a recorded interval, or before a
    run is done.
    """
    if backtest.recording is None:
        return None
    policy = next((name for name in (LIVED, "adaptive") if reports.get(name)), None)
    if policy is None:
        return None
    live = backtest.recording["live"]
    found = mean_series([(report, True) for report in reports[policy].values()])
    if found is None:
        return None
    rows = [
        ("demand_rps", "", live["demand_rps"], found["arrivals_rps"]),
        ("remote_fraction", "", live["remote_fraction"], found["remote_fraction"]),
        *(
            ("link_gbps", link, live["link_gbps"].get(link, []), found["link_gbps"][link])
            for link in found["link_gbps"]
        ),
    ]
    warm = math.ceil(backtest.prepared["warmup_s"] / found["row_s"])
    return [_apart(policy, warm, *row) for row in rows]


def _apart(
    policy: str, warm: int, what: str, where: str, live: Sequence[Any], twin: Sequence[Any]
) -> dict[str, Any]:
    """Means over the rows from `warm` on that were measured live."""
    measured = [i for i in range(warm, min(len(live), len(twin))) if live[i] is not None]
    lived, told = _mean([live[i] for i in measured]), _mean([twin[i] for i in measured])
    apart = None if lived is None or told is None else told - lived
    allowed = AGREES[what]
    if apart is not None and what != "remote_fraction":
        apart = apart / lived if lived else None
    return {
        "policy": policy,
        "what": what,
        "where": where,
        "live": lived,
        "twin": told,
        "apart": apart,
        "allowed": allowed,
        "agrees": None if apart is None else abs(apart) <= allowed,
    }


def rows_of(runs: Iterable[BacktestRun]) -> tuple[list[str], list[list[Any]]]:
    """A header, and a row for each run with every figure of its report, for a table's file."""
    found = list(runs)
    reports: dict[str, dict[int, Report]] = {
        "": {i: run.report for i, run in enumerate(found) if run.report}
    }
    metrics = metrics_of(reports)
    header = ["policy", "seed", "state", "wall_s", *(metric.name for metric in metrics), "error"]
    rows = []
    for run in found:
        report = run.report if run.state == "done" else None
        values = [None if report is None else metric.of(report) for metric in metrics]
        rows.append([run.policy, run.seed, run.state, run.wall_s, *values, run.error])
    return header, rows


def exported(backtest: Backtest, runs: Sequence[BacktestRun]) -> dict[str, Any]:
    """All of it: what was asked, on which scenario, and every report."""
    return {
        "fleet": backtest.fleet_id,
        "created_at": backtest.created_at.isoformat(),
        "requested_by": backtest.requested_by,
        "note": backtest.note,
        "asked": backtest.asked,
        "trace": backtest.trace and {"name": backtest.trace.name, "sha256": backtest.trace.sha256},
        "prepared": backtest.prepared,
        "scenario": backtest.scenario,
        "recording": backtest.recording,
        **{key: value for key, value in results(backtest, runs).items() if key != "series"},
        "reports": [
            {
                "policy": run.policy,
                "seed": run.seed,
                "state": run.state,
                "error": run.error,
                "report": run.report if run.state == "done" else None,
            }
            for run in runs
        ],
    }


def _known(runs: Iterable[BacktestRun]) -> list[tuple[Report, bool]]:
    return [
        (run.report, run.state == "done")
        for run in runs
        if run.report is not None and run.state in ("running", "done", "cancelled")
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
