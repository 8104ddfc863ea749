"""Every text of real engines and routers we have, read whole and cut anywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from telemetry import canonical, exposition
from tests.agent.reading import Number, on_wire, plain

SHARED = Path(__file__).parents[2] / "../shared/data"
METRICS = SHARED / "metrics"


def _text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.exists():
        pytest.skip(f"{name} is not here: captures of real engines are not part of the project")
    return path.read_text(encoding="utf-8")


# File -> (engine, what is read with it, every signal that is not missing), off the files by hand.
WHOLE: dict[str, tuple[str, tuple[str, ...], dict[str, Number]]] = {
    "metrics/sglang_docs_2026-08_production_metrics.txt": (
        "sglang",
        (),
        {
            "requests_running": 162.0,
            "requests_waiting": 2826.0,
            "requests_waiting_by_stage": {"waiting": 2826.0},
            "kv_cache_usage_ratio": 0.28,
            "prompt_tokens_total": 8128902.0,
            "prefix_cache_queries_total": 8128902.0,
            "generation_tokens_total": 7557572.0,
            "prefix_cache_hit_ratio": 0.007507552643049313,
            "ttft_seconds": (11008.0, 2.3518979474117756e6),
            "e2e_seconds": (11228.0, 3.116093850019932e6),
            "inter_token_seconds": (7400757.0, 866964.5791549598),
        },
    ),
    "metrics/sglang_0.5.10_datadog_fixture.txt": (
        "sglang",
        (),
        {
            "requests_running": 0.0,
            "requests_waiting": 0.0,
            "requests_waiting_by_stage": {"waiting": 0.0},
            "kv_cache_usage_ratio": 0.25,
            "kv_capacity_tokens": 430839.0,
            "prompt_tokens_total": 5.0,
            "prefix_cache_queries_total": 5.0,
            "prefix_cache_hits_total": 1.0,
            "prefix_cache_hit_ratio": 0.2,
            "generation_tokens_total": 32.0,
            "requests_finished_total": 1.0,
            "ttft_seconds": (1.0, 0.02),
            "inter_token_seconds": (31.0, 0.05),
            "queue_seconds": (1.0, 0.0),
        },
    ),
    "metrics/sglang_pd_excerpt_public_go_sample.txt": (
        "sglang",
        (),
        {
            "prompt_tokens_total": 1282888.0,
            "prefix_cache_queries_total": 1282888.0,
            "generation_tokens_total": 337.0,
            "requests_finished_total": 337.0,
        },
    ),
    "metrics/sglang_0.5.23_pd_prefill_rendered.txt": (
        "sglang",
        (),
        {
            "requests_running": 3.0,
            "requests_waiting": 23.0,
            "requests_waiting_by_stage": {
                "waiting": 14.0,
                "grammar": 0.0,
                "prefill_bootstrap": 2.0,
                "prefill_inflight": 7.0,
                "decode_prealloc": 0.0,
                "decode_transfer": 0.0,
                "decode_host_receive": 0.0,
            },
            "kv_cache_usage_ratio": 0.31,
            "prefix_cache_hit_ratio": 0.3713,
            "ttft_seconds": (400.0, 349.0568798591217),
            "prefill_seconds": (5.0, 3.990499343464406),
            "queue_seconds": (5.0, 1.0700339687023115),
            "kv_transfer_bytes_total": 187478.6379304874 * 1048576,
            "kv_transfer_seconds": (260.0, 181281.0640054702 / 1000),
            "kv_transfer_failures_total": 2.0,
        },
    ),
    "metrics/dynamo_sglang_worker_excerpt.txt": (
        "sglang",
        (),
        {
            "prompt_tokens_total": 8128902.0,
            "prefix_cache_queries_total": 8128902.0,
            "generation_tokens_total": 7557572.0,
            "prefix_cache_hit_ratio": 0.0075,
        },
    ),
    "metrics/dynamo_trtllm_worker_excerpt.txt": (
        "trtllm",
        (),
        {
            "requests_finished_total": 155.0,
            "ttft_seconds": (150.0, 8.75),
            "e2e_seconds": (150.0, 45.2),
            "inter_token_seconds": (150.0, 12.5),
            "queue_seconds": (150.0, 32.1),
        },
    ),
    "metrics/dynamo_vllm_worker_excerpt.txt": (
        "vllm",
        (),
        {"requests_finished_total": 165.0, "ttft_seconds": (165.0, 89.38)},
    ),
    "metrics/dynamo_system_metrics_example.txt": (
        "dynamo-worker",
        (),
        {
            "requests_running": 0.0,
            "requests_finished_total": 3.0,
            "e2e_seconds": (3.0, 0.00048793700000000003),
        },
    ),
    "metrics/dynamo_1.6.1_mocker_prefill_t1_loaded.txt": (
        "dynamo-worker",
        (),
        {
            "requests_running": 2.0,
            "requests_waiting": 0.0,
            "requests_waiting_by_stage": {"dynamo_queue": 0.0, "dynamo_work_handler": 0.0},
            "requests_finished_total": 172.0,
            "e2e_seconds": (172.0, 38.42416892),
        },
    ),
    "metrics/dynamo_1.6.1_mocker_decode_t0_idle.txt": (
        "vllm",
        ("dynamo-worker",),
        {
            "requests_running": 0.0,
            "requests_waiting": 0.0,
            "requests_waiting_by_stage": {
                "engine": 0.0,
                "dynamo_queue": 0.0,
                "dynamo_work_handler": 0.0,
            },
            "kv_cache_usage_ratio": 0.0,
            "preemptions_total": 0.0,
            "requests_finished_total": 120.0,
            "ttft_seconds": (120.0, 29.070305984999987),
            "e2e_seconds": (120.0, 58.87612126999999),
            "inter_token_seconds": (3812.0, 29.805667878999994),
        },
    ),
    "metrics/dynamo_1.6.1_mocker_frontend_t0_idle.txt": (
        "dynamo-frontend",
        (),
        {
            "requests_total": {"all|chat_completions": 120.0},
            "refused_total": 0.0,
            "errors_total": {"all": 121.0},
            "prompt_tokens_total": 317658.0,
            "prompt_tokens": {"all": 120.0},
            "cached_tokens_total": {"all": 0.0},
            "ttft_seconds": {"all": 120.0},
            "e2e_seconds": {"all": 120.0},
            "in_flight": {"all": 0.0},
            "requests_waiting": 0.0,
            "upstream_up": {
                "decode:14947254235298397934": 1.0,
                "prefill:2232267059748638565": 1.0,
            },
        },
    ),
    "metrics/dynamo_frontend_real_2025_aiperf.txt": (
        "dynamo-frontend",
        (),
        {
            "requests_total": {"all": 170450.0},
            "prompt_tokens_total": 18408629.0,
            "prompt_tokens": {"all": 170450.0},
            "in_flight": {"all": 0.0},
        },
    ),
    "metrics/lmcache_vllm011_excerpt.txt": (
        "vllm",
        ("lmcache",),
        {"ttft_seconds": (45.0, 2.971604108810425), "external_cache_hit_ratio": 1529 / 36089},
    ),
    "metrics/triton_server_docs_metrics_1.txt": ("triton", (), {"ttft_seconds": (37.0, 10.771)}),
    "metrics/triton_server_docs_metrics_2.txt": ("triton", (), {"queue_seconds": (161.0, 0.01111)}),
    "metrics/triton_tensorrtllm_backend_3.txt": ("triton", (), {}),
    "metrics/triton_vllm_backend.txt": (
        "vllm",
        (),
        {
            "prompt_tokens_total": 10.0,
            "generation_tokens_total": 16.0,
            "ttft_seconds": (1.0, 0.03233122825622559),
            "inter_token_seconds": (15.0, 0.04501533508300781),
            "e2e_seconds": (1.0, 0.08686184883117676),
        },
    ),
    "metrics/dcgm_netdata_fixture.prom": ("dcgm", (), {"gpu_utilization_ratio": 0.8}),
    "metrics/dcgm_exporter_readme.txt": ("dcgm", (), {}),
    "metrics/vllm_docs_design_metrics_2025-10_1.txt": ("unknown", (), {}),
    "metrics/vllm_docs_design_metrics_2025-10_2.txt": (
        "vllm",
        (),
        {
            "requests_running": 8.0,
            "generation_tokens_total": 27453.0,
            "requests_finished_total": 132.0,
            # No _sum is exposed, so there is nothing for the wire.
            "ttft_seconds": (140.0, -1.0),
        },
    ),
    "metrics/vllm_docs_usage_metrics_2025-10.txt": ("vllm", (), {}),
    "captures/dynamo/metrics_9511_after.txt": (
        "dynamo-worker",
        (),
        {
            "requests_running": 0.0,
            "requests_waiting": 0.0,
            "requests_waiting_by_stage": {"dynamo_queue": 0.0, "dynamo_work_handler": 0.0},
            "requests_finished_total": 4.0,
            "e2e_seconds": (4.0, 0.540274038),
        },
    ),
    "captures/dynamo/metrics_9512_after.txt": (
        "vllm",
        ("dynamo-worker",),
        {
            "requests_running": 0.0,
            "requests_waiting": 0.0,
            "requests_waiting_by_stage": {
                "engine": 0.0,
                "dynamo_queue": 0.0,
                "dynamo_work_handler": 0.0,
            },
            "kv_cache_usage_ratio": 0.0,
            "preemptions_total": 0.0,
            "requests_finished_total": 4.0,
            "ttft_seconds": (4.0, 0.553808415),
            "e2e_seconds": (4.0, 0.7031174119999999),
            "inter_token_seconds": (24.0, 0.14930168600000002),
        },
    ),
    "captures/dynamo/frontend_metrics_after.txt": (
        "dynamo-frontend",
        (),
        {
            "requests_total": {"all|chat_completions": 1.0, "all|completions": 3.0},
            "refused_total": 0.0,
            "prompt_tokens_total": 2049.0,
            "prompt_tokens": {"all": 4.0},
            "cached_tokens_total": {"all": 0.0},
            "ttft_seconds": {"all": 4.0},
            "e2e_seconds": {"all": 4.0},
            "in_flight": {"all": 0.0},
            "requests_waiting": 0.0,
            "upstream_up": {"decode:147093096309201105": 1.0, "prefill:15702921898568672872": 1.0},
        },
    ),
    "captures/smg/metrics.txt": (
        "smg",
        (),
        {
            "requests_total": {"all|completions": 1.0, "all|chat": 1.0, "all|generate": 1.0},
            "refused_total": 0.0,
            "ttft_seconds": {"all": 3.0},
            "e2e_seconds": {"all": 3.0},
            "in_flight": {"all": 0.0},
            "upstream_up": {f"http://127.0.0.1:910{i}": 1.0 for i in (1, 2, 3)},
        },
    ),
    "captures/sglang-router/metrics.txt": (
        "smg",
        (),
        {
            "requests_total": {"all|completions": 1.0, "all|chat": 1.0},
            "e2e_seconds": {"all": 2.0},
            "in_flight": {"all": 0.0},
            "upstream_up": {f"http://127.0.0.1:910{i}": 1.0 for i in (1, 2, 3, 4)},
        },
    ),
    "captures/vllm-router/metrics.txt": (
        "vllm-router",
        (),
        {
            "requests_total": {"all|/v1/chat/completions": 1.0, "all|/v1/completions": 1.0},
            "errors_total": {"all": 3.0},
            "e2e_seconds": {"all": 2.0},
            "in_flight": {"all": 0.0},
            "requests_waiting": 0.0,
            "upstream_up": {"http://127.0.0.1:9101": 1.0, "http://127.0.0.1:9103": 1.0},
        },
    ),
    "captures/vllm-router/metrics_igw.txt": (
        "vllm-router",
        (),
        {
            "requests_total": {"all|/v1/completions": 6.0},
            "e2e_seconds": {"all": 6.0},
            "in_flight": {"all": 0.0},
            "requests_waiting": 0.0,
            "upstream_up": {
                "http://127.0.0.1:9101": 1.0,
                "http://127.0.0.1:9102": 1.0,
                "http://127.0.0.1:9103": 1.0,
                "http://127.0.0.1:9104": 1.0,
                "http://127.0.0.1:9199": 0.0,
            },
        },
    ),
    "captures/vllm-router/metrics_real_vllm_pd.txt": (
        "vllm-router",
        (),
        {
            "requests_total": {"all|/v1/completions": 81.0},
            "e2e_seconds": {"all": 81.0},
            "in_flight": {"all": 0.0},
            "requests_waiting": 0.0,
            "upstream_up": {"http://127.0.0.1:9601": 1.0, "http://127.0.0.1:9602": 1.0},
        },
    ),
    "captures/production-stack/metrics.txt": (
        "production-stack",
        (),
        {"upstream_up": {"http://127.0.0.1:9101": 1.0, "http://127.0.0.1:9103": 1.0}},
    ),
    "captures/mooncake/master_metrics.txt": ("mooncake", (), {"external_cache_hit_ratio": "idle"}),
    "captures/dynamo/planner/metrics.txt": ("unknown", (), {}),
}


@pytest.mark.parametrize("file", WHOLE)
def test_a_whole_text(file: str) -> None:
    engine, addons, want = WHOLE[file]
    found = canonical.canonicalise(exposition.parse(_text(SHARED, file)))
    assert (found.engine, found.addons) == (engine, addons)
    assert plain(found) == want
    assert found.n_bad_lines == 0
    if found.recognised:
        on_wire(found)
    else:
        assert found.unmatched


def test_the_names_of_a_release_we_have_no_text_of() -> None:
    """A list of vLLM 0.26's families: what the map reads by its first names is among them."""
    lines = _text(METRICS, "vllm_0.26.0_metric_families.txt").splitlines()
    kinds = dict(line.split() for line in lines if not line.startswith("#"))
    text = "".join(
        f'{name}_bucket{{le="+Inf"}} 1\n{name}_sum 1\n{name}_count 1\n'
        if kind == "histogram"
        else f"{name} 1\n"
        for name, kind in kinds.items()
    )
    found = canonical.canonicalise(exposition.parse(text), "vllm")
    lacking = {name for name, signal in found.signals.items() if not signal.exposed}
    assert lacking == {
        *("requests_swapped", "host_cache_usage_ratio", "kv_capacity_tokens"),
        *("kv_transfer_bytes_total", "kv_transfer_seconds", "kv_transfer_failures_total"),
        *(
            "kv_expired_total",
            "requests_failed_total",
            "gpu_utilization_ratio",
            "gpu_memory_usage_ratio",
        ),
        *("gpu_power_w", "gpu_temperature_celsius"),
    }


def _texts() -> list[str]:
    paths = [*SHARED.glob("metrics/*"), *SHARED.glob("captures/**/*")]
    return sorted(str(path.relative_to(SHARED)) for path in paths if path.is_file())


SMALL_BYTES = 20_000
N_CUTS = 300


@pytest.mark.parametrize("file", _texts() or ["metrics"])
def test_no_cut_of_a_real_text_raises(file: str) -> None:
    """At every line's end where it is small, in the middle of anything where it is large."""
    if not (SHARED / file).is_file():
        pytest.skip("captures of real engines are not part of the project")
    text = (SHARED / file).read_text(encoding="utf-8")
    if len(text) < SMALL_BYTES:
        ends = [i + 1 for i, char in enumerate(text) if char == "\n"]
    else:
        drawn = random.Random(file)
        ends = sorted(drawn.randrange(len(text)) for _ in range(N_CUTS))
    parser = exposition.Parser()
    for i, end in enumerate(ends):
        found = canonical.canonicalise(parser.parse(text[:end]))
        canonical.to_instance_signals(found)
        canonical.to_router_signals(found)
        # The door's own checks and strict JSON take longer than all the rest.
        if i % 10 == 0:
            json.dumps(found.to_json(), allow_nan=False)
            on_wire(found)
