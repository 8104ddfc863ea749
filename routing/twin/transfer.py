"""One directed link: KV that leaves while it is computed, shared max-min fairly.

A prefill of P seconds releases its s bytes layer by layer, n times s / n. The model is fluid but
for the last layer: nothing in [0, P / n), s / P bytes a second from there to P, and s / n at once
at P. Alone on a link of r bytes/s, the last byte then leaves at

    max(P + s / (n r),  P / n + s / r)           = max(P, s / r) + tail

exactly as layer after layer does, and half a round trip later it is there.

Flows share as TCP is hoped to: max-min. Each is limited by its connections (all flows of a link
equally, `cap`) and, until it has released everything, by what it has released. With U the flows
that send all they release and B those with bytes waiting,

    fair = min(cap, (capacity - sum of U's rates) / |B|)      every u in U:  rate_u <= fair

All of B get the same rate, so one integral of it, V, serves them all: a flow that waits with b
bytes at V0 is through when V = V0 + b (virtual time, as in processor sharing).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from routing.core.model.kvcache import bytes_per_s
from routing.core.scenario.document import Link as LinkFacts
from routing.twin.row import AT, BYTES, END, READY, START, UNSET, WIDTH, Row

SEGMENT_BYTES = 1448.0
"""Payload of a TCP segment on a path of 1500 bytes MTU."""
MATHIS = math.sqrt(1.5)
"""C of rate = C * segment / (rtt * sqrt(loss)): Mathis et al., The macroscopic behavior of the TCP
congestion avoidance algorithm, CCR 27(3), 1997; periodic loss, every segment acknowledged."""
DEFAULT_CONNECTIONS = 8
"""Of one transfer, where the link does not say."""


@dataclass(frozen=True)
class Path:
    """What flows meet. `cap_bytes_per_s` is one flow's limit, infinite where nothing limits it."""

    capacity_bytes_per_s: float
    cap_bytes_per_s: float
    rtt_s: float

    @classmethod
    def of(cls, link: LinkFacts, *, gbps: float | None = None, loss: float | None = None) -> Path:
        """The link as it is described, or with another capacity or loss ratio for now."""
        facts = link.facts
        loss = float(facts.get("loss", 0.0)) if loss is None else loss
        rtt_s = link.rtt_s or 0.0
        usable = link.usable_gbps if gbps is None else _usable(link, gbps)
        per_connection = bytes_per_s(float(facts.get("per_connection_gbps", math.inf)))
        if loss > 0.0 and rtt_s > 0.0:
            per_connection = min(per_connection, MATHIS * SEGMENT_BYTES / rtt_s / math.sqrt(loss))
        connections = int(facts.get("connections", DEFAULT_CONNECTIONS))
        # What is lost is sent again in the capacity of the link.
        return cls(bytes_per_s(usable) * (1.0 - loss), connections * per_connection, rtt_s)


def _usable(link: LinkFacts, gbps: float) -> float:
    capped = min(gbps, float(link.facts.get("cap_gbps", gbps)))
    return max(0.0, capped - float(link.facts.get("background_gbps", 0.0)))


class _Flow:
    """A transfer that is still being released, at `rate`; `waiting` bytes of that are not sent."""

    __slots__ = ("last_bytes", "rate", "row", "waiting")

    def __init__(self, row: Row, rate: float, last_bytes: float) -> None:
        self.row, self.rate, self.last_bytes = row, rate, last_bytes
        self.waiting = 0.0


