"""A real gate hears the KV events of real emulated engines, over real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from routing.gate.prefix import chain_of
from routing.gate.prompt import BYTES_PER_ID, pack_ids, salt_of
from routing.gate.settings import GateConfig
from tests.gate.peers import RunningGate, gate_config, gate_running, plan, until
from tests.lab.serving import Served, lab
from tests.lab.small import BLOCK_TOKENS

SALT = salt_of("completions", "m", "")


def listening(stack: Served, **settings: Any) -> GateConfig:
    """A gate that hears every engine of the lab."""
    endpoints = {e["id"]: e["kv_events"] for e in stack.ready["engines"]}

    def of(cluster: str) -> list[str]:
        return [endpoint for id_, endpoint in endpoints.items() if f"/{cluster}/" in id_]

    side = {"cache_capacity_tokens": "infinite", **settings}
    upstreams = {
        "local": [{"url": stack.local, "kv_events": of("pd"), **side}],
        "remote": {"far": [{"url": stack.far, "kv_events": of("far"), **side}]},
    }
    config = gate_config("", router="small/pd/g1", block_tokens=BLOCK_TOKENS, kv_events_model="m")
    return msgspec.structs.replace(
        config, upstreams=msgspec.convert(upstreams, type(config.upstreams))
    )


@asynccontextmanager
async def heard(folder: Path, extra: str = "", **settings: Any) -> AsyncIterator[Any]:
    """Lab and gate, once the gate hears every engine."""
    async with (
        lab(folder, extra=f"kv_events = true\n{extra}") as stack,
        gate_running(listening(stack, **settings)) as gate,
    ):
        await gate.run_plan(plan(1, 1, fleet="small", remote={"far": 1.0}))
        await hear(stack, gate)
        yield stack, gate


async def hear(stack: Served, gate: RunningGate) -> None:
    """Subscribing takes a moment in which engines talk to nobody."""
    sources = {
        source.endpoint: source
        for listened in gate.gate.kv_events.places.values()
        for source in listened.sources
    }
    for n, engine in enumerate(stack.ready["engines"]):
        cache = sources[engine["kv_events"]].cache
        first = 10_000 * (n + 1)
        while not len(cache):
            first += 10
            await stack.complete(engine["url"], list(range(first, first + BLOCK_TOKENS)), 1)
            await asyncio.sleep(0.01)


def uncached(gate: RunningGate, ids: Sequence[int]) -> tuple[int, int]:
    """(local, remote) of a prompt, as the gate would judge it. It is not sent anywhere."""
    blocks = chain_of(pack_ids(list(ids)), salt=SALT, block_bytes=BLOCK_TOKENS * BYTES_PER_ID)
    places = gate.gate.places()
    held = [places[place].match((blocks,)).n_settled * BLOCK_TOKENS for place in ("pd", "far")]
    return len(ids) - held[0], len(ids) - held[1]


async def becomes(gate: RunningGate, ids: Sequence[int], want: tuple[int, int]) -> None:
    await until(lambda: uncached(gate, ids) == want)


async def test_what_others_put_into_a_cache_is_seen_until_it_leaves(tmp_path: Path) -> None:
    """Room for 20 blocks an instance."""
    async with heard(tmp_path, "cache_capacity_tokens = 80") as (stack, gate):
        ids = list(range(42))
        await stack.complete(stack.engines["pd/slow-1"], ids)
        await stack.complete(stack.engines["far/fast-2"], ids[:22])
        await becomes(gate, ids, (2, 22))
        response, body = await gate.complete(ids, max_tokens=1)
        said = {k: response.headers[f"X-PrfaaS-Uncached-{k}"] for k in ("Tokens", "Remote-Tokens")}
        assert said == {"Tokens": "2", "Remote-Tokens": "22"}
        assert json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"] == 40

        await stack.complete(stack.engines["pd/slow-1"], list(range(500, 560)))
        await becomes(gate, ids, (22, 22))
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_kv_events_total{place="pd",event="removed"}'] >= 1
        assert metrics['prfaas_gate_kv_event_engines{place="pd",state="connected"}'] == 4
        assert metrics['prfaas_gate_kv_event_engines{place="far",state="not_connected"}'] == 0
        n_keys = metrics['prfaas_gate_kv_event_keys{place="pd"}']
        assert n_keys == len(gate.gate.places()["pd"]) > 20
        assert not any(
            n for name, n in metrics.items() if "dropped" in name or "kv_event_gaps" in name
        )


async def test_two_engines_hold_a_prompt_and_a_role_switch_takes_one_of_them(
    tmp_path: Path,
) -> None:
    async with heard(tmp_path) as (stack, gate):
        ids = list(range(42))
        for name in ("pd/slow-1", "pd/slow-2"):
            await stack.complete(stack.engines[name], ids)
        await becomes(gate, ids, (2, 42))
        place = gate.gate.kv_events.places["pd"]
        await until(lambda: all(len(source.cache) > 9 for source in place.sources[:2]))
        for name, want in (("pd/slow-1", 2), ("pd/slow-2", 42)):
            status, answer, _ = await stack.post(
                stack.engines[name] + "/pd_role_switch", {"new_role": "decode"}
            )
            assert (status, answer["new_role"]) == (200, "decode")
            await until(lambda: not all(len(s.cache) for s in place.sources[:2]))
            await becomes(gate, ids, (want, 42))


async def test_engines_that_are_gone_hold_nothing(tmp_path: Path) -> None:
    async with AsyncExitStack() as outliving:
        async with lab(tmp_path, extra="kv_events = true") as stack:
            gate = await outliving.enter_async_context(gate_running(listening(stack)))
            await hear(stack, gate)
            await stack.complete(stack.engines["pd/slow-1"], list(range(42)))
            await becomes(gate, range(42), (2, 42))
        await becomes(gate, range(42), (42, 42))
        metrics = await gate.metrics()
        assert metrics['prfaas_gate_kv_event_engines{place="pd",state="connected"}'] == 0
        assert metrics['prfaas_gate_kv_event_keys{place="pd"}'] == 0


@pytest.mark.parametrize("scope", ["instance", "cluster"])
async def test_with_linear_layers_a_prefix_counts_up_to_the_states_told(
    tmp_path: Path, scope: str
) -> None:
    extra = f'linear_state = "exact"\ncache_scope = "{scope}"\ncache_capacity_tokens = 80'
    async with heard(tmp_path, extra, linear_state="exact") as (stack, gate):
        engine = stack.engines["pd/slow-1"]
        for n in (22, 42):
            await stack.complete(engine, list(range(n)))
        await becomes(gate, range(60), (20, 60))
        assert uncached(gate, range(36)) == (16, 36)
        await stack.complete(engine, list(range(500, 560)))
        await becomes(gate, range(36), (36 - 20, 36))
        await becomes(gate, range(60), (60 - 20, 60))


def hearing(port: int) -> GateConfig:
    """A gate of one engine that publishes there, and serves nobody."""
    config = gate_config("http://127.0.0.1:9", kv_events_model="m", block_tokens=BLOCK_TOKENS)
    [local] = config.upstreams.local
    local = msgspec.structs.replace(local, kv_events=(f"tcp://127.0.0.1:{port}",))
    upstreams = msgspec.structs.replace(config.upstreams, local=(local,))
    return msgspec.structs.replace(config, upstreams=upstreams)


async def test_a_gap_on_the_wire_drops_what_was_known(tmp_path: Path) -> None:
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    try:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        async with gate_running(hearing(port)) as gate:
            index = gate.gate.places()["pd"]
            seq = 0

            async def say(first: int) -> None:
                nonlocal seq
                ids = list(range(first, first + BLOCK_TOKENS))
                event = ["BlockStored", [first], None, ids, BLOCK_TOKENS, None]
                payload = msgspec.msgpack.encode([0.0, [event]])
                await socket.send_multipart([b"kv", seq.to_bytes(8, "big"), payload])
                seq += 1
                await asyncio.sleep(0.01)

            while not len(index):
                await say(seq)
            n_known = len(index)
            await say(5_000)
            await until(lambda: len(index) == n_known + 1)
            seq += 1
            await say(6_000)
            await until(lambda: len(index) == 1)
            metrics = await gate.metrics()
            assert metrics['prfaas_gate_kv_event_gaps_total{place="pd"}'] == 1
    finally:
        context.destroy(linger=0)


async def test_streams_have_their_turn_however_much_is_told_or_forgotten(tmp_path: Path) -> None:
    """Whoever looks at each turn of the event loop sees a large cache come and go bit by bit."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.PUB)
    try:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        async with gate_running(hearing(port)) as gate:
            index = gate.gate.places()["pd"]
            n_blocks, seq = 8_000, 0

            async def say(*events: Any) -> None:
                nonlocal seq
                payload = msgspec.msgpack.encode([0.0, events])
                await socket.send_multipart([b"kv", seq.to_bytes(8, "big"), payload])
                seq += 1

            async def goes_to(n_keys: int) -> list[int]:
                sizes = [len(index)]
                async with asyncio.timeout(20.0):
                    while sizes[-1] != n_keys:
                        await asyncio.sleep(0)
                        sizes.append(len(index))
                return [abs(after - before) for before, after in pairwise(sizes)]

            def stored(first: int, n: int) -> list[Any]:
                ids = list(range(first, first + n * BLOCK_TOKENS))
                hashes = list(range(first, first + n))
                return ["BlockStored", hashes, None, ids, BLOCK_TOKENS, None]

            while not len(index):
                await say(stored(0, 1))
                await asyncio.sleep(0.01)
            await say(["BlockRemoved", [0]])
            await until(lambda: not len(index))
            one, many = stored(10_000, n_blocks), [stored(n, 1) for n in range(10**6, 10**6 + 2000)]
            await say(one, *many)
            n_keys = n_blocks + len(many)
            assert max(await goes_to(n_keys)) < 600

            index.clear()
            assert len(index) == 0
            assert max(await goes_to(n_keys)) < 600

            seq += 1
            await say(stored(0, 1))
            assert max(await goes_to(1)) < 600, "forgotten, and then heard"
            assert (await gate.metrics())['prfaas_gate_kv_event_keys{place="pd"}'] == 1

            # The connection is lost in the middle of what its last message says.
            await say(stored(10_000, n_blocks))
            await until(lambda: len(gate.gate.kv_events.places["pd"].sources[0].cache) > 1)
            socket.close(linger=0)
            await goes_to(n_blocks + 1)
            await goes_to(0)
            assert (await gate.metrics())['prfaas_gate_kv_event_keys{place="pd"}'] == 0
    finally:
        context.destroy(linger=0)
