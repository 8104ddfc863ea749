"""One PD cluster of the twin, and a PrfaaS cluster that may prefill for it: where a request goes.

The gate's rule is the core's (`placement.rule`). Where it comes down to one comparison, remote iff
uncached > t, that comparison is made here for many requests at once; tests hold the two together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.core.model.kvcache import KvModel
from routing.core.placement import rule as placement
from routing.core.placement import sides
from routing.core.placement.credit import Credit
from routing.core.placement.rule import Prefixes, Rule, Side, WeightedTurns
from routing.core.placement.wait import Pending, Wait
from routing.core.types import ClusterPlan
from routing.twin.decode import DecodePool
from routing.twin.prefill import PrefillPool
from routing.twin.requests import Blocks
from routing.twin.row import BYTES, COMPUTED, GIVEN, LINK, PROMPT, REASON, SITE, UNCACHED, Row
from routing.twin.transfer import LinkFlows

Whole = NDArray[np.int64]
REASONS = tuple(sides.REASONS)
"""What a row's REASON is an index into."""
_INDEX = {reason: i for i, reason in enumerate(REASONS)}


@dataclass(frozen=True)
class Remote:
    """A PrfaaS cluster as one PD cluster reaches it: over `flows`, the link of number `link`.

    `back` is the link the other way, if there is one: prefixes may move over it.
    """

    name: str
    pool: PrefillPool
    link: int
    link_id: str
    flows: LinkFlows
    back_id: str
    back: LinkFlows | None

    @property
    def admits(self) -> bool:
        """A stack refuses what it could not bring over or compute; the gate then stays local."""
        return self.flows.path.capacity_bytes_per_s > 0.0 and len(self.pool) > 0


class _Gate:
    """What one gate knows of local (named by nothing) and of PrfaaS clusters: how long they take,
    and how far what it believes of their caches lately came true. Where all instances of a side
    share a cache, all of that does."""

    def __init__(self) -> None:
        self._waits: dict[str, Wait] = {}
        self._credits: dict[str, Credit] = {}

    def wait(self, side: str) -> Wait:
        return self._waits.setdefault(side, Wait())

    def credit(self, side: str) -> Credit:
        return self._credits.setdefault(side, Credit())

    def believed(self, side: str, held_tokens: int) -> int:
        """What the side is taken to have of a prompt, of which its instances together have so
        many tokens."""
        found = self._credits.get(side)
        return held_tokens if found is None else int(held_tokens * found.ratio)


