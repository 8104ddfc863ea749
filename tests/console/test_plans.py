"""Plans in words: what a decision changed, field by field and in a headline."""

from __future__ import annotations

from typing import Any

import pytest

from console import plans

PLAIN: dict[str, Any] = {
    "mode": "threshold",
    "threshold_tokens": 17_900,
    "n_prefill": 6,
    "n_decode": 2,
    "remote": {"prfaas": 1.0},
    "band": None,
    "cache_mode": "scarce",
    "max_remote_in_flight": None,
    "moves": {},
}
EARLIER = {key: value for key, value in PLAIN.items() if key != "moves"}
"""A plan stored before prefixes could move."""


def plan(**changes: Any) -> dict[str, Any]:
    return {"clusters": {"pd": {**PLAIN, **changes}}}


@pytest.mark.parametrize(
    ("changes", "label", "before", "after", "headline"),
    [
        (
            {"threshold_tokens": 19_600},
            *("Threshold t", "17.9K tok", "19.6K tok"),
            "t 17.9K tok → t 19.6K tok",
        ),
        (
            {"n_prefill": 4, "n_decode": 4},
            *("Roles", "6 prefill, 2 decode", "4 prefill, 4 decode"),
            "t 17.9K tok roles 6/2 → 4/4",
        ),
        (
            {"cache_mode": "abundant"},
            *("Caches", "scarce: each cluster's own", "abundant: prefixes may move"),
            "t 17.9K tok caches scarce → abundant",
        ),
        (
            {"moves": {"pd->prfaas": 4096}},
            *("Prefixes moved", "none", "from 4.10K tok"),
            "t 17.9K tok prefixes moved pd → prfaas from 4.10K tok",
        ),
        (
            {"band": [16_000, 20_000]},
            *("Band around t", "none: t decides", "16K to 20K tok: the shorter wait decides"),
            "t 17.9K tok band 16K to 20K tok: the shorter wait decides",
        ),
        (
            {"transport": {"prfaas": {"connections": 19, "pacing_gbps": 95.0}}},
            *("KV transport", "no hint", "over 19 connections, 95 Gbps"),
            "t 17.9K tok KV transport prfaas over 19 connections, 95 Gbps",
        ),
        (
            {"max_remote_in_flight": 40},
            *("Remote in flight, a gate", "no limit", "at most 40"),
            "t 17.9K tok remote in flight at most 40",
        ),
        (
            {"max_remote_in_flight": 0},
            *("Remote in flight, a gate", "no limit", "none let through"),
            "t 17.9K tok remote in flight none let through",
        ),
    ],
)
@pytest.mark.parametrize("was", [plan(), {"clusters": {"pd": EARLIER}}], ids=["plain", "earlier"])
def test_each_change_is_said_once_in_words(
    was: dict[str, Any],
    changes: dict[str, Any],
    label: str,
    before: str,
    after: str,
    headline: str,
) -> None:
    now = plan(**changes)
    changed = [row for row in plans.plan_changes(was, now) if row.changed]
    assert [(row.label, row.before, row.after) for row in changed] == [(label, before, after)]
    [part] = plans.headline(was, now)
    words = f"{part['before']} → {part['after']}" if part["before"] else part["after"]
    assert f"{words} {part['also']}".strip() == headline


def test_a_plan_like_the_one_before_it_changes_nothing() -> None:
    was = {"clusters": {"pd": EARLIER}}
    assert plans.headline(was, plan()) == []
    assert plans.headline(was, plan(band=[17_900, 17_900])) == []
    assert not any(row.changed for row in plans.plan_changes(was, plan()))


def test_what_a_plan_asks_beside_t_and_roles() -> None:
    assert plans.extras(PLAIN) == []
    rich = plan(
        cache_mode="abundant",
        moves={"pd->prfaas": 4096, "prfaas->pd": 2000},
        band=[16_000, 20_000],
        max_remote_in_flight=40,
    )
    assert plans.extras(rich["clusters"]["pd"]) == [
        "caches abundant, moving pd → prfaas from 4.10K tok, prfaas → pd from 2K tok",
        "band 16K to 20K tok",
        "remote in flight a gate at most 40",
    ]
