"""What an engine's text means: values, aggregation over ranks, and the states of a signal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry import canonical, engine_maps, exposition, wire
from telemetry.canonical import Canonical, canonicalise
from telemetry.strict_toml import TomlError


def read(text: str, engine: str = "auto") -> Canonical:
    return canonicalise(exposition.parse(text), engine)


def check_wire(found: Canonical) -> wire.InstanceSignals:
    """The signals as a batch would carry them, through the door's own checks."""
    signals = canonical.to_instance_signals(found)
    sample = wire.InstanceSample(
        id="f/c/i", role="prefill", engine="vllm", at_s=1.7e9, signals=signals
    )
    batch = wire.Batch(v=1, agent="a", boot=1, seq=1, sent_at_s=1.7e9, instances=[sample])
    assert wire.decode(wire.encode(batch)) == batch
    return signals


def check_router_wire(found: Canonical) -> wire.RouterSignals:
    """The same for a router's signals."""
    signals = canonical.to_router_signals(found)
    sample = wire.RouterSample(id="f/c/g", kind="gate", at_s=1.7e9, signals=signals)
    batch = wire.Batch(v=1, agent="a", boot=1, seq=1, sent_at_s=1.7e9, routers=[sample])
    assert wire.decode(wire.encode(batch)) == batch
    return signals


SCALARS = [
    ("requests_running", "sum of ranks", 7.0),
    ("requests_waiting", "sum of ranks, KV fetch stages not added again", 40.0),
    ("kv_cache_usage_ratio", "mean weighted by cache size: (.2*2000 + .8*1000) / 3000", 0.4),
    ("prompt_tokens_total", "sum of ranks, without the _created twin", 1234.0),
    ("generation_tokens_total", "sum of ranks", 57.0),
    ("requests_finished_total", "sum of reasons", 7.0),
    ("prefix_cache_hit_ratio", "hits over queries", 0.25),
    ("kv_transfer_bytes_total", "sum of a histogram, over ranks", 2e6),
    ("prompt_tokens_by_source_total", "all sources", 1234.0),
]


@pytest.mark.parametrize(("name", "want"), [(n, w) for n, _, w in SCALARS])
def test_scalars(name: str, want: float, vllm_text: str) -> None:
    signal = read(vllm_text).signals[name]
    assert signal.state == "value"
    assert signal.value == pytest.approx(want)


def test_a_text_is_recognised_by_its_names(vllm_text: str, gate_text: str) -> None:
    assert read(vllm_text).engine == "vllm"
    assert read(gate_text).engine == "gate"
    assert read("node_cpu_seconds_total 1\n").engine == "unknown"
    assert read("node_cpu_seconds_total 1\n").warnings
    assert read(vllm_text).epoch_s == 1.7959552631e9


def test_ranks_are_added_in_any_order_and_shown_apart() -> None:
    """S-02: two ranks, waiting 0 and 40, lines in either order."""
    lines = [
        'vllm:num_requests_waiting{engine="0"} 0',
        'vllm:num_requests_waiting{engine="1"} 40',
        'vllm:kv_cache_usage_perc{engine="0"} 0.2',
        'vllm:kv_cache_usage_perc{engine="1"} 0.6',
    ]
    for text in ("\n".join(lines), "\n".join(reversed(lines))):
        found = read(text).signals
        assert found["requests_waiting"].value == 40.0
        usage = found["kv_cache_usage_ratio"]
        assert usage.value == pytest.approx(0.4)
        assert usage.maximum == 0.6
        assert usage.by == {"engine=0": 0.2, "engine=1": 0.6}


def test_the_queue_is_split_without_counting_anyone_twice(vllm_text: str) -> None:
    queue = read(vllm_text).signals["requests_waiting"]
    assert queue.by == {
        "capacity": 31.0,
        "deferred": 1.0,
        "kv_fetch_waiting_to_start": 2.0,
        "kv_fetch_in_progress": 5.0,
        "kv_fetch_completed_waiting": 1.0,
    }
    assert sum(queue.by.values()) == queue.value == 40.0
    assert check_wire(read(vllm_text)).requests_waiting_by_stage == queue.by


