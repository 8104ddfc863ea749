"""Dynamo: workers around engines, and the frontend with its router."""

from __future__ import annotations

import pytest

from telemetry import canonical, exposition
from tests.agent.reading import on_wire, plain, read

WORKER = """\
dynamo_component_inflight_requests{dynamo_component="prefill",dynamo_endpoint="generate"} 2
dynamo_component_inflight_requests{dynamo_component="prefill",dynamo_endpoint="kv_query"} 1
dynamo_component_request_duration_seconds_bucket{dynamo_endpoint="generate",le="0.5"} 170
dynamo_component_request_duration_seconds_bucket{dynamo_endpoint="generate",le="+Inf"} 172
dynamo_component_request_duration_seconds_sum{dynamo_endpoint="generate"} 38.5
dynamo_component_request_duration_seconds_count{dynamo_endpoint="generate"} 172
dynamo_component_request_duration_seconds_bucket{dynamo_endpoint="kv_query",le="0.5"} 1
dynamo_component_request_duration_seconds_bucket{dynamo_endpoint="kv_query",le="+Inf"} 1
dynamo_component_request_duration_seconds_sum{dynamo_endpoint="kv_query"} 0.1
dynamo_component_request_duration_seconds_count{dynamo_endpoint="kv_query"} 1
dynamo_component_uptime_seconds{worker_id="1"} 74.6
dynamo_request_queue 5
dynamo_work_handler_queue_depth 1
"""
VLLM = """\
vllm:num_requests_running{engine="0"} 4
vllm:num_requests_waiting{engine="0"} 7
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


def test_a_worker_alone_counts_its_endpoint_only() -> None:
    found = read(WORKER)
    assert (found.engine, found.addons) == ("dynamo-worker", ())
    assert plain(found) == {
        "requests_running": 2.0,
        "requests_waiting": 6.0,
        "requests_waiting_by_stage": {"dynamo_queue": 5.0, "dynamo_work_handler": 1.0},
        "requests_finished_total": 172.0,
        "e2e_seconds": (172.0, 38.5),
    }
    on_wire(found)


def test_the_engine_inside_comes_first_and_its_queue_is_longer() -> None:
    found = read(WORKER + VLLM)
    assert (found.engine, found.addons) == ("vllm", ("dynamo-worker",))
    assert plain(found) == {
        "requests_running": 4.0,
        "requests_waiting": 13.0,
        "requests_waiting_by_stage": {
            "engine": 7.0,
            "dynamo_queue": 5.0,
            "dynamo_work_handler": 1.0,
        },
        "kv_cache_usage_ratio": 0.5,
        "requests_finished_total": 172.0,
        "e2e_seconds": (172.0, 38.5),
    }
    assert found.unmatched == ()


def test_a_queue_that_is_half_unknown_is_not_completed() -> None:
    """The engine's own queue cannot be read: what waits in front of it is not the queue."""
    found = read(WORKER + VLLM.replace("} 7", "} NaN"))
    assert found.signals["requests_waiting"].state == "missing"
    assert found.signals["requests_waiting_by_stage"].state == "missing"


def test_the_stages_of_sglang_stay_beside_dynamos() -> None:
    found = read(WORKER + "sglang:num_queue_reqs 1\nsglang:num_prefill_bootstrap_queue_reqs 2\n")
    assert found.engine == "sglang"
    assert plain(found)["requests_waiting_by_stage"] == {
        "waiting": 1.0,
        "prefill_bootstrap": 2.0,
        "dynamo_queue": 5.0,
        "dynamo_work_handler": 1.0,
    }
    assert found.signals["requests_waiting"].value == 9.0


def test_two_engines_in_one_text_are_not_mixed() -> None:
    found = read(VLLM + "sglang:num_running_reqs 3\n")
    assert (found.engine, found.addons) == ("vllm", ())
    assert found.signals["requests_running"].value == 4.0
    assert "sglang" in found.warnings[0]


FRONTEND = """\
dynamo_frontend_requests_started_total{endpoint="chat_completions",model="m"} 120
dynamo_frontend_requests_started_total{endpoint="completions",model="m"} 3
dynamo_frontend_requests_total{endpoint="chat_completions",model="m",status="success"} 118
dynamo_frontend_failures_total{class="Internal"} 2
dynamo_frontend_router_admission_rejected_total{reason="predicted_miss",worker_type="decode"} 1
dynamo_frontend_input_sequence_tokens_bucket{model="m",le="4096"} 100
dynamo_frontend_input_sequence_tokens_bucket{model="m",le="+Inf"} 120
dynamo_frontend_input_sequence_tokens_sum{model="m"} 317658
dynamo_frontend_input_sequence_tokens_count{model="m"} 120
dynamo_frontend_cached_tokens_sum{model="m"} 1000
dynamo_frontend_cached_tokens_count{model="m"} 120
dynamo_frontend_time_to_first_token_seconds_sum{model="m"} 29.5
dynamo_frontend_time_to_first_token_seconds_count{model="m"} 120
dynamo_frontend_request_duration_seconds_sum{model="m"} 59.5
dynamo_frontend_request_duration_seconds_count{model="m"} 120
dynamo_frontend_inflight_requests{model="m"} 4
dynamo_frontend_queued_requests{model="m"} 3
dynamo_frontend_router_queue_pending_requests{model="m",worker_type="decode"} 1
dynamo_frontend_router_queue_pending_requests{model="m",worker_type="prefill"} 5
dynamo_component_router_worker_registered{router_worker_id="7",worker_type="prefill"} 1
dynamo_component_router_worker_registered{router_worker_id="8",worker_type="decode"} 0
dynamo_component_uptime_seconds{worker_id="x"} 3
"""


def test_the_frontend_is_a_router_without_sides() -> None:
    found = read(FRONTEND)
    assert (found.engine, found.kind) == ("dynamo-frontend", "router")
    assert plain(found) == {
        "requests_total": {"all|chat_completions": 120.0, "all|completions": 3.0},
        "refused_total": 1.0,
        "errors_total": {"all": 2.0},
        "prompt_tokens_total": 317658.0,
        "prompt_tokens": {"all": 120.0},
        "cached_tokens_total": {"all": 1000.0},
        "ttft_seconds": {"all": 120.0},
        "e2e_seconds": {"all": 120.0},
        "in_flight": {"all": 4.0},
        "requests_waiting": 6.0,
        "upstream_up": {"prefill:7": 1.0, "decode:8": 0.0},
    }
    assert canonical.plan_of(found) == (None, None)
    on_wire(found)


def test_a_frontend_of_2025_counts_what_succeeded() -> None:
    found = read(
        "dynamo_frontend_request_success_count 170450\ndynamo_frontend_inflight_requests 0\n"
    )
    assert found.engine == "dynamo-frontend"
    assert plain(found) == {"requests_total": {"all": 170450.0}, "in_flight": {"all": 0.0}}


@pytest.mark.parametrize(("kind", "text"), [("instance", FRONTEND), ("router", WORKER + VLLM)])
def test_the_wrong_kind_is_not_recognised(kind: str, text: str) -> None:
    """An agent that scrapes a frontend as an engine says so instead of inventing an idle one."""
    found = canonical.canonicalise(exposition.parse(text), kind=kind)
    assert (found.engine, found.recognised) == ("unknown", False)
