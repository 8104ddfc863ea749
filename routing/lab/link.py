"""An emulated link: what it carries, how fast, and what its counters show meanwhile.

A transfer's bytes are *released* in equal chunks while the prefill computes them, then leave at the
transfer's share of the link. Shares are max-min fair: transfers with bytes waiting get equal rates,
none more than `connections * per_connection_gbps`, and what a capped one leaves goes to the others.
Between events rates are constant, so the state is advanced exactly from event to event; a late
callback of the clock delays who is told, never what happened or when.

    arrival(chunk) = when its last byte left + rtt/2
    rtt            = base + min(BUFFER_S, backlog_s)            while the link itself is the limit
    retransmitted  = loss + MAX_RETRANSMIT_RATIO * min(1, backlog_s / FULL_BACKLOG_S)    likewise
    backlog_s      = bytes released and not sent / bytes per second the transfers may use

A link is "the limit" when a transfer with bytes waiting gets less than its own cap. What
`tx_bytes_total` counts is payload: retransmissions show in the segment counters only, so bytes
counted = bytes shipped.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from routing.lab.clock import Clock, Handle

BYTES_PER_S_PER_GBPS = 1e9 / 8.0
SEGMENT_BYTES = 1448
"""Payload of one TCP segment on a 1500-byte path."""
MAX_RETRANSMIT_RATIO = 0.04
FULL_BACKLOG_S = 4.0
BUFFER_S = 0.2
"""The deepest queue the path itself holds; more waits in the sender and adds no round-trip time."""


@dataclass(frozen=True)
class LinkCounters:
    """A reading. Totals only rise; `tx_bytes_total` counts bytes as they move, not at the end."""

    tx_bytes_total: int
    segments_sent_total: int
    segments_retransmitted_total: int
    rtt_s: float
    connections: int
    capacity_gbps: float


class Transfer:
    """One request's KV on its way. `sent_bytes` is what has left the sender so far."""

    def __init__(
        self,
        *,
        total_bytes: int,
        start_s: float,
        duration_s: float,
        n_chunks: int,
        connections: int,
        cap_bytes_per_s: float,
        on_arrival: Callable[[float], object],
        on_down: Callable[[], object] | None,
    ) -> None:
        self.total_bytes, self.connections = total_bytes, connections
        self.cap_bytes_per_s = cap_bytes_per_s
        self.on_arrival, self.on_down = on_arrival, on_down
        self._start_s, self._duration_s, self._n_chunks = start_s, duration_s, n_chunks
        self._n_released = 0
        self.released_bytes = 0
        self.backlog_bytes = 0.0
        self.rate_bytes_per_s = 0.0
        self.notice: Handle | None = None

    @property
    def sent_bytes(self) -> float:
        return self.released_bytes - self.backlog_bytes

    @property
    def drained(self) -> bool:
        return self._n_released == self._n_chunks and self.backlog_bytes == 0.0

    @property
    def next_release_s(self) -> float:
        """When the next chunk is computed; infinity after the last."""
        if self._n_released == self._n_chunks:
            return math.inf
        return self._start_s + self._duration_s * (self._n_released + 1) / self._n_chunks

    def release(self) -> None:
        self._n_released += 1
        released = self.total_bytes * self._n_released // self._n_chunks
        self.backlog_bytes += released - self.released_bytes
        self.released_bytes = released