QUEUES: list[tuple[str, str, float, dict[str, float]]] = [
    ("only the total", "vllm:num_requests_waiting 7", 7.0, {}),
    (
        "stages reach past `deferred` into `capacity`",
        "vllm:num_requests_waiting 7\n"
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 6\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 1\n'
        'vllm:num_requests_kv_fetch_by_stage{stage="in_progress"} 3',
        7.0,
        {"capacity": 4.0, "deferred": 0.0, "kv_fetch_in_progress": 3.0},
    ),
    (
        "stages without reasons",
        'vllm:num_requests_waiting 7\nvllm:num_requests_kv_fetch_by_stage{stage="in_progress"} 3',
        7.0,
        {"kv_fetch_in_progress": 3.0, "other": 4.0},
    ),
    (
        "reasons without a total",
        'vllm:num_requests_waiting_by_reason{reason="capacity"} 6',
        6.0,
        {"capacity": 6.0},
    ),
    (
        "more in stages than in the total: the larger is the safe one",
        'vllm:num_requests_waiting 1\nvllm:num_requests_kv_fetch_by_stage{stage="in_progress"} 3',
        3.0,
        {"kv_fetch_in_progress": 3.0},
    ),
]


@pytest.mark.parametrize(
    ("text", "value", "by"), [c[1:] for c in QUEUES], ids=[c[0] for c in QUEUES]
)
def test_the_effective_queue(text: str, value: float, by: dict[str, float]) -> None:
    found = read(text).signals
    assert found["requests_waiting"].value == value
    assert found["requests_waiting"].by == by
    assert found["requests_waiting_by_stage"].state == ("value" if by else "missing")


ALIASES = [
    ("new name", "vllm:kv_cache_usage_perc 0.4"),
    ("old name", "vllm:gpu_cache_usage_perc 0.4"),
    ("both", "vllm:gpu_cache_usage_perc 0.4\nvllm:kv_cache_usage_perc 0.4"),
    ("underscore", "vllm_kv_cache_usage_perc 0.4"),
    ("old name, underscore", "vllm_gpu_cache_usage_perc 0.4"),
    ("colon and underscore", "vllm:kv_cache_usage_perc 0.4\nvllm_kv_cache_usage_perc 0.4"),
    ("through Ray", "ray_vllm_kv_cache_usage_perc 0.4"),
]


@pytest.mark.parametrize("text", [c[1] for c in ALIASES], ids=[c[0] for c in ALIASES])
def test_a_renamed_metric_is_the_same_signal(text: str) -> None:
    """S-01."""
    assert read(text).signals["kv_cache_usage_ratio"].value == 0.4


def test_what_is_not_exposed_is_missing_and_says_so() -> None:
    """S-01: no alias present is never zero."""
    found = read("vllm:num_requests_running 1\n")
    signal = found.signals["kv_cache_usage_ratio"]
    assert (signal.state, signal.value, signal.reason) == ("missing", None, "not exposed")
    assert found.warnings == ()
    wired = check_wire(found)
    assert wired.kv_cache_usage_ratio is None
    assert wired.ttft_seconds is None


def test_inter_token_latency_by_its_old_name() -> None:
    text = 'vllm:time_per_output_token_seconds_bucket{le="+Inf"} 2\n'
    text += "vllm:time_per_output_token_seconds_sum 1\nvllm:time_per_output_token_seconds_count 2\n"
    assert read(text).signals["inter_token_seconds"].count == 2.0


STATES: list[tuple[str, str, str, str]] = [
    ("zero is a value", "vllm:num_requests_waiting 0", "requests_waiting", "value"),
    ("NaN gauge", "vllm:kv_cache_usage_perc NaN", "kv_cache_usage_ratio", "missing"),
    ("infinite counter", "vllm:prompt_tokens_total +Inf", "prompt_tokens_total", "missing"),
    ("1e999", "vllm:prompt_tokens_total 1e999", "prompt_tokens_total", "missing"),
    ("negative sentinel", "vllm:num_requests_running -1", "requests_running", "missing"),
    ("a ratio of 40", "vllm:kv_cache_usage_perc 40", "kv_cache_usage_ratio", "missing"),
    (
        "one rank NaN: half a queue is no queue",
        'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} NaN',
        "requests_waiting",
        "missing",
    ),
    (
        "no observations",
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 0\n'
        "vllm:time_to_first_token_seconds_sum 0\nvllm:time_to_first_token_seconds_count 0",
        "ttft_seconds",
        "idle",
    ),
    (
        "NaN in a histogram",
        'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 3\n'
        "vllm:time_to_first_token_seconds_sum NaN\nvllm:time_to_first_token_seconds_count 3",
        "ttft_seconds",
        "missing",
    ),
    (
        "no queries",
        "vllm:prefix_cache_queries_total 0\nvllm:prefix_cache_hits_total 0",
        "prefix_cache_hit_ratio",
        "idle",
    ),
    (
        "more hits than queries",
        "vllm:prefix_cache_queries_total 1\nvllm:prefix_cache_hits_total 2",
        "prefix_cache_hit_ratio",
        "missing",
    ),
]


