"""PostgreSQL and Valkey go away and come back under a running console."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from console.embedded import Embedded
from tests import servers
from tests.console.live_client import page
from tests.telemetry.batches import batch, instance

pytestmark = pytest.mark.fault

PREPARE = """
import django, json
django.setup()
from datetime import UTC, datetime
from django.core.management import call_command
call_command("migrate", verbosity=0, interactive=False, skip_checks=True)
from routing.models import Fleet
from telemetry import tokens
from tests.console.live_client import sign_in
Fleet.objects.create(name="f", scenario={"clusters": [], "links": []})
print(json.dumps([tokens.issue("agent", ["ingest"], "", "tests")[1], sign_in("viewer")]))
"""


@pytest.fixture
def services() -> Iterator[Embedded]:
    """PostgreSQL and Valkey of our own: those of the other tests must not be stopped."""
    folder = Path(tempfile.mkdtemp(prefix="prfaas-", dir="/tmp"))
    folder.chmod(0o755)
    made = Embedded(folder)
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def stop(services: Embedded, name: str) -> None:
    process, sig = services.processes[name]
    process.send_signal(sig)
    process.wait(20)


@pytest.mark.timeout(120)
def test_ingest_and_live_pages_survive_restarts(services: Embedded, tmp_path: Path) -> None:
    environment = services.start()
    prepared = subprocess.run(
        [sys.executable, "-c", PREPARE],
        env={**os.environ, **environment, "CONSOLE_SECRET_KEY": "k" * 50},
        cwd=servers.ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    token, session = json.loads(prepared.stdout)
    server = servers.start(
        tmp_path / "log",
        CONSOLE_SECRET_KEY="k" * 50,
        **environment,
    )

    def post(seq: int) -> servers.Answer:
        path = f"f/pd/d{seq}"
        return server.post(batch("agent", instance(path, time.time()), seq=seq), token)

    async def post_until_stored(seq: int) -> None:
        async with asyncio.timeout(30):
            while (await asyncio.to_thread(post, seq)).status != 200:
                await asyncio.sleep(0.1)

    async def run() -> None:
        async with page(server, "f", session) as mine:
            await post_until_stored(1)
            await mine.frame(lambda frame: "f/pd/d1" in frame["instances"])

            await asyncio.to_thread(stop, services, "postgres")
            refused = await asyncio.to_thread(post, 2)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) >= 1
            for _ in range(3):  # pages do not need the database
                await mine.frame()
            await asyncio.to_thread(services.restart, "postgres")
            await post_until_stored(2)

            for seq in (3, 5):
                await asyncio.to_thread(stop, services, "valkey")
                assert (await asyncio.to_thread(post, seq)).status == 200
                await mine.frame(lambda frame: frame["hub"]["redis"].startswith("away since 2"))
                await asyncio.to_thread(services.restart, "valkey")
                back = await mine.frame(lambda frame: frame["hub"] == {"redis": "ok"})
                # What was said while Redis was away is read from the database.
                assert f"f/pd/d{seq}" in back["instances"]
                await post_until_stored(seq + 1)
                await mine.frame(lambda frame, seq=seq: f"f/pd/d{seq + 1}" in frame["instances"])
            assert len(back["instances"]) == 5
            # In here: what a thread has restarted dies with that thread.
            assert await asyncio.to_thread(stored) == [(i,) for i in range(1, 7)]

    def stored() -> list[tuple[int]]:
        with psycopg.connect(environment["DATABASE_URL"]) as connection:
            return connection.execute("SELECT seq FROM telemetry_batch ORDER BY seq").fetchall()

    asyncio.run(run())
    server.stop()
