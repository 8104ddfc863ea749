"""What gates tell each other of caches: what is told, what is believed, and that all of it ends."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from routing.gate.cache_map import MAX_KEYS, MAX_QUEUED_KEYS, RETELL_S, CacheMap
from routing.gate.metrics import Metrics
from routing.gate.prefix import Chain, PrefixIndex, chain_of
from tests.gate.peers import TOKEN, Console, Upstream, gate_config, gate_running, until

BLOCK_BYTES = 2048


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Gate:
    """One gate's map and its two indexes, without the gate."""

    def __init__(self, name: str, clock: Clock, *, exact: bool = False, capacity: Any = None):
        self.clock, self.metrics = clock, Metrics()
        self.places = {
            place: PrefixIndex(capacity, exact_state=exact) for place in ("pd", "prfaas")
        }
        self.map = CacheMap(
            router=f"F/pd/{name}",
            places=self.places,
            block_bytes=BLOCK_BYTES,
            metrics=self.metrics,
            rng=random.Random(name),
            now_s=clock,
        )

    def prefill(self, chain: Chain, *, place: str = "prfaas") -> None:
        index = self.places[place]
        index.prefilled(index.dispatch((chain,)))

    def believes(self, chain: Chain, *, place: str = "prfaas") -> int:
        return self.places[place].match((chain,)).n_blocks

    def says(self) -> list[dict[str, Any]]:
        """All it has to say, a second apart."""
        said = []
        while (message := self.map.next_message()) is not None:
            said.append(json.loads(message))
            self.clock.now_s += 1.0
        return said

    async def hears(self, said: Sequence[dict[str, Any]]) -> None:
        for message in said:
            await self.map.receive(json.dumps(message))

    def ignored(self) -> dict[str, float]:
        return {key[0]: n for key, n in self.metrics.cache_ignored.values.items() if n}


def chain(n_blocks: int, *, seed: int = 0) -> Chain:
    """A prompt's keys; two of one seed share their leading blocks."""
    return chain_of(random.Random(seed).randbytes(4 * n_blocks), salt=b"", block_bytes=4)


def keys_of(message: dict[str, Any]) -> Chain:
    raw = base64.b64decode(message["keys"])
    return tuple(raw[i : i + 8] for i in range(0, len(raw), 8))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def a(clock: Clock) -> Gate:
    gate = Gate("a", clock)
    gate.map.opened()
    return gate


@pytest.fixture
def b(clock: Clock) -> Gate:
    gate = Gate("b", clock)
    gate.map.opened()
    return gate


async def test_what_one_gate_placed_the_other_believes_at_that_place_only(a: Gate, b: Gate) -> None:
    prompt = chain(20)
    a.prefill(prompt)
    said = a.says()
    assert keys_of(said[0]) == prompt
    assert {key: said[0][key] for key in ("type", "router", "place", "block_bytes", "epoch")} == {
        "type": "cache",
        "router": "F/pd/a",
        "place": "prfaas",
        "block_bytes": BLOCK_BYTES,
        "epoch": 0,
    }
    await b.hears(said)
    assert b.believes(prompt + chain(5, seed=9)) == 20
    assert b.believes(prompt, place="pd") == 0
    assert b.metrics.cache_keys_adopted.values == {(): 20}
    await a.hears(said)
    assert a.metrics.cache_keys_received.values == {(): 0}


async def test_only_new_keys_are_told_and_nobody_repeats_what_he_heard(a: Gate, b: Gate) -> None:
    a.prefill(chain(20))
    await b.hears(a.says())
    a.prefill(chain(30))
    a.prefill(chain(25))
    [said] = a.says()
    assert keys_of(said) == chain(30)[20:]
    await b.hears([said])
    assert b.believes(chain(30)) == 30
    b.prefill(chain(30))
    assert b.says() == []


def test_a_prefix_in_use_is_told_again_from_time_to_time(a: Gate, clock: Clock) -> None:
    a.prefill(chain(20))
    a.says()
    clock.now_s += RETELL_S
    a.prefill(chain(20))
    [said] = a.says()
    assert keys_of(said) == chain(20)


def test_without_a_socket_nothing_is_kept_for_later(a: Gate) -> None:
    a.prefill(chain(5, seed=1))
    a.map.closed()
    a.prefill(chain(5, seed=2))
    a.map.opened()
    assert a.says() == []
    a.prefill(chain(5, seed=2))
    assert keys_of(a.says()[0]) == chain(5, seed=2)


def test_a_request_that_was_not_prefilled_is_not_told(a: Gate) -> None:
    index = a.places["prfaas"]
    index.abandon(index.dispatch((chain(5),)))
    assert a.says() == []