@pytest.mark.parametrize(
    ("text", "name", "state"), [c[1:] for c in STATES], ids=[c[0] for c in STATES]
)
def test_idle_missing_and_value_are_told_apart(text: str, name: str, state: str) -> None:
    """S-04, the part of one reading; a failed reading is the agent's to report."""
    found = read(text, "vllm")
    signal = found.signals[name]
    assert signal.state == state
    if state == "missing":
        assert signal.reason
        assert any(name in warning for warning in found.warnings)
        assert getattr(check_wire(found), name) is None
    check_wire(found)
    json.dumps(found.to_json(), allow_nan=False)


def test_idle_goes_over_the_wire_as_a_histogram_without_observations(vllm_text: str) -> None:
    wired = check_wire(read(vllm_text))
    assert wired.inter_token_seconds == wire.Histogram(edges=[0.025], counts=[0.0, 0.0], sum=0.0)


def test_cumulative_buckets_become_counts(vllm_text: str) -> None:
    found = read(vllm_text)
    signal = found.signals["ttft_seconds"]
    assert (signal.count, signal.sum) == (6.0, 4.0)
    assert dict(signal.buckets) == {"0.1": 1.0, "1.0": 5.0, "+Inf": 6.0}
    assert check_wire(found).ttft_seconds == wire.Histogram(
        edges=[0.1, 1.0], counts=[1.0, 4.0, 1.0], sum=4.0
    )


def histogram(*buckets: tuple[str, float], total: str = "9", count: str = "3") -> str:
    name = "vllm:time_to_first_token_seconds"
    lines = [f'{name}_bucket{{le="{le}"}} {value}' for le, value in buckets]
    return "\n".join([*lines, *([f"{name}_sum {total}"] if total else []), f"{name}_count {count}"])


HISTOGRAMS: list[tuple[str, str, list[float] | str | None]] = [
    ("no +Inf: the count closes it", histogram(("1", 2)), [2.0, 1.0]),
    ("+Inf wins over a count one scrape ahead", histogram(("1", 2), ("+Inf", 2)), [2.0, 0.0]),
    ("buckets in any order", histogram(("+Inf", 3), ("2", 2), ("1", 1)), [1.0, 1.0, 1.0]),
    ("only sum and count", histogram(), [3.0]),
    ("no sum: known, but nothing for the wire", histogram(("1", 2), total=""), None),
    ("falling counts", histogram(("1", 2), ("2", 1), ("+Inf", 3)), "fall"),
    ("a bound that is none", histogram(("fast", 2)), "'fast'"),
    ("a negative sum", histogram(("+Inf", 3), total="-9"), "negative"),
    (
        "ranks with different bounds",
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="1"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="1",le="2"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 1\n'
        'vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 1\n'
        "vllm:time_to_first_token_seconds_sum 1",
        "different",
    ),
    (
        "cut in the middle",
        'vllm:time_to_first_token_seconds_bucket{le="1"} 1',
        "neither",
    ),
]


@pytest.mark.parametrize(
    ("text", "want"), [c[1:] for c in HISTOGRAMS], ids=[c[0] for c in HISTOGRAMS]
)
def test_histograms_that_are_odd(text: str, want: list[float] | str | None) -> None:
    found = read(text)
    signal = found.signals["ttft_seconds"]
    wired = check_wire(found).ttft_seconds
    if isinstance(want, str):
        assert signal.state == "missing"
        assert want in str(signal.reason)
        assert any(want in warning for warning in found.warnings)
        assert wired is None
    elif want is None:
        assert (signal.state, signal.count, signal.sum) == ("value", 3.0, None)
        assert wired is None
    else:
        assert wired is not None
        assert wired.counts == want


def test_computed_tokens_are_not_believed_where_kv_comes_over_the_link() -> None:
    """vLLM 0.32 counts a loaded prompt as computed on the engine that loads it."""
    family = "vllm:request_prefill_kv_computed_tokens"
    text = f'{family}_bucket{{le="+Inf"}} 2\n{family}_sum 300\n{family}_count 2\n'
    source = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'
    assert read(text).signals["uncached_prompt_tokens"].sum == 300.0
    assert read(f"{text}{source} 0\n").signals["uncached_prompt_tokens"].sum == 300.0
    decode = read(f"{text}{source} 300\n").signals["uncached_prompt_tokens"]
    assert decode.state == "missing"
    assert "over the link" in str(decode.reason)