class PdCluster:
    """A PD cluster: its prefill pool, its decode pool, what its gates run."""

    def __init__(
        self,
        index: int,
        name: str,
        *,
        pool: PrefillPool,
        decode: DecodePool,
        remotes: Mapping[str, Remote],
        kv: KvModel,
        holds_prefix: bool,
        n_gates: int,
        plan: ClusterPlan,
    ) -> None:
        self.index, self.name = index, name
        self.pool, self.decode = pool, decode
        self.remotes = dict(remotes)
        self.n_remote = 0
        """Requests in flight that went remote."""
        self.simple = False
        """Whether `split` says all there is to say at the moment."""
        self._admissible: list[str] = []
        self._local_up = False
        self._kv, self._holds_prefix = kv, holds_prefix
        self._turns = WeightedTurns()
        self._gates = [_Gate() for _ in range(n_gates)]
        self._next_gate = 0
        self._pending: dict[int, tuple[Wait, Pending, Row]] = {}
        """What the gate has sent and got no first byte of, by `id` of its row."""
        self.adopt(plan)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's rows are other objects."""
        self.__dict__.update(state)
        self._pending = {id(sent[2]): sent for sent in self._pending.values()}

    def adopt(self, plan: ClusterPlan) -> None:
        """The gates run the plan from now on."""
        self.plan = plan
        self._rule = rule = Rule.of(plan)
        self._above = _above(rule)
        """Remote iff more uncached tokens than this, where `plain`."""
        self._long = _INDEX[sides.ALWAYS_REMOTE if rule.mode == "always_remote" else sides.LONG]
        self._short = _INDEX[sides.ALWAYS_LOCAL if rule.mode == "always_local" else sides.SHORT]
        self._no_remote = _INDEX[sides.REMOTE_DOWN if self._weighted() else sides.NO_REMOTE]
        low, high = rule.band or (0, 0)
        self._plain = (
            low == high and rule.cache_mode == "scarce" and rule.max_remote_in_flight is None
        )
        """Whether lengths alone decide: no band, no limit, no prefix that moves."""
        if low < high and self.decode.begun is None:
            self.decode.begun = []
        self.listens = self.decode.begun is not None
        """Whether the gate goes by what it hears of its own requests, so that each counts."""
        self.look()

    def _weighted(self) -> list[str]:
        return [n for n, weight in self._rule.remote.items() if weight > 0 and n in self.remotes]

    def look(self) -> None:
        """Sees who can take requests now, which changes only where time is cut."""
        self._admissible = [name for name in self._weighted() if self.remotes[name].admits]
        self._local_up = len(self.pool) > 0
        wants_local = self.plan.mode != "always_remote"
        up = self._local_up if wants_local else bool(self._admissible)
        self.simple = self._plain and up

    @property
    def steps(self) -> bool:
        """Whether what became of the requests before decides over the next one."""
        return self.listens or self._rule.max_remote_in_flight is not None

    def hear(self, now_s: float) -> None:
        """First bytes until now."""
        begun = self.decode.begun
        while begun and begun[0][0] <= now_s:
            at_s, _, row = heappop(begun)
            sent = self._pending.pop(id(row), None)
            if sent is not None:
                sent[0].first_byte(sent[1], now_s=at_s)

    def forget(self, lost: Mapping[int, Row]) -> None:
        """Requests, by `id` of their rows, that will be sent anew."""
        self.decode.forget(lost)
        for key, row in lost.items():
            self.n_remote -= row[SITE] == self.index and row[LINK] >= 0
            sent = self._pending.pop(key, None)
            if sent is not None:
                sent[0].gone(sent[1])

    def split(self, uncached_tokens: Whole) -> tuple[NDArray[np.bool_], Whole]:
        """Of many requests, shape (n,): which go remote, and the index of each reason.

        Where it is `simple`.
        """
        wanted: NDArray[np.bool_] = uncached_tokens > self._above
        if self._admissible:
            return wanted, np.where(wanted, self._long, self._short)
        return np.zeros_like(wanted), np.where(wanted, self._no_remote, self._short)

    def shared_out(self, wants: NDArray[np.bool_]) -> list[tuple[Remote, NDArray[np.bool_]]]:
        """Requests that go remote, by whom: for each PrfaaS cluster that takes some, which."""
        if not wants.any():
            return []
        admissible = self._admissible
        if len(admissible) == 1:
            return [(self.remotes[admissible[0]], wants)]
        found: dict[str, NDArray[np.bool_]] = {}
        for i in np.flatnonzero(wants).tolist():
            name = self.pick(admissible).name
            found.setdefault(name, np.zeros_like(wants))[i] = True
        return [(self.remotes[name], chosen) for name, chosen in found.items()]

    def pick(self, admissible: Sequence[str], *, takes: bool = True) -> Remote:
        """Whose turn it is of the PrfaaS clusters; with `takes` the turn is used."""
        if len(admissible) == 1:
            return self.remotes[admissible[0]]
        name = self._turns.next(self._rule.remote, admissible)
        assert name is not None, "asked only where some are admissible"
        if takes:
            self._turns.take(name, self._rule.remote, admissible)
        return self.remotes[name]

    def place(self, row: Row, blocks: Blocks) -> bool:
        """Routes one request by the rule, gives it to an instance there, and to the link; False
        where no instance is left to take it: it is `stranded` there until one comes."""
        gate = self._gates[self._next_gate]
        self._next_gate = (self._next_gate + 1) % len(self._gates)
        remote, moved_tokens = self._route(row, blocks, gate)
        pool = self.pool if remote is None else remote.pool
        name = "" if remote is None else remote.name
        claimed = pool.held_tokens(row, blocks) if pool.spreads_prefixes else 0
        if not pool.take_one(row, blocks, moved_tokens=moved_tokens):
            return False
        if claimed:
            found, size = min(claimed, row[PROMPT] - row[COMPUTED]), pool.block_tokens
            gate.credit(name).claimed(claimed / size, confirmed=found / size)
        if self.listens:
            wait = gate.wait(name)
            pending = wait.sent(tokens=row[COMPUTED], now_s=row[GIVEN])
            self._pending[id(row)] = (wait, pending, row)
        if remote is not None:
            row[LINK] = remote.link
            held = self.pool.held_tokens(row, blocks) if self._holds_prefix else 0
            row[BYTES] = self._kv.curve.at(row[PROMPT] - held)
            remote.flows.send((row,))
            self.n_remote += 1
        return True

    def _route(self, row: Row, blocks: Blocks, gate: _Gate) -> tuple[Remote | None, int]:
        """The PrfaaS cluster, None for local; the tokens of prefix that moved there first."""
        held = self.pool.held_tokens(row, blocks)
        admissible = self._admissible
        if self.simple:
            uncached = row[UNCACHED] = row[PROMPT] - gate.believed("", held)
            if uncached <= self._above:
                row[REASON] = self._short
                return None, 0
            if not admissible:
                row[REASON] = self._no_remote
                return None, 0
            row[REASON] = self._long
            return self.pick(admissible), 0
        return self._by_rule(row, blocks, gate, held, admissible)

    def _by_rule(
        self, row: Row, blocks: Blocks, gate: _Gate, held: int, admissible: Sequence[str]
    ) -> tuple[Remote | None, int]:
        given_s, total = row[GIVEN], row[PROMPT]
        remote = self.pick(admissible, takes=False) if admissible else None
        held_there = 0 if remote is None else remote.pool.held_tokens(row, blocks)
        back = remote is not None and remote.back is not None
        believed = gate.believed("", held)
        believed_there = 0 if remote is None else gate.believed(remote.name, held_there)
        judged = placement.judge(
            self._rule,
            Prefixes(
                total,
                believed,
                believed_there,
                movable_local=believed if back else 0,
                movable_remote=believed_there,
            ),
            to_local="" if remote is None else remote.link_id,
            to_remote="" if remote is None else remote.back_id,
        )
        waits_s: dict[Side, float | None] = {}
        if self._rule.in_band(judged.uncached_tokens) and remote is not None:
            left = judged.compute_tokens
            waits_s = {
                "local": gate.wait("").expected_s(tokens=left["local"], now_s=given_s),
                "remote": gate.wait(remote.name).expected_s(tokens=left["remote"], now_s=given_s),
            }
        chosen = placement.route(
            self._rule,
            placement.Situation(
                judged=judged,
                remotes=self._weighted(),
                admissible=admissible,
                remote_in_flight=self.n_remote,
                local_up=self._local_up,
                waits_s=waits_s,
            ),
        )
        row[UNCACHED], row[REASON] = judged.uncached_tokens, _INDEX[chosen.reason]
        moved = 0
        if chosen.link is not None and remote is not None:
            if chosen.side == "local":
                moved = self._move(row, held_there - held, remote.flows) and held_there
            elif remote.back is not None:
                moved = self._move(row, held - held_there, remote.back) and held
        if chosen.side == "local":
            return None, moved
        return self.pick(admissible), moved

    def _move(self, row: Row, tokens: int, flows: LinkFlows) -> bool:
        """Sends a prefix over; the request waits for it. How long is told by the share of the link
        that it would have now: what comes later cannot be known when a request is given."""
        size = float(self._kv.curve.at(tokens))
        seconds = flows.expected_s(size)
        if not math.isfinite(seconds):
            return False
        flows.bring(size, row[GIVEN])
        row[GIVEN] += seconds
        return True


def _above(rule: Rule) -> float:
    if rule.threshold_tokens is not None:
        return float(rule.threshold_tokens)
    return math.inf if rule.mode == "always_local" else -1.0