class Link:
    """One directed link shared by all its transfers. Not thread-safe: one clock, one caller."""

    def __init__(
        self,
        clock: Clock,
        *,
        gbps: float,
        rtt_s: float = 0.0,
        connections: int = 1,
        per_connection_gbps: float | None = None,
        loss_ratio: float = 0.0,
        background_gbps: float = 0.0,
    ) -> None:
        self._clock, self._base_rtt_s, self._loss_ratio = clock, rtt_s, loss_ratio
        self._connections, self._per_connection_gbps = connections, per_connection_gbps
        self._background_gbps = background_gbps
        self._active: dict[Transfer, None] = {}
        self._at_s = clock.time()
        self._finished_bytes = 0
        self._retransmitted = 0.0
        self._backlog_bytes = 0.0
        self._saturated = False
        self._wake: Handle | None = None
        self.capacity_gbps = gbps

    @property
    def down(self) -> bool:
        return self.capacity_gbps <= 0.0

    def set_capacity(self, gbps: float) -> None:
        """From now on; transfers under way keep what they have sent. 0 stalls them."""
        self._advance()
        self.capacity_gbps = gbps
        self._share()
        if self.down:
            for transfer in list(self._active):
                if transfer.on_down is not None:
                    transfer.on_down()

    def expected_s(self, total_bytes: int) -> float:
        """Seconds that many bytes would take, with the transfers under way staying as they are."""
        cap, usable = self._cap_bytes_per_s(self._connections), self._usable_bytes_per_s
        rate = min(cap, usable / (1 + len(self._active)))
        return total_bytes / rate + self._base_rtt_s / 2.0 if rate > 0.0 else math.inf

    def ship(
        self,
        *,
        total_bytes: int,
        start_s: float,
        duration_s: float,
        n_chunks: int,
        on_arrival: Callable[[float], object],
        on_down: Callable[[], object] | None = None,
        connections: int | None = None,
    ) -> Transfer:
        """Send `total_bytes` in `n_chunks` released evenly over `duration_s` from `start_s`.

        `on_arrival(arrival_s)` is called once, when the last chunk is at the other end;
        `on_down()` each time the link goes down before that.
        """
        connections = connections or self._connections
        transfer = Transfer(
            total_bytes=total_bytes,
            start_s=start_s,
            duration_s=duration_s,
            n_chunks=n_chunks,
            connections=connections,
            cap_bytes_per_s=self._cap_bytes_per_s(connections),
            on_arrival=on_arrival,
            on_down=on_down,
        )
        self._advance()
        self._active[transfer] = None
        self._share()
        return transfer

    def cancel(self, transfer: Transfer) -> int:
        """Drop what is not yet sent and say nothing of its arrival; the bytes it did send."""
        self._advance()
        if transfer.notice is not None:
            transfer.notice.cancel()
        if transfer in self._active:
            # A byte begun is a byte sent: the total must never be seen to fall.
            transfer.released_bytes = transfer.total_bytes = math.ceil(transfer.sent_bytes)
            transfer.backlog_bytes = 0.0
            self._retire(transfer)
            self._share()
        return transfer.released_bytes

    def read(self) -> LinkCounters:
        self._advance()
        sent = self._finished_bytes + sum(t.sent_bytes for t in self._active)
        return LinkCounters(
            tx_bytes_total=int(sent),
            segments_sent_total=int(sent / SEGMENT_BYTES + self._retransmitted),
            segments_retransmitted_total=int(self._retransmitted),
            rtt_s=self._base_rtt_s + min(BUFFER_S, self._backlog_s(self._backlog_bytes)),
            connections=sum(t.connections for t in self._active),
            capacity_gbps=self.capacity_gbps,
        )

    @property
    def _usable_bytes_per_s(self) -> float:
        return max(0.0, self.capacity_gbps - self._background_gbps) * BYTES_PER_S_PER_GBPS

    def _cap_bytes_per_s(self, connections: int) -> float:
        per_connection = self._per_connection_gbps
        cap = math.inf if per_connection is None else connections * per_connection
        return cap * BYTES_PER_S_PER_GBPS

    def _backlog_s(self, backlog_bytes: float) -> float:
        """Seconds of queue on the path; 0 while the link is not what holds the bytes back."""
        if not self._saturated or backlog_bytes <= 0.0:
            return 0.0
        usable = self._usable_bytes_per_s
        return backlog_bytes / usable if usable > 0.0 else math.inf

    def _advance(self) -> None:
        """Bring the state to the clock's now, event by event, each at its own exact time."""
        now_s = max(self._clock.time(), self._at_s)
        while True:
            event_s, transfer, drains = self._next_event()
            if transfer is None or event_s > now_s:
                self._move(now_s - self._at_s)
                self._at_s = now_s
                break
            event_s = max(event_s, self._at_s)
            self._move(event_s - self._at_s)
            self._at_s = event_s
            if drains:
                transfer.backlog_bytes = 0.0  # exactly: rates times times leave crumbs
            else:
                transfer.release()
            for done in [t for t in self._active if t.drained]:  # several may end at once
                self._retire(done)
                arrival_s = event_s + self._base_rtt_s / 2.0
                done.notice = self._clock.call_at(arrival_s, done.on_arrival, arrival_s)
            self._share_rates()
        self._schedule()

    def _next_event(self) -> tuple[float, Transfer | None, bool]:
        """The earliest (time, transfer, drains) ahead: a backlog drains, or a chunk is released."""
        first: tuple[float, Transfer | None, bool] = (math.inf, None, False)
        for transfer in self._active:
            release_s = transfer.next_release_s
            if release_s < first[0]:
                first = (release_s, transfer, False)
            if transfer.rate_bytes_per_s > 0.0:
                drain_s = self._at_s + transfer.backlog_bytes / transfer.rate_bytes_per_s
                if drain_s < first[0]:
                    first = (drain_s, transfer, True)
        return first

    def _move(self, elapsed_s: float) -> None:
        if elapsed_s <= 0.0 or self._backlog_bytes <= 0.0:
            return
        moved, before = 0.0, self._backlog_bytes
        for transfer in self._active:
            left = max(0.0, transfer.backlog_bytes - transfer.rate_bytes_per_s * elapsed_s)
            moved += transfer.backlog_bytes - left
            transfer.backlog_bytes = left
        self._backlog_bytes = before - moved
        # The backlog falls linearly between events, so its mean is that of its ends.
        backlog_s = self._backlog_s((before + self._backlog_bytes) / 2.0)
        ratio = self._loss_ratio + MAX_RETRANSMIT_RATIO * min(1.0, backlog_s / FULL_BACKLOG_S)
        self._retransmitted += ratio * moved / SEGMENT_BYTES

    def _retire(self, transfer: Transfer) -> None:
        del self._active[transfer]
        self._finished_bytes += transfer.released_bytes

    def _share(self) -> None:
        self._share_rates()
        self._schedule()

    def _share_rates(self) -> None:
        waiting = [t for t in self._active if t.backlog_bytes > 0.0]
        for transfer in self._active:
            transfer.rate_bytes_per_s = 0.0
        rates = fair_shares(self._usable_bytes_per_s, [t.cap_bytes_per_s for t in waiting])
        for transfer, rate in zip(waiting, rates, strict=True):
            transfer.rate_bytes_per_s = rate
        self._saturated = any(t.rate_bytes_per_s < t.cap_bytes_per_s for t in waiting)
        self._backlog_bytes = sum(t.backlog_bytes for t in waiting)

    def _schedule(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        event_s, transfer, _ = self._next_event()
        if transfer is not None:
            self._wake = self._clock.call_at(event_s, self._advance)


def fair_shares(capacity: float, caps: Iterable[float]) -> list[float]:
    """Max-min fair split of `capacity` between demands limited by `caps`, in their order."""
    caps = list(caps)
    shares = [0.0] * len(caps)
    left, n_left = capacity, len(caps)
    for i in sorted(range(len(caps)), key=caps.__getitem__):
        shares[i] = min(caps[i], left / n_left)
        left -= shares[i]
        n_left -= 1
    return shares


class LinkDown(Exception):
    """The link went down under a transfer that does not wait for its return."""


class Shipment:
    """A transfer awaited: the thin asyncio side of `Link.ship`, on the running loop. With
    `ends_with_link` it fails when the link goes down; without, it waits for its return."""

    def __init__(
        self,
        link: Link,
        *,
        total_bytes: int,
        start_s: float,
        duration_s: float,
        n_chunks: int,
        ends_with_link: bool = False,
    ) -> None:
        self._link = link
        self._arrival: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._transfer = link.ship(
            total_bytes=total_bytes,
            start_s=start_s,
            duration_s=duration_s,
            n_chunks=n_chunks,
            on_arrival=self._arrived,
            on_down=self._lost if ends_with_link else None,
        )

    def _arrived(self, arrival_s: float) -> None:
        if not self._arrival.done():
            self._arrival.set_result(arrival_s)

    def _lost(self) -> None:
        if not self._arrival.done():
            self._arrival.set_exception(LinkDown())

    async def arrival_s(self) -> float:
        """When the last chunk arrived, on the loop's clock. Raises LinkDown."""
        return await self._arrival

    def cancel(self) -> int:
        """Stop if still under way; the bytes that left the sender either way."""
        return self._link.cancel(self._transfer)
