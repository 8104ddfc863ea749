"""Side and time to the first token over the prompt's length, as marks on a plot. Pure.

The plot is an SVG without a size of its own: x in percent of its width, y in pixels from its top,
so that text keeps its size on every screen and nothing but a server is needed to draw it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from django.utils.translation import gettext as _

from console import figures
from console.request_words import side_word
from routing.core.placement.rule import Side

HEIGHT = 220.0
_UNITS = 1000.0
"""Of the curves' own viewBox, across the width."""
_SAMPLES = 96
_LEAST_TOKENS = 8192
_MOST_TOKENS = 2_097_152
_MOST_FLIPS = 4
"""Named on the plot: more of them would cover each other."""
_NICE = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Point:
    """A prompt of `total` tokens: where it runs, why, and each side's seconds (None: unknown)."""

    total: int
    side: Side
    reason: str
    in_band: bool
    local_s: float | None
    remote_s: float | None


@dataclass(frozen=True)
class Mark:
    """A place on an axis, with its words."""

    at: str
    words: str
    title: str = ""
    anchor: str = "middle"


@dataclass(frozen=True)
class Segment:
    """A stretch of lengths that runs on one side, or lies in the band."""

    x: str
    width: str
    kind: str
    words: str
    title: str


@dataclass(frozen=True)
class Plot:
    """What the template draws; `points` are read out under the pointer."""

    points: tuple[Point, ...]
    most_tokens: int
    curves: dict[str, str]
    segments: tuple[Segment, ...]
    bands: tuple[Segment, ...]
    flips: tuple[Mark, ...]
    n_flips: int
    words: str
    x_ticks: tuple[Mark, ...]
    y_ticks: tuple[Mark, ...]
    asked_x: str
    dots: dict[str, str]


def plot(place: Callable[[int], Point], *, edges: Iterable[int], asked: int) -> Plot:
    """Around a prompt of `asked` tokens. Every change of side is found to the token.

    `edges` are lengths after which the rule may say otherwise.
    """
    corners = sorted({edge for edge in edges if 0 <= edge < _MOST_TOKENS})
    widest = max((_LEAST_TOKENS, 1.5 * asked, *(1.7 * edge for edge in corners)))
    most = math.ceil(_nice(widest))
    lengths = {round(most * i / _SAMPLES) for i in range(_SAMPLES + 1)}
    lengths |= {at for edge in corners for at in (edge, edge + 1) if at <= most} | {asked}
    points = list(_refined([place(total) for total in sorted(lengths)], place))
    seconds = [s for p in points for s in (p.local_s, p.remote_s) if s is not None]
    top_s = _nice(max(seconds, default=1.0) or 1.0)
    here = next(point for point in points if point.total == asked)
    runs = list(_runs(points))
    flips = [_flip(b[0], most) for _, b in pairwise(runs)]
    return Plot(
        points=tuple(points),
        most_tokens=most,
        curves={
            "local": _path([(p.total, p.local_s) for p in points], most, top_s),
            "remote": _path([(p.total, p.remote_s) for p in points], most, top_s),
        },
        segments=tuple(_segment(run, runs, i, most) for i, run in enumerate(runs)),
        bands=tuple(_bands(points, most)),
        flips=tuple(flips[:_MOST_FLIPS]),
        n_flips=len(flips),
        words=_words(runs, most),
        x_ticks=tuple(_x_ticks(most)),
        y_ticks=tuple(_y_ticks(top_s)),
        asked_x=_percent(asked, most),
        dots={
            side: f"{_y(s, top_s):.1f}"
            for side, s in (("local", here.local_s), ("remote", here.remote_s))
            if s is not None
        },
    )


