"""TGI, llama.cpp, LMCache and Mooncake."""

from __future__ import annotations

import pytest

from tests.agent.reading import on_wire, plain, read

TGI = """\
tgi_queue_size 5
tgi_batch_current_size 3
tgi_request_count 253
tgi_request_success 250
tgi_request_failure{err="overloaded"} 2
tgi_request_failure{err="generation"} 1
tgi_request_input_length_bucket{le="1000"} 200
tgi_request_input_length_bucket{le="+Inf"} 253
tgi_request_input_length_sum 123456
tgi_request_input_length_count 253
tgi_request_generated_tokens_sum 7890
tgi_request_generated_tokens_count 250
tgi_request_duration_sum 100.5
tgi_request_duration_count 250
tgi_request_queue_duration_sum 10.5
tgi_request_queue_duration_count 250
tgi_request_mean_time_per_token_duration_sum 5.5
tgi_request_mean_time_per_token_duration_count 250
"""
LLAMA = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 6886
llamacpp:prompt_seconds_total 2903.63
llamacpp:tokens_predicted_total 3469
llamacpp:requests_processing 4
llamacpp:requests_deferred 46
llamacpp:kv_cache_usage_ratio 0.25
"""


def test_tgi() -> None:
    found = read(TGI)
    assert found.engine == "tgi"
    assert plain(found) == {
        "requests_running": 3.0,
        "requests_waiting": 5.0,
        "prompt_tokens_total": 123456.0,
        "generation_tokens_total": 7890.0,
        "requests_finished_total": 250.0,
        "requests_failed_total": 3.0,
        "e2e_seconds": (250.0, 100.5),
        "queue_seconds": (250.0, 10.5),
        "inter_token_seconds": (250.0, 5.5),
    }
    assert found.unmatched == ("tgi_request_count",)
    on_wire(found)


@pytest.mark.parametrize("usage", [True, False], ids=["older", "newer"])
def test_llama_cpp(usage: bool) -> None:
    text = LLAMA if usage else LLAMA.replace("llamacpp:kv_cache_usage_ratio 0.25\n", "")
    found = read(text)
    assert found.engine == "llamacpp"
    want = {
        "requests_running": 4.0,
        "requests_waiting": 46.0,
        "prompt_tokens_total": 6886.0,
        "generation_tokens_total": 3469.0,
    }
    assert plain(found) == ({**want, "kv_cache_usage_ratio": 0.25} if usage else want)
    assert "seconds of all requests" in str(found.signals["ttft_seconds"].reason)
    on_wire(found)


LMCACHE = """\
lmcache:num_hit_tokens_total{worker_id="0"} 1529
lmcache:num_prompt_tokens_total{worker_id="0"} 36089
lmcache:num_remote_read_bytes_total{worker_id="0"} 1000
lmcache:num_remote_write_bytes_total{worker_id="0"} 500
lmcache:remote_time_to_get_sum{worker_id="0"} 2500
lmcache:remote_time_to_get_count{worker_id="0"} 10
"""
VLLM = "vllm:num_requests_running 1\n"


def test_lmcache_fills_in_what_the_engine_does_not_say() -> None:
    found = read(VLLM + LMCACHE)
    assert (found.engine, found.addons) == ("vllm", ("lmcache",))
    assert plain(found) == {
        "requests_running": 1.0,
        "external_cache_hit_ratio": 1529 / 36089,
        "kv_transfer_bytes_total": 1500.0,
        "kv_transfer_seconds": (10.0, 2.5),
    }


def test_lookups_are_the_better_rate() -> None:
    lookups = "lmcache:num_lookup_hits_total 10\nlmcache:num_lookup_tokens_total 40\n"
    assert read(LMCACHE + lookups).signals["external_cache_hit_ratio"].value == 0.25


def test_what_the_engine_says_itself_stands() -> None:
    own = (
        "vllm:external_prefix_cache_queries_total 10\nvllm:external_prefix_cache_hits_total 5\n"
        "vllm:nixl_bytes_transferred_sum 7\n"
    )
    found = plain(read(VLLM + own + LMCACHE))
    assert (found["external_cache_hit_ratio"], found["kv_transfer_bytes_total"]) == (0.5, 7.0)


def test_a_signal_the_engine_shows_badly_is_not_papered_over() -> None:
    found = read(VLLM + "vllm:nixl_bytes_transferred_sum NaN\n" + LMCACHE)
    assert found.signals["kv_transfer_bytes_total"].state == "missing"


MOONCAKE = """\
master_allocated_bytes 25
master_total_capacity_bytes 100
valid_get_nums_ 3
total_get_nums_ 4
tent_read_bytes_total{transport="rdma"} 1048576
tent_read_bytes_total{transport="tcp"} 524288
tent_write_bytes_total{transport="rdma"} 10
tent_read_failures_total{transport="tcp"} 2
tent_read_latency_us_bucket{transport="rdma",le="500"} 3
tent_read_latency_us_bucket{transport="rdma",le="+Inf"} 4
tent_read_latency_us_sum{transport="rdma"} 4000
tent_read_latency_us_count{transport="rdma"} 4
"""


def test_mooncakes_store_and_transfer_engine() -> None:
    found = read(MOONCAKE)
    assert found.engine == "mooncake"
    assert plain(found) == {
        "host_cache_usage_ratio": 0.25,
        "external_cache_hit_ratio": 0.75,
        "kv_transfer_bytes_total": 1572874.0,
        "kv_transfer_seconds": (4.0, 0.004),
        "kv_transfer_failures_total": 2.0,
    }
    histogram = found.signals["kv_transfer_seconds"].histogram
    assert histogram is not None
    assert histogram.edges == [0.0005]
    on_wire(found)


def test_a_master_nobody_has_joined_is_not_an_empty_cache() -> None:
    found = read("master_allocated_bytes 0\nmaster_total_capacity_bytes 0\n")
    assert found.signals["host_cache_usage_ratio"].state == "missing"
