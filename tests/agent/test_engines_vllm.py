"""vLLM v0 and v1 beyond what test_canonical tells: capacity, swapped requests, caches, failures."""

from __future__ import annotations

import pytest

from tests.agent.reading import plain, read

V0 = """\
vllm:num_requests_running{model_name="m"} 2
vllm:num_requests_waiting{model_name="m"} 7
vllm:num_requests_swapped{model_name="m"} 2
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cpu_cache_usage_perc{model_name="m"} 0.25
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
vllm:prompt_tokens_total{model_name="m"} 10
"""


def test_v0_keeps_swapped_requests_outside_its_queue() -> None:
    assert plain(read(V0)) == {
        "requests_running": 2.0,
        "requests_waiting": 9.0,
        "requests_waiting_by_stage": {"waiting": 7.0, "swapped": 2.0},
        "requests_swapped": 2.0,
        "kv_cache_usage_ratio": 0.5,
        "kv_capacity_tokens": 1600.0,
        "host_cache_usage_ratio": 0.25,
        "prefix_cache_hit_ratio": 0.75,
        "prompt_tokens_total": 10.0,
    }


CAPACITY = [
    ("stated", 'kv_cache_size_tokens="1048576",num_gpu_blocks="8192",block_size="128"', 1048576.0),
    ("in blocks", 'kv_cache_size_tokens="None",num_gpu_blocks="58914",block_size="16"', 942624.0),
    ("not yet", 'num_gpu_blocks="None",block_size="16"', None),
]


@pytest.mark.parametrize(
    ("labels", "want"), [c[1:] for c in CAPACITY], ids=[c[0] for c in CAPACITY]
)
def test_capacity_is_in_the_labels_of_an_info_series(labels: str, want: float | None) -> None:
    text = f'vllm:cache_config_info{{engine="0",{labels}}} 1.0\nvllm:num_requests_running 0\n'
    assert read(text).signals["kv_capacity_tokens"].value == want


def test_capacity_of_ranks_adds_up() -> None:
    line = 'vllm:cache_config_info{{engine="{0}",kv_cache_size_tokens="{1}"}} 1.0\n'
    text = line.format(0, 1000) + line.format(1, 2000)
    assert read(text).signals["kv_capacity_tokens"].value == 3000.0


def test_errors_are_failures_and_aborts_are_not() -> None:
    line = 'vllm:request_success_total{{finished_reason="{0}"}} {1}\n'
    found = read(line.format("stop", 5) + line.format("abort", 3) + line.format("error", 2)).signals
    assert found["requests_finished_total"].value == 10.0
    assert found["requests_failed_total"].value == 2.0
    older = read(line.format("stop", 5)).signals["requests_failed_total"]
    assert older.reason == "not exposed"


def test_caches_are_told_apart() -> None:
    text = (
        "vllm:prefix_cache_queries_total 400\nvllm:prefix_cache_hits_total 100\n"
        "vllm:external_prefix_cache_queries_total 300\nvllm:external_prefix_cache_hits_total 30\n"
    )
    found = plain(read(text))
    assert (found["prefix_cache_hits_total"], found["prefix_cache_queries_total"]) == (100.0, 400.0)
    assert (found["prefix_cache_hit_ratio"], found["external_cache_hit_ratio"]) == (0.25, 0.1)


def test_openmetrics_of_an_engine_reads_as_its_classic_text() -> None:
    """S-06."""
    classic = V0.replace('{model_name="m"}', "")
    openmetrics = classic.replace(
        "vllm:prompt_tokens_total 10", 'vllm:prompt_tokens_total 10 # {trace_id="a"} 3 1.7e9'
    )
    assert plain(read(openmetrics + "# EOF\n")) == plain(read(classic))