def _refined(points: Sequence[Point], place: Callable[[int], Point]) -> Iterator[Point]:
    """The points, with both neighbours of each change of side between two of them."""
    yield points[0]
    for before, after in pairwise(points):
        low, high = before, after
        while low.side != high.side and high.total - low.total > 1:
            middle = place((low.total + high.total) // 2)
            low, high = (middle, high) if middle.side == low.side else (low, middle)
        if low.side != high.side:
            yield from (p for p in (low, high) if before.total < p.total < after.total)
        yield after


def _runs(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    """First and last point of each stretch on one side."""
    first = points[0]
    for before, after in pairwise(points):
        if before.side != after.side:
            yield first, before
            first = after
    yield first, points[-1]


def _words(runs: Sequence[tuple[Point, Point]], most: int) -> str:
    """`Local up to 4,000 tokens, remote above.`"""
    if len(runs) == 1:
        every = _("Every length up to %(most)s tokens runs %(side)s.")
        return every % {"most": f"{most:,}", "side": side_word(runs[0][0].side)}
    named = runs[: _MOST_FLIPS + 1]
    parts = [
        _("%(side)s up to %(n)s tokens") % {"side": side_word(first.side), "n": f"{last.total:,}"}
        for first, last in named[:-1]
    ]
    parts.append(_("%(side)s above") % {"side": side_word(named[-1][0].side)})
    if len(named) < len(runs):
        parts.append(_("and so on"))
    words = ", ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def _segment(
    run: tuple[Point, Point], runs: Sequence[tuple[Point, Point]], i: int, most: int
) -> Segment:
    first, last = run
    # Up to where the next one begins: between two tokens there is no third state.
    end = runs[i + 1][0].total if i + 1 < len(runs) else most
    words = side_word(first.side) if end - first.total >= 0.09 * most else ""
    title = _("%(first)s to %(last)s tokens: %(side)s") % {
        "first": f"{first.total:,}",
        "last": f"{last.total:,}",
        "side": side_word(first.side),
    }
    return Segment(
        _percent(first.total, most), _percent(end - first.total, most), first.side, words, title
    )


def _bands(points: Sequence[Point], most: int) -> Iterator[Segment]:
    inside = [point for point in points if point.in_band]
    if not inside:
        return
    first, last = inside[0].total, inside[-1].total
    title = _("%(first)s to %(last)s tokens: inside the band, where the shorter wait decides") % {
        "first": f"{first:,}",
        "last": f"{last:,}",
    }
    yield Segment(_percent(first, most), _percent(last - first, most), "band", _("band"), title)


def _flip(first: Point, most: int) -> Mark:
    at = 100.0 * first.total / most
    anchor = "start" if at < 50.0 else "end"
    title = _("from %(first)s tokens on: %(side)s (%(reason)s)") % {
        "first": f"{first.total:,}",
        "side": side_word(first.side),
        "reason": first.reason,
    }
    return Mark(f"{at:.3f}%", f"{first.total:,}", title, anchor)


def _x_ticks(most: int) -> Iterator[Mark]:
    step = _step(most / 5.0)
    n = math.floor(most / step + 1e-9)
    for i in range(n + 1):
        anchor = "start" if i == 0 else "end" if i * step >= 0.97 * most else "middle"
        write = figures.tokens if i == n else figures.significant
        words = "0" if i == 0 else write(i * step)
        yield Mark(_percent(i * step, most), words, figures.exact(i * step), anchor)


def _y_ticks(top_s: float) -> Iterator[Mark]:
    step = _step(top_s / 4.0)
    for i in range(math.floor(top_s / step + 1e-9) + 1):
        words = "0" if i == 0 else figures.duration(i * step)
        yield Mark(f"{_y(i * step, top_s):.1f}", words)


def _path(columns: Sequence[tuple[int, float | None]], most: int, top_s: float) -> str:
    """Straight lines through what is known; what is not known leaves a gap."""
    drawn, pen_down = [], False
    for total, seconds in columns:
        if seconds is None:
            pen_down = False
            continue
        x, y = _UNITS * total / most, _y(seconds, top_s)
        drawn.append(f"{'L' if pen_down else 'M'}{x:.2f} {y:.2f}")
        pen_down = True
    return " ".join(drawn)


def _y(seconds: float, top_s: float) -> float:
    return HEIGHT * (1.0 - seconds / top_s)


def _percent(tokens: float, most: int) -> str:
    return f"{100.0 * tokens / most:.3f}%"


def _nice(value: float) -> float:
    scale: float = 10.0 ** math.floor(math.log10(value))
    return next(nice * scale for nice in _NICE if nice * scale >= value * (1.0 - 1e-9))


def _step(value: float) -> float:
    scale: float = 10.0 ** math.floor(math.log10(value))
    return next(step * scale for step in _STEPS if step * scale >= value * (1.0 - 1e-9))
