"""What emulated engines publish of their prefix caches, read from the wire as a subscriber does."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from routing.lab import kv_events
from routing.lab.errors import LabError
from routing.lab.fleet import build
from routing.lab.prompt import of_ids
from routing.lab.serve import start
from tests.lab.serving import Served, lab
from tests.lab.small import BLOCK_TOKENS, small_config

ENGINE = "pd/slow-1"


class Subscriber:
    """Of one engine. Takes messages in order and holds them to the frame's form."""

    def __init__(self, stack: Served, sub: zmq.asyncio.Socket, url: str) -> None:
        self.stack, self.url, self._sub, self._seq = stack, url, sub, 0

    async def connected(self) -> None:
        """Until the subscription has arrived the engine talks to nobody."""
        first = 100_000
        while not await self._sub.poll(20):
            first += 10
            await self.prefill(list(range(first, first + BLOCK_TOKENS)))
        while await self._sub.poll(20):
            self._seq = int.from_bytes((await self._sub.recv_multipart())[1], "big") + 1

    async def events(self) -> list[dict[str, Any]]:
        topic, number, payload = await self._sub.recv_multipart()
        assert (topic, number) == (b"", self._seq.to_bytes(8, "big"))
        self._seq += 1
        ts, events, rank = msgspec.msgpack.decode(payload)
        assert (isinstance(ts, float), rank) == (True, 0)
        return events  # type: ignore[no-any-return]

    async def prefill(self, prompt: Any) -> None:
        await self.stack.complete(self.url, prompt, 1)


@asynccontextmanager
async def subscribed(folder: Path, extra: str = "") -> AsyncIterator[Subscriber]:
    context = zmq.asyncio.Context()
    try:
        async with lab(folder, extra=f"kv_events = true\n{extra}") as stack:
            sub = context.socket(zmq.SUB)
            sub.subscribe(b"")
            endpoints = {e["id"]: e["kv_events"] for e in stack.ready["engines"]}
            sub.connect(endpoints[f"small/{ENGINE}"])
            subscriber = Subscriber(stack, sub, stack.engines[ENGINE])
            await subscriber.connected()
            yield subscriber
    finally:
        context.destroy(linger=0)


def blocks(n_tokens: int, first: int = 0) -> tuple[bytes, ...]:
    return of_ids(range(first, first + n_tokens), block_tokens=BLOCK_TOKENS).blocks


async def test_new_blocks_are_told_once_and_as_what_they_continue(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as engine:
        await engine.prefill(list(range(10)))
        held = blocks(22)
        want = {
            "type": "BlockStored",
            "block_hashes": list(held[:2]),
            "parent_block_hash": None,
            "token_ids": list(range(8)),
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
        assert await engine.events() == [want]
        await engine.prefill(list(range(10)))
        await engine.prefill("words have no ids " * 20)
        await engine.prefill(list(range(22)))
        [continued] = await engine.events()
        assert continued == want | {
            "block_hashes": list(held[2:]),
            "parent_block_hash": held[1],
            "token_ids": list(range(8, 20)),
            "extra_keys": [None] * 3,
        }


async def test_what_leaves_is_told_after_what_took_its_place(tmp_path: Path) -> None:
    """Room for 10 blocks."""
    async with subscribed(tmp_path, "cache_capacity_tokens = 40") as engine:
        await engine.prefill(list(range(500, 540)))
        await engine.events()
        await engine.prefill("twelve words of text take the room of three blocks of ids here")
        [removed] = await engine.events()
        assert removed == {
            "type": "BlockRemoved",
            "block_hashes": list(blocks(40, 500)[:-4:-1]),
            "medium": "GPU",
            "group_idx": 0,
        }
        await engine.prefill(list(range(40)))
        stored, removed = await engine.events()
        assert stored["block_hashes"] == list(blocks(40))
        assert removed["block_hashes"] == list(blocks(40, 500)[6::-1]), "none of the text's"


async def test_a_switched_engine_has_cleared_all(tmp_path: Path) -> None:
    async with subscribed(tmp_path) as engine:
        for role in ("prefill", "decode"):
            status, _, _ = await engine.stack.post(
                engine.url + "/pd_role_switch", {"new_role": role}
            )
            assert status == 200
        assert await engine.events() == [{"type": "AllBlocksCleared"}], "once, at the change"


async def test_a_kept_state_is_a_block_of_a_group_of_its_own(tmp_path: Path) -> None:
    """Room for 10 blocks."""
    extra = 'linear_state = "exact"\ncache_capacity_tokens = 40'
    async with subscribed(tmp_path, extra) as engine:
        await engine.prefill(list(range(42)))
        await engine.events()
        await engine.prefill(list(range(22)))
        [state] = await engine.events()
        held = blocks(42)
        assert {k: state[k] for k in ("type", "block_hashes", "parent_block_hash")} == {
            "type": "BlockStored",
            "block_hashes": [held[4]],
            "parent_block_hash": held[3],
        }
        assert (state["group_idx"], state["kv_cache_spec_kind"]) == (1, "mamba")
        await engine.prefill(list(range(500, 508)))
        *_, state, block = await engine.events()
        assert (state["group_idx"], state["block_hashes"]) == (1, [held[9]])
        assert (block["group_idx"], block["block_hashes"]) == (0, [held[9], held[8]])


async def test_engines_with_one_cache_all_tell_of_it(tmp_path: Path) -> None:
    async with subscribed(tmp_path, 'cache_scope = "cluster"') as engine:
        await engine.stack.complete(engine.stack.engines["pd/slow-2"], list(range(10)))
        [stored] = await engine.events()
        assert stored["block_hashes"] == list(blocks(8))


async def test_where_is_told_and_only_when_on(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    extra = f'kv_events = true\n[ports.kv_events]\n"small/{ENGINE}" = {port}'
    async with lab(tmp_path, extra=extra) as stack:
        listed = {e["id"].removeprefix("small/"): e["kv_events"] for e in stack.ready["engines"]}
        assert listed[ENGINE] == f"tcp://127.0.0.1:{port}"
        assert len(set(listed.values())) == len(listed) == 6
        _, text = await stack.get(f"{stack.admin}/engines")
        assert msgspec.json.decode(text) == stack.ready["engines"]
        config = small_config(tmp_path, extra=extra)
        async with AsyncExitStack() as closing:
            with pytest.raises(LabError, match=rf"cannot listen: .*{port}"):
                await start(build(config), config, closing)
    async with lab(tmp_path) as stack:
        assert all("kv_events" not in engine for engine in stack.ready["engines"])


async def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "zmq", None)
    config = small_config(tmp_path, extra="kv_events = true")
    async with AsyncExitStack() as closing:
        with pytest.raises(LabError, match=r"kv_events: .*install prfaas-console\[kv-events\]"):
            await start(build(config), config, closing)
