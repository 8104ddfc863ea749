"""Engines as P/D routers of other makes use them, in virtual time: a half of a request each."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from routing.lab.config import PdApi
from routing.lab.engine import Generation, Half, Job, Unavailable
from routing.lab.halves import KEPT_S, HalfEngine, Handoffs
from routing.lab.profile import KvSize
from tests.lab.serving import lab as served_lab
from tests.lab.small import MB, job, small_config
from tests.lab.timed import Lab, in_lab

KV = KvSize(bytes_per_token=MB, state_bytes=0)


def halves(lab: Lab, api: PdApi) -> dict[str, HalfEngine]:
    handoffs = Handoffs()
    names = [f"pd/slow-{i}" for i in range(1, 5)]
    return {name: HalfEngine(lab.engine(name), handoffs, KV, api) for name in names}


def in_room(asked: Job, room: int) -> Job:
    return replace(asked, half=Half(room=room))


def with_params(asked: Job, params: dict[str, Any]) -> Job:
    return replace(asked, half=Half(kv_transfer_params=params))


async def whole(engine: HalfEngine, asked: Job) -> tuple[Generation, int]:
    """What it answers, and how many tokens."""
    n = 0
    async with engine.generate(asked) as generation:
        async for count in generation.tokens():
            n = count
    return generation, n


def test_both_halves_meet_in_a_room(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engines, asked = halves(lab, "sglang"), in_room(job(100), 7)
        (prefilled, n_first), (decoded, n) = await asyncio.gather(
            whole(engines["pd/slow-1"], asked), whole(engines["pd/slow-3"], asked)
        )
        assert (n_first, n) == (1, 3)
        assert prefilled.headers == {"X-Lab-Prefill": "small/pd/slow-1"}
        assert decoded.headers == {"X-Lab-Decode": "small/pd/slow-3"}
        # 20 s to prefill, and half a second for each token after the first.
        assert lab.now() == pytest.approx(21.0)
        assert lab.engine("pd/slow-3").queue.running is None

    in_lab(small_config(tmp_path), story)


@pytest.mark.parametrize("name", ["pd/slow-1", "pd/slow-3"])
def test_half_of_a_request_alone_fails(tmp_path: Path, name: str) -> None:
    async def story(lab: Lab) -> None:
        with pytest.raises(Unavailable, match="room 7"):
            await whole(halves(lab, "sglang")[name], in_room(job(10), 7))
        assert lab.now() >= KEPT_S

    in_lab(small_config(tmp_path), story)


def test_an_engine_that_a_router_lists_wrongly_fails_its_requests(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engines, asked = halves(lab, "sglang"), in_room(job(10), 7)
        results = await asyncio.gather(
            whole(engines["pd/slow-3"], asked),
            whole(engines["pd/slow-4"], asked),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [Unavailable, Unavailable]

    in_lab(small_config(tmp_path), story)


def test_the_answer_of_a_prefill_says_where_its_kv_is(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        # Roles are labels here: a decode by name prefills as well.
        engines, asked = halves(lab, "nixl"), job(100)
        prefilled, n = await whole(
            engines["pd/slow-3"], with_params(asked, {"do_remote_decode": True})
        )
        assert n == 1
        assert not lab.engine("pd/slow-3").idle
        params = prefilled.extra["kv_transfer_params"]
        assert params["remote_engine_id"] == "small/pd/slow-3"
        decoded, n = await whole(engines["pd/slow-1"], with_params(asked, params))
        assert (n, decoded.headers) == (3, {"X-Lab-Decode": "small/pd/slow-1"})
        assert lab.now() == pytest.approx(21.0)
        assert lab.engine("pd/slow-3").idle
        await lab.at(60)

    in_lab(small_config(tmp_path, extra='pd_api = "nixl"'), story)


def test_kv_that_nobody_names_is_computed_again_and_freed_in_time(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engines, asked = halves(lab, "nixl"), job(100)
        await whole(engines["pd/slow-1"], with_params(asked, {"do_remote_decode": True}))
        decoded, _ = await whole(engines["pd/slow-3"], with_params(asked, {}))
        assert decoded.headers["X-Lab-Prefill"] == "small/pd/slow-3"
        await lab.at(20 + KEPT_S + 1)
        assert lab.engine("pd/slow-1").idle

    in_lab(small_config(tmp_path, extra='pd_api = "nixl"'), story)


async def test_an_engine_shows_a_router_what_it_is(tmp_path: Path) -> None:
    async with served_lab(tmp_path, extra='pd_api = "sglang"') as served:
        url = served.engines["pd/slow-3"]
        for path in ("server_info", "get_server_info"):
            status, text = await served.get(f"{url}/{path}")
            assert status == 200
            assert '"disaggregation_mode": "decode"' in text
        # A router takes one that says vLLM's version for vLLM.
        assert (await served.get(f"{url}/version"))[0] == 404
        body = {"prompt": "a b c", "max_tokens": 3, "bootstrap_room": 2**64 - 1}
        first, second = await asyncio.gather(
            served.post(f"{served.engines['pd/slow-1']}/v1/completions", body),
            served.post(f"{url}/v1/completions", body),
        )
        assert first[1]["usage"]["completion_tokens"] == 1
        assert second[1]["usage"]["completion_tokens"] == 3
