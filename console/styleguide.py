"""The page that shows what pages are made of: every token of base.css, each component from the
partial that pages use, in both themes side by side."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from console.context import Mark
from console.missing import Finding
from console.phrases import said
from console.roles import readable

_BASE: Final = Path(__file__).parent / "static" / "console" / "base.css"
_ICONS: Final = Path(__file__).resolve().parent.parent / "templates" / "partials" / "_icons.html"
_TOKEN = re.compile(r"^\s*--([\w-]+):\s*([^;]+);", re.MULTILINE)
_GROUPS: Final = (
    ("colours", "light-dark"),
    ("type", ("type", "leading", "sans", "mono")),
    ("space", ("space",)),
    ("shape", ("radius", "hairline", "control", "icon")),
)
STATES: Final = (
    Mark("good", "ok", "fresh"),
    Mark("warn", "warn", "silent since 14:03:10"),
    Mark("bad", "bad", "down"),
    Mark("info", "wait", "being changed"),
    Mark("off", "off", "not measured"),
)


@dataclass(frozen=True)
class Token:
    name: str
    value: str
    pixels: int | None


@cache
def tokens() -> dict[str, list[Token]]:
    """Every token of base.css by group. Raises ValueError for one that belongs to none."""
    root = _BASE.read_text().partition("\n}")[0]
    found: dict[str, list[Token]] = {name: [] for name, _ in _GROUPS}
    for name, value in _TOKEN.findall(root):
        text = " ".join(value.split())
        pixels = int(text[:-2]) if text.endswith("px") else None
        found[_group(name, text)].append(Token(name, text, pixels))
    return found


def _group(name: str, value: str) -> str:
    for group, belongs in _GROUPS:
        if isinstance(belongs, str):
            if value.startswith(belongs):
                return group
        elif name.startswith(belongs):
            return group
    raise ValueError(f"base.css: --{name}: belongs to no group of the style guide")


@cache
def icons() -> list[str]:
    """The names of every icon, in the order of the sprite."""
    return re.findall(r'<symbol id="i-([\w-]+)"', _ICONS.read_text())


@readable
def page(request: HttpRequest) -> HttpResponse:
    """Tokens, icons and components; what a new page is put together from."""
    return render(request, "styleguide.html", _samples())


def _samples() -> dict[str, Any]:
    now = timezone.now()
    paginator = Paginator(range(150), 50)
    return {
        "themes": ("light", "dark"),
        "tokens": tokens(),
        "icons": icons(),
        "states": STATES,
        "trail": [
            {"label": _("Overview"), "url": reverse("overview")},
            {"label": _("Style guide"), "url": ""},
        ],
        "list": paginator.get_page(2),
        "missing": [
            Finding(
                "link",
                said("Link %(link)s has been down", link="prfaas → pd"),
                (now - timedelta(minutes=4)).timestamp(),
                said("%(cluster)s prefills locally", cluster="pd"),
                "bad",
            ),
            Finding(
                "agent",
                said("Agent %(name)s has been silent", name="pd-agent"),
                (now - timedelta(seconds=40)).timestamp(),
                said("the loop goes on"),
            ),
        ],
        "effects": {
            "items": [
                {
                    "tone": "warn",
                    "icon": "warn",
                    "label": "pd",
                    "text": _("37 requests will drain, about 40 s."),
                },
                {
                    "tone": "good",
                    "icon": "ok",
                    "text": _("Gates keep routing by the plan they run."),
                },
            ]
        },
        "moments": {"now": now, "before": now - timedelta(minutes=3)},
    }
