"""What the gates of a fleet tell each other of prefix caches, over the plan socket.

A place is a cluster whose engines compute prompts, or `CLUSTER/NAME` where a cluster has several
stacks, each with a cache of its own. After a prompt was prefilled there this gate
tells the keys that are new, and adopts what other gates tell of the same place, so that two gates
on one cluster know what both put there. All of it is a hint: queues are bounded and forget their
oldest, a message that does not fit is ignored, and losing everything costs only hit rate.

`opened` and `closed` frame a socket's life, `receive` takes what came, `next_message` is asked once
a second and holds at most `MAX_KEYS` keys. Prefixes are always told and adopted before what
continues them.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Annotated, Literal

import msgspec

from routing.gate.metrics import Metrics
from routing.gate.prefix import Chain, PrefixIndex

MAX_KEYS = 8_192
MAX_QUEUED_KEYS = 4 * MAX_KEYS
SNAPSHOT_MESSAGES = 4
SNAPSHOT_AFTER_S = (0.2, 1.2)
"""An answer to `cache_wanted` waits a random time, and up to a second longer the less there is to
tell; a gate that hears another's answer meanwhile keeps its own."""
RETELL_S = 120.0
"""A key in use is told again after this long, so that it stays recent where it was adopted."""
MAX_TOLD_KEYS = 8 * MAX_KEYS

_KEY_BYTES = 8
_ADOPT_AT_ONCE_KEYS = 512

log = logging.getLogger(__name__)

LinearState = Literal["none", "exact"]
Count = Annotated[int, msgspec.Meta(ge=0)]


class _News(msgspec.Struct, frozen=True, tag_field="type", tag="cache", omit_defaults=True):
    # Unknown fields are ignored on purpose: a newer gate may add optional ones.
    router: str
    place: str
    block_bytes: int
    epoch: Count
    linear_state: str
    keys: str
    ends: list[int] | None = None
    snapshot: bool = False


class _Wanted(msgspec.Struct, frozen=True, tag_field="type", tag="cache_wanted"):
    router: str
    places: list[str]


class _Epoch(msgspec.Struct, frozen=True, tag_field="type", tag="cache_epoch"):
    place: str
    epoch: Count


_decoder = msgspec.json.Decoder(_News | _Wanted | _Epoch)
TYPES = frozenset({"cache", "cache_wanted", "cache_epoch"})
"""The `type` of every message that `receive` takes."""


@dataclass(frozen=True)
class Fragment:
    """Consecutive keys of one chain, at most `MAX_KEYS`. `complete`: the last is the chain's."""

    keys: Chain
    complete: bool = True


