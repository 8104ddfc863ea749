"""A clock that was set back: what memory holds is brought to the present.

A wait that began in the future would last until the clock is where it had been, a day if need be;
it begins anew instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from routing.core.types import LinkMemory, Memory

_LINK_TIMES = tuple(
    field.name
    for field in dataclasses.fields(LinkMemory)
    if field.name.endswith(("_at_s", "since_s"))
)


def to_now(memory: Memory, now_s: float) -> Memory:
    """The memory with no time ahead of now."""

    def moment(at_s: float | None) -> float | None:
        return None if at_s is None else min(at_s, now_s)

    def moments(times_s: Mapping[str, float]) -> dict[str, float]:
        return {name: min(at_s, now_s) for name, at_s in times_s.items()}

    return dataclasses.replace(
        memory,
        gain_since_s=moment(memory.gain_since_s),
        last_change_s=moment(memory.last_change_s),
        roles_gain_since_s=moment(memory.roles_gain_since_s),
        roles_changed_at_s=moment(memory.roles_changed_at_s),
        smoothed_at_s=moment(memory.smoothed_at_s),
        links={name: _link(link, now_s) for name, link in memory.links.items()},
        lengths_since_s=moments(memory.lengths_since_s),
        roles_astray_since_s=moments(memory.roles_astray_since_s),
        spare_since_s=moments(memory.spare_since_s),
        scarce_at_s=moments(memory.scarce_at_s),
        awaited={
            name: dataclasses.replace(since, since_s=min(since.since_s, now_s))
            for name, since in memory.awaited.items()
        },
    )


def _link(link: LinkMemory, now_s: float) -> LinkMemory:
    ahead: dict[str, Any] = {
        name: now_s
        for name in _LINK_TIMES
        if (at_s := getattr(link, name)) is not None and at_s > now_s
    }
    return dataclasses.replace(link, **ahead) if ahead else link
