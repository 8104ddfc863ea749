"""The lab beside the twin, as docs/results.md shows it: run by hand, twelve minutes each.

    python -m tests.live.fidelity demo        The demo's own load
    python -m tests.live.fidelity mooncake    Ten minutes of the Mooncake conversation trace

Prints the table, writes it between its markers, and exits with 1 where the twin is too far off.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.live import twin_of_lab
from tests.live.harness import Demo, free_port
from tests.live.twin_of_lab import LIMITS, Figures, LabRun
from tests.test_docs import block

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
TRACE = Path(__file__).parents[2] / "../shared/data/traces/mooncake_conversation_trace.jsonl.gz"
SENT_S = 600.0
"""How long requests are sent."""
MOST_DRAIN_S = 300.0
LIVE, SCRIPTED, ADAPTIVE = "lab", "twin, the plans that ran", "twin, its own loop"


def of_demo(state: Path, sent_s: float = SENT_S) -> LabRun:
    """The demo as `up --demo` starts it, for so long."""
    with Demo(state, free_port()) as demo:
        time.sleep(sent_s)
        demo.manage("lab", "rate", "0")
        _drain(demo)
        return twin_of_lab.record(demo)


def of_mooncake(state: Path, sent_s: float = SENT_S) -> LabRun:
    """The beginning of the trace, at its own speed."""
    part = state.parent / f"{state.name}-trace.jsonl.gz"
    _cut(TRACE, part, sent_s)
    with Demo(state, free_port(), trace=part) as demo:
        time.sleep(sent_s)
        _drain(demo)
        return twin_of_lab.record(demo, part)


def _cut(trace: Path, part: Path, sent_s: float) -> None:
    """The rows of a Mooncake trace that come in the first seconds: the load then ends by itself."""
    with gzip.open(trace, "rt") as lines, gzip.open(part, "wt") as out:
        for line in lines:
            if json.loads(line)["timestamp"] >= sent_s * 1000.0:
                return
            out.write(line)


def _drain(demo: Demo) -> None:
    """Waits until every answer is out."""
    until_s = time.monotonic() + MOST_DRAIN_S
    while any(side["in_flight"] for side in _sides(demo)):
        assert time.monotonic() < until_s, "answers are still not out"
        time.sleep(1.0)
    time.sleep(1.0)  # the load generator writes down the last one


def _sides(demo: Demo) -> list[dict[str, int]]:
    return list(demo.lab("admin", "/truth?records=0")["sides"].values())


def beside(lab: LabRun) -> dict[str, Figures]:
    """The lab, and the twin twice."""
    return {
        LIVE: twin_of_lab.of_lab(lab),
        SCRIPTED: twin_of_lab.of_twin(lab),
        ADAPTIVE: twin_of_lab.of_twin(lab, adaptive=True),
    }


def table(found: Mapping[str, Figures]) -> str:
    """As docs/results.md has it."""
    lab = found[LIVE]
    rows = ["| | " + " | ".join(_COLUMNS) + " |", "|---" * (1 + len(_COLUMNS)) + "|"]
    for name, figures in found.items():
        rows.append(_row(name, [write(figures) for write in _COLUMNS.values()]))
        if figures is not lab:
            off = twin_of_lab.apart(lab, figures)
            cells = [_off(column, off[column]) for column in LIMITS]
            rows.append(_row("off by", [*cells, *[""] * (len(_COLUMNS) - len(LIMITS))]))
    allowed = [_allowed(column, limit) for column, limit in LIMITS.items()]
    rows.append(_row("allowed", [*allowed, *[""] * (len(_COLUMNS) - len(LIMITS))]))
    return "\n".join(rows)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


_COLUMNS: dict[str, Callable[[Figures], str]] = {
    "throughput": lambda f: f"{f.throughput_rps:.3f} req/s",
    "TTFT mean": lambda f: f"{f.ttft_mean_s:.3f} s",
    "P90": lambda f: f"{f.ttft_p90_s:.3f} s",
    "remote share": lambda f: f"{f.remote_share:.1%}",
    "link": lambda f: f"{f.link_bytes / 1e9:,.0f} GB",
    "cached": lambda f: f"{f.cached_ratio:.1%}",
    "queue / prefill / transfer / decode wait": lambda f: " / ".join(
        f"{seconds:.2f}" for seconds in f.stages_s.values()
    ),
}
"""The first ones are those of LIMITS, in its order."""


def _off(column: str, off: float) -> str:
    return f"{100 * off:+.1f} points" if column == "remote_share" else f"{off:+.1%}"


def _allowed(column: str, limit: float) -> str:
    return f"{100 * limit:g} points" if column == "remote_share" else f"{limit:.0%}"


def write(name: str, text: str) -> None:
    """Between the markers of the results."""
    held = RESULTS.read_text()
    found = block(held, f"fidelity-{name}")
    RESULTS.write_text(held[: found.start(2)] + text + "\n" + held[found.end(2) :])


RUNS: dict[str, Callable[[Path], LabRun]] = {"demo": of_demo, "mooncake": of_mooncake}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=RUNS)
    what = parser.parse_args().what
    folder = Path(tempfile.mkdtemp(prefix="live-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        found = beside(RUNS[what](folder / "s"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = table(found)
    write(what, text)
    print(text)
    return 1 if twin_of_lab.beyond(found[LIVE], found[SCRIPTED]) else 0


if __name__ == "__main__":
    sys.exit(main())
