"""KV events: their form on the wire, what of them the index believes, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.gate import kv_events
from routing.gate.config import ConfigError, load_config
from routing.gate.kv_cache import EngineCache, PlaceCache
from routing.gate.kv_wire import AllBlocksCleared, BlockRemoved, BlockStored, decode
from routing.gate.metrics import Metrics
from routing.gate.prefix import Chain, PrefixIndex, chain_of
from routing.gate.prompt import BYTES_PER_ID, pack_ids, salt_of

SALT = salt_of("completions", "m", "")
GATE_TOKENS = 8

# One request of 0.32.0: two blocks of 2 tokens stored, one removed, then all cleared. Two forms: in
# the first events are maps with 32-byte hashes, in the second (until June 2026) arrays with ints.
H1, H2 = bytes(range(32)), bytes(range(32, 64))
MAPS = (
    b"\x93"  # [ts, events, data_parallel_rank]
    b"\xcb\x41\xda\x00\x00\x00\x00\x00\x00"
    b"\x93"
    b"\x8b"
    b"\xa4type\xabBlockStored"
    b"\xacblock_hashes\x92\xc4\x20" + H1 + b"\xc4\x20" + H2 + b"\xb1parent_block_hash\xc0"
    b"\xa9token_ids\x94\x01\xcc\xc8\xcd\x01\x2c\xce\x00\x01\x11\x70"
    b"\xaablock_size\x02"
    b"\xa7lora_id\xc0"
    b"\xa6medium\xa3GPU"
    b"\xa9lora_name\xc0"
    b"\xaaextra_keys\x92\xc0\xc0"
    b"\xa9group_idx\x00"
    b"\xb2kv_cache_spec_kind\xaefull_attention"
    b"\x84"
    b"\xa4type\xacBlockRemoved"
    b"\xacblock_hashes\x91\xc4\x20" + H2 + b"\xa6medium\xa3GPU"
    b"\xa9group_idx\x00"
    b"\x81"
    b"\xa4type\xb0AllBlocksCleared"
    b"\x00"
)
ARRAYS = (
    b"\x93"
    b"\xcb\x41\xda\x00\x00\x00\x00\x00\x00"
    b"\x93"
    b"\x98\xabBlockStored\x92\x07\xcf\xff\xff\xff\xff\xff\xff\xff\xfe\x05"
    b"\x94\x01\xcc\xc8\xcd\x01\x2c\xce\x00\x01\x11\x70\x02\xc0\xa3GPU\xc0"
    b"\x93\xacBlockRemoved\x91\x07\xa3GPU"
    b"\x91\xb0AllBlocksCleared"
    b"\x00"
)


def test_the_two_forms_that_engines_have_on_the_wire() -> None:
    ids = [1, 200, 300, 70_000]
    stored = BlockStored(
        [H1, H2],
        None,
        ids,
        2,
        medium="GPU",
        extra_keys=[None, None],
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    removed = BlockRemoved([H2], "GPU", 0)
    assert list(decode(MAPS)) == [stored, removed, AllBlocksCleared()]
    events = list(decode(ARRAYS))
    assert [type(event).__mro__[1] for event in events] == [
        BlockStored,
        BlockRemoved,
        AllBlocksCleared,
    ]
    assert isinstance(events[0], BlockStored)
    assert (events[0].block_hashes, events[0].parent_block_hash) == ([7, 2**64 - 2], 5)
    assert (events[0].token_ids, events[0].block_size, events[0].medium) == (ids, 2, "GPU")
    assert isinstance(events[1], BlockRemoved)
    assert (events[1].block_hashes, events[1].group_idx) == ([7], None)


class Engine:
    """Publishes by hand; a block's hash is its whole prefix. `group` is of full attention."""

    def __init__(self, place: PlaceCache, metrics: Metrics, **options: Any) -> None:
        self.cache = EngineCache(
            place,
            salt=SALT,
            block_tokens=GATE_TOKENS,
            exact_state=options.pop("exact_state", False),
            metrics=metrics,
            label="pd",
            **options,
        )
        self.seq = 0

    def say(self, *events: Any) -> None:
        payload = msgspec.msgpack.encode([0.0, events, 0])
        self.hear([b"", self.seq.to_bytes(8, "big"), payload])
        self.seq += 1

    def hear(self, frames: Sequence[bytes]) -> None:
        for _ in self.cache.receive(frames):
            pass

    def store(self, ids: Sequence[int], *, size: int = 4, since: int = 0, **fields: Any) -> None:
        """The full blocks of these ids from the `since`-th on."""
        ends = range((since + 1) * size, len(ids) + 1, size)
        self.say(
            {
                "type": "BlockStored",
                "block_hashes": [pack_ids(list(ids[:end])) for end in ends],
                "parent_block_hash": pack_ids(list(ids[: since * size])) if since else None,
                "token_ids": list(ids[since * size : len(ids) // size * size]),
                "block_size": size,
                **fields,
            }
        )

    def remove(self, *prefixes: Sequence[int], **fields: Any) -> None:
        hashes = [pack_ids(list(ids)) for ids in prefixes]
        self.say({"type": "BlockRemoved", "block_hashes": hashes, **fields})


class Place:
    """An index, its engines, and what it claims of a prompt."""

    def __init__(self, n_engines: int = 1, **options: Any) -> None:
        exact_state = options.get("exact_state", False)
        self.index = PrefixIndex(options.pop("capacity_blocks", None), exact_state=exact_state)
        self.metrics = Metrics()
        self.cache = PlaceCache(self.index)
        self.engines = [Engine(self.cache, self.metrics, **options) for _ in range(n_engines)]

    def clear(self) -> None:
        self.index.clear()
        assert self.cache.is_behind.is_set()
        for _ in self.cache.catch_up():
            assert self.cache.is_behind.is_set()
        assert not self.cache.is_behind.is_set()

    def cached_tokens(self, ids: Sequence[int]) -> int:
        return self.index.match((chain(ids),)).n_settled * GATE_TOKENS

    def dropped(self) -> dict[str, float]:
        counts = self.metrics.kv_events_dropped.values
        return {reason: n for (_, reason), n in counts.items() if n}


def chain(ids: Sequence[int]) -> Chain:
    """The keys of a completion by these ids, as the request path makes them."""
    return chain_of(pack_ids(list(ids)), salt=SALT, block_bytes=GATE_TOKENS * BYTES_PER_ID)


IDS = range(100, 164)


@given(
    size=st.integers(1, 20),
    n_tokens=st.integers(0, 64),
    cuts=st.lists(st.integers(0, 64), max_size=4),
)
def test_keys_are_those_of_a_prompt_whatever_the_blocks_and_the_messages(
    size: int, n_tokens: int, cuts: list[int]
) -> None:
    place = Place()
    [engine] = place.engines
    bounds = sorted({0, n_tokens, *(cut for cut in cuts if cut < n_tokens)})
    for start, end in pairwise(bounds):
        if end // size > start // size:
            engine.store(IDS[:end], size=size, since=start // size)
    n_stored = n_tokens // size * size
    assert place.cached_tokens(IDS) == n_stored // GATE_TOKENS * GATE_TOKENS
    assert len(place.index) == len(place.cache) == n_stored // GATE_TOKENS
    assert place.dropped() == {}


def test_what_branches_inside_a_block_of_the_gate() -> None:
    place = Place()
    [engine] = place.engines
    other = [*IDS[:12], *range(900, 912)]
    engine.store(IDS[:24])
    engine.store(other, since=3)
    assert place.cached_tokens([*other, 1]) == 24
    engine.remove(IDS[:16])
    assert (place.cached_tokens(IDS), place.cached_tokens(other)) == (8, 24)
    engine.store(IDS[:16], since=3)
    assert place.cached_tokens(IDS) == 24, "what continued from the block had stayed"


def test_a_block_told_again_is_one_block() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:16])
    engine.store(IDS[:16])
    engine.remove(IDS[:16])
    assert place.cached_tokens(IDS) == 8


def test_a_place_holds_what_any_of_its_engines_holds() -> None:
    place = Place(n_engines=2)
    first, second = place.engines
    first.store(IDS[:16])
    second.store(IDS[:24], size=2)
    first.remove(IDS[:16], IDS[:8])
    assert place.cached_tokens(IDS) == 24
    second.remove(IDS[:24])
    assert place.cached_tokens(IDS) == 16
    first.store(IDS[:8])
    second.say({"type": "AllBlocksCleared"})
    assert place.cached_tokens(IDS) == 8


@pytest.mark.parametrize("seq", [0, 4], ids=["the engine begins anew", "a message is missing"])
def test_an_engine_that_may_have_said_more_is_forgotten(seq: int) -> None:
    place = Place(n_engines=2)
    first, second = place.engines
    for n in (8, 16, 24):
        first.store(IDS[:n], since=(n - 8) // 4)
    second.store(IDS[:8])
    first.seq = seq
    first.store(range(8))
    assert place.cached_tokens(IDS) == 8, "the other engine's"
    assert place.cached_tokens(range(8)) == 8, "heard after the gap"
    first.store(IDS[:32], since=6)
    assert place.dropped() == {"unknown_parent": 2}
    assert place.metrics.kv_event_gaps.values == {("pd",): 1}


def test_a_lost_connection_is_no_gap_and_whoever_continues_begins_anew() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:16])
    for _ in engine.cache.forget():
        pass
    assert (place.cached_tokens(IDS), len(place.cache)) == (0, 0)
    engine.seq = 7
    engine.store(IDS[:16])
    assert place.cached_tokens(IDS) == 16
    assert not place.metrics.kv_event_gaps.values


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"lora_name": "law"}, id="an adapter"),
        pytest.param({"lora_id": 3}, id="an adapter, as older engines say it"),
        pytest.param({"medium": "CPU"}, id="offloaded"),
        pytest.param({"medium": "GPU", "locality": "REMOTE"}, id="on another machine"),
        pytest.param({"extra_keys": [["salt"], None]}, id="a salt"),
        pytest.param({"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}, id="a window"),
        pytest.param({"group_idx": 1}, id="another group of an engine that tells no kinds"),
    ],
)
def test_what_is_no_plain_prefix_in_memory_is_counted_and_not_believed(
    fields: dict[str, Any],
) -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:8], **fields)
    assert (place.cached_tokens(IDS), place.dropped()) == (0, {"other": 2})
    engine.store(IDS[:8], medium="GPU", extra_keys=[None, None], group_idx=0)
    gone = {k: v for k, v in fields.items() if k in ("medium", "locality", "group_idx")}
    if gone:
        engine.remove(IDS[:8], **gone)
    assert place.cached_tokens(IDS) == 8, "its leaving is not the prefix's either"


