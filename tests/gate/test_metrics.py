"""The metrics page: names, edges, format, and that traffic cannot make it grow."""

from __future__ import annotations

import itertools
import re

from routing.gate.metrics import TOKEN_EDGES, TTFT_EDGES_S, Family, Histogram, Metrics
from tests.gate.peers import RunningGate, Upstream


def test_token_edges_are_those_every_part_agrees_on() -> None:
    assert TOKEN_EDGES[0] == 128
    assert TOKEN_EDGES[-2:] == (131_072, 1_048_576)
    steps = [b / a for a, b in itertools.pairwise(TOKEN_EDGES[:-1])]
    assert min(steps) > 1.0
    assert max(steps) <= 1.1
    assert list(TTFT_EDGES_S) == sorted(set(TTFT_EDGES_S))


def test_upper_bounds_are_inclusive_and_buckets_cumulative() -> None:
    histogram = Histogram("h", "x.", (10, 20), ("side",), [("local",)])
    for value in (0, 10, 11, 20, 21):
        histogram.observe("local", value=value)
    assert list(histogram.lines()) == [
        'h_bucket{side="local",le="10"} 2',
        'h_bucket{side="local",le="20"} 4',
        'h_bucket{side="local",le="+Inf"} 5',
        'h_sum{side="local"} 62',
        'h_count{side="local"} 5',
    ]


def test_label_values_are_escaped() -> None:
    family = Family("f", "x.", "gauge", ("a",))
    family.set('q"\\\n', to=0.5)
    assert list(family.lines()) == ['f{a="q\\"\\\\\\n"} 0.5']


def test_every_name_has_help_and_type_and_every_line_parses() -> None:
    page = Metrics().render()
    assert page.endswith("\n")
    line = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
    kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", page))
    assert set(kinds) == set(re.findall(r"# HELP (\S+) ", page))
    for text in page.splitlines():
        if text.startswith("#"):
            continue
        assert line.fullmatch(text), text
        name = re.split(r"[ {]", text)[0]
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in kinds or kinds[base] == "histogram"
        if kinds.get(name) == "counter":
            assert name.endswith("_total")


async def test_the_page_has_the_agreed_names_before_any_traffic(gate: RunningGate) -> None:
    metrics = await gate.metrics()
    info = next(name for name in metrics if name.startswith("prfaas_gate_info"))
    assert 'router="F/pd/g1",cluster="pd",fleet="F",version=' in info
    assert metrics["prfaas_gate_start_time_seconds"] == 1.7e9
    for name in (
        'prfaas_gate_requests_total{side="local",reason="Short"}',
        'prfaas_gate_requests_total{side="remote",reason="Long"}',
        "prfaas_gate_refused_total",
        'prfaas_gate_errors_total{side="remote"}',
        'prfaas_gate_uncached_tokens_count{side="local",source="tokenised",modality="text"}',
        "prfaas_gate_prompt_tokens_total",
        'prfaas_gate_cached_tokens_total{side="local"}',
        'prfaas_gate_ttft_seconds_bucket{side="local",le="+Inf"}',
        'prfaas_gate_in_flight{side="remote"}',
        'prfaas_gate_requests_total{side="local",reason="BandLocal"}',
        'prfaas_gate_requests_total{side="remote",reason="BandRemote"}',
        'prfaas_gate_uncached_tokens_count{side="judged",source="estimated",modality="text"}',
        'prfaas_gate_moves_total{link="prfaas->pd"}',
        'prfaas_gate_move_tokens_total{link="pd->prfaas"}',
    ):
        assert metrics[name] == 0, name
    assert metrics['prfaas_gate_upstream_up{side="local",upstream="local"}'] == 1
    assert metrics['prfaas_gate_upstream_up{side="remote",upstream="prfaas"}'] == 1


async def test_nothing_a_client_sends_becomes_a_label(gate: RunningGate, local: Upstream) -> None:
    before = set(await gate.metrics())
    for i in range(5):
        await gate.complete(f"secret {i}", model=f"secret-{i}", user=f"secret-{i}")
        await gate.complete([{"role": f"secret-{i}", "content": "a"}], chat=True)
    assert set(await gate.metrics()) == before
