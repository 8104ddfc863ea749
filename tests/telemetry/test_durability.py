"""An acknowledged batch is a committed row, whatever is killed; two processes agree."""

from __future__ import annotations

import asyncio
import http.client
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from telemetry.ingest import database_connect
from tests import servers
from tests.servers import Server
from tests.telemetry.batches import batch, instance, unique
from tests.telemetry.rows import n_samples, sql

pytestmark = pytest.mark.fault


def test_killing_the_server_right_after_acks_loses_nothing(token: str, tmp_path: Path) -> None:
    server = servers.start(tmp_path / "log")
    agents = [unique("agent") for _ in range(4)]
    acked: dict[str, list[int]] = {agent: [] for agent in agents}
    enough = threading.Event()

    def send(agent: str) -> None:
        seq = 0
        while True:
            seq += 1
            try:
                answer = server.post(
                    batch(agent, instance(f"f/pd/{agent}", time.time()), seq=seq), token
                )
            except (OSError, http.client.HTTPException):
                return
            assert answer.body == {"acked_seq": seq}
            acked[agent].append(seq)
            if sum(map(len, acked.values())) > 40:
                enough.set()

    threads = [threading.Thread(target=send, args=(agent,)) for agent in agents]
    for thread in threads:
        thread.start()
    assert enough.wait(30)
    server.kill()
    for thread in threads:
        thread.join()
    for agent in agents:
        stored = {seq for (seq,) in sql("SELECT seq FROM telemetry_batch WHERE agent = %s", agent)}
        assert stored >= set(acked[agent])
        assert n_samples("instance", f"f/pd/{agent}") == len(stored)


def test_two_processes_take_the_same_batches_once(
    server: Server, token: str, tmp_path: Path
) -> None:
    """S-16, with the retries going to another process."""
    second = servers.start(tmp_path / "log")
    agent, path = unique("agent"), unique("f/pd/d")
    sent = [batch(agent, instance(path, time.time()), seq=seq) for seq in range(20)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda job: job[0].post(job[1], token),
                [(s, b) for b in sent for s in (server, second)],
            )
        )
    newer = second.post(batch(agent, instance(path, time.time()), boot=2), token)
    older = server.post(batch(agent, instance(path, time.time()), seq=99), token)
    second.stop()
    assert {answer.status for answer in answers} == {200}
    assert (newer.status, older.status) == (200, 409)
    assert n_samples("instance", path) == 21


def test_a_full_queue_is_503_with_retry_after(token: str, tmp_path: Path) -> None:
    server = servers.start(tmp_path / "log", CONSOLE_INGEST_QUEUE="1")
    path = unique("f/pd/d")

    async def run() -> list[servers.Answer]:
        async with await database_connect() as other, other.transaction():
            await other.execute("LOCK TABLE telemetry_batch IN ACCESS EXCLUSIVE MODE")
            first = asyncio.create_task(asyncio.to_thread(post, 1))
            await asyncio.sleep(0.5)
            second = await asyncio.to_thread(post, 2)
        return [await first, second, await asyncio.to_thread(post, 2)]

    def post(seq: int) -> servers.Answer:
        return server.post(batch(path, instance(path, time.time()), seq=seq), token)

    # The token is checked first, and remembered: the lock must find it so.
    assert server.post(b"", token).status == 422
    first, second, again = asyncio.run(run())
    server.stop()
    assert (first.status, second.status, again.status) == (200, 503, 200)
    assert int(second.headers["retry-after"]) >= 1
    assert n_samples("instance", path) == 2


def test_a_clean_stop_answers_what_was_taken(token: str, tmp_path: Path) -> None:
    server = servers.start(tmp_path / "log")
    path = unique("f/pd/d")
    sent = batch(path, instance(path, time.time()))

    async def run() -> servers.Answer:
        async with await database_connect() as other, other.transaction():
            await other.execute("LOCK TABLE telemetry_batch IN ACCESS EXCLUSIVE MODE")
            answer = asyncio.create_task(asyncio.to_thread(server.post, sent, token))
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
        return await answer

    answer = asyncio.run(run())
    server.process.wait(20)
    assert (answer.status, answer.body) == (200, {"acked_seq": 1})
    assert n_samples("instance", path) == 1
    assert "Traceback" not in server.log.read_text()