def test_a_series_exposed_twice_counts_once() -> None:
    found = read('vllm:num_requests_running{a="x"} 3\nvllm:num_requests_running{a="x"} 3\n')
    assert found.signals["requests_running"].value == 3.0
    assert "more than once" in found.warnings[0]


def test_label_combinations_are_bounded() -> None:
    name = "vllm:prompt_tokens_by_source_total"
    text = "".join(f'{name}{{source="{i}"}} 1\n' for i in range(100))
    assert read(text).signals["prompt_tokens_by_source_total"].state == "missing"


def test_a_gate_becomes_router_signals(gate_text: str) -> None:
    found = read(gate_text)
    signals = canonical.to_router_signals(found)
    assert found.warnings == ()
    assert found.engine_version == "0.1.0"
    assert canonical.plan_of(found) == (1, 42)
    assert signals == wire.RouterSignals(
        requests_total={"local|BelowThreshold": 70.0, "remote|AboveThreshold": 30.0},
        refused_total=2.0,
        errors_total={"remote": 1.0},
        uncached_tokens={
            "judged|usage|media": wire.Histogram(edges=[128.0], counts=[1.0, 2.0], sum=4000.0),
            # As gates told it that knew no modality.
            "local|usage": wire.Histogram(
                edges=[128.0, 140.8], counts=[10.0, 5.0, 5.0], sum=100000.0
            ),
            "remote|estimated": wire.Histogram(
                edges=[128.0, 140.8], counts=[0.0, 1.0, 0.0], sum=130.0
            ),
        },
        prompt_tokens_total=500000.0,
        cached_tokens_total={"local": 1000.0, "remote": 2000.0},
        ttft_seconds={"local": wire.Histogram(edges=[1.0], counts=[3.0, 1.0], sum=4.5)},
        in_flight={"local": 5.0, "remote": 6.0},
        upstream_up={"local": 1.0, "remote:prfaas": 0.0},
    )


def test_a_gate_that_never_had_a_plan_has_none(gate_text: str) -> None:
    text = "".join(line for line in gate_text.splitlines(keepends=True) if "_plan_" not in line)
    found = read(text)
    assert canonical.plan_of(found) == (None, None)
    assert found.signals["plan_version"].reason == "not exposed"
    zero = read(gate_text.replace("plan_version 42", "plan_version 0"))
    assert canonical.plan_of(zero) == (1, 0)


def test_every_wire_signal_is_mapped() -> None:
    """A field of the schema that no family can fill would be "not exposed" for ever."""
    rates = {"prompt_tokens_per_s", "generation_tokens_per_s", "requests_per_s"}
    by_kind: dict[str, set[str]] = {"instance": {"requests_waiting_by_stage"}, "router": set()}
    for engine_map in engine_maps.MAPS.values():
        by_kind.setdefault(engine_map.kind, set()).update(engine_map.signals)
    assert by_kind["instance"] == set(wire.InstanceSignals.__struct_fields__) - rates
    plan = {"plan_epoch", "plan_version"}
    assert by_kind["router"] - plan == set(wire.RouterSignals.__struct_fields__) - rates
    assert by_kind["host"] <= set(wire.LinkSignals.__struct_fields__)


def test_families_agree_on_what_a_signal_is() -> None:
    seen: dict[tuple[str, str], tuple[str, str, bool]] = {}
    for engine_map in engine_maps.MAPS.values():
        for name, signal in engine_map.signals.items():
            is_a = (signal.kind, signal.unit, bool(signal.by))
            assert seen.setdefault((engine_map.kind, name), is_a) == is_a, (engine_map.engine, name)
        for name in engine_map.lacks:
            assert name not in engine_map.signals, f"{engine_map.engine} has {name} and lacks it"


def test_what_a_family_lacks_is_missing_for_its_own_reason() -> None:
    found = read("tgi_queue_size 3\n")
    assert found.signals["kv_cache_usage_ratio"].reason == "TGI shows no use of its KV cache"
    assert found.signals["requests_waiting"].value == 3.0
    # What no map of the text speaks of is there, and missing too.
    assert found.signals["gpu_power_w"].state == "missing"
    assert set(wire.InstanceSignals.__struct_fields__) - {
        "prompt_tokens_per_s",
        "generation_tokens_per_s",
    } == set(found.signals)