def test_a_flood_is_told_in_bounded_messages_and_the_oldest_is_dropped(a: Gate) -> None:
    for seed in range(100):
        a.prefill(chain(1000, seed=seed))
    said = a.says()
    n_told = sum(len(keys_of(message)) for message in said)
    assert all(len(keys_of(message)) <= MAX_KEYS for message in said)
    assert all(len(json.dumps(message)) < 128 * 1024 for message in said)
    assert MAX_QUEUED_KEYS - 1000 <= n_told <= MAX_QUEUED_KEYS
    assert a.metrics.cache_keys_dropped.values == {(): 100_000 - n_told}
    assert keys_of(said[-1])[-1000:] == chain(1000, seed=99)


async def test_a_chain_longer_than_a_message_arrives_whole(a: Gate, b: Gate) -> None:
    prompt = chain(2 * MAX_KEYS + 10)
    a.prefill(prompt)
    a.prefill(chain(7, seed=1))
    said = a.says()
    assert [len(keys_of(message)) for message in said] == [MAX_KEYS, MAX_KEYS, 17]
    await b.hears(said)
    assert b.believes(prompt) == len(prompt)
    assert b.believes(chain(7, seed=1)) == 7


def test_places_take_turns(a: Gate) -> None:
    for seed in range(2):
        a.prefill(chain(MAX_KEYS, seed=seed))
        a.prefill(chain(MAX_KEYS, seed=seed), place="pd")
    assert [message["place"] for message in a.says()] in (
        ["pd", "prfaas"] * 2,
        ["prfaas", "pd"] * 2,
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"place": "elsewhere"}, "unknown_place"),
        ({"block_bytes": 64}, "other_blocks"),
        ({"linear_state": "exact"}, "other_blocks"),
        ({"keys": "%%%%"}, "invalid"),
        ({"keys": "AAAA"}, "invalid"),
        ({"keys": ""}, "invalid"),
        ({"keys": base64.b64encode(bytes(8 * (MAX_KEYS + 1))).decode()}, "invalid"),
        ({"keys": 5}, "invalid"),
        ({"ends": [21]}, "invalid"),
        ({"ends": [7, 7]}, "invalid"),
        ({"epoch": -1}, "invalid"),
    ],
)
async def test_what_cannot_be_used_is_ignored_counted_and_said_once(
    a: Gate, b: Gate, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], reason: str
) -> None:
    a.prefill(chain(20))
    [said] = a.says()
    await b.hears([{**said, **changes}] * 3)
    assert b.ignored() == {reason: 3}
    assert b.metrics.cache_keys_received.values == {(): 0}
    assert len(b.places["prfaas"]) == 0
    assert caplog.text.count("is ignored") == 1


async def test_a_new_epoch_drops_what_was_known_and_an_older_one_nothing(a: Gate, b: Gate) -> None:
    a.prefill(chain(20))
    a.prefill(chain(20), place="pd")
    old = a.says()
    await b.hears(old)
    waiting = b.places["prfaas"].dispatch((chain(8, seed=3),))
    epoch = {"type": "cache_epoch", "place": "prfaas", "epoch": 7}
    for gate in (a, b):
        await gate.hears([epoch])
        assert gate.believes(chain(20)) == 0
        assert gate.believes(chain(20), place="pd") == 20
    b.places["prfaas"].prefilled(waiting)
    assert b.believes(chain(8, seed=3)) == 0
    await b.hears(old)
    assert b.believes(chain(20)) == 0
    assert b.ignored() == {"old_epoch": 1}
    # What was told before is told again, for it had to be computed again.
    a.prefill(chain(20))
    said = a.says()
    assert said[0]["epoch"] == 7
    await b.hears(said)
    assert b.believes(chain(20)) == 20
    await b.hears([epoch, {**epoch, "epoch": 6}, {**epoch, "place": "elsewhere", "epoch": 9}])
    assert b.believes(chain(20)) == 20
    assert b.metrics.cache_epochs.values == {(): 1}


async def test_a_gate_that_hears_of_a_later_epoch_from_another_gate_follows(
    a: Gate, b: Gate
) -> None:
    b.prefill(chain(9, seed=5))
    await a.hears([{"type": "cache_epoch", "place": "prfaas", "epoch": 7}])
    a.prefill(chain(20))
    await b.hears(a.says())
    assert b.believes(chain(9, seed=5)) == 0
    assert b.believes(chain(20)) == 20


