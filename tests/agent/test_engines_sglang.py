"""SGLang 0.4 to 0.5.23: its queues, its ranks, its units."""

from __future__ import annotations

import pytest

from tests.agent.reading import on_wire, plain, read

PREFILL = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="prefill",model_name="/models/a b",tp_rank="0"} 3
sglang:num_queue_reqs{engine_type="prefill",model_name="/models/a b",tp_rank="0"} 0
sglang:num_grammar_queue_reqs{engine_type="prefill",model_name="/models/a b",tp_rank="0"} 1
sglang:num_prefill_bootstrap_queue_reqs{engine_type="prefill",tp_rank="0"} 376
sglang:num_prefill_inflight_queue_reqs{engine_type="prefill",tp_rank="0"} 142
sglang:num_retracted_reqs{engine_type="prefill",tp_rank="0"} 9
sglang:token_usage{engine_type="prefill",tp_rank="0"} 0.31
sglang:max_total_num_tokens{engine_type="prefill",tp_rank="0"} 430839
sglang:cache_hit_rate{engine_type="prefill",tp_rank="0"} 0.9
sglang:hicache_host_used_tokens{tp_rank="0"} 25
sglang:hicache_host_total_tokens{tp_rank="0"} 100
sglang:prompt_tokens_total{is_streaming="true",model_name="m"} 600
sglang:prompt_tokens_total{is_streaming="false",model_name="m"} 400
sglang:cached_tokens_total{cache_source="device",model_name="m"} 200
sglang:cached_tokens_total{cache_source="host",model_name="m"} 50
sglang:generation_tokens_total{model_name="m"} 7
sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"} 750
sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="0"} 250
sglang:realtime_tokens_total{mode="decode",tp_rank="0"} 7
sglang:num_requests_total{model_name="m"} 12
sglang:num_aborted_requests_total{model_name="m"} 2
sglang:num_retracted_requests_total{tp_rank="0"} 4
sglang:num_bootstrap_failed_reqs_total{tp_rank="0"} 1
sglang:num_transfer_failed_reqs_total{tp_rank="0"} 2
sglang:kv_transfer_latency_ms_bucket{le="250",tp_rank="0"} 1
sglang:kv_transfer_latency_ms_bucket{le="+Inf",tp_rank="0"} 2
sglang:kv_transfer_latency_ms_sum{tp_rank="0"} 1250
sglang:kv_transfer_latency_ms_count{tp_rank="0"} 2
sglang:kv_transfer_total_mb_sum{tp_rank="0"} 3
sglang:kv_transfer_total_mb_count{tp_rank="0"} 2
sglang:per_stage_req_latency_seconds_sum{stage="prefill_forward",tp_rank="0"} 4
sglang:per_stage_req_latency_seconds_count{stage="prefill_forward",tp_rank="0"} 5
sglang:per_stage_req_latency_seconds_sum{stage="prefill_waiting",tp_rank="0"} 40
sglang:per_stage_req_latency_seconds_count{stage="prefill_waiting",tp_rank="0"} 50
sglang:uncached_prompt_tokens_histogram_sum{model_name="m"} 750
sglang:uncached_prompt_tokens_histogram_count{model_name="m"} 12
process_start_time_seconds 1.79595657581e+09
"""
STAGES = {"waiting": 0.0, "grammar": 1.0, "prefill_bootstrap": 376.0, "prefill_inflight": 142.0}
WANT = {
    "requests_running": 3.0,
    "requests_waiting": 519.0,
    "requests_waiting_by_stage": STAGES,
    "kv_cache_usage_ratio": 0.31,
    "kv_capacity_tokens": 430839.0,
    "host_cache_usage_ratio": 0.25,
    "prompt_tokens_total": 1000.0,
    "generation_tokens_total": 7.0,
    "prompt_tokens_by_source_total": {"local_compute": 750.0, "local_cache_hit": 250.0},
    "requests_finished_total": 12.0,
    "requests_failed_total": 2.0,
    "preemptions_total": 4.0,
    "prefix_cache_hits_total": 250.0,
    "prefix_cache_queries_total": 1000.0,
    "prefix_cache_hit_ratio": 0.25,
    "prefill_seconds": (5.0, 4.0),
    "uncached_prompt_tokens": (12.0, 750.0),
    "kv_transfer_bytes_total": 3 * 2.0**20,
    "kv_transfer_seconds": (2.0, 1.25),
    "kv_transfer_failures_total": 3.0,
}


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_every_signal_behind_either_prefix(prefix: str) -> None:
    """S-01 and S-23: queue 0, bootstrap 376, in flight 142."""
    found = read(PREFILL.replace("sglang:", prefix))
    assert found.engine == "sglang"
    assert plain(found) == WANT
    assert (found.warnings, found.unmatched) == ((), (f"{prefix}num_retracted_reqs",))
    assert found.epoch_s == 1.79595657581e9
    wired = on_wire(found)
    assert wired.requests_waiting_by_stage == STAGES  # type: ignore[union-attr]


def test_milliseconds_become_seconds_in_the_bounds_too() -> None:
    """S-13."""
    histogram = read(PREFILL).signals["kv_transfer_seconds"].histogram
    assert histogram is not None
    assert (histogram.edges, histogram.counts, histogram.sum) == ([0.25], [1.0, 1.0], 1.25)


QUEUES = [
    (
        "decode: host receive is inside transfer",
        "num_queue_reqs 1\nnum_decode_prealloc_queue_reqs 5\nnum_decode_transfer_queue_reqs 7\n"
        "num_decode_host_receive_queue_reqs 3",
        13.0,
        {"waiting": 1.0, "decode_prealloc": 5.0, "decode_transfer": 4.0, "decode_host_receive": 3},
    ),
    (
        "0.4.6 misspelt one name and called bootstrap prealloc",
        "num_queue_reqs 0\nnum_prefill_prealloc_queue_reqs 376\nnum_prefill_infight_queue_reqs 142",
        518.0,
        {"waiting": 0.0, "prefill_bootstrap": 376.0, "prefill_inflight": 142.0},
    ),
    ("not split", "num_queue_reqs 2826", 2826.0, {"waiting": 2826.0}),
]


@pytest.mark.parametrize(
    ("lines", "value", "by"), [c[1:] for c in QUEUES], ids=[c[0] for c in QUEUES]
)
def test_the_effective_queue(lines: str, value: float, by: dict[str, float]) -> None:
    text = "".join(f"sglang:{line}\n" for line in lines.splitlines())
    found = read(text).signals
    assert (found["requests_waiting"].value, found["requests_waiting"].by) == (value, by)


def test_a_queue_without_its_list_is_no_queue() -> None:
    found = read("sglang:num_decode_prealloc_queue_reqs 0\n")
    signal = found.signals["requests_waiting"]
    assert (signal.state, signal.value) == ("missing", None)
    assert "num_queue_reqs is not exposed" in str(signal.reason)
    assert found.signals["requests_waiting_by_stage"].state == "missing"
    assert read("sglang:token_usage 0.5\n").signals["requests_waiting"].reason == "not exposed"


def test_data_parallel_ranks_add_up_and_tensor_ranks_do_not() -> None:
    """S-02: with metrics of all schedulers each tensor rank tells its data rank's numbers."""
    lines = []
    for dp, (queue, usage, size) in enumerate([(0, 0.2, 3000), (40, 0.6, 1000)]):
        for tp in (1, 0):
            labels = f'{{dp_rank="{dp}",tp_rank="{tp}",moe_ep_rank="{tp}"}}'
            lines += [
                f"sglang:num_queue_reqs{labels} {queue}",
                f"sglang:token_usage{labels} {usage}",
                f"sglang:max_total_num_tokens{labels} {size}",
            ]
    for text in ("\n".join(lines), "\n".join(reversed(lines))):
        found = read(text).signals
        assert found["requests_waiting"].value == 40.0
        assert found["kv_cache_usage_ratio"].value == pytest.approx(0.3)
        assert found["kv_cache_usage_ratio"].maximum == 0.6
        assert found["kv_capacity_tokens"].value == 4000.0


def test_a_decode_engines_lengths_are_not_believed() -> None:
    text = PREFILL.replace('"prefill"', '"decode"')
    signal = read(text).signals["uncached_prompt_tokens"]
    assert (signal.state, signal.histogram) == ("missing", None)
    assert "over the link" in str(signal.reason)


def test_the_gauges_of_old_transfers_are_no_histogram() -> None:
    """0.5.4 shows the last transfer only, which says nothing of the others."""
    found = read("sglang:kv_transfer_latency_ms 3\nsglang:num_queue_reqs 0\n").signals
    assert found["kv_transfer_seconds"].reason == "not exposed"


def test_without_counters_of_hits_the_last_batchs_rate_stands_in() -> None:
    text = "sglang:cache_hit_rate 0.3713\nsglang:prompt_tokens_total 100\n"
    signal = read(text).signals["prefix_cache_hit_ratio"]
    assert (signal.value, signal.count) == (0.3713, None)


def test_old_names_of_latencies() -> None:
    text = (
        "sglang:time_per_output_token_seconds_sum 3\nsglang:time_per_output_token_seconds_count 4\n"
    )
    assert plain(read(text))["inter_token_seconds"] == (4.0, 3.0)