def test_groups_are_known_by_what_they_hold_and_not_by_their_number() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:8], group_idx=0, kv_cache_spec_kind="sliding_window")
    assert place.cached_tokens(IDS) == 0
    engine.store(IDS[:8], group_idx=2, kv_cache_spec_kind="mla_attention")
    engine.remove(IDS[:8], group_idx=0)
    assert place.cached_tokens(IDS) == 8
    engine.remove(IDS[:8], group_idx=2)
    assert place.cached_tokens(IDS) == 0


def test_what_makes_no_sense_is_counted_and_the_rest_is_heard() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:8])
    stored = {"type": "BlockStored", "parent_block_hash": None, "block_size": 4}
    engine.say(
        {"type": "BlockMoved"},
        stored | {"block_hashes": [1], "token_ids": [1, 2, 3]},
        stored | {"block_hashes": [2], "token_ids": [-1, 2, 3, 4]},
        stored | {"block_hashes": [3], "token_ids": [1, 2, 3, 4], "block_size": 0},
        {"type": "BlockRemoved", "block_hashes": [4]},
    )
    assert (place.cached_tokens(IDS), place.dropped()) == (8, {"invalid": 4})
    engine.hear([b"only one frame"])
    assert (place.cached_tokens(IDS), place.dropped()) == (8, {"invalid": 5})
    engine.hear([b"", engine.seq.to_bytes(8, "big"), b"\xc1"])
    assert place.cached_tokens(IDS) == 0, "it may have said that they left"


