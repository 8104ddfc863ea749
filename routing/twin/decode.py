"""Decode instances of one PD cluster: who gets which request, whatever a step takes.

A request is given to the instance with the fewest, chosen when its prefill ends; it waits there for
its KV, then for a slot. The first token is the prefill's own, so its other output - 1 tokens take
a step each. `decode_slots` and `decode_batch` say how long a step is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from heapq import heapify

from routing.twin.row import DECODER, END, LINK, READY, Row

OUT = 1 << 60
"""Added to the load of an instance that takes nothing new."""
Event = tuple[float, int, Row]


class DecodePool(ABC):
    """`n` instances at first; they come and go, and fail, by `add`, `remove` and `fail`."""

    preemptions = 0
    """How often a request was put back for want of KV memory, so far."""

    def __init__(self, n: int) -> None:
        self._loads: list[int] = []
        self._events: list[Event] = []
        """What is to come, by time: a prefill ends (even numbers), KV arrives (odd ones)."""
        self._homeless: list[tuple[int, Row]] = []
        """Events that came while no instance takes anything."""
        self.begun: list[Event] | None = None
        """Where it is a list: what got a slot, or will, by when; a heap for others to take from."""
        self._count = 0
        for _ in range(n):
            self.add(0.0)

    def __len__(self) -> int:
        """Instances that take requests."""
        return sum(1 for load in self._loads if load < OUT)

    def expect(self, rows: Sequence[Row]) -> None:
        """Prefills that will end, at END, and are decoded here."""
        self._tell(rows, END, 0)

    def arrive(self, rows: Sequence[Row]) -> None:
        """KV that will have crossed a link, at READY. Their `expect` came before."""
        self._tell(rows, READY, 1)

    def _tell(self, rows: Sequence[Row], when: int, odd: int) -> None:
        events, number = self._events, 2 * self._count + odd
        for row in rows:
            events.append((row[when], number, row))
            number += 2
        self._count += len(rows)

    @abstractmethod
    def run(self, until_s: float) -> list[Row]:
        """On to `until_s`; the rows whose last token is out: SLOT and DONE are filled."""

    @abstractmethod
    def _new_instance(self, now_s: float) -> None:
        """Room for one instance more."""

    @abstractmethod
    def _lose(self, decoder: int, now_s: float) -> list[Row]:
        """What an instance has or waits for its slots, which it has no more."""

    @property
    @abstractmethod
    def _held(self) -> list[Row]:
        """What has a slot or waits for one."""

    @abstractmethod
    def busy_s(self, now_s: float) -> float:
        """Instance seconds until now, an instance with half of its slots in use half of one."""

    @abstractmethod
    def n_for_slot(self, now_s: float) -> int:
        """Requests whose KV is there and that wait for a slot."""

    @abstractmethod
    def kv_tokens(self) -> float:
        """KV that instances hold, or will for what they have."""

    def n_for_kv(self) -> int:
        """Requests that were given to an instance and wait for their KV."""
        return sum(load % OUT for load in self._loads) - len(self._held)

    @property
    def under_way(self) -> list[Row]:
        """What waits for its prefill, for a slot, or has one; not what is on a link."""
        rows = [row for _, _, row in self._events] + [row for _, row in self._homeless]
        return rows + self._held

    def _given(self, number: int, row: Row) -> int:
        """The instance of an event: the emptiest one for what ended its prefill. Negative where
        the event waits: for an instance, or for the KV of a row that has one."""
        if number & 1:
            decoder: int = row[DECODER]
            if decoder < 0:
                self._homeless.append((number, row))
            return decoder
        loads = self._loads
        least = min(loads, default=OUT)
        if least >= OUT:
            self._homeless.append((number, row))
            return -1
        decoder = row[DECODER] = loads.index(least)
        loads[decoder] += 1
        return decoder if row[LINK] < 0 else -1

    def add(self, now_s: float) -> None:
        """One instance more, empty from `now_s`."""
        self._loads.append(0)
        self._new_instance(now_s)
        self._events += [(now_s, number, row) for number, row in self._homeless]
        self._homeless = []

    def remove(self) -> int:
        """The instance with the fewest requests takes nothing new; its number."""
        i = self._loads.index(min(self._loads))
        self._loads[i] += OUT
        return i

    def drained(self, decoder: int) -> bool:
        """Whether a removed instance has nothing left."""
        return self._loads[decoder] == OUT

    def restore(self, decoder: int) -> None:
        """A removed instance takes requests again."""
        self._loads[decoder] -= OUT

    def fail(self, now_s: float) -> tuple[int, list[Row]]:
        """The last instance is lost with all it had: its number, and rows that begin anew."""
        decoder = max(i for i, load in enumerate(self._loads) if load < OUT)
        lost = self._lose(decoder, now_s)
        lost += [row for _, odd, row in self._events if odd & 1 and row[DECODER] == decoder]
        self._loads[decoder] = OUT
        return decoder, lost

    def forget(self, lost: Collection[int]) -> None:
        """Drops what was told of rows, by `id`, that begin anew."""
        self._events = [event for event in self._events if id(event[2]) not in lost]
        self._homeless = [each for each in self._homeless if id(each[1]) not in lost]
        if self.begun is not None:
            self.begun = [each for each in self.begun if id(each[2]) not in lost]
            heapify(self.begun)
