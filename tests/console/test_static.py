"""What the pages are made of: the vendored bundle, no inline code, readable colours."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "console" / "static" / "console"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
TEXT_ON = [
    *((ink, ground) for ink in ("text", "muted", "accent") for ground in ("bg", "panel", "raised")),
    *((tone, ground) for tone in ("good", "warn", "bad") for ground in ("bg", "panel")),
    *((tone, f"{tone}-bg") for tone in ("good", "warn", "bad")),
    ("accent", "info-bg"),
    ("on-action", "accent"),
]
MARKS = [(hue, "panel") for hue in ("local", "remote", "decode", "neutral", "good", "warn", "bad")]


def test_the_vendored_plotly_is_the_published_one() -> None:
    """plotly.js-cartesian-dist-min 4.1.1 from the npm registry, MIT, unchanged."""
    bundle = STATIC / "vendor" / "plotly-cartesian-4.1.1.min.js"
    assert hashlib.sha256(bundle.read_bytes()).hexdigest() == (
        "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    )
    assert "MIT" in (STATIC / "vendor" / "plotly-LICENSE").read_text()


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: p.name)
def test_a_template_has_no_inline_code(template: Path) -> None:
    page = template.read_text()
    assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>", page)
    assert not re.findall(r"\son[a-z]+=", page)
    assert not re.findall(r"\sstyle=", page)
    styles = re.findall(r"<style[^>]*>", page)
    assert all("nonce=" in style for style in styles)


def tokens() -> dict[str, tuple[str, str]]:
    """Colour tokens by name: (light, dark)."""
    css = (STATIC / "base.css").read_text()
    found = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\);", css)
    return {name: (light, dark) for name, light, dark in found}


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("ink", "ground"), TEXT_ON, ids="-on-".join)
def test_text_is_readable(ink: str, ground: str, theme: int) -> None:
    found = tokens()
    assert contrast(found[ink][theme], found[ground][theme]) >= 4.5


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("mark", "ground"), MARKS, ids="-on-".join)
def test_marks_stand_out(mark: str, ground: str, theme: int) -> None:
    found = tokens()
    assert contrast(found[mark][theme], found[ground][theme]) >= 3.0
