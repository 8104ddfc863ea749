"""What was read of a directed link, as its signals. Pure.

One rule about capacity: a path carries no more than its port and no more than the configuration
says, so its capacity is the lesser; only a rate above the greater is impossible.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from telemetry import counters
from telemetry.agent.http import ReadError
from telemetry.hosts.net_stat import HostTcp
from telemetry.hosts.port import Port
from telemetry.hosts.tcp import PeerReading
from telemetry.wire import LinkSignals

BYTES_PER_GBIT = 1e9 / 8
MARGIN_RATIO = 1.05
"""Of what a link can carry: more was never carried."""
JITTER_S = 0.05
"""Counters are not read at the very instant that stands beside them."""


def most_bytes(ceiling_gbps: float | None, elapsed_s: float) -> float:
    """What may have passed in `elapsed_s`; infinite where nothing is known that bounds it."""
    if ceiling_gbps is None or not elapsed_s > 0.0:
        return math.inf
    return ceiling_gbps * BYTES_PER_GBIT * MARGIN_RATIO * (elapsed_s + JITTER_S)


class ByteMeter:
    """One counter of bytes as a total that wraps and impossible jumps do not show in.

    A total of 64 bits is the counter's own, less impossible jumps, and falls where the counter was
    reset: whoever subtracts totals knows that. One of 32 bits counts from the meter's first
    reading, so that an agent that starts anew is a reset, too.
    """

    def __init__(self, *, width_bits: int = 64) -> None:
        self._width_bits = width_bits
        self._counter: float | None = None
        self._total = 0.0
        self._moved_at_s = 0.0

    def read(self, counter: float, *, at_s: float, ceiling_gbps: float | None) -> float | None:
        """The total in bytes; None where the step to this reading cannot be what was carried."""
        before, self._counter = self._counter, counter
        gained = counters.increase(before, counter, width_bits=self._width_bits)
        is_narrow = self._width_bits < 64
        if before is None or gained is None:
            self._total, self._moved_at_s = (0.0 if is_narrow else counter), at_s
            return self._total
        # Drivers update their counters at their own pace: measured from the last change.
        most = most_bytes(ceiling_gbps, at_s - self._moved_at_s)
        if gained > 0.0:
            self._moved_at_s = at_s
        if gained > most or (is_narrow and math.inf > most >= 2.0 ** (self._width_bits - 1)):
            return None
        is_reset = counter < before and not is_narrow
        self._total = counter if is_reset else self._total + gained
        return self._total


@dataclass(frozen=True)
class Measured:
    """Signals of one reading. A rate above `ceiling_gbps` is impossible; None: no bound is known.

    `epoch_s` is when the counters began, 0 where unknown. `warnings` are for people.
    """

    signals: LinkSignals
    at_s: float
    epoch_s: float = 0.0
    ceiling_gbps: float | None = None
    warnings: tuple[str, ...] = ()


class PortMeter:
    """Readings of one port as signals of its link."""

    def __init__(self, *, configured_gbps: float | None, width_bits: int = 64) -> None:
        self._configured_gbps = configured_gbps
        self._tx = ByteMeter(width_bits=width_bits)
        self._rx = ByteMeter(width_bits=width_bits)

    def read(
        self, port: Port, *, at_s: float, tcp: HostTcp | None = None, epoch_s: float = 0.0
    ) -> Measured:
        configured_gbps = self._configured_gbps
        known = [gbps for gbps in (configured_gbps, port.speed_gbps) if gbps is not None]
        # What a bond states leaves out members of unknown speed, so it bounds nothing.
        is_short = any(member.speed_gbps is None for member in port.members)
        ceiling_gbps = configured_gbps if is_short else max(known, default=None)
        tx_total = self._tx.read(port.tx_bytes, at_s=at_s, ceiling_gbps=ceiling_gbps)
        rx_total = self._rx.read(port.rx_bytes, at_s=at_s, ceiling_gbps=ceiling_gbps)
        warnings = [*(_with_use(w, configured_gbps) for w in port.warnings), *port.trouble]
        if tx_total is None or rx_total is None:
            warnings.append(f"its bytes jumped by more than {ceiling_gbps:g} Gbps: left out")
        signals = LinkSignals(
            tx_bytes_total=tx_total,
            rx_bytes_total=rx_total,
            capacity_gbps=0.0 if port.path_state == "down" else min(known, default=None),
            path_state=port.path_state,
            n_members=None if port.n_members is None else float(port.n_members),
            n_members_up=None if port.n_members_up is None else float(port.n_members_up),
        )
        return Measured(
            signals if tcp is None else _with_tcp(signals, tcp),
            at_s,
            epoch_s=epoch_s,
            ceiling_gbps=ceiling_gbps,
            warnings=tuple(warnings),
        )


def _with_use(warning: str, configured_gbps: float | None) -> str:
    if " states no " not in warning:
        return warning
    if configured_gbps is None:
        return f"{warning}: give capacity_gbps"
    return f"{warning}: the configured {configured_gbps:g} Gbps count"


def _with_tcp(signals: LinkSignals, tcp: HostTcp) -> LinkSignals:
    return msgspec.structs.replace(
        signals,
        segments_sent_total=float(tcp.segments_sent),
        segments_retransmitted_total=float(tcp.segments_retransmitted),
        retransmit_timeouts_total=None if tcp.timeouts is None else float(tcp.timeouts),
    )


def of_peer(reading: PeerReading, *, configured_gbps: float | None) -> LinkSignals:
    """Connections with one peer as signals of the link to it."""
    delivery = reading.delivery_bytes_per_s
    return LinkSignals(
        tx_bytes_total=reading.sent_bytes,
        rx_bytes_total=reading.received_bytes,
        segments_sent_total=reading.segments_sent,
        segments_retransmitted_total=reading.segments_retransmitted,
        rtt_s=reading.rtt_s,
        connections=float(reading.n_connections),
        capacity_gbps=configured_gbps,
        congestion_control=reading.congestion_control,
        min_rtt_s=reading.min_rtt_s,
        congestion_window_bytes=reading.congestion_window_bytes,
        delivery_gbps=None if delivery is None else delivery / BYTES_PER_GBIT,
        tx_acked_bytes_total=reading.acked_bytes,
        tx_retransmitted_bytes_total=reading.retransmitted_bytes,
    )


def plausible(
    signals: LinkSignals, *, elapsed_s: float, ceiling_gbps: float | None
) -> tuple[LinkSignals, tuple[str, ...]]:
    """The signals without rates above what the link can carry, and what was left out."""
    left_out = []
    for name in ("tx_gbps", "rx_gbps"):
        rate_gbps = getattr(signals, name)
        if rate_gbps is None:
            continue
        carried = rate_gbps * BYTES_PER_GBIT * elapsed_s
        if carried > most_bytes(ceiling_gbps, elapsed_s):
            signals = msgspec.structs.replace(signals, **{name: None})
            left_out.append(f"{name} was above the {ceiling_gbps:g} Gbps of the link: left out")
    return signals, tuple(left_out)


def from_lab(text: str, link_id: str) -> tuple[LinkSignals, float | None]:
    """(signals, at_s or None) of one link out of a lab's answer. Raises ReadError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ReadError(f"the lab's answer is not JSON: {exc}") from None
    entry = document.get(link_id) if isinstance(document, dict) else None
    if not isinstance(entry, dict):
        known = ", ".join(list(document)[:8]) if isinstance(document, dict) else "none"
        raise ReadError(f"the lab has no link {link_id!r}; it has {known}")
    signals = LinkSignals(
        tx_bytes_total=_counter(entry, "tx_bytes_total"),
        rx_bytes_total=_counter(entry, "rx_bytes_total"),
        segments_sent_total=_counter(entry, "segments_sent_total"),
        segments_retransmitted_total=_counter(entry, "segments_retransmitted_total"),
        rtt_s=_counter(entry, "rtt_s"),
        connections=_counter(entry, "connections"),
        capacity_gbps=_counter(entry, "capacity_gbps"),
    )
    at_s = _counter(entry, "at_s")
    if at_s is not None and not 1e9 <= at_s < 1e10:
        raise ReadError(f"at_s={at_s!r} is not in epoch seconds")
    return signals, at_s


def _counter(entry: dict[str, Any], name: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReadError(f"{name}={value!r} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0.0 <= number < math.inf:
        raise ReadError(f"{name}={value!r} is no measurement")
    return number