def test_names_that_mean_no_signal_are_listed(vllm_text: str) -> None:
    text = vllm_text + (
        "vllm:brand_new_gauge 1\n"
        'other_seconds_bucket{le="+Inf"} 1\nother_seconds_sum 1\nother_seconds_count 1\n'
        "python_gc_objects_collected_total 7\nprocess_cpu_seconds_total 1\nbad line here\n"
    )
    found = read(text)
    assert found.unmatched == ("other_seconds", "vllm:brand_new_gauge")
    assert (found.n_unmatched, found.n_bad_lines) == (2, 1)
    assert found.n_series == sum(
        len(samples) for samples in exposition.parse(text).samples.values()
    )
    unknown = read("zebra 1\napple_total 2\n")
    assert unknown.unmatched == ("apple_total", "zebra")
    many = read("".join(f"n{i} 1\n" for i in range(3000)))
    assert (len(many.unmatched), many.n_unmatched) == (canonical.MAX_UNMATCHED, 3000)


def test_ranks_that_are_gone_vanish_from_sums() -> None:
    """S-21: eight ranks, then one: nothing is remembered of the other seven."""
    parser = exposition.Parser()

    def running(n_ranks: int) -> float | None:
        lines = [f'vllm:num_requests_running{{engine="{i}"}} 2' for i in range(n_ranks)]
        read = canonicalise(parser.parse("\n".join(lines)))
        return read.signals["requests_running"].value

    assert [running(8), running(1)] == [16.0, 2.0]


BAD_MAPS = [
    ("unknown key", 'nmes = ["x"]', "signals.s.nmes=['x']: unknown key"),
    ("bad kind", 'kind = "meter"', "signals.s.kind='meter'"),
    ("bad stages", 'kind = "gauge"\nstages = [{ name = 3, label = "x" }]', "stages[0].name=3"),
]


@pytest.mark.parametrize(("lines", "want"), [c[1:] for c in BAD_MAPS], ids=[c[0] for c in BAD_MAPS])
def test_a_wrong_alias_map_names_file_key_and_value(tmp_path: Path, lines: str, want: str) -> None:
    path = tmp_path / "x.toml"
    kind = "" if "kind" in lines else 'kind = "gauge"\n'
    path.write_text(
        f'engine = "x"\nkind = "instance"\nprefixes = ["x:"]\n[signals.s]\nunit = ""\n{kind}{lines}'
    )
    with pytest.raises(TomlError) as caught:
        engine_maps.load(path)
    assert str(path) in str(caught.value)
    assert want in str(caught.value)


VALUE = st.one_of(
    st.floats(),
    st.sampled_from([0.0, 1.0, -1.0, 1e308, math.inf, 1e24, 0.5]),
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_an_engine_says_the_batch_stays_valid(data: st.DataObject) -> None:
    engine_map = data.draw(st.sampled_from(list(engine_maps.MAPS.values())))
    lines = []
    for signal in engine_map.signals.values():
        for source in (source for names in signal.lists() for source in names[:2]):
            name = engine_map.prefixes[0] + source.name
            for rank in range(data.draw(st.integers(0, 2))):
                value = data.draw(VALUE)
                key = data.draw(st.sampled_from(["capacity", "local_compute", "x"]))
                more = "".join(f',{k}="{v}"' for k, v in source.where.items() if v)
                more += "".join(f',{label}="{value!r}"' for label in source.labels)
                labels = f'engine="{rank}",dp_rank="{rank}",side="{key}",reason="{key}"{more}'
                if signal.kind == "histogram":
                    lines.append(f'{name}_bucket{{{labels},le="1"}} {value!r}')
                    lines.append(f"{name}_sum{{{labels}}} {data.draw(VALUE)!r}")
                    lines.append(f"{name}_count{{{labels}}} {data.draw(VALUE)!r}")
                else:
                    lines.append(f"{name}{{{labels}}} {value!r}")
    found = read("\n".join(lines), engine_map.engine)
    if engine_map.kind == "host":
        canonical.to_link_signals(found, "x")
    else:
        (check_wire if engine_map.kind == "instance" else check_router_wire)(found)
    document: dict[str, Any] = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert {"engine", "engine_version", "epoch_s", "signals", "warnings"} < set(document)
