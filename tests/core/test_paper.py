"""The paper's figures come out of the core, one row a figure (tests/core/paper.py)."""

from __future__ import annotations

import pytest

from tests.core import paper

FIGURES = paper.figures()


@pytest.mark.parametrize(
    "figure", [pytest.param(row, id=f"{row.source}: {row.what}") for row in FIGURES]
)
def test_a_figure_is_reproduced(figure: paper.Figure) -> None:
    assert figure.holds(), f"{figure.printed} is printed, {figure.got()} computed"


@pytest.mark.parametrize(
    ("got", "within", "below", "holds"),
    [
        (1.0, 0.0, False, True),
        (1.009, 0.01, False, True),
        (0.989, 0.01, False, False),
        (0.93, 0.0, True, True),
        (1.0, 0.0, True, False),
        (0.0, 0.0, True, False),
    ],
    ids=["exact", "within", "beyond", "below", "not below", "nothing at all"],
)
def test_a_row_can_fail(got: float, within: float, below: bool, holds: bool) -> None:
    assert paper.Figure("Table 6", "one", 1.0, within, lambda: got, below).holds() is holds


def test_every_figure_has_one_row() -> None:
    names = [(row.source, row.what) for row in FIGURES]
    assert len(set(names)) == len(names)


def test_the_command_prints_them_and_fails_when_one_is_off(capsys, monkeypatch) -> None:
    assert paper.main() == 0
    assert f"{len(FIGURES)} figures, 0 beyond" in capsys.readouterr().out
    off = paper.Figure("Table 6", "off", 1.0, 0.01, lambda: 1.02)
    monkeypatch.setattr(paper, "figures", lambda: [off])
    assert paper.main() == 1
    assert "beyond 1.0%" in capsys.readouterr().out
