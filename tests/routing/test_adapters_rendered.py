"""The makes whose changes others apply, and that the page says what they can."""

from __future__ import annotations

import re
from typing import Any

import pytest

from routing.adapters.registry import SettingsError, surface_of
from routing.adapters.rendered import Wanted
from routing.adapters.surface import Actual
from tests.peers import dynamo_fleet
from tests.routing.test_adapters_registry import PAGE, URL

FULL: dict[str, dict[str, Any]] = {
    "dynamo": {"url": URL, "store": "store"},
    "llm-d": {"url": URL, "endpoints_file": "e.json", "config_file": "epp.yaml"},
    "aibrix": {"url": URL, "namespace": "llm", "model": "kimi", "token_file": "k8s.key"},
    "kubernetes": {"url": URL, "namespace": "llm", "selector": "a=b", "token_file": "k8s.key"},
    "production-stack": {"url": URL},
}
"""The makes of the page's second table, told all that they can be."""


def row(kind: str) -> str:
    surface = surface_of(kind, FULL[kind])
    tried = surface.capabilities(Actual(None, {})).tried_versions
    can = surface.capabilities(Actual(tried[0], {}, facts={"has_dynamic_config": True}))
    yes = {True: "yes", False: "no"}
    cells = [f"`{kind}`", can.threshold, can.roles, can.drain]
    cells += [yes[can.has_auth], yes[can.is_readable], ", ".join(tried)]
    return f"| {' | '.join(cells)} |"


def test_the_page_has_each_make_and_what_it_can() -> None:
    table = re.search(
        r"<!-- router-documents -->\n(.*?)<!-- /router-documents -->", PAGE.read_text(), re.DOTALL
    )
    assert table
    assert table[1].splitlines()[2:] == [row(kind) for kind in FULL]
    dynamo = surface_of("dynamo", FULL["dynamo"]).capabilities(Actual(None, {}))
    assert dynamo.tried_versions == (dynamo_fleet.VERSION,)


@pytest.mark.parametrize("kind", list(FULL))
def test_what_a_make_says_of_itself(kind: str) -> None:
    surface = surface_of(kind, {**FULL[kind], "url": f"{URL}/"})
    assert (surface.kind, surface.url) == (kind, URL)
    assert surface.capabilities(Actual(None, {})).threshold_means


@pytest.mark.parametrize("kind", list(FULL))
def test_no_key_of_a_make_is_left_out_of_its_section(kind: str) -> None:
    section = PAGE.read_text().partition(f"\n## `{kind}`\n")[2].partition("\n## ")[0]
    with pytest.raises(SettingsError) as raised:
        surface_of(kind, {**FULL[kind], "nonsense": 1})
    assert raised.value.field == "nonsense"
    settings: Any = surface_of(kind, FULL[kind])
    for key in settings.settings.__struct_fields__:
        assert f"`{key}`" in section, key


@pytest.mark.parametrize(
    ("kind", "settings", "field"),
    [
        ("dynamo", {"store": "../etc"}, "store"),
        ("dynamo", {"namespace": "a/b"}, "namespace"),
        ("llm-d", {"config_file": "/etc/shadow"}, "config_file"),
        ("aibrix", {"namespace": "A B"}, "namespace"),
        ("kubernetes", {"port": 0}, "port"),
        ("kubernetes", {"selector": ""}, "selector"),
    ],
)
def test_a_description_that_cannot_be_meant(
    kind: str, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        surface_of(kind, {**FULL[kind], **settings})
    assert (raised.value.field, raised.value.value) == (field, settings[field])


def test_what_no_plan_says() -> None:
    for mode, tokens in (("threshold", None), ("always_local", 0), ("threshold", -1)):
        with pytest.raises(ValueError, match="tokens="):
            Wanted(mode, tokens)  # type: ignore[arg-type]
    assert str(Wanted("threshold", 0)) == "remote above 0 uncached tokens"
    assert str(Wanted("always_local")) == "always_local"
