"""Every request is real HTTP: the small fleet with milliseconds for seconds, over loopback."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from aiohttp import web

from routing.lab.engine import Generation, Job
from routing.lab.errors import LabError
from routing.lab.openai import add_openai_routes
from routing.lab.serve import open_port
from tests.lab.serving import lab
from tests.lab.small import MB

CAPTURE = Path(__file__).parents[2] / "../shared/data/captures/vllm/metrics_pd_9602_after.txt"


async def test_both_upstreams_answer_and_only_one_uses_the_link(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        for url, side, first, kv_bytes in (
            (served.local, "local", 0, 0),
            (served.far, "remote", 1000, 70 * MB),
        ):
            answer, headers = await served.complete(url, list(range(first, first + 50)))
            assert answer["object"] == "text_completion"
            assert answer["choices"][0]["text"].split() == ["tok"] * 3
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"] == {
                "prompt_tokens": 50,
                "completion_tokens": 3,
                "total_tokens": 53,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
            assert headers["X-Lab-Side"] == side
            parts = ("Move", "Queue", "Prefill", "Transfer", "Decode-Wait")
            stages = [float(headers[f"X-Lab-Stage-{part}"]) for part in parts]
            assert float(headers["X-Lab-Stage-Ttft"]) == pytest.approx(sum(stages), abs=1e-5)
            _, links = await served.get(f"{served.admin}/links")
            assert json.loads(links)["far->pd"]["tx_bytes_total"] == kv_bytes


async def test_a_stream_has_a_first_token_the_rest_usage_and_done(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        body = {
            "prompt": "one two three",
            "max_tokens": 6,
            "stream": True,
            "stream_options": {"include_usage": True},
            "model": "any",
        }
        async with served.session.post(f"{served.far}/v1/completions", json=body) as response:
            assert response.content_type == "text/event-stream"
            text = await response.text()
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["prompt_tokens"] == 3
        texts = [chunk["choices"][0]["text"] for chunk in chunks[:-1]]
        assert texts[0].split() == ["tok"]
        assert "".join(texts).split() == ["tok"] * 6
        finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
        assert finishes == [None] * (len(texts) - 1) + ["length"]
        assert {chunk["model"] for chunk in chunks} == {"any"}


async def test_chat_counts_the_words_of_all_messages(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        parts = [{"type": "text", "text": "three four"}]
        messages = [{"role": "system", "content": "one two"}, {"role": "user", "content": parts}]
        status, answer, _ = await served.post(
            f"{served.local}/v1/chat/completions", {"messages": messages, "max_tokens": 2}
        )
        assert status == 200
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "tok tok "}
        assert answer["usage"]["prompt_tokens"] == 4


async def test_a_second_turn_hits_the_cache_of_its_side_only(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        cached = []
        for url, n in ((served.far, 40), (served.far, 60), (served.local, 60), (served.local, 80)):
            answer, _ = await served.complete(url, list(range(n)))
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 40, 0, 60]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"max_tokens": 3}, None),
        ("completions", {"prompt": [1, -1]}, "prompt[1]"),
        ("completions", {"prompt": [1, 2.5]}, "prompt[1]"),
        ("completions", {"prompt": ""}, "prompt"),
        ("completions", {"prompt": [1], "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": [1], "max_tokens": 10**7}, "max_tokens"),
        ("completions", {"prompt": [1], "n": 2}, "n"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": " "}]}, "messages"),
    ],
)
async def test_a_bad_request_names_the_field(
    tmp_path: Path, path: str, body: Any, param: str | None
) -> None:
    async with lab(tmp_path) as served:
        status, answer, _ = await served.post(f"{served.local}/v1/{path}", body)
        assert status == 400
        assert answer["error"]["param"] == param
        assert answer["error"]["message"]


async def test_not_json_is_a_bad_request(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        url = f"{served.local}/v1/completions"
        async with served.session.post(url, data=b"{prompt") as response:
            assert response.status == 400
            assert "JSON" in (await response.json())["error"]["message"]


async def test_health_models_and_version(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        for url in (served.local, served.far, served.engines["pd/slow-1"]):
            assert (await served.get(f"{url}/health"))[0] == 200
            assert json.loads((await served.get(f"{url}/v1/models"))[1])["data"][0]["id"] == "small"
            assert json.loads((await served.get(f"{url}/version"))[1]) == {"version": "0.32.0"}


async def test_a_dead_link_makes_the_remote_side_unhealthy_and_the_local_not(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as served:
        link = f"{served.admin}/links/{quote('far->pd', safe='')}"
        async with served.session.put(link, json={"gbps": 0}) as response:
            assert (response.status, (await response.json())["capacity_gbps"]) == (200, 0.0)
        assert await served.get(f"{served.far}/health") == (503, "link far->pd is down")
        assert (await served.get(f"{served.local}/health"))[0] == 200
        status, answer, _ = await served.post(f"{served.far}/v1/completions", {"prompt": [1]})
        assert (status, answer["error"]["message"]) == (503, "link far->pd is down")


@pytest.mark.parametrize(
    ("id", "body", "status"),
    [
        ("far->pd", {"gbps": 5.8}, 200),
        ("far->pd", {"gbps": -1}, 422),
        ("far->pd", {"gbps": None}, 422),
        ("far->pd", {}, 422),
        ("far->pd", {"gbps": 1, "rtt": 3}, 422),
        ("pd->far", {"gbps": 1}, 404),
    ],
)
async def test_capacity_is_set_through_the_admin_port(
    tmp_path: Path, id: str, body: Any, status: int
) -> None:
    async with lab(tmp_path) as served:
        url = f"{served.admin}/links/{quote(id, safe='')}"
        async with served.session.put(url, json=body) as response:
            assert response.status == status
            assert status == 200 or (await response.json())["error"]["message"]


async def test_admin_lists_engines_links_and_truth(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        await served.complete(served.far, list(range(50)))
        engines = json.loads((await served.get(f"{served.admin}/engines"))[1])
        assert [(e["id"], e["role"]) for e in engines] == [
            ("small/pd/slow-1", "prefill"),
            ("small/pd/slow-2", "prefill"),
            ("small/pd/slow-3", "decode"),
            ("small/pd/slow-4", "decode"),
            ("small/far/fast-1", "prefill"),
            ("small/far/fast-2", "prefill"),
        ]
        (link,) = json.loads((await served.get(f"{served.admin}/links"))[1]).values()
        assert set(link) == {
            "at_s",
            "tx_bytes_total",
            "rx_bytes_total",
            "segments_sent_total",
            "segments_retransmitted_total",
            "rtt_s",
            "connections",
            "capacity_gbps",
        }
        truth = json.loads((await served.get(f"{served.admin}/truth?records=1"))[1])
        assert truth["kv_shipped_bytes_total"] == link["tx_bytes_total"] == 70 * MB
        assert truth["records"][0]["kv_bytes"] == 70 * MB
        assert (await served.get(f"{served.admin}/truth?records=x"))[0] == 422


async def test_a_busy_engine_refuses_another_role_and_an_idle_one_reports_it(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, slow_prefill_s=30.0) as served:
        url = served.engines["pd/slow-1"]
        switch = f"{url}/pd_role_switch"
        body = {"prompt": list(range(100)), "max_tokens": 1}
        call = asyncio.create_task(served.post(f"{url}/v1/completions", body))
        while served.fleet.engines["small/pd/slow-1"].idle:
            await asyncio.sleep(0.005)
        status, answer, _ = await served.post(switch, {"new_role": "decode"})
        assert (status, answer["success"], answer["new_role"]) == (409, False, "prefill")
        assert "idle" in answer["message"]
        call.cancel()
        await asyncio.wait([call])
        await served.settled()
        status, answer, _ = await served.post(switch, {"new_role": "decode"})
        assert (status, answer["old_role"], answer["new_role"]) == (200, "prefill", "decode")
        engines = json.loads((await served.get(f"{served.admin}/engines"))[1])
        assert engines[0]["role"] == "decode"


@pytest.mark.parametrize("body", [{"new_role": "both"}, {"role": "decode"}, {"new_role": 1}])
async def test_a_role_that_is_none_is_refused(tmp_path: Path, body: Any) -> None:
    async with lab(tmp_path) as served:
        url = f"{served.engines['pd/slow-1']}/pd_role_switch"
        assert (await served.post(url, body))[0] == 400


@pytest.mark.parametrize(
    ("slow", "phase"),
    [
        pytest.param({"prefill_s": 60.0}, "prefill", id="in prefill"),
        pytest.param({"gbps": 0.0001}, "kv", id="KV on the link"),
        pytest.param({"step_s": 10.0}, "decode", id="decoding"),
    ],
)
async def test_a_closed_connection_frees_slots_and_stops_the_transfer(
    tmp_path: Path, slow: dict[str, float], phase: str
) -> None:
    async with lab(tmp_path, **slow) as served:
        far, decoder = (served.fleet.engines[f"small/{n}"] for n in ("far/fast-1", "pd/slow-3"))
        reached = {
            "prefill": lambda: far.queue.running is not None,
            "kv": lambda: decoder.slots.n_waiting_kv == 1,
            "decode": lambda: decoder.slots.n_running == 1,
        }[phase]
        body = {"prompt": list(range(50)), "max_tokens": 50, "stream": True}
        session = aiohttp.ClientSession()
        call = asyncio.create_task(_read(session, f"{served.far}/v1/completions", body))
        while not reached():
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.wait([call])
        await session.close()
        await served.settled()
        while not (truth := served.fleet.truth.document(1))["records"]:
            await asyncio.sleep(0.005)
        assert truth["records"][0]["state"] == "cancelled"
        assert truth["sides"]["remote"]["in_flight"] == 0
        link = served.fleet.links["far->pd"].read()
        assert link.connections == 0
        assert link.tx_bytes_total == truth["kv_shipped_bytes_total"]


async def _read(session: aiohttp.ClientSession, url: str, body: Any) -> None:
    async with session.post(url, json=body) as response:
        await response.read()


FAMILIES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens_total": "counter",
    "vllm:prompt_tokens_by_source_total": "counter",
    "vllm:generation_tokens_total": "counter",
    "vllm:prefix_cache_queries_total": "counter",
    "vllm:prefix_cache_hits_total": "counter",
    "vllm:num_preemptions_total": "counter",
    "vllm:request_success_total": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:nixl_bytes_transferred": "histogram",
    "vllm:nixl_xfer_time_seconds": "histogram",
    "vllm:nixl_num_failed_transfers_total": "counter",
    "vllm:cache_config_info": "gauge",
    "process_start_time_seconds": "gauge",
}


def _types(text: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


async def test_metrics_have_the_names_of_vllm(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        await served.complete(served.far, list(range(50)), max_tokens=4)
        await served.settled()
        status, text = await served.get(f"{served.engines['pd/slow-3']}/metrics")
        assert status == 200
        assert FAMILIES.items() <= _types(text).items()
        labels = '{engine="0",model_name="small"}'
        for line in (
            f"vllm:prompt_tokens_total{labels} 50.0",
            f"vllm:generation_tokens_total{labels} 4.0",
            f"vllm:nixl_bytes_transferred_sum{labels} 70000000.0",
            f"vllm:inter_token_latency_seconds_count{labels} 3.0",
            f"vllm:request_generation_tokens_count{labels} 1.0",
        ):
            assert line in text.splitlines()


async def test_every_family_of_the_lab_exists_in_a_real_engine(tmp_path: Path) -> None:
    if not CAPTURE.exists():
        pytest.skip("no captured metrics of a real vLLM beside the repository")
    async with lab(tmp_path) as served:
        _, text = await served.get(f"{served.engines['pd/slow-3']}/metrics")
        real = _types(CAPTURE.read_text())
        assert _types(text).items() <= real.items()


async def test_histograms_are_cumulative_and_end_with_their_count(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        await served.complete(served.local, list(range(50)))
        _, text = await served.get(f"{served.engines['pd/slow-1']}/metrics")
        name = "vllm:request_prompt_tokens"
        counts = [float(v) for v in re.findall(rf"^{name}_bucket\S+ (\S+)$", text, re.MULTILINE)]
        assert counts == sorted(counts)
        (count,) = re.findall(rf"^{name}_count\S+ (\S+)$", text, re.MULTILINE)
        assert counts[-1] == float(count) == 1.0


async def test_a_taken_port_is_a_clear_error() -> None:
    async with AsyncExitStack() as closing:
        url = await open_port(web.Application(), "127.0.0.1", 0, closing)
        port = int(url.rpartition(":")[2])
        with pytest.raises(LabError, match=str(port)):
            await open_port(web.Application(), "127.0.0.1", port, closing)


async def test_a_client_that_leaves_between_two_chunks_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its connection is closing, and whoever writes the next chunk has not yet heard of it."""
    transports: list[asyncio.Transport] = []
    ends: list[BaseException | None] = []

    async def tokens() -> AsyncGenerator[int, None]:
        yield 1
        transports[0].close()
        yield 2

    class Leaving:
        @asynccontextmanager
        async def generate(self, job: Job) -> AsyncIterator[Generation]:
            try:
                yield Generation(cached_tokens=0, stages_s={}, tokens=tokens, headers={})
            except BaseException as exc:
                ends.append(exc)
                raise
            ends.append(None)

    @web.middleware
    async def seen(request: web.Request, handler: Any) -> web.StreamResponse:
        assert request.transport is not None
        transports.append(request.transport)
        response: web.StreamResponse = await handler(request)
        return response

    app = web.Application(middlewares=[seen])
    add_openai_routes(app, Leaving(), model_name="m", block_tokens=4, trouble=lambda: None)
    async with AsyncExitStack() as closing, aiohttp.ClientSession() as session:
        url = await open_port(app, "127.0.0.1", 0, closing)
        body = {"prompt": [1, 2, 3], "max_tokens": 9, "stream": True}
        with pytest.raises(aiohttp.ClientPayloadError):
            async with session.post(f"{url}/v1/completions", json=body) as response:
                await response.read()
    assert [type(end) for end in ends] == [aiohttp.ClientConnectionResetError]
    assert [line for line in caplog.messages if "rror" in line] == []
