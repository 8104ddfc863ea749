"""Decode with a step that takes equally long whatever the batch: `batch` slots an instance.

A slot is held for (output - 1) step_s. So when a slot is got is known when the KV arrives: the
slots of an instance are a G/G/batch queue in order of arrival.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from routing.twin.decode import OUT, DecodePool, Event
from routing.twin.row import DECODER, DONE, LINK, OUTPUT, PROMPT, READY, SLOT, Row


class DecodeSlots(DecodePool):
    """`n` instances of `batch` slots, `step_s` seconds a token."""

    def __init__(self, n: int, *, batch: int, step_s: float) -> None:
        self._batch, self._step_s = batch, step_s
        self._slots: list[list[float]] = []
        """Per instance the times at which its slots are free, a heap."""
        self._ends: list[Event] = []
        """What has a slot, or will have, by the time of its last token."""
        self._given_s = 0.0
        """Slot seconds given out so far."""
        super().__init__(n)

    def run(self, until_s: float) -> list[Row]:
        # The loop of `_given`, spelt out: it is what a request costs.
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
                least = min(loads) if loads else OUT
                if least >= OUT:
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
    def _held(self) -> list[Row]:
        return [row for _, _, row in self._ends]

    def busy_s(self, now_s: float) -> float:
        left: float = sum(row[DONE] - max(row[SLOT], now_s) for _, _, row in self._ends)
        return (self._given_s - left) / self._batch

    def n_for_slot(self, now_s: float) -> int:
        return sum(1 for _, _, row in self._ends if row[SLOT] > now_s)

    def kv_tokens(self) -> float:
        """At the end of their answers."""
        return float(sum(row[PROMPT] + row[OUTPUT] for _, _, row in self._ends))

    def _new_instance(self, now_s: float) -> None:
        self._slots.append([now_s] * self._batch)

    def _lose(self, decoder: int, now_s: float) -> list[Row]:
        lost = [row for _, _, row in self._ends if row[DECODER] == decoder]
        self._ends = [end for end in self._ends if end[2][DECODER] != decoder]
        heapify(self._ends)
        self._given_s -= sum(max(0.0, row[DONE] - max(row[SLOT], now_s)) for row in lost)
        return lost
