"""One look at all rules: read the figures once, step every track, settle incidents. Read first."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from django.db import connection, transaction

from routing.alerts import facts, incidents, telling
from routing.alerts.facts import Facts
from routing.alerts.models import AlertRule, AlertTracks, Incident
from routing.alerts.signals import UNITS
from routing.core.alerts.incident import Group, Kind, groups
from routing.core.alerts.rule import Rule, Source, read_rule
from routing.core.alerts.track import (
    OK,
    Floats,
    Track,
    step_absence,
    step_figures,
    too_much,
)
from routing.core.scenario.tables import ScenarioError

_LOCK: Final = 1634497908
_STEPS: Final[dict[Kind, Callable[..., Track]]] = {
    "figure": step_figures,
    "no_data": step_absence,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Seen:
    """What one look did: rules asked, what was opened and closed."""

    n_rules: int
    opened: tuple[Incident, ...] = ()
    closed: tuple[Incident, ...] = ()


def look(clock: Callable[[], datetime.datetime]) -> Seen | None:
    """Look at everything once. None: another process is looking."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [_LOCK])
        if not cursor.fetchall()[0][0]:
            return None
        now = clock()
        rows = list(AlertRule.objects.filter(enabled=True).order_by("name"))
        rules = [rule for row in rows if (rule := _rule(row)) is not None]
        found = _figures(rules, now)
        states = dict(AlertTracks.objects.values_list("rule", "states"))
        kept: list[AlertTracks] = []
        firing: list[tuple[Rule, Group]] = []
        watched = _Watched()
        for rule in rules:
            known = found[rule.kind]
            sources, places = watched.of(rule, known)
            values = known.columns[rule.signal][places]
            before = states.get(rule.name, {})
            after = {}
            for kind, step in _STEPS.items():
                track = _restored(before.get(kind, {}), sources)
                track = step(rule, track, values, now_s=now.timestamp())
                if not track.is_quiet:
                    after[kind] = _stored(track, sources)
                    firing += [
                        (rule, group) for group in groups(rule, kind, sources, track, values)
                    ]
            if after != before:
                kept.append(AlertTracks(rule_id=rule.name, states=after))
        AlertTracks.objects.bulk_create(
            kept, update_conflicts=True, unique_fields=["rule"], update_fields=["states"]
        )
        opened, closed = incidents.settle(rules, firing, now=now)
        telling.queue(opened, closed, rules, now=now)
        telling.queue_repeats(rules, now=now)
    return Seen(len(rules), tuple(opened), tuple(closed))


@dataclass(frozen=True)
class Trial:
    """What a rule would do: of `n_watched` sources, `n_unknown` have no figure; `firing` are the
    worst of the `n_firing` that are too much now, with their figures."""

    rule: Rule
    n_watched: int
    n_unknown: int
    n_firing: int
    firing: tuple[tuple[str, float], ...]


def trial(rule: Rule, *, now: datetime.datetime, most: int = 20) -> Trial:
    """Look with a rule that is not kept, at this moment alone. Writes nothing."""
    known = facts.read(rule.kind, [rule.signal], now=now)
    sources, places = _Watched().of(rule, known)
    values = known.columns[rule.signal][places]
    over = np.flatnonzero(too_much(rule, values, np.zeros(len(values), np.bool_)))
    worst = sorted(over.tolist(), key=lambda i: -values[i] if rule.above else values[i])
    return Trial(
        rule=rule,
        n_watched=len(sources),
        n_unknown=int(np.isnan(values).sum()),
        n_firing=len(worst),
        firing=tuple((sources[i].name, float(values[i])) for i in worst[:most]),
    )


def _rule(row: AlertRule) -> Rule | None:
    try:
        return read_rule(row.document, units=UNITS)
    except ScenarioError:
        log.exception("alert rule %s is not looked at", row.name)
        return None


def _figures(rules: Iterable[Rule], now: datetime.datetime) -> dict[str, Facts]:
    wanted: dict[str, set[str]] = {}
    for rule in rules:
        wanted.setdefault(rule.kind, set()).add(rule.signal)
    return {kind: facts.read(kind, sorted(signals), now=now) for kind, signals in wanted.items()}


class _Watched:
    """Which sources a rule watches; many rules watch the same ones."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[Sequence[Source], Any]] = {}

    def of(self, rule: Rule, known: Facts) -> tuple[Sequence[Source], Any]:
        """The sources, and their places among all of their kind, shape (n,)."""
        key = (rule.kind, rule.fleet, rule.cluster, rule.role, rule.source)
        if key not in self._known:
            places = [i for i, source in enumerate(known.sources) if rule.watches(source)]
            sources = [known.sources[i] for i in places]
            self._known[key] = sources, np.array(places, np.intp)
        return self._known[key]


def _restored(states: dict[str, list[float]], sources: Sequence[Source]) -> Track:
    """A source that is no longer known is forgotten, and what it had is over."""
    track = Track.quiet(len(sources))
    if states:
        for i, source in enumerate(sources):
            if source.name in states:
                track.phase[i], track.since_s[i], track.well_s[i] = states[source.name]
    return track


def _stored(track: Track, sources: Sequence[Source]) -> dict[str, list[float]]:
    rows: Floats = np.column_stack([track.phase, track.since_s, track.well_s])
    kept = np.flatnonzero(track.phase != OK).tolist()
    return {sources[i].name: row for i, row in zip(kept, rows[kept].tolist(), strict=True)}