class Recent:
    """Keys and when they were last told, the newest `capacity` of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._told_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told_s)

    def has(self, key: bytes, now_s: float) -> bool:
        """Whether it was told within `RETELL_S`."""
        told_s = self._told_s.get(key)
        return told_s is not None and now_s - told_s < RETELL_S

    def add(self, keys: Iterable[bytes], now_s: float) -> None:
        for key in keys:
            self._told_s[key] = now_s
            self._told_s.move_to_end(key)
        while len(self._told_s) > self._capacity:
            self._told_s.popitem(last=False)

    def clear(self) -> None:
        self._told_s.clear()


class Journal:
    """The fragments told or heard last, for a gate that has yet to learn: `MAX_QUEUED_KEYS`."""

    def __init__(self) -> None:
        self._by_end: OrderedDict[bytes, Fragment] = OrderedDict()
        self._n_keys = 0

    @property
    def fullness(self) -> float:
        """0..1"""
        return self._n_keys / MAX_QUEUED_KEYS

    def add(self, fragment: Fragment) -> None:
        end = fragment.keys[-1]
        known = self._by_end.pop(end, None)
        self._n_keys += len(fragment.keys) - (len(known.keys) if known else 0)
        self._by_end[end] = fragment
        while self._n_keys > MAX_QUEUED_KEYS:
            _, oldest = self._by_end.popitem(last=False)
            self._n_keys -= len(oldest.keys)

    def messages(self, index: PrefixIndex) -> list[list[Fragment]]:
        """The newest that `index` still believes, oldest first, as `SNAPSHOT_MESSAGES` or fewer."""
        found: list[list[Fragment]] = [[]]
        room = MAX_KEYS
        for fragment in reversed(self._by_end.values()):
            keys = tuple(takewhile(index.__contains__, fragment.keys))
            if not keys:
                continue
            # What follows an incomplete fragment would be taken for its end: it closes a message.
            complete = fragment.complete and len(keys) == len(fragment.keys)
            if len(keys) > room or (not complete and found[-1]):
                if len(found) == SNAPSHOT_MESSAGES:
                    break
                found.append([])
                room = MAX_KEYS
            found[-1].append(Fragment(keys, complete))
            room -= len(keys)
        return [message[::-1] for message in reversed(found) if message]

    def clear(self) -> None:
        self._by_end.clear()
        self._n_keys = 0


@dataclass
class _Place:
    """One cluster's cache: what is believed of it, what was told, what is to be told."""

    index: PrefixIndex
    epoch: int = 0
    stored: deque[Chain] = field(default_factory=deque)
    n_stored_keys: int = 0
    fragments: deque[Fragment] = field(default_factory=deque)
    told: Recent = field(default_factory=lambda: Recent(MAX_TOLD_KEYS))
    told_states: Recent = field(default_factory=lambda: Recent(MAX_TOLD_KEYS))
    journal: Journal = field(default_factory=Journal)
    answer_at_s: float | None = None
    answers: deque[list[Fragment]] = field(default_factory=deque)

    @property
    def linear_state(self) -> LinearState:
        return "exact" if self.index.exact_state else "none"

    def forget_queues(self) -> None:
        self.stored.clear()
        self.fragments.clear()
        self.answers.clear()
        self.n_stored_keys = 0
        self.answer_at_s = None