def test_what_is_remembered_of_an_engine_is_bounded_and_what_leaves_makes_room() -> None:
    place = Place(max_blocks=4)
    [engine] = place.engines
    engine.store(IDS[:64])
    assert (place.cached_tokens(IDS), place.dropped()) == (16, {"full": 12})
    engine.store(IDS[:24], since=4)
    assert place.dropped() == {"full": 14}
    engine.remove(IDS[:16], IDS[:12])
    engine.store(IDS[:16], since=2)
    assert (place.cached_tokens(IDS), len(engine.cache)) == (16, 4)


def test_a_cleared_index_still_knows_what_the_engines_say() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:16])
    place.index.adopt(chain(range(16)), state_at_end=False)
    place.clear()
    assert (place.cached_tokens(IDS), place.cached_tokens(range(16))) == (16, 0)
    engine.remove(IDS[:16])
    assert place.cached_tokens(IDS) == 8


def test_between_the_steps_of_a_cleared_index_engines_go_on_talking() -> None:
    place = Place(n_engines=2)
    first, second = place.engines
    long = range(1_000, 1_000 + 600 * GATE_TOKENS)
    first.store(IDS[:16])
    first.store(long)
    place.index.clear()
    steps = place.cache.catch_up()
    next(steps)
    assert 0 < len(place.index) < 300, "not all at once"
    first.remove(long[: 500 * GATE_TOKENS], IDS[:16])
    second.store(long[: 300 * GATE_TOKENS])
    first.say({"type": "AllBlocksCleared"})
    second.store(IDS[:8])
    place.index.clear()
    for _ in steps:
        pass
    assert place.cached_tokens(long) == 300 * GATE_TOKENS
    assert place.cached_tokens(IDS) == 8
    assert len(place.index) == len(place.cache) == 301


