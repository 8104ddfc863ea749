"""All signals that a rule may watch, with their units. Counters are watched as gain a second."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, get_type_hints

from telemetry import wire

TOTAL: Final = "_total"
_UNITS: Final = {
    "_ratio": "",
    "_tokens": "tokens",
    "_bytes": "bytes",
    "_gbps": "Gbps",
    "_ms": "ms",
    "_s": "s",
    "_w": "W",
    "_celsius": "°C",
}
_OWN: Final = {
    "age_s": "s",  # since the newest reading came in; never missing
    "down": "",  # 1 where nobody answers, the reading failed or is older than `facts.STALE_S`
}
_OTHER: Final = {
    "loop.age_s": "s",
    "loop.duration_ms": "ms",
    "loop.is_held": "",
    "plan.gates_behind": "gates",
    "plan.gates_silent": "gates",
    "plan.routers_drifted": "routers",
    "plan.did_harm": "",
    "bill.p95_of_cap_ratio": "",
    "approval.waits_s": "s",
    "approval.ends_in_s": "s",
}
_STRUCTS: Final = {
    "instance": wire.InstanceSignals,
    "link": wire.LinkSignals,
    "router": wire.RouterSignals,
}


def fields(kind: str) -> tuple[str, ...]:
    """The plain numbers among a kind's signals: neither histograms nor maps nor words."""
    return tuple(_plain(_STRUCTS[kind]))


def _plain(struct: Any) -> Iterator[str]:
    for name, hint in get_type_hints(struct).items():
        if float in getattr(hint, "__args__", ()):
            yield name


def _unit(name: str) -> str:
    if name.endswith("_per_s"):
        return "/s"
    if name.endswith(TOTAL):
        return f"{_unit(name.removesuffix(TOTAL))}/s"
    for ending, unit in _UNITS.items():
        if re.search(rf"(^|_){ending[1:]}$", name):
            return unit
    return ""


def _all() -> Iterator[tuple[str, str]]:
    for kind in _STRUCTS:
        for name in fields(kind):
            yield f"{kind}.{name}", _unit(name)
        for name, unit in _OWN.items():
            yield f"{kind}.{name}", unit
    yield "link.use_ratio", ""
    yield from _OTHER.items()


UNITS: Final = dict(_all())
