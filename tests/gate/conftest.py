"""Two upstreams, a gate between them and the client, all real, all in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.gate.peers import RunningGate, Upstream, gate_config, gate_running


@pytest.fixture
async def local() -> AsyncIterator[Upstream]:
    async with Upstream().running() as upstream:
        yield upstream


@pytest.fixture
async def remote() -> AsyncIterator[Upstream]:
    async with Upstream().running() as upstream:
        yield upstream


@pytest.fixture
async def gate(local: Upstream, remote: Upstream) -> AsyncIterator[RunningGate]:
    async with gate_running(gate_config(local.url, {"prfaas": remote.url})) as running:
        yield running
