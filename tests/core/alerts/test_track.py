"""Figures over time become alerts: pending, firing, kept, over; and what is missing apart."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.alerts.incident import groups, sentence
from routing.core.alerts.rule import Rule, Source
from routing.core.alerts.track import FIRING, OK, PENDING, Track, step_absence, step_figures

RULE = Rule(
    name="hot",
    signal="instance.gpu_temperature_celsius",
    above=True,
    threshold=90.0,
    back_at=80.0,
    for_s=20.0,
    keep_firing_s=30.0,
    no_data_for_s=25.0,
    severity="warn",
    group_by="cluster",
)


def phases(rule: Rule, values: list[float], *, every_s: float = 10.0) -> list[int]:
    """Of one source, after each look."""
    track, seen = Track.quiet(1), []
    for i, value in enumerate(values):
        track = step_figures(rule, track, np.array([value]), now_s=1e9 + every_s * i)
        seen.append(int(track.phase[0]))
    return seen


def test_it_fires_once_it_was_too_much_for_long_enough() -> None:
    assert phases(RULE, [85, 91, 91, 91]) == [OK, PENDING, PENDING, FIRING]
    assert phases(replace(RULE, for_s=0.0), [85, 91]) == [OK, FIRING]


def test_a_short_peak_is_nothing() -> None:
    assert phases(RULE, [91, 91, 89, 91, 91]) == [PENDING, PENDING, OK, PENDING, PENDING]


def test_it_is_over_once_it_was_back_for_long_enough() -> None:
    assert phases(RULE, [91, 91, 91, 79, 79, 79, 79]) == [1, 1, 2, 2, 2, 2, 0]


def test_between_the_two_limits_it_goes_on() -> None:
    assert phases(RULE, [91, 91, 91, *[81] * 9]) == [1, 1, *[2] * 10]


def test_what_flaps_fires_all_the_time() -> None:
    assert set(phases(RULE, [91, 91, 91, *[70, 70, 95] * 20])[2:]) == {FIRING}


def test_what_is_missing_neither_begins_nor_ends_anything() -> None:
    assert phases(RULE, [nan] * 9) == [OK] * 9
    assert phases(RULE, [91, nan, nan, nan, 91]) == [1, 1, 1, 1, 2], "it was seen too much twice"
    assert phases(RULE, [91, 91, 91, *[nan] * 9]) == [1, 1, *[2] * 10]


def test_below() -> None:
    rule = replace(RULE, above=False, threshold=1.0, back_at=2.0, for_s=0.0, keep_firing_s=0.0)
    assert phases(rule, [1.0, 0.9, 1.5, 2.0]) == [OK, FIRING, FIRING, OK]


def test_absence_is_an_alert_of_its_own() -> None:
    track = Track.quiet(2)
    seen = []
    for i, value in enumerate([1.0, nan, nan, nan, nan, 1.0, 1.0, 1.0, 1.0, 1.0]):
        track = step_absence(RULE, track, np.array([value, 1.0]), now_s=1e9 + 10.0 * i)
        seen.append(track.phase.tolist())
    assert [a for a, _ in seen] == [0, 1, 1, 1, 2, 2, 2, 2, 0, 0]
    assert {b for _, b in seen} == {OK}


def test_a_rule_that_no_longer_asks_for_absence_forgets_it() -> None:
    track = step_absence(
        replace(RULE, no_data_for_s=0.0), Track.quiet(1), np.array([nan]), now_s=1.0
    )
    assert track.phase.tolist() == [FIRING]
    assert step_absence(
        replace(RULE, no_data_for_s=None), track, np.array([nan]), now_s=2.0
    ).is_quiet


def test_a_clock_that_was_set_back_keeps_no_alert_for_ever() -> None:
    track = Track.quiet(1)
    seen = []
    for value, now_s in ((95.0, 2e9), (10.0, 2e9 + 10), (10.0, 1e9), (10.0, 1e9 + 30)):
        track = step_figures(replace(RULE, for_s=0.0), track, np.array([value]), now_s=now_s)
        seen.append(int(track.phase[0]))
    assert seen == [FIRING, FIRING, OK, OK]


@given(
    values=st.lists(st.lists(st.sampled_from([70.0, 85.0, 95.0, nan]), min_size=3, max_size=3)),
    steps_s=st.lists(st.floats(0.0, 40.0), min_size=1),
)
def test_many_at_once_are_as_each_alone(values: list[list[float]], steps_s: list[float]) -> None:
    together, alone, now_s = Track.quiet(3), [Track.quiet(1) for _ in range(3)], 1e9
    for i, row in enumerate(values):
        now_s += steps_s[i % len(steps_s)]
        together = step_figures(RULE, together, np.array(row), now_s=now_s)
        alone = [
            step_figures(RULE, track, np.array([value]), now_s=now_s)
            for track, value in zip(alone, row, strict=True)
        ]
        assert together.phase.tolist() == [int(track.phase[0]) for track in alone]


SOURCES = [
    Source("f", cluster, "decode", f"f/{cluster}/d{i}") for cluster in "ab" for i in range(3)
]


def firing(*places: int) -> Track:
    track = Track.quiet(6)
    for place in places:
        track.phase[place], track.since_s[place] = FIRING, 100.0 + place
    return track


def test_incidents_are_of_groups_the_worst_first() -> None:
    values = np.array([91.0, 99.0, 0.0, 0.0, nan, 92.0])
    found = {g.group: g for g in groups(RULE, "figure", SOURCES, firing(0, 1, 4, 5), values)}
    assert {key: [m.source for m in g.members] for key, g in found.items()} == {
        "f/a": ["f/a/d1", "f/a/d0"],
        "f/b": ["f/b/d2", "f/b/d1"],
    }
    assert (found["f/a"].n, found["f/a"].cluster, found["f/b"].members[1].value) == (2, "a", None)
    assert found["f/a"].members[0].since_s == 101.0
    assert sentence(RULE, found["f/a"], "°C") == (
        "f/a/d1 and 1 more: instance.gpu_temperature_celsius is 99 °C, above 90 °C"
    )
    [whole] = groups(replace(RULE, group_by="rule"), "figure", SOURCES, firing(0, 5), values)
    assert (whole.group, whole.cluster, whole.n) == ("f", "", 2)


def test_absence_in_words() -> None:
    [group] = groups(RULE, "no_data", SOURCES, firing(3), np.full(6, nan))
    assert sentence(RULE, group, "°C") == (
        "f/b/d0: no instance.gpu_temperature_celsius is measured"
    )


def test_an_incident_of_thousands_names_some_and_counts_all() -> None:
    sources = [Source("f", "a", "decode", f"f/a/d{i:04}") for i in range(3000)]
    track = Track(np.full(3000, FIRING, np.int8), np.zeros(3000), np.zeros(3000))
    [group] = groups(RULE, "figure", sources, track, np.full(3000, 95.0))
    assert (group.n, len(group.members)) == (3000, 50)


@pytest.mark.parametrize("above", [True, False])
def test_what_fires_without_a_value_comes_last(above: bool) -> None:
    rule = replace(RULE, above=above)
    [group] = groups(
        rule,
        "figure",
        SOURCES[:3],
        Track(*(a[:3] for a in _of(firing(0, 1, 2)))),
        np.array([nan, 5.0, 7.0]),
    )
    assert [m.source[-1] for m in group.members] == (["2", "1", "0"] if above else ["1", "2", "0"])


def _of(track: Track) -> tuple[np.ndarray, ...]:
    return (track.phase, track.since_s, track.well_s)
