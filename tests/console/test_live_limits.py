"""Many sockets: they hold no database connections, and there is a limit to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from routing.models import Fleet
from telemetry import partitions, tokens
from tests import servers
from tests.console.live_client import handshake, headers, page, sign_in
from tests.telemetry.batches import batch, instance, unique
from tests.telemetry.rows import sql

pytestmark = pytest.mark.usefixtures("transactional_db")

N_SOCKETS = 300
N_CONNECTIONS = 6


@pytest.fixture
def fleet(transactional_db: None) -> str:
    return Fleet.objects.create(name=unique("f"), scenario={"clusters": [], "links": []}).pk


@pytest.fixture
def poor_user(transactional_db: None) -> Iterator[str]:
    """A database user who may open six connections in all."""
    [(owner,)] = sql("SELECT current_user")
    sql(f"CREATE ROLE poor LOGIN PASSWORD 'poor' CONNECTION LIMIT {N_CONNECTIONS}")
    sql(f'GRANT "{owner}" TO poor')
    yield "poor"
    sql("DROP ROLE poor")


def test_many_sockets_and_few_connections_leave_rest_answering(
    fleet: str, poor_user: str, tmp_path: Path
) -> None:
    """S-50."""
    partitions.ensure(datetime.now(UTC))
    session = sign_in("viewer")
    reader = tokens.issue("reader", ["read"], "", "tests")[1]
    agent = tokens.issue("agent", ["ingest"], "", "tests")[1]
    url = servers.database_url(user=poor_user, password="poor")
    server = servers.start(tmp_path / "log", DATABASE_URL=url)

    def ask(path: str) -> int:
        return server.request("GET", path, headers={"Authorization": f"Bearer {reader}"}).status

    async def run() -> list[int]:
        async with AsyncExitStack() as open_pages:
            pages = []
            for _ in range(N_SOCKETS):
                pages.append(await open_pages.enter_async_context(page(server, fleet, session)))
            await asyncio.gather(*(one.frame() for one in pages))
            sent = batch(unique("agent"), instance(f"{fleet}/pd/d", datetime.now().timestamp()))
            answers = [(await asyncio.to_thread(server.post, sent, agent)).status]
            paths = [f"/api/v1/fleets/{fleet}", "/api/v1/fleets", "/metrics"] * 5
            answers += await asyncio.gather(*(asyncio.to_thread(ask, path) for path in paths))
            frames = await asyncio.gather(*(one.frame(lambda f: f["instances"]) for one in pages))
            assert len(frames) == N_SOCKETS
            return answers

    statuses = asyncio.run(run())
    [(n_used,)] = sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'poor'")
    server.stop()
    assert set(statuses) == {200}
    assert n_used <= N_CONNECTIONS


def test_sockets_beyond_the_limit_are_turned_away(fleet: str, tmp_path: Path) -> None:
    session = sign_in("viewer")
    server = servers.start(tmp_path / "log", CONSOLE_MAX_SOCKETS="2")
    lines = [("Host", server.host), *headers(server, session).items()]

    async def run() -> tuple[int, int]:
        target = f"/ws/live?fleet={fleet}"
        async with page(server, fleet, session) as one, page(server, fleet, session) as two:
            await one.frame()
            await two.frame()
            while_full = await handshake(server, target, lines)
            await two.socket.close()
            later = 503
            while later == 503:
                await asyncio.sleep(0.05)
                later = await handshake(server, target, lines)
        return while_full, later

    assert asyncio.run(run()) == (503, 101)
    server.stop()
