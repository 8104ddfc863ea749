"""Numbers as people read them; tests/browser/test_format.py runs the same table in the browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console import figures

NAMES = {"signedPercent": "signed_percent"}
CASES = json.loads((Path(__file__).parent / "figures.json").read_text())


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [(name, value, written) for name, cases in CASES.items() for value, written in cases],
)
def test_a_figure_is_written_by_the_one_set_of_rules(name: str, value: Any, written: str) -> None:
    assert getattr(figures, NAMES.get(name, name))(value) == written


def test_a_change_of_nothing_is_no_change() -> None:
    written = [figures.change(value) for value in (0.0, 0.0004, -0.0004, 0.0005, -0.05, None)]
    assert written == ["no change", "no change", "no change", "+0.0500 %", "−5 %", "–"]
