"""What engines show and say when they are to switch: SGLang's own words, our lab's, vLLM's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from routing.adapters import engines
from routing.adapters.engines import Broken, Busy, Engine
from routing.adapters.surface import CannotDo, Refused, SurfaceError, Unheeded
from tests.routing.fake_pages import Pages
from tests.routing.fake_router import serving


def rank(role: str, *, running: int = 0, waiting: int = 0, **queues: int) -> dict[str, Any]:
    """One data-parallel rank as SGLang 0.5.23 shows it, cut down."""
    return {
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0,
        "disaggregation": {"mode": role, "kv_transfer_speed_gb_s": 0.0, **queues},
    }


@pytest.fixture
def engine() -> Pages:
    return Pages({"GET /v1/loads": {"version": "0.5.23", "loads": [rank("decode")]}})


@pytest.fixture
def url(engine: Pages) -> Iterator[str]:
    with serving(engine) as served:  # type: ignore[arg-type]
        yield served


def switched(engine: Pages, *, role: str = "prefill", heeds: bool = True) -> Any:
    def answer(body: Any) -> dict[str, Any]:
        if heeds:
            engine.at["GET /v1/loads"] = {"version": "0.5.23", "loads": [rank(body["new_role"])]}
        return {"success": True, "message": "ok", "old_role": "decode", "new_role": role}

    return answer


def test_the_lab_and_sglang_are_read_alike(engine: Pages, url: str) -> None:
    assert engines.look(url, "engine") == Engine("decode", 0, "0.5.23")
    engine.at["GET /v1/loads"] = {
        "num_running_reqs": 2,
        "num_waiting_reqs": 1,
        "disagg_mode": "prefill",
        "epoch_s": 1.0,
    }
    assert engines.look(url, "engine") == Engine("prefill", 3)


@pytest.mark.parametrize(
    "queue",
    [
        "prefill_bootstrap_queue_reqs",
        "prefill_inflight_queue_reqs",
        "decode_prealloc_queue_reqs",
        "decode_transfer_queue_reqs",
        "decode_retracted_queue_reqs",
    ],
)
def test_kv_on_its_way_is_not_idle(engine: Pages, url: str, queue: str) -> None:
    engine.at["GET /v1/loads"] = {"loads": [rank("decode"), rank("decode", **{queue: 1})]}
    assert engines.look(url, "engine").requests == 1


def test_ranks_must_agree(engine: Pages, url: str) -> None:
    engine.at["GET /v1/loads"] = {"loads": [rank("decode"), rank("prefill")]}
    with pytest.raises(SurfaceError, match="2 ranks, of the roles decode, prefill"):
        engines.look(url, "engine")
    engine.at["GET /v1/loads"] = {"loads": []}
    with pytest.raises(SurfaceError, match="0 ranks"):
        engines.look(url, "engine")
    engine.at["GET /v1/loads"] = {"loads": [rank("null")]}
    assert engines.look(url, "engine").role is None


def test_a_switch_is_read_back(engine: Pages, url: str) -> None:
    engine.at["POST /pd_role_switch"] = switched(engine)
    engines.switch(url, "prefill", decode_cuda_graph_memory_gb=1.5)
    asked = [body for method, _, body in engine.asked if method == "POST"]
    assert asked == [{"new_role": "prefill", "decode_cuda_graph_memory_gb": 1.5}]
    engine.at["POST /pd_role_switch"] = switched(engine, role="decode", heeds=False)
    with pytest.raises(Unheeded, match="still is prefill"):
        engines.switch(url, "decode")


def test_a_yes_of_another_role_is_none(engine: Pages, url: str) -> None:
    engine.at["POST /pd_role_switch"] = switched(engine, role="decode")
    with pytest.raises(Unheeded, match="new_role decode"):
        engines.switch(url, "prefill")


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (409, "not idle", Busy),
        (400, "instance is not idle; drain all requests before switching", Busy),
        (400, "--enable-pd-role-switch is not set on this instance", Refused),
        (400, "transfer backend 'nixl' does not support runtime role switch", Refused),
        (400, "role switch failed; instance unhealthy, restart required: oom", Broken),
        (404, "Not Found", CannotDo),
        (405, "Method Not Allowed", CannotDo),
        (500, "boom", SurfaceError),
    ],
)
def test_why_it_does_not_switch(
    engine: Pages, url: str, status: int, message: str, error: type[SurfaceError]
) -> None:
    engine.at["POST /pd_role_switch"] = (status, {"success": False, "message": message})
    with pytest.raises(SurfaceError) as raised:
        engines.switch(url, "prefill")
    assert type(raised.value) is error


GOOD = {
    "version": "0.5.23",
    "enable_pd_role_switch": True,
    "disaggregation_mode": "decode",
    "disaggregation_transfer_backend": "mooncake",
}


@pytest.mark.parametrize(
    ("info", "why"),
    [
        (GOOD, ""),
        (GOOD | {"version": "0.6.0", "disaggregation_transfer_backend": "mori"}, ""),
        (GOOD | {"version": "0.5.22"}, "0.5.23 is the first"),
        (GOOD | {"version": "0.4.9.post1"}, "0.5.23 is the first"),
        (GOOD | {"enable_pd_role_switch": False}, "--enable-pd-role-switch"),
        (GOOD | {"disaggregation_transfer_backend": "nixl"}, "nixl cannot be rebuilt"),
        (GOOD | {"disaggregation_mode": "null"}, "it has no role"),
    ],
)
def test_which_version_and_backend_can(
    engine: Pages, url: str, info: dict[str, Any], why: str
) -> None:
    engine.at["GET /server_info"] = info
    found = engines.ability(url, "engine")
    assert (found.can, found.version) == (not why, info["version"])
    assert why in found.why


def test_one_that_tells_nothing_is_asked_when_it_is_to_switch(engine: Pages, url: str) -> None:
    assert engines.ability(url, "engine").can
    assert engines.ability(url, "label").can
    engine.at["GET /server_info"] = (503, {"error": "loading"})
    with pytest.raises(SurfaceError, match="loading"):
        engines.ability(url, "engine")


@pytest.mark.parametrize("status", [401, 403])
def test_one_that_is_not_to_be_asked_is_not_taken_as_able(
    engine: Pages, url: str, status: int
) -> None:
    engine.at["GET /server_info"] = (status, {"error": "whose key is that"})
    with pytest.raises(Refused, match="whose key"):
        engines.ability(url, "engine")


METRICS = b"""\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} %d
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} %d
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 700
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 30
"""


def test_a_labelled_engine_has_no_role_and_its_own_counts(engine: Pages, url: str) -> None:
    engine.at["GET /metrics"] = METRICS % (2, 3)
    assert engines.look(url, "label") == Engine(None, 5)
    engine.at["GET /metrics"] = METRICS % (0, 0)
    assert engines.look(url, "label").requests == 0
    assert engines.worked_tokens(url) == 730


def test_what_is_not_counted_is_not_idle(engine: Pages, url: str) -> None:
    engine.at["GET /metrics"] = b"\n".join(
        line for line in METRICS.splitlines() if b"waiting" not in line
    ) % (0,)
    with pytest.raises(SurfaceError, match="idle cannot be proven"):
        engines.look(url, "label")
    for running, waiting in ((b"NaN", b"0"), (b"3", b"-3"), (b"+Inf", b"0")):
        engine.at["GET /metrics"] = METRICS.replace(b"%d", b"%s") % (running, waiting)
        with pytest.raises(SurfaceError, match="idle cannot be proven"):
            engines.look(url, "label")
    del engine.at["GET /metrics"]
    assert engines.worked_tokens(url) is None
