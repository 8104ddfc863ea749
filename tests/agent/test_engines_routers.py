"""Routers of other makes: no sides, the same signals."""

from __future__ import annotations

import pytest

from telemetry import canonical, exposition
from tests.agent.reading import on_wire, plain, read

SMG = """\
smg_router_requests_total{backend_type="pd",endpoint="chat",streaming="true"} 2
smg_router_requests_total{backend_type="pd",endpoint="chat",streaming="false"} 1
smg_router_requests_total{backend_type="pd",endpoint="generate",streaming="false"} 4
smg_http_rate_limit_total{result="allowed"} 7
smg_http_rate_limit_total{result="rejected"} 1
smg_worker_overload_shed_total{stage="selection"} 2
smg_pd_ttft_seconds_sum{runtime="sglang"} 0.5
smg_pd_ttft_seconds_count{runtime="sglang"} 3
smg_router_request_duration_seconds_sum{endpoint="chat"} 1.5
smg_router_request_duration_seconds_count{endpoint="chat"} 3
smg_worker_requests_active{worker="http://127.0.0.1:9101"} 2
smg_worker_requests_active{worker="http://127.0.0.1:9103"} 3
smg_worker_health{worker="http://127.0.0.1:9101"} 1
smg_worker_health{worker="http://127.0.0.1:9103"} 0
smg_admission_queue_depth 4
smg_pd_prefill_admission_queued 2
"""
VLLM_ROUTER = """\
vllm_router_pd_requests_total{route="/v1/completions"} 81
vllm_router_pd_errors_total{error_type="server_selection"} 3
vllm_router_pd_request_duration_seconds_sum{route="/v1/completions"} 2043.5
vllm_router_pd_request_duration_seconds_count{route="/v1/completions"} 81
vllm_router_pd_active_decode_requests{worker="http://127.0.0.1:9602",rank="aggregate"} 4
vllm_router_pd_pending_decode_requests{worker="http://127.0.0.1:9602",rank="aggregate"} 2
vllm_router_worker_health{worker="http://127.0.0.1:9601"} 1
vllm_router_worker_health{worker="http://127.0.0.1:9602"} 0
"""
PRODUCTION_STACK = """\
vllm:num_incoming_requests_total{model="m"} 40
vllm:num_requests_running{server="http://e:1"} 2
vllm:num_requests_running{server="http://e:2"} 3
vllm:num_requests_waiting{server="http://e:1"} 7
vllm:gpu_prefix_cache_hits_total{server="http://e:1"} 1
vllm:gpu_prefix_cache_queries_total{server="http://e:1"} 2
vllm:healthy_pods_total{server="http://e:1"} 1.0
vllm:healthy_pods_total{server="http://e:2"} 0.0
vllm:current_qps{server="http://e:1"} 3
vllm:request_errors_total{server="http://e:1"} 1
vllm:input_tokens_total{server="http://e:1"} 900
router_cpu_usage_percent 100.0
process_start_time_seconds 1.79595575554e+09
"""
EPP = """\
llm_d_epp_info{commit="abc",build_ref="v0.8.0"} 1
llm_d_epp_request_total{model_name="m",priority="0"} 100
inference_objective_request_total{model_name="m",priority="0"} 100
llm_d_epp_request_error_total{model_name="m",error_code="x"} 2
llm_d_epp_request_input_tokens_sum{model_name="m"} 5000
llm_d_epp_request_input_tokens_count{model_name="m"} 100
llm_d_epp_request_cached_tokens_sum{model_name="m"} 1000
llm_d_epp_request_cached_tokens_count{model_name="m"} 100
llm_d_epp_request_ttft_seconds_sum{model_name="m"} 12.5
llm_d_epp_request_ttft_seconds_count{model_name="m"} 98
llm_d_epp_request_duration_seconds_sum{model_name="m"} 99.5
llm_d_epp_request_duration_seconds_count{model_name="m"} 98
llm_d_epp_running_requests{model_name="m"} 6
llm_d_epp_flow_control_queue_size{fairness_id="a"} 3
llm_d_epp_flow_control_queue_size{fairness_id="b"} 4
llm_d_epp_disagg_decision_total{decision_type="decode-only"} 30
go_goroutines 50
"""
CASES = [
    (
        "smg",
        SMG,
        {
            "requests_total": {"all|chat": 3.0, "all|generate": 4.0},
            "refused_total": 3.0,
            "ttft_seconds": {"all": 3.0},
            "e2e_seconds": {"all": 3.0},
            "in_flight": {"all": 5.0},
            "requests_waiting": 6.0,
            "upstream_up": {"http://127.0.0.1:9101": 1.0, "http://127.0.0.1:9103": 0.0},
        },
    ),
    (
        "vllm-router",
        VLLM_ROUTER,
        {
            "requests_total": {"all|/v1/completions": 81.0},
            "errors_total": {"all": 3.0},
            "e2e_seconds": {"all": 81.0},
            "in_flight": {"all": 4.0},
            "requests_waiting": 2.0,
            "upstream_up": {"http://127.0.0.1:9601": 1.0, "http://127.0.0.1:9602": 0.0},
        },
    ),
    (
        "production-stack",
        PRODUCTION_STACK,
        {
            "requests_total": {"all|m": 40.0},
            "errors_total": {"all": 1.0},
            "prompt_tokens_total": 900.0,
            "in_flight": {"all": 5.0},
            "upstream_up": {"http://e:1": 1.0, "http://e:2": 0.0},
        },
    ),
    (
        "llm-d",
        EPP,
        {
            "requests_total": {"all|request": 100.0},
            "errors_total": {"all": 2.0},
            "prompt_tokens_total": 5000.0,
            "prompt_tokens": {"all": 100.0},
            "cached_tokens_total": {"all": 1000.0},
            "ttft_seconds": {"all": 98.0},
            "e2e_seconds": {"all": 98.0},
            "in_flight": {"all": 6.0},
            "requests_waiting": 7.0,
        },
    ),
]


@pytest.mark.parametrize(("engine", "text", "want"), CASES, ids=[c[0] for c in CASES])
def test_a_router_of_another_make(engine: str, text: str, want: dict[str, object]) -> None:
    found = read(text)
    assert (found.engine, found.kind) == (engine, "router")
    assert plain(found) == want
    assert (found.warnings, found.unmatched) == ((), ())
    assert canonical.plan_of(found) == (None, None)
    on_wire(found)


def test_a_picker_says_its_version() -> None:
    assert read(EPP).engine_version == "v0.8.0"


def test_an_older_picker_counts_behind_older_names() -> None:
    found = read("inference_model_request_total 7\ninference_model_running_requests 2\n")
    assert found.engine == "llm-d"
    assert plain(found) == {"requests_total": {"all|request": 7.0}, "in_flight": {"all": 2.0}}


def test_an_older_sglang_router_is_read_like_its_fork() -> None:
    found = read(
        'sgl_router_requests_total{route="/v1/chat/completions"} 12\n'
        'sgl_router_worker_health{worker="http://w:8000"} 1\n'
    )
    assert found.engine == "vllm-router"
    assert plain(found)["requests_total"] == {"all|/v1/chat/completions": 12.0}


def test_the_stacks_router_is_no_engine_and_an_engine_no_router() -> None:
    """Both say `vllm:num_requests_running`; a name that only the router has settles it."""
    engine = "vllm:num_requests_running 2\nvllm:num_requests_waiting 7\n"
    assert read(engine).engine == "vllm"
    assert not canonical.canonicalise(exposition.parse(engine), kind="router").recognised