@pytest.mark.parametrize("clear", [False, True], ids=["one by one", "entered again"])
def test_what_is_too_much_for_the_index_leaves_from_the_ends(clear: bool) -> None:
    place = Place(capacity_blocks=4)
    [engine] = place.engines
    for n in range(0, 32, 8):
        engine.store(IDS[: n + 8], since=n // 4)
    engine.store(range(8))
    if clear:
        place.clear()
        assert place.cached_tokens(IDS) == 32, "told first"
    else:
        assert (place.cached_tokens(IDS), place.cached_tokens(range(8))) == (24, 8)


def test_what_an_engine_holds_is_believed_though_a_request_met_another_engine() -> None:
    place = Place()
    [engine] = place.engines
    engine.store(IDS[:24])
    ticket = place.index.dispatch((chain([*IDS[:16], 1, 2, 3, 4, 5, 6, 7, 8]),))
    place.index.prefilled(ticket)
    place.index.learn(ticket, cached_blocks=0)
    assert place.cached_tokens(IDS) == 24
    assert place.index.credit < 1.0


@pytest.mark.parametrize("state_first", [False, True])
def test_states_of_linear_layers_are_blocks_of_a_group_of_their_own(state_first: bool) -> None:
    place = Place(exact_state=True)
    [engine] = place.engines

    def keep_state(n: int) -> None:
        engine.store(IDS[:n], since=n // 4 - 1, group_idx=1, kv_cache_spec_kind="mamba")

    if state_first:
        keep_state(16)
    engine.store(IDS[:32], group_idx=0, kv_cache_spec_kind="full_attention")
    assert place.cached_tokens(IDS) == (16 if state_first else 0)
    keep_state(16)
    keep_state(28)
    assert place.cached_tokens(IDS) == 16, "28 tokens are no whole blocks of the gate"
    keep_state(32)
    assert place.cached_tokens(IDS) == 32
    place.clear()
    assert place.cached_tokens(IDS) == 32
    engine.remove(IDS[:32], group_idx=1)
    assert place.cached_tokens(IDS) == 16
    engine.remove(IDS[:32], IDS[:16], group_idx=0)
    assert place.cached_tokens(IDS) == 0
    engine.store(IDS[:32], group_idx=0, kv_cache_spec_kind="full_attention")
    assert place.cached_tokens(IDS) == 16, "of the two states one was still kept"
    ticket = place.index.dispatch((chain(IDS[:24]),))
    place.index.prefilled(ticket)
    place.index.learn(ticket, cached_blocks=0)
    assert place.cached_tokens(IDS[:16]) == 16, "the request met another engine"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ('["tcp://10.0.0.1:5557", "tcp://10.0.0.1:5557"]', "is named twice"),
        ('["tcp://*:5557"]', "must be tcp://HOST:PORT"),
        ('["tcp://10.0.0.1:0"]', "must be tcp://HOST:PORT"),
        ('["http://10.0.0.1:5557"]', "must be tcp://HOST:PORT"),
        ('"tcp://10.0.0.1:5557"', "Expected `array`"),
    ],
)
def test_a_publisher_that_cannot_be_one_is_named(tmp_path: Path, value: str, why: str) -> None:
    with pytest.raises(ConfigError, match=r"upstreams\.local\.kv_events") as caught:
        load_config(written(tmp_path, value))
    assert why in str(caught.value)


def test_without_the_package_events_are_refused_and_all_else_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "AVAILABLE", False)
    with pytest.raises(ConfigError, match=r"install prfaas-console\[kv-events\]"):
        load_config(written(tmp_path, '["tcp://engine-1:5557", "tcp://[fd00::1]:5557"]'))
    assert load_config(written(tmp_path, "[]")).upstreams.local[0].kv_events == ()


def written(tmp_path: Path, value: str) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(
        f'router = "F/pd/g1"\n[upstreams.local]\nurl = "http://127.0.0.1:1"\nkv_events = {value}\n'
    )
    return path
