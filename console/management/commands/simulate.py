"""`manage.py simulate SCENARIO`: what a policy would do to a fleet and its traffic, in the twin."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console import figures
from routing.core.scenario.profile_files import FileError
from routing.core.scenario.tables import ScenarioError
from routing.scenario_files import read_document
from routing.simulating import DEFAULT_DURATION_S, Options, SimulateError, run_of, run_timed
from routing.trace_files import read_trace
from routing.twin.policies import POLICIES, PolicyError
from routing.twin.recorded import Recording
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace

_STAGES = {
    "queue": "queue for prefill",
    "prefill": "prefill",
    "transfer": "transfer beyond prefill",
    "decode_wait": "wait for decode",
}


class Command(BaseCommand):
    help = "What a policy would do to a fleet and its traffic: a run of the twin. No database."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("scenario", metavar="SCENARIO", help="a TOML file")
        parser.add_argument(
            "--trace",
            metavar="FILE",
            help="requests instead of the scenario's arrivals: Mooncake or session jsonl, Azure, "
            "BurstGPT or ServeGen csv, exported telemetry; plain or gzip",
        )
        parser.add_argument(
            "--histograms", metavar="FILE", help="ServeGen's lengths, beside a --trace of its rates"
        )
        parser.add_argument(
            "--policy",
            action="append",
            metavar="P",
            help=f"one of {', '.join(POLICIES)}; paper by default, several one after the other "
            "on the same requests",
        )
        for name, unit, what in (
            ("duration", "S", f"seconds to simulate: the trace's, else {DEFAULT_DURATION_S:g}"),
            ("warmup", "S", "leave out of the report what arrives in the first S seconds"),
            ("rate", "RPS", "requests/s in the mean, instead of the scenario's or the trace's"),
            ("seed", "N", "of everything drawn; 1 by default"),
        ):
            parser.add_argument(f"--{name}", metavar=unit, help=what)
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        path, policies = Path(options["scenario"]), options["policy"] or ["paper"]
        asked = [_options(policy, options) for policy in policies]
        try:
            document = read_document(path)
            trace = _trace(options["trace"], options["histograms"])
            runs = [run_of(document, each, recorded=trace) for each in asked]
        except (ScenarioError, FileError) as exc:
            raise _refused(f"{path}: {exc}") from None
        except (TraceError, PolicyError) as exc:
            raise _refused(f"{exc}") from None
        except SimulateError as exc:
            where = f"{options['trace']}: " if exc.field == "trace" else ""
            raise _refused(f"{where}{exc}") from None
        head = {
            "fleet": runs[0].scenario.fleet,
            "trace": options["trace"],
            "seed": runs[0].seed,
            "duration_s": runs[0].duration_s,
            "rate_rps": asked[0].rate_rps,
        }
        found = [
            {"policy": policy, **run_timed(run).to_json()}
            for policy, run in zip(policies, runs, strict=True)
        ]
        if options["json"]:
            answer = head | (found[0] if len(found) == 1 else {"policies": found})
            self.stdout.write(json.dumps(answer, allow_nan=False))
        else:
            self.stdout.write("\n".join([*_head(head), *_table(found)]))


def _refused(text: str) -> CommandError:
    return CommandError(text, returncode=2)


def _options(policy: str, options: dict[str, Any]) -> Options:
    seed = options["seed"]
    if seed is not None and not seed.isdecimal():
        raise _refused(f"--seed = {seed!r}: must be a whole number, at least 0")
    return Options(
        policy=policy,
        seed=1 if seed is None else int(seed),
        duration_s=_number("duration", options["duration"]),
        warmup_s=_number("warmup", options["warmup"]) or 0.0,
        rate_rps=_number("rate", options["rate"]),
    )


def _number(name: str, text: str | None) -> float | None:
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise _refused(f"--{name} = {text!r}: must be a finite number")
    return value


def _trace(file: str | None, histograms: str | None) -> Trace | Recording | None:
    if file is None:
        if histograms is not None:
            raise _refused(f"--histograms = {histograms!r}: needs a --trace of rates")
        return None
    return read_trace(Path(file), histograms=None if histograms is None else Path(histograms))


def _head(head: dict[str, Any]) -> list[str]:
    traffic = "" if head["trace"] is None else f" of {head['trace']}"
    if head["rate_rps"] is not None:
        traffic += f" at {figures.rate(head['rate_rps'])}"
    span = figures.duration(head["duration_s"])
    return [f"{head['fleet']}: {span}{traffic} simulated, seed {head['seed']}", ""]


def _table(found: Sequence[dict[str, Any]]) -> list[str]:
    columns = [_column(each) for each in found]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, figures.NONE) for column in columns)] for name in names]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) + 1)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _column(report: dict[str, Any]) -> dict[str, str]:
    """What one policy did, by the names of rows."""
    rows = {
        "policy": report["policy"],
        "requests": f"{report['requests']:,}",
        "completed": f"{report['completed']:,}",
    }
    for name in ("unfinished", "refused", "lost"):
        if report[name]:
            rows[name] = f"{report[name]:,}"
    rows["throughput"] = figures.rate(report["throughput_rps"])
    rows["goodput"] = figures.rate(report["goodput_rps"])
    rows["served well"] = figures.percent(report["good_fraction"])
    for name in ("mean", "p50", "p90", "p99"):
        rows[f"TTFT {name}"] = figures.duration(report["ttft_s"][name])
    for stage, words in _STAGES.items():
        rows[f"  {words}, mean"] = figures.duration(report["stages_s"][stage]["mean"])
    rows["remote"] = figures.percent(report["remote_fraction"])
    for name, link in report["links"].items():
        rows[name] = f"{figures.gbps(link['mean_gbps'])}, {figures.percent(link['utilisation'])}"
    for name, pool in report["pools"].items():
        rows[f"{name} busy"] = figures.percent(pool["utilisation"])
    rows["plan changes"] = f"{report['plan_changes']['all']:,}"
    for plan in {each["cluster"]: each for each in report["plans"]}.values():
        rows[f"{plan['cluster']} at last"] = _plan(plan)
    rows["simulated in"] = figures.duration(report["wall_s"])
    return rows


def _plan(plan: dict[str, Any]) -> str:
    t = plan["threshold_tokens"]
    rule = plan["mode"].replace("_", " ") if t is None else f"t = {t:,}"
    return f"{rule}, {plan['n_prefill']}/{plan['n_decode']}"