class CacheMap:
    """One gate's part. `places` are its indexes by cluster; `now_s` is a monotonic clock."""

    def __init__(
        self,
        *,
        router: str,
        places: Mapping[str, PrefixIndex],
        block_bytes: int,
        metrics: Metrics,
        rng: random.Random,
        now_s: Callable[[], float],
    ) -> None:
        self._router, self._block_bytes = router, block_bytes
        self._metrics, self._rng, self._now_s = metrics, rng, now_s
        self._open = False
        self._ask_again = False
        self._complained: set[str] = set()
        self._places: dict[str, _Place] = {}
        self._turns: deque[str] = deque()
        self.set_places(places)

    def set_places(self, places: Mapping[str, PrefixIndex]) -> None:
        """Takes other places; what is known of an index that stays is kept."""
        before, known = self._places, {id(p.index): p for p in self._places.values()}
        self._places = {name: known.get(id(i)) or _Place(i) for name, i in places.items()}
        for place in before.values():
            place.index.on_stored = None
        for name, place in self._places.items():
            place.index.on_stored = partial(self._stored, place)
            epochs = [old.epoch for was, old in before.items() if _cluster(was) == _cluster(name)]
            place.epoch = max(place.epoch, *epochs, 0)
        self._turns = deque(self._places)
        self._ask_again = self._open

    def opened(self) -> str:
        """A socket to the console is open; what to say on it first."""
        self._open, self._ask_again = True, False
        return self._wants()

    def _wants(self) -> str:
        clusters = {_cluster(name) for name in self._places}
        return _text(_Wanted(self._router, sorted(clusters | set(self._places))))

    def closed(self) -> None:
        """The socket is gone: what waits would only grow old."""
        self._open = False
        for place in self._places.values():
            place.forget_queues()

    def next_message(self) -> str | None:
        """What to say now, or None. Ask at most once a second."""
        if self._ask_again:
            self._ask_again = False
            return self._wants()
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            if (message := self._say(name, self._places[name])) is not None:
                return message
        return None

    async def receive(self, text: str) -> None:
        """Takes a message of one of `TYPES`; one that makes no sense is counted and ignored."""
        try:
            message = _decoder.decode(text)
            match message:
                case _Epoch():
                    for name in self._places:
                        if message.place in (name, _cluster(name)):
                            self._advance(name, message.epoch)
                case _Wanted():
                    self._wanted(message)
                case _News():
                    await self._heard(message)
        except (msgspec.MsgspecError, ValueError) as exc:
            self._ignore("invalid", str(exc))

    def _stored(self, place: _Place, chain: Chain) -> None:
        """A prompt of this gate was prefilled. On the request path: what is new is seen later."""
        if not self._open or not chain:
            return
        place.stored.append(chain)
        place.n_stored_keys += len(chain)
        while place.n_stored_keys > MAX_QUEUED_KEYS:
            n_dropped = len(place.stored.popleft())
            place.n_stored_keys -= n_dropped
            self._metrics.cache_keys_dropped.add(by=n_dropped)

    def _say(self, name: str, place: _Place) -> str | None:
        now_s = self._now_s()
        if place.answer_at_s is not None and now_s >= place.answer_at_s:
            place.answer_at_s = None
            place.answers.extend(place.journal.messages(place.index))
        if place.answers:
            # News waits meanwhile: an answer is a few messages at most.
            return self._news(name, place, place.answers.popleft(), snapshot=True)
        fragments = self._take(place, now_s)
        return self._news(name, place, fragments, snapshot=False) if fragments else None

    def _take(self, place: _Place, now_s: float) -> list[Fragment]:
        """The next untold fragments that fit into one message."""
        taken: list[Fragment] = []
        room = MAX_KEYS
        while True:
            while not place.fragments and place.stored:
                chain = place.stored.popleft()
                place.n_stored_keys -= len(chain)
                place.fragments.extend(_split(self._untold(place, chain, now_s)))
            if not place.fragments or len(place.fragments[0].keys) > room:
                return taken
            fragment = place.fragments.popleft()
            taken.append(fragment)
            room -= len(fragment.keys)
            self._note(place, fragment, now_s)
            if not fragment.complete:
                return taken

    def _untold(self, place: _Place, chain: Chain, now_s: float) -> Chain:
        n_told = sum(1 for _ in takewhile(lambda key: place.told.has(key, now_s), chain))
        if n_told == len(chain) and place.index.exact_state:
            # Its blocks are known as those of a longer prompt, but not that a state was kept here.
            n_told -= not place.told_states.has(chain[-1], now_s)
        return chain[n_told:]

    def _note(self, place: _Place, fragment: Fragment, now_s: float) -> None:
        """Every gate of the place knows it now."""
        place.told.add(fragment.keys, now_s)
        if fragment.complete and place.index.exact_state:
            place.told_states.add(fragment.keys[-1:], now_s)
        place.journal.add(fragment)

    def _news(
        self, name: str, place: _Place, fragments: Sequence[Fragment], *, snapshot: bool
    ) -> str:
        keys: list[bytes] = []
        ends: list[int] = []
        for fragment in fragments:
            keys.extend(fragment.keys)
            if fragment.complete:
                ends.append(len(keys))
        self._metrics.cache_keys_sent.add(by=len(keys))
        return _text(
            _News(
                router=self._router,
                place=name,
                block_bytes=self._block_bytes,
                epoch=place.epoch,
                linear_state=place.linear_state,
                keys=base64.b64encode(b"".join(keys)).decode(),
                ends=ends,
                snapshot=snapshot,
            )
        )

    def _advance(self, name: str, epoch: int) -> None:
        """Engines of the place restarted or changed role; an older epoch is old news."""
        place = self._places[name]
        if epoch <= place.epoch:
            return
        if len(place.index):
            log.info("cache of %s: epoch %d, what was known of it is dropped", name, epoch)
            self._metrics.cache_epochs.add()
        place.epoch = epoch
        place.index.clear()
        place.told.clear()
        place.told_states.clear()
        place.journal.clear()
        place.forget_queues()

    def _wanted(self, wanted: _Wanted) -> None:
        if wanted.router == self._router:
            return
        for name in self._places.keys() & set(wanted.places):
            place = self._places[name]
            if place.answer_at_s is None and not place.answers:
                wait_s = self._rng.uniform(*SNAPSHOT_AFTER_S) + 1.0 - place.journal.fullness
                place.answer_at_s = self._now_s() + wait_s

    async def _heard(self, news: _News) -> None:
        if news.router == self._router:
            return
        place = self._places.get(news.place)
        if place is None:
            return self._ignore("unknown_place", f"place {news.place!r} of {news.router}")
        ours = (self._block_bytes, place.linear_state)
        theirs = (news.block_bytes, news.linear_state)
        if theirs != ours:
            return self._ignore(
                "other_blocks",
                f"{news.router} tells of {news.place} with (block_bytes, linear_state) = {theirs}, "
                f"this gate counts with {ours}",
            )
        if news.epoch < place.epoch:
            return self._ignore("old_epoch", f"{news.router} is at epoch {news.epoch}")
        fragments = _fragments(news)
        self._advance(news.place, news.epoch)
        if news.snapshot:
            place.answer_at_s = None  # one answer suffices
        self._metrics.cache_keys_received.add(by=sum(len(f.keys) for f in fragments))
        await self._adopt(place, fragments)

    async def _adopt(self, place: _Place, fragments: Iterable[Fragment]) -> None:
        """Enters them, letting streams have their turn between."""
        now_s, n_at_once = self._now_s(), 0
        for fragment in fragments:
            keys = fragment.keys
            self._metrics.cache_keys_adopted.add(by=sum(key not in place.index for key in keys))
            place.index.adopt(keys, state_at_end=fragment.complete and place.index.exact_state)
            self._note(place, fragment, now_s)
            n_at_once += len(keys)
            if n_at_once >= _ADOPT_AT_ONCE_KEYS:
                n_at_once = 0
                await asyncio.sleep(0)

    def _ignore(self, reason: str, what: str) -> None:
        self._metrics.cache_ignored.add(reason)
        if reason not in self._complained:
            log.warning("what another gate said of a cache is ignored (%s): %s", reason, what)
        self._complained.add(reason)


