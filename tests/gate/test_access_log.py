"""The access log: what a line says, what it never says, that it is bounded and can be rotated."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from routing.gate import access_log
from routing.gate.access_log import AccessLog, Line
from routing.gate.tls import load_trust
from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running, plan, until

KEY = "sk-very-secret"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until_written(gate: RunningGate, file: Path, n: int) -> list[dict[str, Any]]:
    await until(lambda: len(lines(file)) >= n)
    return lines(file)


async def test_a_line_says_what_became_of_a_request_and_why(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    file = tmp_path / "access.jsonl"
    config = gate_config(
        local.url, {"prfaas": remote.url}, access_log={"file": str(file)}, max_body_bytes=20_000
    )
    began_s = time.time()
    async with gate_running(config) as gate:
        await gate.run_plan(plan(2, 7, threshold_tokens=1000))
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-ID": "r" * 500}
        for body in ({"prompt": [1, 2], "stream": True}, {"prompt": list(range(2000))}):
            async with gate.client.post(
                gate.url + "/v1/completions", json=body, headers=headers
            ) as response:
                await response.read()
        remote.status = 503
        await gate.complete(list(range(3000)), chat=False)
        await gate.complete("x" * 30_000)
        short, long, fallen, large = await until_written(gate, file, 4)
    assert KEY not in file.read_text()
    assert short["at_s"] >= round(began_s, 3) - 0.001
    assert short | {"at_s": 0, "queued_s": 0, "ttft_s": 0, "total_s": 0} == {
        "at_s": 0,
        "endpoint": "completions",
        "request_id": "r" * 128,
        "tenant": short["tenant"],
        "result": "ok",
        "status": 200,
        "reason": "Short",
        "side": "local",
        "upstream": "local",
        "plan": "2.7",
        "threshold_tokens": 1000,
        "override": None,
        "prompt_tokens": 2,
        "uncached_tokens": 2,
        "judged_tokens": 2,
        "length_source": "tokenised",
        "stream": True,
        "attempts": 1,
        "queued_s": 0,
        "ttft_s": 0,
        "total_s": 0,
    }
    assert 0.0 <= short["queued_s"] <= short["ttft_s"] <= short["total_s"]
    assert len(short["tenant"]) == 12
    assert long["tenant"] == short["tenant"]
    assert (long["side"], long["reason"], long["upstream"]) == ("remote", "Long", "prfaas")
    assert (fallen["side"], fallen["reason"], fallen["attempts"]) == ("local", "RemoteDown", 2)
    assert (fallen["tenant"], fallen["request_id"]) == ("none", None)
    assert (large["result"], large["status"], large["side"]) == ("invalid", 413, None)


async def test_those_that_were_turned_away_or_left_have_their_line(
    tmp_path: Path, local: Upstream
) -> None:
    local.open.clear()
    file = tmp_path / "access.jsonl"
    config = gate_config(local.url, access_log={"file": str(file)}, limits={"in_flight": 1})
    async with gate_running(config) as gate:
        leaving = asyncio.create_task(gate.complete([1]))
        await until(lambda: local.requests)
        response, _ = await gate.complete([1])
        assert response.status == 503
        leaving.cancel()
        refused, left = await until_written(gate, file, 2)
        assert (refused["result"], refused["status"]) == ("refused", 503)
        assert (left["result"], left["status"], left["side"]) == ("cancelled", None, "local")


async def test_it_is_begun_anew_by_a_reload(tmp_path: Path, local: Upstream) -> None:
    file = tmp_path / "access.jsonl"
    config = gate_config(local.url, access_log={"file": str(file)})
    async with gate_running(config) as gate:
        await gate.complete([1])
        await until_written(gate, file, 1)
        file.rename(tmp_path / "access.1")
        gate.gate.reload(config, trust=load_trust(config, tmp_path), file=tmp_path)
        await gate.complete([1, 2])
        [line] = await until_written(gate, file, 1)
        assert line["prompt_tokens"] == 2
        assert len(lines(tmp_path / "access.1")) == 1
        gate.gate.reload(gate_config(local.url), trust=load_trust(config, file), file=file)
        await gate.complete([1])
    assert len(lines(file)) == 1, "off is off"


async def test_the_last_lines_are_written_when_it_stops(tmp_path: Path, local: Upstream) -> None:
    file = tmp_path / "access.jsonl"
    async with gate_running(gate_config(local.url, access_log={"file": str(file)})) as gate:
        for _ in range(3):
            await gate.complete([1])
    assert len(lines(file)) == 3


def line() -> Line:
    return Line(
        at_s=0.0,
        endpoint="chat",
        request_id=None,
        tenant="none",
        result="ok",
        status=200,
        queued_s=0.0,
        total_s=0.0,
    )


def test_more_than_fits_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "MAX_WAITING", 3)
    log = AccessLog(tmp_path / "a")
    for _ in range(5):
        log.add(line())
    assert log.n_dropped == 2


async def test_a_file_that_cannot_be_written_costs_lines_and_no_request(
    tmp_path: Path, local: Upstream
) -> None:
    config = gate_config(local.url, access_log={"file": str(tmp_path / "none" / "a")})
    async with gate_running(config) as gate:
        response, _ = await gate.complete([1])
        assert response.status == 200
        access = gate.gate.proxy.access
        assert access is not None
        await until(lambda: access.log.n_dropped == 1)
        assert access.log.error == "access log cannot be written: No such file or directory"
        assert (await gate.metrics())["prfaas_gate_access_log_dropped_total"] == 1


async def test_a_request_id_that_is_no_text_costs_no_request_and_no_line(
    tmp_path: Path, local: Upstream
) -> None:
    file = tmp_path / "access.jsonl"
    async with gate_running(gate_config(local.url, access_log={"file": str(file)})) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.url.split(":")[-1]))
        body = b'{"prompt": [1, 2]}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n"
            b"X-Request-ID: \xff1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(local.answer)
        await until(gate.gate.proxy.idle.is_set)
        [line] = await until_written(gate, file, 1)
        assert line["request_id"] == "?1"


async def test_a_slow_disk_does_not_stop_the_loop_when_the_log_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, threads = AccessLog(tmp_path / "a"), list[int]()
    write = log._write

    def noted(lines: list[bytes]) -> None:
        threads.append(threading.get_ident())
        write(lines)

    monkeypatch.setattr(log, "_write", noted)
    task = asyncio.create_task(log.run())
    await asyncio.sleep(0)
    log.add(line())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(lines(tmp_path / "a")) == 1
    assert threads, "it was written"
    assert threading.get_ident() not in threads
