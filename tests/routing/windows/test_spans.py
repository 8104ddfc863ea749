"""Wall clocks to spans: weeks, nights, and both days on which clocks change."""

from __future__ import annotations

import datetime
from datetime import UTC, timedelta
from zoneinfo import ZoneInfo

import pytest

from routing.windows.spans import Once, Span, Weekly, ends_at, spans

PARIS, EVERY_DAY = ZoneInfo("Europe/Paris"), frozenset(range(7))


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


def weekly(begin: str, end: str, days: frozenset[int] = EVERY_DAY) -> Weekly:
    time = datetime.time.fromisoformat
    return Weekly(PARIS, days, time(begin), time(end))


def of_day(when: Weekly, day: str, *, longest: bool = True) -> list[Span]:
    """The spans that begin on that day, in Paris."""
    begin = at(f"{day} 00:00")
    found = spans(when, begin - timedelta(days=1), begin + timedelta(days=2), longest=longest)
    return [span for span in found if f"{span.begin.astimezone(PARIS):%F}" == day]


def test_a_working_day() -> None:
    [span] = of_day(weekly("08:00", "18:00"), "2026-11-30")
    assert span == Span(at("2026-11-30 07:00"), at("2026-11-30 17:00"))
    assert span.holds(at("2026-11-30 07:00"))
    assert not span.holds(at("2026-11-30 17:00"))


def test_a_night_ends_on_the_day_after() -> None:
    friday = frozenset({4})
    [span] = of_day(weekly("22:00", "06:00", friday), "2026-11-27")
    assert span == Span(at("2026-11-27 21:00"), at("2026-11-28 05:00"))
    late = at("2026-11-28 04:59")
    assert spans(weekly("22:00", "06:00", friday), late, late, longest=True) == [span]
    over = at("2026-11-28 05:00")
    assert spans(weekly("22:00", "06:00", friday), over, over, longest=True) == []


def test_a_whole_day_is_from_midnight_to_midnight() -> None:
    [span] = of_day(weekly("00:00", "00:00"), "2026-11-30")
    assert span.end - span.begin == timedelta(hours=24)
    [short] = of_day(weekly("00:00", "00:00"), "2026-03-29")
    [long] = of_day(weekly("00:00", "00:00"), "2026-10-25")
    assert short.end - short.begin == timedelta(hours=23)
    assert long.end - long.begin == timedelta(hours=25)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        ("01:30", "04:00", ("00:30", "02:00")),
        ("02:30", "04:00", ("01:00", "02:00")),  # it begins after the leap
        ("01:30", "02:30", ("00:30", "01:00")),  # it ends with it
        ("02:10", "02:50", None),  # leapt over as a whole
    ],
)
def test_the_hour_that_is_leapt_over(
    begin: str, end: str, expected: tuple[str, str] | None
) -> None:
    for longest in (True, False):
        found = of_day(weekly(begin, end), "2026-03-29", longest=longest)
        said = [(f"{span.begin:%H:%M}", f"{span.end:%H:%M}") for span in found]
        assert said == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("begin", "end", "freeze", "changes"),
    [
        ("01:30", "02:30", ("23:30", "01:30"), ("23:30", "00:30")),
        ("02:30", "04:00", ("00:30", "03:00"), ("01:30", "03:00")),
        ("02:10", "02:50", ("00:10", "01:50"), None),
    ],
)
def test_of_the_hour_that_comes_twice_a_freeze_takes_both_and_a_window_what_is_sure(
    begin: str, end: str, freeze: tuple[str, str], changes: tuple[str, str] | None
) -> None:
    for longest, expected in ((True, freeze), (False, changes)):
        found = of_day(weekly(begin, end), "2026-10-25", longest=longest)
        said = [(f"{span.begin:%H:%M}", f"{span.end:%H:%M}") for span in found]
        assert said == ([] if expected is None else [expected])


def test_once_ends_for_good() -> None:
    moment = datetime.datetime.fromisoformat
    when = Once(PARIS, moment("2026-12-24 18:00"), moment("2027-01-02 08:00"))
    assert ends_at(when) == at("2027-01-02 07:00")
    assert ends_at(weekly("00:00", "00:00")) is None
    now, far = at("2026-11-30 00:00"), at("2028-01-01 00:00")
    [span] = spans(when, now, far, longest=True)
    assert span == Span(at("2026-12-24 17:00"), at("2027-01-02 07:00"))
    assert spans(when, now, now, longest=True) == []
    assert spans(when, span.end, far, longest=True) == []


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-06-10"])
@pytest.mark.parametrize(
    ("begin", "end"),
    [("01:30", "02:30"), ("02:10", "02:50"), ("02:30", "04:00"), ("22:00", "02:20")],
)
def test_a_freeze_holds_whenever_the_clock_says_so_and_a_window_only_then(
    day: str, begin: str, end: str
) -> None:
    """Each ten minutes of two days, by what a clock on the wall in Paris shows."""
    when, first = weekly(begin, end), at(f"{day} 00:00") - timedelta(hours=24)
    for minutes in range(0, 48 * 60, 10):
        now = first + timedelta(minutes=minutes)
        wall = now.astimezone(PARIS).time()
        before_midnight, after_midnight = when.begin <= wall, wall < when.end
        shown = (
            before_midnight and after_midnight
            if when.begin < when.end
            else before_midnight or after_midnight
        )
        freeze, changes = (
            any(span.holds(now) for span in spans(when, now, now, longest=longest))
            for longest in (True, False)
        )
        assert freeze or not shown, now
        assert shown or not changes, now
