"""TensorRT-LLM, Triton and the DCGM exporter."""

from __future__ import annotations

import pytest

from tests.agent.reading import on_wire, plain, read

TRTLLM = """\
trtllm_num_requests_running{model_name="m"} 4
trtllm_num_requests_waiting{model_name="m"} 9
trtllm_kv_cache_utilization{model_name="m"} 0.6
trtllm_kv_cache_max_blocks{model_name="m"} 1000
trtllm_kv_cache_used_blocks{model_name="m"} 600
trtllm_kv_cache_tokens_per_block{model_name="m"} 32
trtllm_kv_cache_host_utilization{model_name="m"} 0.1
trtllm_kv_cache_hit_rate{model_name="m"} 0.9
trtllm_prompt_tokens_total{model_name="m"} 400
trtllm_prompt_cached_tokens_total{model_name="m"} 100
trtllm_generation_tokens_total{model_name="m"} 7
trtllm_request_success_total{finished_reason="stop",model_name="m"} 150
trtllm_request_success_total{finished_reason="length",model_name="m"} 5
trtllm_request_error_total{model_name="m"} 1
trtllm_time_to_first_token_seconds_sum{model_name="m"} 8.75
trtllm_time_to_first_token_seconds_count{model_name="m"} 150
trtllm_time_per_output_token_seconds_sum{model_name="m"} 12.5
trtllm_time_per_output_token_seconds_count{model_name="m"} 150
trtllm_e2e_request_latency_seconds_sum{model_name="m"} 45.25
trtllm_e2e_request_latency_seconds_count{model_name="m"} 150
trtllm_request_queue_time_seconds_sum{model_name="m"} 32.5
trtllm_request_queue_time_seconds_count{model_name="m"} 150
trtllm_request_prefill_time_seconds_sum{model_name="m"} 3.5
trtllm_request_prefill_time_seconds_count{model_name="m"} 150
"""
WANT = {
    "requests_running": 4.0,
    "requests_waiting": 9.0,
    "kv_cache_usage_ratio": 0.6,
    "kv_capacity_tokens": 32000.0,
    "host_cache_usage_ratio": 0.1,
    "prompt_tokens_total": 400.0,
    "generation_tokens_total": 7.0,
    "requests_finished_total": 155.0,
    "requests_failed_total": 1.0,
    "prefix_cache_hits_total": 100.0,
    "prefix_cache_queries_total": 400.0,
    "prefix_cache_hit_ratio": 0.25,
    "ttft_seconds": (150.0, 8.75),
    "inter_token_seconds": (150.0, 12.5),
    "e2e_seconds": (150.0, 45.25),
    "queue_seconds": (150.0, 32.5),
    "prefill_seconds": (150.0, 3.5),
}


@pytest.mark.parametrize("prefix", ["trtllm_", "trtllm:"])
def test_tensorrt_llm(prefix: str) -> None:
    found = read(TRTLLM.replace("trtllm_", prefix))
    assert found.engine == "trtllm"
    assert plain(found) == WANT
    assert found.signals["kv_transfer_seconds"].reason == "TensorRT-LLM counts no KV transfers"
    on_wire(found)


CACHES = [
    (
        "blocks",
        "trtllm_kv_cache_reused_blocks_total 3\ntrtllm_kv_cache_missed_blocks_total 9",
        0.25,
    ),
    ("the gauge", "trtllm_kv_cache_hit_rate 0.5", 0.5),
]


@pytest.mark.parametrize(("text", "want"), [c[1:] for c in CACHES], ids=[c[0] for c in CACHES])
def test_older_ones_tell_hits_otherwise(text: str, want: float) -> None:
    assert read(text + "\n").signals["prefix_cache_hit_ratio"].value == want


def test_older_ones_tell_blocks_only() -> None:
    text = "trtllm_kv_cache_used_blocks 250\ntrtllm_kv_cache_max_blocks 1000\n"
    assert read(text).signals["kv_cache_usage_ratio"].value == 0.25


TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 8
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 1
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm"} 3
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm"} 4
nv_trt_llm_disaggregated_serving_metrics{disaggregated_serving_type="kv_cache_transfer_ms"} 500
nv_trt_llm_disaggregated_serving_metrics{disaggregated_serving_type="request_count"} 4
nv_inference_pending_request_count{model="tensorrt_llm"} 77
nv_inference_request_success{model="ensemble"} 10
nv_inference_request_success{model="preprocessing"} 10
nv_inference_request_success{model="tensorrt_llm"} 10
nv_inference_request_failure{model="tensorrt_llm"} 1
nv_inference_request_duration_us{model="ensemble"} 6000000
nv_inference_request_duration_us{model="tensorrt_llm"} 5000000
nv_inference_queue_duration_us{model="tensorrt_llm"} 250000
nv_gpu_utilization{gpu_uuid="a"} 0.25
nv_gpu_utilization{gpu_uuid="b"} 0.75
nv_gpu_memory_used_bytes{gpu_uuid="a"} 10
nv_gpu_memory_used_bytes{gpu_uuid="b"} 90
nv_gpu_memory_total_bytes{gpu_uuid="a"} 100
nv_gpu_memory_total_bytes{gpu_uuid="b"} 100
nv_gpu_power_usage{gpu_uuid="a"} 100
nv_gpu_power_usage{gpu_uuid="b"} 250.5
"""


def test_triton_with_its_tensorrt_llm_backend() -> None:
    """An ensemble counts a request once for each of its models; microseconds become seconds."""
    found = read(TRITON)
    assert found.engine == "triton"
    assert plain(found) == {
        "requests_running": 5.0,
        "requests_waiting": 3.0,
        "kv_cache_usage_ratio": 0.25,
        "kv_capacity_tokens": 256.0,
        "requests_finished_total": 10.0,
        "requests_failed_total": 1.0,
        "queue_seconds": (10.0, 0.25),
        "e2e_seconds": (10.0, 5.0),
        "kv_transfer_seconds": (4.0, 0.5),
        "gpu_utilization_ratio": 0.5,
        "gpu_memory_usage_ratio": 0.5,
        "gpu_power_w": 350.5,
    }
    assert found.signals["gpu_utilization_ratio"].maximum == 0.75
    assert found.signals["gpu_memory_usage_ratio"].maximum == 0.9
    on_wire(found)


def test_triton_tells_the_fraction_where_it_knows_it() -> None:
    line = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"} 0.625\n'
    assert read(TRITON + line).signals["kv_cache_usage_ratio"].value == 0.625


def test_buckets_without_their_ending_and_summaries() -> None:
    text = (
        'nv_inference_first_response_histogram_ms{model="m",le="100"} 8\n'
        'nv_inference_first_response_histogram_ms{model="m",le="+Inf"} 37\n'
        'nv_inference_first_response_histogram_ms_sum{model="m"} 10771\n'
        'nv_inference_first_response_histogram_ms_count{model="m"} 37\n'
        'nv_inference_queue_summary_us{model="m",quantile="0.5"} 55\n'
        'nv_inference_queue_summary_us_sum{model="m"} 11110\n'
        'nv_inference_queue_summary_us_count{model="m"} 161\n'
    )
    found = read(text)
    histogram = found.signals["ttft_seconds"].histogram
    assert histogram is not None
    assert (histogram.edges, histogram.counts, histogram.sum) == ([0.1], [8.0, 29.0], 10.771)
    assert plain(found)["queue_seconds"] == (161.0, 0.01111)


def test_a_v1_model_has_no_signal_and_is_known() -> None:
    found = read('nv_trt_llm_v1_metrics{v1_specific_metric="total_generation_tokens"} 20\n')
    assert (found.engine, found.unmatched, plain(found)) == ("triton", (), {})
    assert found.signals["generation_tokens_total"].reason is not None


def test_tritons_vllm_backend_is_vllm_with_triton_around_it() -> None:
    found = read(TRITON + 'vllm:prompt_tokens_total{model="m",version="1"} 10\n')
    assert (found.engine, found.addons) == ("vllm", ("triton",))
    assert found.signals["prompt_tokens_total"].value == 10.0
    assert found.signals["gpu_power_w"].value == 350.5


DCGM = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 75
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b"} 25
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",GPU_I_ID="2",GPU_I_PROFILE="1g.10gb"} 5
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a"} 1024
DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-a"} 3072
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 250.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 100
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b"} 9223372036854775794
"""


def test_gpus_beside_an_engine() -> None:
    """Percent become a ratio, parts of a GPU are not averaged with GPUs, blanks are no reading."""
    found = read(DCGM + "vllm:num_requests_running 3\n")
    assert (found.engine, found.addons) == ("vllm", ("dcgm",))
    want = {
        "gpu_utilization_ratio": 0.5,
        "gpu_memory_usage_ratio": 0.25,
        "gpu_power_w": 350.5,
        "gpu_temperature_celsius": 61.0,
    }
    assert plain(found) == {"requests_running": 3.0, **want}
    assert found.signals["gpu_utilization_ratio"].maximum == 0.75
    alone = read(DCGM)
    assert (alone.engine, plain(alone)) == ("dcgm", want)
    on_wire(found)


@pytest.mark.parametrize("blank", ["9223372036854775794", "140737488355328"])
def test_a_device_that_cannot_tell_is_missing(blank: str) -> None:
    found = read(f"DCGM_FI_DEV_GPU_TEMP {blank}\nDCGM_FI_DEV_SM_CLOCK 139\n")
    assert found.engine == "dcgm"
    assert found.signals["gpu_temperature_celsius"].reason == "not exposed"


def test_parts_of_a_gpu_count_where_there_is_no_whole_one() -> None:
    lines = [f'DCGM_FI_DEV_GPU_UTIL{{GPU_I_ID="{i}"}} {20 * i}\n' for i in (1, 2)]
    assert read("".join(lines)).signals["gpu_utilization_ratio"].value == pytest.approx(0.3)
