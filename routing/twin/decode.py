"""Decode instances of one PD cluster: `batch` slots each, one token per `step_s` in each slot.

A request is given to the instance with the fewest, chosen when its prefill ends; it waits there for
its KV, then for a slot. The first token is the prefill's own, so a slot is held for
(output - 1) step_s. A step takes equally long whatever the batch, so when a slot is got is known
when the KV arrives: the instance's slots are a G/G/batch queue in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from routing.twin.row import DECODER, DONE, END, LINK, OUTPUT, PROMPT, READY, SLOT, Row

_OUT = 1 << 60
"""Added to the load of an instance that takes nothing new."""


class DecodeSlots:
    """`n` instances at first; they come and go, and fail, by `add`, `remove` and `fail`."""

    def __init__(self, n: int, *, batch: int, step_s: float) -> None:
        self._batch, self._step_s = batch, step_s
        self._loads = [0] * n
        self._slots = [[0.0] * batch for _ in range(n)]
        """Per instance the times at which its slots are free, a heap."""
        self._events: list[tuple[float, int, Row]] = []
        """What is to come, by time: a prefill ends (even numbers), KV arrives (odd ones)."""
        self._ends: list[tuple[float, int, Row]] = []
        """What has a slot, or will have, by the time of its last token."""
        self._homeless: list[tuple[int, Row]] = []
        """Events that came while no instance takes anything."""
        self.begun: list[tuple[float, int, Row]] | None = None
        """Where it is a list: what got a slot, or will, by when; a heap for others to take from."""
        self._count = 0
        self._given_s = 0.0
        """Slot seconds given out so far."""

    def __len__(self) -> int:
        """Instances that take requests."""
        return sum(1 for load in self._loads if load < _OUT)

    def expect(self, rows: Sequence[Row]) -> None:
        """Prefills that will end, at END, and are decoded here."""
        self._tell(rows, END, 0)

    def arrive(self, rows: Sequence[Row]) -> None:
        """KV that will have crossed a link, at READY. Their `expect` came before."""
        self._tell(rows, READY, 1)

    def _tell(self, rows: Sequence[Row], when: int, odd: int) -> None:
        first = 2 * self._count + odd
        numbers = range(first, first + 2 * len(rows), 2)
        self._events += [
            (row[when], number, row) for number, row in zip(numbers, rows, strict=True)
        ]
        self._count += len(rows)

    def run(self, until_s: float) -> list[Row]:
        """On to `until_s`; the rows whose last token is out: SLOT and DONE are filled."""
        events, ends, loads, slots = self._events, self._ends, self._loads, self._slots
        step_s, begun, given_s, n = self._step_s, self.begun, 0.0, 0
        events.sort()
        done: list[Row] = []
        for time_s, number, row in events:
            if time_s > until_s:
                break
            n += 1
            while ends and ends[0][0] <= time_s:
                ended = heappop(ends)[2]
                loads[ended[DECODER]] -= 1
                done.append(ended)
            if number & 1:
                decoder = row[DECODER]
                if decoder < 0:
                    self._homeless.append((number, row))
                    continue
            else:
                least = min(loads, default=_OUT)
                if least >= _OUT:
                    self._homeless.append((number, row))
                    continue
                decoder = loads.index(least)
                loads[decoder] += 1
                row[DECODER] = decoder
                if row[LINK] >= 0:
                    continue  # its KV is told of when it arrives
                row[READY] = time_s
            free = slots[decoder]
            start_s = free[0]
            if start_s < time_s:
                start_s = time_s
            held_s = (row[OUTPUT] - 1) * step_s
            given_s += held_s
            end_s = start_s + held_s
            heapreplace(free, end_s)
            row[SLOT], row[DONE] = start_s, end_s
            if begun is not None:
                heappush(begun, (start_s, number, row))
            heappush(ends, (end_s, number, row))
        del events[:n]
        while ends and ends[0][0] <= until_s:
            ended = heappop(ends)[2]
            loads[ended[DECODER]] -= 1
            done.append(ended)
        self._given_s += given_s
        return done

    @property
    def under_way(self) -> list[Row]:
        """What waits for its prefill, for a slot, or has one; not what is on a link."""
        rows = [row for _, _, row in (*self._events, *self._ends)]
        return rows + [row for _, row in self._homeless]

    def busy_s(self, now_s: float) -> float:
        """Instance seconds until now, an instance with half of its slots in use half of one."""
        left: float = sum(row[DONE] - max(row[SLOT], now_s) for _, _, row in self._ends)
        return (self._given_s - left) / self._batch

    def n_waiting(self, now_s: float) -> tuple[int, int]:
        """Requests that wait for their KV, and for a slot."""
        rows = [row for _, number, row in self._ends if row[SLOT] > now_s]
        load = sum(load % _OUT for load in self._loads)
        return load - len(self._ends), len(rows)

    def kv_tokens(self) -> float:
        """KV of what has a slot or waits for one, at the end of its answer."""
        return float(sum(row[PROMPT] + row[OUTPUT] for _, _, row in self._ends))

    def add(self, now_s: float) -> None:
        """One instance more, empty from `now_s`."""
        self._loads.append(0)
        self._slots.append([now_s] * self._batch)
        self._events += [(now_s, number, row) for number, row in self._homeless]
        self._homeless = []

    def remove(self) -> int:
        """The instance with the fewest requests takes nothing new; its number."""
        i = self._loads.index(min(self._loads))
        self._loads[i] += _OUT
        return i

    def drained(self, decoder: int) -> bool:
        """Whether a removed instance has nothing left."""
        return self._loads[decoder] == _OUT

    def restore(self, decoder: int) -> None:
        """A removed instance takes requests again."""
        self._loads[decoder] -= _OUT

    def fail(self, now_s: float) -> tuple[int, list[Row]]:
        """The last instance is lost with all it had: its number, and rows that begin anew."""
        decoder = max(i for i, load in enumerate(self._loads) if load < _OUT)
        lost = [row for _, _, row in self._ends if row[DECODER] == decoder]
        self._ends = [end for end in self._ends if end[2][DECODER] != decoder]
        heapify(self._ends)
        lost += [row for _, odd, row in self._events if odd & 1 and row[DECODER] == decoder]
        self._loads[decoder] = _OUT
        self._given_s -= sum(max(0.0, row[DONE] - max(row[SLOT], now_s)) for row in lost)
        return decoder, lost

    def forget(self, lost: Collection[int]) -> None:
        """Drops what was told of rows, by `id`, that begin anew."""
        self._events = [event for event in self._events if id(event[2]) not in lost]
        self._homeless = [each for each in self._homeless if id(each[1]) not in lost]
        if self.begun is not None:
            self.begun = [each for each in self.begun if id(each[2]) not in lost]
            heapify(self.begun)
