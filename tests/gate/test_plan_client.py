"""How plans reach the gate and acks reach the console: socket, GET, disk, and nobody there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routing.gate.plan import Ack
from routing.gate.plan_client import ack_headers
from tests.gate.peers import (
    Console,
    RunningGate,
    Upstream,
    gate_config,
    gate_running,
    plan,
    token_file,
    until,
)


@pytest.fixture
async def console() -> AsyncIterator[Console]:
    async with Console(plan(1, 5)).running() as running:
        yield running


def config(local: Upstream, console_url: str, tmp_path: Path, **settings: Any) -> Any:
    return gate_config(
        local.url,
        {"prfaas": "http://127.0.0.1:9"},
        console_url=console_url,
        token_file=token_file(tmp_path),
        health_interval_s=600.0,
        **settings,
    )


def runs(gate: RunningGate) -> str | None:
    running = gate.gate.board.state.running
    return running.name if running else None


def acked(console: Console, words: str) -> bool:
    return words in (console.last_ack.get("error") or "")


async def test_a_plan_comes_over_the_socket_and_what_runs_is_acked(
    console: Console, local: Upstream, tmp_path: Path
) -> None:
    # The time limit is for the handshake, not for the life of the socket.
    settings = config(local, console.url, tmp_path, console_timeout_s=0.2)
    async with gate_running(settings) as gate:
        await until(lambda: console.last_ack.get("version_running") == 5)
        assert console.acks[0] == {
            "router": "F/pd/g1",
            "epoch": None,
            "version_running": None,
            "state": "no_plan",
            "error": None,
        }
        await console.push(plan(1, 6))
        await until(lambda: console.last_ack.get("version_running") == 6)
        assert console.last_ack["state"] == "running"
        n_acks = len(console.acks)
        await until(lambda: len(console.acks) > n_acks + 6)  # heartbeats without any change
        assert console.n_handshakes == 1
        metrics = await gate.metrics()
        assert metrics["prfaas_gate_plan_epoch"] == 1
        assert metrics["prfaas_gate_plan_version"] == 6
        health = await gate.health()
        assert health["console"] == {"contact": "socket", "error": None}
        assert health["plan"] == {
            "epoch": 1,
            "version": 6,
            "mode": "threshold",
            "threshold_tokens": 1000,
            "band": None,
            "cache_mode": "scarce",
            "origin": "console",
        }


async def test_older_and_broken_plans_are_refused_aloud_and_the_last_good_one_runs(
    console: Console, local: Upstream, tmp_path: Path
) -> None:
    async with gate_running(config(local, console.url, tmp_path)) as gate:
        await until(lambda: runs(gate) == "1.5")
        for document, words in (
            (plan(1, 4), "refused plan 1.4: older than 1.5, which runs"),
            (plan(1, 9, threshold_tokens=-3), "clusters.pd.threshold_tokens = -3"),
            (plan(1, 9, cluster="other"), "says nothing of this gate's cluster 'pd'"),
        ):
            await console.push(document)
            await until(partial(acked, console, words))
            assert console.last_ack["state"] == "refused"
            assert (console.last_ack["epoch"], console.last_ack["version_running"]) == (1, 5)
            assert runs(gate) == "1.5"
        await console.push(plan(2, 1))
        await until(lambda: console.last_ack.get("epoch") == 2)
        assert console.last_ack["state"] == "running"


async def test_other_messages_on_the_socket_are_not_plans(
    console: Console, local: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gate_running(config(local, console.url, tmp_path)) as gate:
        await until(lambda: runs(gate) == "1.5")
        await console.push({"type": "ping"})
        await console.push({"type": "error", "error": "an ack was not understood"})
        await console.push(plan(1, 6))
        await until(lambda: runs(gate) == "1.6")
        assert all(ack["state"] != "refused" for ack in console.acks)
        assert "an ack was not understood" in caplog.text


async def test_a_console_that_takes_connections_and_says_nothing(
    local: Upstream, tmp_path: Path
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = "http://127.0.0.1:{1}".format(*server.sockets[0].getsockname())
        settings = config(local, url, tmp_path, console_timeout_s=0.1)
        async with gate_running(settings) as gate:
            await until(lambda: gate.gate.client.error)
            assert gate.gate.client.contact == "away"
            response, _ = await gate.complete([1])
            assert response.status == 200


async def test_without_a_socket_it_polls_conditionally_and_the_ack_rides_along(
    console: Console, local: Upstream, tmp_path: Path
) -> None:
    console.socket_allowed = False
    async with gate_running(config(local, console.url, tmp_path)) as gate:
        await until(lambda: [status for _, status in console.gets][:2] == [200, 304])
        first, second = (headers for headers, _ in console.gets[:2])
        assert first["X-State"] == "no_plan"
        assert "If-None-Match" not in first
        assert "X-Version-Running" not in first
        assert second["If-None-Match"] == '"1.5"'
        assert second["X-Version-Running"] == "1.5"
        assert (second["X-Router"], second["X-State"]) == ("F/pd/g1", "running")
        assert gate.gate.client.contact == "polling"
        console.document = plan(1, 4)
        await until(lambda: console.gets[-1][0].get("X-State") == "refused")
        assert console.gets[-1][0]["X-Error"].startswith("refused plan 1.4")
        console.document = plan(1, 7)
        await until(lambda: runs(gate) == "1.7")
        console.socket_allowed = True
        await until(lambda: gate.gate.client.contact == "socket")
        await until(lambda: console.last_ack.get("version_running") == 7)


async def test_a_fleet_without_a_plan_is_contact_all_the_same(
    console: Console, local: Upstream, tmp_path: Path
) -> None:
    console.socket_allowed, console.document = False, None
    async with gate_running(config(local, console.url, tmp_path)) as gate:
        await until(lambda: gate.gate.client.contact == "polling")
        assert gate.gate.ack().state == "no_plan"


async def test_a_refused_token_is_told_in_plain_words(
    console: Console, local: Upstream, tmp_path: Path
) -> None:
    settings = config(local, console.url, tmp_path)
    async with gate_running(settings) as gate:
        await until(lambda: gate.gate.client.contact == "socket")
        Path(settings.token_file).write_text("revoked")
        for socket in list(console.sockets):
            await socket.close()
        await until(lambda: "403" in (gate.gate.client.error or ""))
        assert gate.gate.client.contact == "away"
        assert runs(gate) == "1.5"
        token_file(tmp_path)  # a new token in the file is picked up without a restart
        await until(lambda: gate.gate.client.contact == "socket")


@pytest.mark.parametrize("token", [b"\xff\xfe", b"two\nlines"])
async def test_a_token_file_that_cannot_be_sent_is_read_again(
    console: Console, local: Upstream, tmp_path: Path, token: bytes
) -> None:
    settings = config(local, console.url, tmp_path)
    Path(settings.token_file).write_bytes(token)
    async with gate_running(settings) as gate:
        await until(lambda: gate.gate.client.error)
        token_file(tmp_path)
        await until(lambda: gate.gate.client.contact in ("socket", "polling"))


async def test_a_gate_goes_on_with_its_plan_while_the_console_is_gone(
    local: Upstream, remote: Upstream, tmp_path: Path
) -> None:
    async with Console(plan(1, 5)).running() as console:
        port = console.port
        settings = gate_config(
            local.url,
            {"prfaas": remote.url},
            console_url=console.url,
            token_file=token_file(tmp_path),
            plan_file=str(tmp_path / "plan.json"),
        )
        running = gate_running(settings)
        gate = await running.__aenter__()
        await until(lambda: runs(gate) == "1.5")
    try:
        await until(lambda: gate.gate.client.contact == "away")
        response, _ = await gate.complete(list(range(1001)))
        assert response.headers["X-PrfaaS-Side"] == "remote"
        assert response.headers["X-PrfaaS-Plan"] == "1.5"
        assert gate.gate.ack().state == "running"
    finally:
        await running.__aexit__(None, None, None)
    # Restarted while the console still is away: the plan on disk runs.
    async with gate_running(settings) as gate:
        response, _ = await gate.complete(list(range(1001)))
        assert response.headers["X-PrfaaS-Side"] == "remote"
        assert response.headers["X-PrfaaS-Plan"] == "1.5"
        health = await gate.health()
        assert health["plan"]["origin"] == "file"
        assert health["console"]["contact"] == "away"
        # And when it is back, everything is told and heard again.
        async with Console(plan(1, 6)).running(port=port) as console:
            await until(lambda: console.last_ack.get("version_running") == 6)


async def test_a_plan_on_disk_is_checked_like_any_other(local: Upstream, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for content in (b"", b"{", b'{"fleet": "G"}'):
        file.write_bytes(content)
        async with gate_running(gate_config(local.url, plan_file=str(file))) as gate:
            assert runs(gate) is None
            assert gate.gate.ack().state == "refused"
            response, _ = await gate.complete([1])
            assert response.headers["X-PrfaaS-Reason"] == "NoPlan"


async def test_a_plan_that_cannot_be_written_down_runs_and_says_so(
    local: Upstream, tmp_path: Path
) -> None:
    settings = gate_config(local.url, plan_file=str(tmp_path / "no" / "plan.json"))
    async with gate_running(settings) as gate:
        await gate.run_plan(plan(1, 5, remote={}))
        assert runs(gate) == "1.5"
        ack = gate.gate.ack()
        assert (ack.state, ack.error) == (
            "running",
            "plan file cannot be written: No such file or directory",
        )


def test_acks_in_headers_are_one_line_of_ascii() -> None:
    ack = Ack("F/pd/g1", 2, 9, "refused", "no\r\nX-Evil: é" + "x" * 1000)
    headers = ack_headers(ack)
    assert headers["X-Error"].startswith("no X-Evil: ?xxx")
    assert len(headers["X-Error"]) == 500
