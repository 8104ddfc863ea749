"""What charts are given: gaps stay gaps, lines end with their source, marks gather."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

NAN = "NaN"


def run(page: Page, body: str, *arguments: Any) -> Any:
    """`body` with the module as `s`; NaN comes back as the word."""
    return page.evaluate(
        f"""async (a) => {{
            const s = await import("/static/console/series.js");
            const found = (() => {{ {body} }})();
            return JSON.parse(JSON.stringify(found, (_, v) => Number.isNaN(v) ? "NaN" : v));
        }}""",
        list(arguments),
    )


def test_a_ring_keeps_the_newest_in_order(blank: Page) -> None:
    found = run(
        blank,
        """const ring = new s.Ring(4);
           for (let i = 0; i < 1000; i += 1) ring.push(i, -i);
           ring.dropBefore(997);
           return [[...ring.times()], [...ring.values()], ring.length, ring.lastT];""",
    )
    assert found == [[997, 998, 999], [-997, -998, -999], 3, 999]


def test_silence_is_a_gap_and_an_old_value_never_goes_on(blank: Page) -> None:
    found = run(
        blank,
        """const set = new s.SeriesSet(["x"], {gapS: 15});
           for (const [t, v] of [[1, 5], [2, 6], [2, 7], [1, 8], [3, null], [40, 9]]) {
               set.append("x", t, v);
           }
           return [...set.ring("x").values()];""",
    )
    assert found == [5, 6, NAN, 9]


def test_history_ends_where_it_was_last_measured(blank: Page) -> None:
    answer = {
        "t": [0, 2, 4, 6, 8, 10],
        "bin_s": 2,
        "series": {"x": [1, None, 3, 4, None, None]},
        "decisions": [],
    }
    found = run(
        blank,
        """const set = new s.SeriesSet(["x"]);
           set.load(a[0], 100);
           const before = [...set.ring("x").values()];
           set.append("x", 9, 7);
           return [before, [...set.ring("x").values()]];""",
        answer,
    )
    assert found == [[1, NAN, 3, 4], [1, NAN, 3, 4, 7]]


def test_stacked_layers_add_up_and_fill_nothing_where_nothing_was_measured(blank: Page) -> None:
    found = run(
        blank,
        """const [low, high] = [new s.Ring(8), new s.Ring(8)];
           for (const t of [1, 2, 40]) { low.push(t, 2); high.push(t, 3); }
           low.push(41, 2);
           return s.stacked([low, high], 15, String).map((l) => [l.x, l.y, l.words]);""",
    )
    x = [1000, 2000, 2000, 40000, 40000, 41000]
    assert found == [
        [x, [2, 2, 0, 0, 2, 2], ["2", "2", "", "", "2", "2"]],
        [x[:5], [5, 5, 0, 0, 5], ["3", "3", "", "", "3"]],
    ]


@pytest.mark.parametrize(("n", "marks"), [(30, 30), (31, 15), (200, 30)])
def test_marks_gather_when_there_are_more_than_thirty(blank: Page, n: int, marks: int) -> None:
    found = run(
        blank,
        """const span = a[0] > 100 ? 60 : 30;
           const decisions = Array.from({length: a[0]}, (_, i) => ({at_s: span * i / a[0]}));
           return s.cluster(decisions, 0, 60).map((g) => g.all.length);""",
        n,
    )
    assert len(found) == marks
    assert sum(found) == n
