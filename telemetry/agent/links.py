"""Counters of one directed link: an interface of this machine, or an emulated link of a lab."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from telemetry.agent.http import ReadError
from telemetry.wire import LinkSignals


def from_proc_net_dev(text: str, interface: str) -> LinkSignals:
    """Bytes of one interface out of the text of `/proc/net/dev`. Raises ReadError.

    Never a sum over interfaces: a bond and its members, or a VLAN and its parent, carry the same
    bytes.
    """
    for line in text.splitlines():
        # Old kernels print no blank behind the colon: `eth0:874354587`.
        name, colon, numbers = line.partition(":")
        if not colon or name.strip() != interface:
            continue
        columns = numbers.split()
        if len(columns) < 9 or not (columns[0].isdigit() and columns[8].isdigit()):
            raise ReadError(f"interface {interface!r}: unreadable counters {numbers.strip()!r}")
        return LinkSignals(rx_bytes_total=float(columns[0]), tx_bytes_total=float(columns[8]))
    raise ReadError(f"there is no interface {interface!r}")


def read_proc_net_dev(path: Path, interface: str) -> LinkSignals:
    """The same, read from the file. Raises ReadError."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise ReadError(f"{path}: {exc.strerror}") from None
    return from_proc_net_dev(text, interface)


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
