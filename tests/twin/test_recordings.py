"""Files of recorded intervals, and the traffic drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from routing.core.scenario.document import parse_scenario
from routing.trace_files import read_trace, trace_of
from routing.twin.lengths import DrawnTokens, FixedTokens
from routing.twin.pieces import joined
from routing.twin.recorded import recorded_workload
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace
from tests.twin.fleets import document
from tests.twin.trace_texts import MOONCAKE, shared

RATES = "t_s,total_rate_rps,active_clients\n0,4,2\n600,1,2\n"
HISTOGRAMS = (
    '{"bin_lower_edges": [1, 100, 1000, 10000], "note": ""}\n'
    '{"client": 0, "window_s": 0, "requests_est": 300, "input_tokens": {"bins": [1], "p": [1.0]},'
    ' "output_tokens": {"bins": [0, 1], "p": [0.5, 0.5]}}\n'
    '{"client": 1, "window_s": 0, "requests_est": 100, "input_tokens": {"bins": [2], "p": [1.0]},'
    ' "output_tokens": {"bins": [1], "p": [1.0]}}\n'
    '{"client": 2, "window_s": 0, "requests_est": 0}\n'
)


def test_servegen_rates_with_and_without_its_lengths() -> None:
    bare = trace_of(RATES.encode(), source="r")
    assert not isinstance(bare, Trace)
    intervals = bare[None]
    assert [(i.at_s, i.for_s, i.rate_rps) for i in intervals] == [(0, 600, 4), (600, 600, 1)]
    assert intervals[0].prompt is None
    both = trace_of(RATES.encode(), source="r", histograms=(HISTOGRAMS.encode(), "h"))
    assert not isinstance(both, Trace)
    described = parse_scenario(document())
    found = joined(list(recorded_workload(described, both).pieces(1)))
    assert len(found) == pytest.approx(3000, abs=300)
    # Three of four requests are client 0's: prompts of its one bin, from 100 on.
    short = (found.prompt_tokens >= 100) & (found.prompt_tokens <= 1000)
    assert short.mean() == pytest.approx(0.75, abs=0.04)
    assert np.mean(found.output_tokens < 100) == pytest.approx(0.375, abs=0.04)


def test_recorded_intervals_are_read_back() -> None:
    text = (
        '{"at_s": 100, "for_s": 60, "cluster": "pd", "demand_rps": 2.5,'
        ' "uncached_tokens": {"edges": [128, 256], "counts": [0, 3, 0]}, "output_tokens": 80.5}\n'
        '{"at_s": 160, "for_s": 60, "cluster": "pd", "demand_rps": 0}\n'
    )
    recording = trace_of(text.encode(), source="r")
    assert not isinstance(recording, Trace)
    first, second = recording["pd"]
    assert (first.at_s, first.for_s, first.rate_rps) == (100, 60, 2.5)
    assert isinstance(first.prompt, DrawnTokens)
    assert first.prompt.tokens(np.array([0.0, 0.999]), np.zeros(2)).tolist() == [128, 256]
    assert first.output == FixedTokens(80.5)
    assert (second.prompt, second.output) == (None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RATES.replace("600,", "0,"), r"r:3: t_s = '0': must be after"),
        (RATES.replace("4,2", "-4,2"), r"r:2: total_rate_rps = '-4'"),
        ("t_s,total_rate_rps\n0,4\n", "r: needs two windows"),
        ('{"at_s": 1, "for_s": 0, "demand_rps": 1}', "r:1: for_s = 0: must be above 0"),
        (
            '{"at_s": 1, "for_s": 9, "demand_rps": 1}\n{"at_s": 5, "for_s": 9, "demand_rps": 1}',
            "r:2: at_s = 5: is before the end",
        ),
        (
            '{"at_s": 1, "for_s": 9, "demand_rps": 1, "uncached_tokens": {"edges": [5], "counts":'
            " [1]}}",
            "r:1: uncached_tokens = .*one count more",
        ),
        ('{"at_s": 1, "for_s": 9, "demand_rps": 1, "kv": 5}', "r:1: kv = 5: is not known"),
    ],
)
def test_a_bad_recording_is_named(text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        trace_of(text.encode(), source="r")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"bins": [2]', '"bins": [9]', "h:3: input_tokens = .*below 4"),
        ('"p": [0.5, 0.5]', '"p": [0.5]', "h:2: output_tokens = .*as many as p"),
        ("[1, 100, 1000, 10000]", "[1, 100, 100]", "h:1: bin_lower_edges = .*must rise"),
        ('"input_tokens": {"bins": [1]', '"text_tokens": {"bins": [1]', "h:2: input_tokens"),
        (HISTOGRAMS.partition("\n")[2], "", "h: has no histograms"),
    ],
)
def test_bad_histograms_are_named(old: str, new: str, said: str) -> None:
    beside = (HISTOGRAMS.replace(old, new, 1).encode(), "h")
    with pytest.raises(TraceError, match=said):
        trace_of(RATES.encode(), source="r", histograms=beside)


def test_histograms_go_with_rates_only() -> None:
    with pytest.raises(TraceError, match="lengths of its own"):
        trace_of(MOONCAKE.encode(), source="m", histograms=(HISTOGRAMS.encode(), "h"))


def test_servegen_rates_and_histograms_make_its_mean_lengths() -> None:
    recording = read_trace(
        shared("servegen_deepseek-r1_rate_per_600s.csv.gz"),
        histograms=shared("servegen_deepseek-r1_hist.jsonl.gz"),
    )
    assert not isinstance(recording, Trace)
    assert len(recording[None]) == 144
    described = parse_scenario(document())
    found = joined(list(recorded_workload(described, recording, duration_s=3600.0).pieces(1)))
    rate_rps = np.mean([interval.rate_rps for interval in recording[None][:6]])
    assert len(found) / 3600.0 == pytest.approx(rate_rps, rel=0.03)
