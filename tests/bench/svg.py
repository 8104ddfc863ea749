"""Line charts as small SVG files: panels side by side, an interval at each point, one legend.

For the documentation only. What is above the top of a panel is cut there and drawn hollow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float, float, float]
"""x, mean, and the ends of its interval."""

_COLOURS = ("#1f6feb", "#d1242f", "#9a6700", "#8250df", "#1a7f37")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BETWEEN = 300, 220, 58, 34, 74
_LEGEND = 30


@dataclass(frozen=True)
class Panel:
    """`series` by name, each in the order of x; y begins at 0."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    top: float

    @property
    def span(self) -> tuple[float, float]:
        values = [point[0] for points in self.series.values() for point in points]
        return min(values), max(values)


def chart(panels: Sequence[Panel]) -> str:
    """The text of an SVG file. All panels have the same colours for the same names."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    width = _LEFT + len(panels) * (_WIDTH + _BETWEEN) - _BETWEEN + 16
    height = _TOP + _HEIGHT + 44 + _LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="#24292f">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for i, panel in enumerate(panels):
        parts += _panel(panel, _LEFT + i * (_WIDTH + _BETWEEN), colours)
    at = float(_LEFT)
    for name, colour in colours.items():
        y = height - 12
        parts.append(f'<path d="M{at:.0f} {y - 4}h20" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(at + 25, y, name, "start"))
        at += 52 + 6.2 * len(name)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: float, colours: Mapping[str, str]) -> list[str]:
    low, high = panel.span
    pad = 0.04 * (high - low) or 0.5

    def x(value: float) -> float:
        return left + _WIDTH * (value - low + pad) / (high - low + 2 * pad)

    def y(value: float) -> float:
        return _TOP + _HEIGHT * (1.0 - min(max(value, 0.0), panel.top) / panel.top)

    parts = [_text(left + _WIDTH / 2, _TOP - 14, panel.title, "middle", bold=True)]
    for tick in _ticks(panel.top):
        at = y(tick)
        parts.append(f'<path d="M{left:.1f} {at:.1f}h{_WIDTH}" stroke="#d0d7de"/>')
        parts.append(_text(left - 6, at + 4, f"{tick:g}", "end"))
    for value in dict.fromkeys(p[0] for points in panel.series.values() for p in points):
        parts.append(_text(x(value), _TOP + _HEIGHT + 16, f"{value:g}", "middle"))
    parts.append(_text(left + _WIDTH / 2, _TOP + _HEIGHT + 33, panel.x, "middle"))
    turn = f"rotate(-90 {left - 40:.1f} {_TOP + _HEIGHT / 2:.1f})"
    parts.append(_text(left - 40, _TOP + _HEIGHT / 2, panel.y, "middle", transform=turn))
    for name, points in panel.series.items():
        colour = colours[name]
        line = " ".join(f"{x(at):.1f},{y(mean):.1f}" for at, mean, _, _ in points)
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        for at, mean, least, most in points:
            bar = f"M{x(at):.1f} {y(least):.1f}V{y(most):.1f}"
            parts.append(f'<path d="{bar}" stroke="{colour}" stroke-width="3" opacity="0.35"/>')
            fill = colour if mean <= panel.top else "#ffffff"
            parts.append(
                f'<circle cx="{x(at):.1f}" cy="{y(mean):.1f}" r="3" fill="{fill}" '
                f'stroke="{colour}"><title>{escape(name)}: {mean:.3g}</title></circle>'
            )
    return parts


def _ticks(top: float) -> list[float]:
    """From 0 to the top in at most seven steps of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(top / 7))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= top / 7)
    return [i * step for i in range(int(top / step + 1e-9) + 1)]


def _text(
    x: float, y: float, text: str, anchor: str, *, bold: bool = False, transform: str = ""
) -> str:
    weight = ' font-weight="600"' if bold else ""
    turned = f' transform="{transform}"' if transform else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{weight}{turned}>{escape(text)}</text>"
