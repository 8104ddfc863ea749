"""Small charts drawn by the server: bars and bands as boxes of a plane of 1,000 by 100.

They need no scripts and print as they are. Geometry only: templates draw it, words stand beside it,
and a place without a measurement has a mark of its own, never a bar of no height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
_FILLED: Final = 0.8


@dataclass(frozen=True)
class Box:
    """`kind` is a class of the style sheet, `title` what is told on hover."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True)
class Bars:
    """`top` is the value at the upper edge, None where nothing was measured anywhere."""

    boxes: tuple[Box, ...]
    top: float | None


def stacked(
    columns: Sequence[Mapping[str, float | None]], titles: Sequence[str], kinds: Sequence[str]
) -> Bars:
    """A bar for each column, its `kinds` on top of each other; a column of None is a gap."""
    totals = [_total(column, kinds) for column in columns]
    top = max((total for total in totals if total is not None), default=None)
    boxes = []
    step = WIDTH / max(len(columns), 1)
    for i, (column, title) in enumerate(zip(columns, titles, strict=True)):
        x, width = round(i * step + step * (1 - _FILLED) / 2, 2), round(step * _FILLED, 2)
        if totals[i] is None:
            boxes.append(Box("gap", x, 0.0, width, HEIGHT, title))
            continue
        at = HEIGHT
        for kind in kinds:
            height = HEIGHT * (column.get(kind) or 0.0) / top if top else 0.0
            if height:
                at -= height
                boxes.append(Box(kind, x, round(at, 2), width, round(height, 2), title))
    return Bars(tuple(boxes), top)


def banded(columns: Sequence[tuple[float, float, float] | None], titles: Sequence[str]) -> Bars:
    """(low, middle, high) of each place as a box with a line; None is a gap."""
    top = max((column[2] for column in columns if column is not None), default=None)
    boxes = []
    step = WIDTH / max(len(columns), 1)
    for i, (column, title) in enumerate(zip(columns, titles, strict=True)):
        x, width = round(i * step, 2), round(step, 2)
        if column is None or not top:
            boxes.append(Box("gap", x, 0.0, width, HEIGHT, title))
            continue
        low, middle, high = (round(HEIGHT - HEIGHT * value / top, 2) for value in column)
        boxes.append(Box("band", x, high, width, round(max(low - high, 0.5), 2), title))
        boxes.append(Box("middle", x, round(middle - 1.0, 2), width, 2.0, title))
    return Bars(tuple(boxes), top)


def _total(column: Mapping[str, float | None], kinds: Sequence[str]) -> float | None:
    known = [value for kind in kinds if (value := column.get(kind)) is not None]
    return sum(known) if known else None
