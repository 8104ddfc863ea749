"""The style guide shows all there is: a token, an icon or a state that is added shows by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client

from console import styleguide

STATIC = Path(styleguide.__file__).parent / "static" / "console"
OURS = ("frame.css", "styleguide.css")


@pytest.mark.django_db
def test_it_shows_every_token_and_icon_in_both_themes(viewer: Client) -> None:
    page = viewer.get("/styleguide/").content.decode()
    css = (STATIC / "base.css").read_text()
    declared = re.findall(r"^  --([\w-]+):", css, re.MULTILINE)
    assert len(declared) > 40
    for name in declared:
        assert page.count(f"<code>--{name}</code>") == 2, name
    for icon in styleguide.icons():
        assert page.count(f'<use href="#i-{icon}"/></svg><span class="muted">{icon}<') == 2, icon
    assert "—" not in page


@pytest.mark.django_db
def test_ids_are_unique_though_parts_are_shown_twice(viewer: Client) -> None:
    ids = re.findall(r'\sid="([^"]+)"', viewer.get("/styleguide/").content.decode())
    assert len(ids) == len(set(ids))


def test_it_is_for_people_who_are_signed_in() -> None:
    assert Client().get("/styleguide/").status_code == 302


@pytest.mark.parametrize("name", OURS)
def test_the_frame_knows_no_raw_colour_and_no_raw_type_size(name: str) -> None:
    css = re.sub(r"body\.wall \{.*?\}", "", (STATIC / name).read_text(), flags=re.DOTALL)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b|\brgba?\(|\bhsl", css) == []
    assert re.findall(r"font-size: (?!var\()", css) == []
    assert re.findall(r"border-radius: (?!var\()", css) == []


def test_every_variable_that_a_style_sheet_uses_exists() -> None:
    declared: set[str] = set()
    for sheet in STATIC.glob("*.css"):
        declared |= set(re.findall(r"(--[\w-]+):", sheet.read_text()))
    for script in STATIC.glob("*.js"):
        declared |= set(re.findall(r"setProperty\([\"'](--[\w-]+)", script.read_text()))
    for sheet in STATIC.glob("*.css"):
        used = set(re.findall(r"var\((--[\w-]+)", sheet.read_text()))
        assert used <= declared, (sheet.name, used - declared)
