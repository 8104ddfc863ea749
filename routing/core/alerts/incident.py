"""Alerts of one rule put together: what is one incident, and what is said of it when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import Literal

import numpy as np

from routing.core.alerts.rule import Rule, Source
from routing.core.alerts.track import FIRING, Floats, Track

Kind = Literal["figure", "no_data"]
MAX_MEMBERS = 50
"""So many sources of an incident are told by name; of all there is the number."""


@dataclass(frozen=True)
class Member:
    """A source that fires. `value` is None where it has none, `since_s` when it began to fire."""

    source: str
    value: float | None
    since_s: float


@dataclass(frozen=True)
class Group:
    """What fires of one rule in one group, the worst first, at most `MAX_MEMBERS` of `n`."""

    rule: str
    kind: Kind
    group: str
    fleet: str
    cluster: str
    n: int
    members: tuple[Member, ...]


def groups(
    rule: Rule, kind: Kind, sources: Sequence[Source], track: Track, values: Floats
) -> Iterator[Group]:
    """What fires now, by group."""
    found: dict[str, list[int]] = defaultdict(list)
    for i in np.flatnonzero(track.phase == FIRING).tolist():
        found[rule.group_of(sources[i])].append(i)
    figures: list[float] = values.tolist()
    for group, places in found.items():
        first = sources[places[0]]
        clusters = {sources[i].cluster for i in places}
        places.sort(key=lambda i: (_worst(rule, figures[i]), sources[i].name))
        yield Group(
            rule=rule.name,
            kind=kind,
            group=group,
            fleet=first.fleet,
            cluster=first.cluster if len(clusters) == 1 else "",
            n=len(places),
            members=tuple(
                Member(
                    sources[i].name,
                    None if isnan(figures[i]) else figures[i],
                    float(track.since_s[i]),
                )
                for i in places[:MAX_MEMBERS]
            ),
        )


def _worst(rule: Rule, value: float) -> float:
    if isnan(value):
        return inf
    return -value if rule.above else value


def sentence(rule: Rule, group: Group, unit: str) -> str:
    """What is wrong, in words: the worst, and how many more."""
    others = f" and {group.n - 1} more" if group.n > 1 else ""
    worst = group.members[0]
    if group.kind == "no_data":
        return f"{worst.source}{others}: no {rule.signal} is measured"
    side = "above" if rule.above else "below"
    unit = f" {unit}" if unit else ""
    value = "unknown" if worst.value is None else f"{worst.value:.3g}{unit}"
    return f"{worst.source}{others}: {rule.signal} is {value}, {side} {rule.threshold:.3g}{unit}"