async def test_a_kept_state_is_told_even_when_every_block_is_known(clock: Clock) -> None:
    a, b = Gate("a", clock, exact=True), Gate("b", clock, exact=True)
    for gate in (a, b):
        gate.map.opened()
    a.prefill(chain(20))
    a.prefill(chain(30, seed=1))
    said = a.says()
    assert said[0]["linear_state"] == "exact"
    await b.hears(said)
    assert b.believes(chain(20)) == 20
    assert b.believes(chain(15)) == 0  # its blocks are there, a state at its end is not
    assert b.believes(chain(30, seed=1) + chain(3, seed=2)) == 30
    a.prefill(chain(15))
    [said_again] = a.says()
    assert keys_of(said_again) == chain(20)[14:15]
    await b.hears([said_again])
    assert b.believes(chain(15)) == 15
    assert b.believes(chain(20)) == 20


async def test_half_of_a_chain_brings_no_state(clock: Clock) -> None:
    a, b = Gate("a", clock, exact=True), Gate("b", clock, exact=True)
    a.map.opened()
    prompt = chain(MAX_KEYS + 10)
    a.prefill(prompt)
    first, second = a.says()
    await b.hears([first])
    assert b.believes(prompt) == 0
    await b.hears([second])
    assert b.believes(prompt) == len(prompt)


async def test_who_joins_is_told_by_one_of_those_who_know(a: Gate, b: Gate, clock: Clock) -> None:
    prompts = [chain(500, seed=seed) for seed in range(200)]
    for prompt in prompts:
        a.prefill(prompt)
        await b.hears(a.says())
    c = Gate("c", clock)
    wanted = json.loads(c.map.opened())
    assert wanted == {"type": "cache_wanted", "router": "F/pd/c", "places": ["pd", "prfaas"]}
    for gate in (a, b, c):
        await gate.hears([wanted])
    assert a.says() == b.says() == c.says() == []  # not all at once
    clock.now_s += 3.0
    said = a.says()
    assert 0 < len(said) <= 4
    for gate in (b, c):
        await gate.hears(said)
    assert b.says() == []
    # The most recent, in the order in which they were used.
    n_known = len(c.places["prfaas"]) // 500
    assert n_known == 4 * (MAX_KEYS // 500)
    assert [c.believes(prompt) for prompt in prompts] == [0] * (200 - n_known) + [500] * n_known


async def test_what_a_cache_no_longer_holds_is_not_told_to_who_joins(clock: Clock) -> None:
    a, c = Gate("a", clock, capacity=30), Gate("c", clock)
    a.map.opened()
    for seed in range(5):
        a.prefill(chain(10, seed=seed))
        a.says()
    await a.hears([json.loads(c.map.opened())])
    clock.now_s += 3.0
    await c.hears(a.says())
    assert [c.believes(chain(10, seed=seed)) for seed in range(5)] == [0, 0, 10, 10, 10]


async def test_news_goes_on_between_two_answers(a: Gate, clock: Clock) -> None:
    a.prefill(chain(10))
    a.says()
    await a.hears([{"type": "cache_wanted", "router": "F/pd/c", "places": ["prfaas"]}])
    clock.now_s += 3.0
    a.prefill(chain(10, seed=1))
    answer, news = a.says()
    assert (answer["snapshot"], keys_of(answer)) == (True, chain(10))
    assert keys_of(news) == chain(10, seed=1)
    assert "snapshot" not in news


async def test_a_gate_asks_on_every_new_socket_and_tells_what_its_upstreams_computed(
    local: Upstream, remote: Upstream
) -> None:
    async with Console().running() as console:
        config = gate_config(
            local.url, {"prfaas": remote.url}, console_url=console.url, token=TOKEN
        )
        async with gate_running(config) as gate:
            await until(lambda: len(console.told) == 1)
            for socket in list(console.sockets):
                await socket.close()
            await until(lambda: len(console.told) == 2)
            wanted = {"type": "cache_wanted", "router": "F/pd/g1", "places": ["pd", "prfaas"]}
            assert console.told == [wanted, wanted]
            await gate.complete(list(range(2_000)))
            await until(lambda: len(console.told) == 3)
            told = console.told[-1]
            assert (told["type"], told["place"], told["router"]) == ("cache", "pd", "F/pd/g1")
            assert told["block_bytes"] == config.block_tokens * 4
            assert len(keys_of(told)) == 2_000 // config.block_tokens
            await console.push({"type": "cache_epoch", "place": "pd", "epoch": 1})
            await until(lambda: len(gate.gate.places()["pd"]) == 0)
            page = await gate.metrics()
            assert page["prfaas_gate_cache_keys_sent_total"] == len(keys_of(told))
            assert page["prfaas_gate_cache_epochs_total"] == 1
