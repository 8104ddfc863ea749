"""The browser writes numbers as the server does: one table for both."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page

CASES = json.loads((Path(__file__).parents[1] / "console" / "figures.json").read_text())


def test_figures_are_written_by_the_one_set_of_rules(blank: Page) -> None:
    wrong = blank.evaluate(
        """async (cases) => {
            const rules = await import("/static/console/format.js");
            return Object.entries(cases).flatMap(([name, rows]) => rows
                .filter(([value, written]) => rules[name](value) !== written)
                .map(([value, written]) => [name, value, written, rules[name](value)]));
        }""",
        CASES,
    )
    assert wrong == []
