"""Freezes and change windows together: what forbids, until when, at each edge."""

from __future__ import annotations

import datetime
from datetime import UTC
from typing import Any

import pytest

from routing.core.scenario.tables import ScenarioError
from routing.windows.document import read_window
from routing.windows.frozen import Frozen, Rule, everything, following
from tests.routing.windows.case import CHANGES, FREEZE

KEPT = datetime.datetime(2026, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


def rule(document: dict[str, Any], kept_at: datetime.datetime = KEPT, **changes: Any) -> Rule:
    return Rule(read_window(document | changes), kept_at)


def daily(name: str, begin: str, end: str, kind: str = "freeze", **changes: Any) -> Rule:
    days = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
    when = {"zone": "UTC", "days": days, "from": begin, "to": end}
    return rule(FREEZE | {"name": name, "kind": kind, "when": when}, **changes)


def frozen(rules: list[Rule], of: Any, now: datetime.datetime) -> Frozen | None:
    return everything(rules, now).get(of)


def told(rules: list[Rule], moment: str, of: Any = "plans") -> tuple[str, str] | None:
    found = frozen(rules, of, at(moment))
    return found and (found.name, f"{found.until:%F %H:%M}")


def test_a_freeze_forbids_from_its_first_second_to_its_last() -> None:
    rules = [rule(FREEZE)]
    assert told(rules, "2026-11-29 12:00:59") is None
    assert told(rules, "2026-11-29 12:01:00") == ("black-friday", "2026-11-29 12:03")
    assert told(rules, "2026-11-29 12:02:59") == ("black-friday", "2026-11-29 12:03")
    assert told(rules, "2026-11-29 12:03:00") is None


def test_it_is_of_what_it_says() -> None:
    rules = [rule(FREEZE, of=["roles"])]
    assert told(rules, "2026-11-29 12:02", of="roles") is not None
    assert told(rules, "2026-11-29 12:02", of="plans") is None
    assert told(rules, "2026-11-29 12:02", of="people") is None


def test_outside_of_change_windows_all_is_frozen_until_the_next_begins() -> None:
    rules = [rule(CHANGES)]
    assert told(rules, "2026-11-29 12:00") == ("working-hours", "2026-11-30 07:00")
    assert told(rules, "2026-11-30 07:00") is None
    assert told(rules, "2026-11-30 16:59") is None
    assert told(rules, "2026-12-04 17:00") == ("working-hours", "2026-12-07 07:00")
    found = frozen(rules, "plans", at("2026-12-05 12:00"))
    assert found is not None
    assert found.since == at("2026-12-04 17:00")
    assert (
        found.text == "frozen by working-hours until 2026-12-07 07:00 UTC: only while people look"
    )


def test_of_several_change_windows_any_will_do() -> None:
    rules = [
        daily("early", "06:00", "08:00", "changes"),
        daily("late", "20:00", "22:00", "changes"),
    ]
    assert told(rules, "2026-11-29 07:00") is None
    assert told(rules, "2026-11-29 12:00") == ("late", "2026-11-29 20:00")
    assert told(rules, "2026-11-29 22:00") == ("early", "2026-11-30 06:00")


def test_a_freeze_forbids_within_a_change_window_too() -> None:
    rules = [daily("night", "20:00", "23:00", "changes"), daily("backup", "21:00", "22:00")]
    assert told(rules, "2026-11-29 20:30") is None
    assert told(rules, "2026-11-29 21:30") == ("backup", "2026-11-29 22:00")
    assert told(rules, "2026-11-29 22:30") is None


def test_what_follows_on_each_other_ends_where_the_last_does() -> None:
    rules = [daily("one", "10:00", "12:00"), daily("two", "11:00", "14:00")]
    assert told(rules, "2026-11-29 10:30") == ("one", "2026-11-29 14:00")
    assert told(rules, "2026-11-29 11:30") == ("two", "2026-11-29 14:00")
    rules = [daily("night", "20:00", "23:00", "changes"), daily("late", "19:30", "21:00")]
    assert told(rules, "2026-11-29 12:00") == ("night", "2026-11-29 21:00")


def test_a_freeze_that_never_ends_is_told_with_an_end_that_is_ahead() -> None:
    found = frozen([daily("always", "00:00", "00:00")], "plans", at("2026-11-29 12:00"))
    assert found is not None
    assert found.until >= at("2026-12-07 00:00")


def test_a_change_window_that_comes_once_forbids_until_then_and_not_after() -> None:
    when = {"zone": "UTC", "from": "2027-02-01 08:00", "to": "2027-02-01 09:00"}
    rules = [rule(CHANGES, when=when)]
    assert told(rules, "2026-11-29 12:00") == ("working-hours", "2027-02-01 08:00")
    assert told(rules, "2027-02-01 08:30") is None
    assert told(rules, "2027-02-01 09:00") is None


def test_what_was_kept_later_forbids_since_then() -> None:
    kept = at("2026-11-29 12:02:30")
    assert frozen([rule(FREEZE, kept)], "plans", at("2026-11-29 12:02:40")) == Frozen(
        "plans", "black-friday", "peak trading", kept, at("2026-11-29 12:03")
    )


def test_the_next_spans() -> None:
    spans = following(read_window(CHANGES), at("2026-12-04 12:00"), 3)
    assert [f"{span.begin:%F}" for span in spans] == ["2026-12-04", "2026-12-07", "2026-12-08"]
    assert following(read_window(FREEZE), at("2026-12-04 12:00"), 3) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "No Capitals"}, "name"),
        ({"kind": "holiday"}, "kind"),
        ({"of": ["everything"]}, "of"),
        ({"of": []}, "of"),
        ({"of": [{}]}, "of"),
        ({"reason": "two\nlines"}, "reason"),
        ({"who": "me"}, "who"),
        ({"when": FREEZE["when"] | {"zone": "Mars/Olympus"}}, "when.zone"),
        ({"when": FREEZE["when"] | {"to": "2026-11-29 13:01"}}, "when.to"),
        ({"when": FREEZE["when"] | {"to": "2028-11-29 13:01"}}, "when.to"),
        ({"when": FREEZE["when"] | {"to": "9999-12-31 23:59"}}, "when.to"),
        ({"when": FREEZE["when"] | {"from": "9999-06-01 00:00"}}, "when.from"),
        ({"when": FREEZE["when"] | {"from": "08:00"}}, "when.from"),
        ({"when": FREEZE["when"] | {"from": "2026-02-30 08:00"}}, "when.from"),
        ({"when": CHANGES["when"] | {"from": "2026-11-29 13:01"}}, "when.from"),
        ({"when": CHANGES["when"] | {"days": ["someday"]}}, "when.days"),
    ],
)
def test_what_cannot_be_meant_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read_window(FREEZE | changes)
    assert caught.value.field == field