class LinkFlows:
    """The flows of one link. `send` tells of prefills, `run` moves on to a time and fills READY.

    `path` may be set at any time that the link was run to. `sent_bytes` only rises.
    """

    def __init__(self, path: Path, *, layers: int) -> None:
        self.path = path
        self.sent_bytes = 0.0
        self._layers = layers
        self._now_s = 0.0
        self._due: list[tuple[float, int, Row]] = []
        self._ends: list[tuple[float, int, _Flow]] = []
        self._easy: dict[_Flow, None] = {}
        """Flows that send all they release; `_easy_rate` together, none more than `_most_rate`."""
        self._easy_rate = self._most_rate = 0.0
        self._lagging: list[_Flow] = []
        """Flows that release more than they may send, or once did and have not caught up."""
        self._draining: list[tuple[float, int, Row]] = []
        """What has released everything, by the V at which its last byte leaves."""
        self._v = 0.0
        self._count = 0

    @property
    def waiting_bytes(self) -> float:
        """Released and not sent."""
        drains = sum(at_v - self._v for at_v, _, _ in self._draining)
        return drains + sum(flow.waiting for flow in self._lagging)

    @property
    def n_flows(self) -> int:
        return len(self._easy) + len(self._lagging) + len(self._draining)

    @property
    def sending_bytes_per_s(self) -> float:
        """What leaves now."""
        n_waiting = len(self._lagging) + len(self._draining)
        return self._easy_rate + (self._fair_rate(n_waiting) * n_waiting if n_waiting else 0.0)

    @property
    def rows(self) -> list[Row]:
        """What is on its way, or will be once its prefill has begun."""
        flows = [*self._easy, *self._lagging]
        waiting = [*self._due, *self._draining]
        return [flow.row for flow in flows] + [row for _, _, row in waiting]

    def send(self, rows: Sequence[Row]) -> None:
        """Prefills that are to come: START, END and BYTES of each are known."""
        due, layers, count = self._due, self._layers, self._count
        for row in rows:
            count += 1
            start_s = row[START]
            due.append((start_s + (row[END] - start_s) / layers, count, row))
        self._count = count

    def bring(self, size_bytes: float, at_s: float) -> None:
        """Bytes that are all there at `at_s` and belong to no prefill of `send`."""
        row: Row = [UNSET] * WIDTH
        row[START] = row[END] = at_s
        row[BYTES] = size_bytes
        self.send((row,))

    def expected_s(self, size_bytes: float) -> float:
        """Seconds for bytes that are all there now; infinite over a link that is down."""
        n_waiting = len(self._lagging) + len(self._draining)
        rate = min(
            self.path.cap_bytes_per_s,
            max(
                self.path.capacity_bytes_per_s - self._easy_rate,
                self.path.capacity_bytes_per_s / (1 + self.n_flows),
            )
            / (1 + n_waiting),
        )
        return size_bytes / rate + self.path.rtt_s / 2.0 if rate > 0.0 else math.inf

    def forget(self, lost: Collection[int]) -> None:
        """Drops transfers whose prefill failed, by `id` of their rows; what was sent stays sent."""
        self._due = [due for due in self._due if id(due[2]) not in lost]
        self._draining = [drain for drain in self._draining if id(drain[2]) not in lost]
        heapify(self._draining)
        self._ends = [end for end in self._ends if id(end[2].row) not in lost]
        heapify(self._ends)
        self._lagging = [flow for flow in self._lagging if id(flow.row) not in lost]
        self._easy = {flow: None for flow in self._easy if id(flow.row) not in lost}
        self._easy_rate = sum(flow.rate for flow in self._easy)

    def run(self, until_s: float) -> list[Row]:
        """On to `until_s`: the rows whose last byte arrives, in the order in which it left.

        READY of a row is that arrival, half a round trip after it left, so maybe later than
        `until_s`.
        """
        due, ends, lagging, draining = self._due, self._ends, self._lagging, self._draining
        due.sort()
        arrived: list[Row] = []
        half_rtt_s = self.path.rtt_s / 2.0
        now_s, n_due, n_all_due = self._now_s, 0, len(due)
        catching: _Flow | None = None
        while True:
            n_waiting, fair = self._share()
            end_s = ends[0][0] if ends else math.inf
            due_s = due[n_due][0] if n_due < n_all_due else math.inf
            next_s = end_s if end_s < until_s else until_s
            next_s = due_s if due_s < next_s else next_s
            drain_s = catch_s = math.inf
            if n_waiting:
                if draining and fair:
                    drain_s = now_s + (draining[0][0] - self._v) / fair
                if lagging:
                    catching, catch_s = self._soonest_caught(now_s, fair)
                if drain_s <= next_s or catch_s < next_s:
                    next_s = drain_s if drain_s < catch_s else catch_s
            elapsed_s = next_s - now_s
            if elapsed_s > 0.0:
                self._pass(elapsed_s, n_waiting, fair)
                now_s = next_s
            if drain_s <= next_s:
                self._v, _, row = heappop(draining)
                row[READY] = now_s + half_rtt_s
                if row[AT] != UNSET:
                    arrived.append(row)
            elif catching is not None and catch_s <= next_s:
                catching.waiting = 0.0
                lagging.remove(catching)
                self._add_easy(catching)
            elif end_s <= next_s:
                self._released()
            elif due_s <= next_s < until_s:
                self._begun(due[n_due][2])
                n_due += 1
            else:
                break
        del due[:n_due]
        self._now_s = now_s
        return arrived

    def _share(self) -> tuple[int, float]:
        """How many flows have bytes waiting, and what rate each of them gets now."""
        n_waiting = len(self._lagging) + len(self._draining)
        capacity, cap = self.path.capacity_bytes_per_s, self.path.cap_bytes_per_s
        if not n_waiting:
            if self._easy_rate <= capacity and self._most_rate <= cap:
                self._v = 0.0
                return 0, 0.0
            self._limit(capacity, cap)
        else:
            fair = self._fair_rate(n_waiting)
            if self._most_rate <= fair:
                return n_waiting, fair
            self._limit(capacity, cap)
        n_waiting = len(self._lagging) + len(self._draining)
        return n_waiting, self._fair_rate(n_waiting) if n_waiting else 0.0

    def _soonest_caught(self, now_s: float, fair: float) -> tuple[_Flow | None, float]:
        """The flow that has first sent all it released so far, if rates stay as they are."""
        found, first_s = None, math.inf
        for flow in self._lagging:
            if flow.rate < fair:
                at_s = now_s + flow.waiting / (fair - flow.rate)
                if at_s < first_s:
                    found, first_s = flow, at_s
        return found, first_s

    def _pass(self, elapsed_s: float, n_waiting: int, fair: float) -> None:
        self.sent_bytes += (self._easy_rate + fair * n_waiting) * elapsed_s
        self._v += fair * elapsed_s
        for flow in self._lagging:
            flow.waiting += (flow.rate - fair) * elapsed_s

    def _begun(self, row: Row) -> None:
        """A transfer has its first layer, or all of it where no prefill takes time."""
        size, seconds = row[BYTES], row[END] - row[START]
        self._count += 1
        if self._layers > 1 and seconds > 0.0:
            flow = _Flow(row, size / seconds, size / self._layers)
            self._add_easy(flow)
            heappush(self._ends, (row[END], self._count, flow))
        else:
            heappush(self._draining, (self._v + size, self._count, row))

    def _released(self) -> None:
        """A prefill has ended: the last layer joins what waits of it."""
        flow = heappop(self._ends)[2]
        if flow in self._easy:
            self._take_easy(flow)
        else:
            self._lagging.remove(flow)
        self._count += 1
        last_v = self._v + flow.waiting + flow.last_bytes
        heappush(self._draining, (last_v, self._count, flow.row))

    def _add_easy(self, flow: _Flow) -> None:
        self._easy[flow] = None
        self._easy_rate += flow.rate
        if flow.rate > self._most_rate:
            self._most_rate = flow.rate

    def _take_easy(self, flow: _Flow) -> None:
        del self._easy[flow]
        # With nobody left the sum is nothing, whatever rounding says.
        self._easy_rate = self._easy_rate - flow.rate if self._easy else 0.0
        if not self._easy:
            self._most_rate = 0.0

    def _fair_rate(self, n_waiting: int) -> float:
        fair = (self.path.capacity_bytes_per_s - self._easy_rate) / n_waiting
        cap = self.path.cap_bytes_per_s
        return fair if fair < cap else cap

    def _limit(self, capacity: float, cap: float) -> None:
        """Of the flows that send all they release, those above their fair rate lag from now on,
        the quickest first."""
        n_waiting = len(self._lagging) + len(self._draining)
        quickest = sorted(self._easy, key=lambda flow: flow.rate)
        self._most_rate = 0.0
        while quickest:
            rate = quickest[-1].rate
            free = capacity - self._easy_rate
            fair = min(cap, free / n_waiting) if n_waiting else min(cap, free + rate)
            if rate <= fair:
                self._most_rate = rate
                return
            flow = quickest.pop()
            self._take_easy(flow)
            self._lagging.append(flow)
            n_waiting += 1