def place_names(cluster: str, names: Sequence[str]) -> list[str]:
    """The places of a cluster whose stacks are called so."""
    return [cluster] if len(names) == 1 else [f"{cluster}/{name}" for name in names]


def _cluster(place: str) -> str:
    return place.partition("/")[0]


def _split(chain: Chain) -> list[Fragment]:
    """The chain in pieces that fit into one message each."""
    ends = range(MAX_KEYS, len(chain) + MAX_KEYS, MAX_KEYS)
    return [Fragment(chain[end - MAX_KEYS : end], end >= len(chain)) for end in ends]


def _fragments(news: _News) -> list[Fragment]:
    """The chains of a message. Raises ValueError for keys or ends that cannot be meant."""
    raw = base64.b64decode(news.keys, validate=True)
    n_keys, n_odd_bytes = divmod(len(raw), _KEY_BYTES)
    if n_odd_bytes or not 0 < n_keys <= MAX_KEYS:
        raise ValueError(f"keys: {len(raw)} bytes are not 1 to {MAX_KEYS} keys of {_KEY_BYTES}")
    keys = tuple(raw[i : i + _KEY_BYTES] for i in range(0, len(raw), _KEY_BYTES))
    ends = [n_keys] if news.ends is None else news.ends
    starts = [0, *ends]
    if any(not start < end <= n_keys for start, end in zip(starts, ends, strict=False)):
        raise ValueError(f"ends: must rise within the {n_keys} keys")
    found = [Fragment(keys[a:b]) for a, b in zip(starts, ends, strict=False)]
    if starts[-1] < n_keys:
        found.append(Fragment(keys[starts[-1] :], complete=False))
    return found


def _text(message: _News | _Wanted) -> str:
    return msgspec.json.encode(message).decode()
