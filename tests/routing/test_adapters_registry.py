"""How a router is described in a scenario, and that the page about routers says what they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from routing.adapters import answers
from routing.adapters.registry import KINDS, SettingsError, surface_of
from routing.adapters.surface import Actual, Capabilities
from routing.core.scenario.routers import read_engines
from routing.core.scenario.tables import ScenarioError, Table
from routing.core.urls import base_url
from telemetry import exposition
from tests.peers.programs import VERSIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "routers.md"
URL = "http://10.0.0.1:30000"
MINIMAL: dict[str, dict[str, Any]] = {
    "stack": {"url": URL},
    "smg": {"url": URL},
    "smg-manifest": {"url": URL, "manifest": "pd.json"},
    "sglang-router": {"url": URL, "version": "0.3.2"},
    "vllm-router": {"url": URL, "version": "0.1.17"},
    "vllm-router-zmq": {"url": URL, "manifest": "pd.json", "version": "0.1.17"},
}
"""The makes of the page's first table."""


def capabilities(kind: str) -> Capabilities:
    surface = surface_of(kind, MINIMAL[kind])
    any_of = surface.capabilities(Actual(version=None, workers={})).tried_versions
    return surface.capabilities(Actual(version=any_of[0], workers={}))


def row(kind: str) -> str:
    can = capabilities(kind)
    yes = {True: "yes", False: "no"}
    cells = [f"`{kind}`", can.threshold, can.roles, can.drain]
    cells += [yes[can.has_auth], yes[can.is_readable], ", ".join(can.tried_versions)]
    return f"| {' | '.join(cells)} |"


def test_the_page_has_each_make_and_what_it_can() -> None:
    page = PAGE.read_text()
    table = re.search(
        r"<!-- router-capabilities -->\n(.*?)<!-- /router-capabilities -->", page, re.DOTALL
    )
    assert table
    assert table[1].splitlines()[2:] == [row(kind) for kind in MINIMAL]
    for kind in KINDS:
        assert f"\n## `{kind}`\n" in page, f"{kind} has no section"


@pytest.mark.parametrize("kind", [kind for kind in MINIMAL if kind != "stack"])
def test_what_was_tried_is_what_the_peers_are(kind: str) -> None:
    program = kind.removesuffix("-manifest").removesuffix("-zmq")
    assert capabilities(kind).tried_versions == (VERSIONS[program],)


@pytest.mark.parametrize("kind", list(MINIMAL))
def test_what_a_make_says_of_itself(kind: str) -> None:
    surface = surface_of(kind, {**MINIMAL[kind], "url": f"{URL}/"})
    assert (surface.kind, surface.url) == (kind, URL)
    assert surface.serves_at == (None if kind == "stack" else URL)
    assert "gate" in capabilities(kind).threshold_means


@pytest.mark.parametrize(
    ("kind", "settings", "field", "says"),
    [
        ("traefik", {"url": URL}, "kind", "must be one of"),
        ("smg", {}, "url", "is missing"),
        ("smg", {"url": "ftp://x"}, "url", "matching regex"),
        ("smg", {"url": "http://user@x"}, "url", "matching regex"),
        ("smg", {"url": URL, "tokenfile": "x"}, "tokenfile", "unknown key"),
        ("smg", {"url": URL, "token_file": "../../etc/shadow"}, "token_file", "matching regex"),
        ("smg", {"url": URL, "token_file": "/etc/shadow"}, "token_file", "matching regex"),
        ("smg", {"url": URL, "bootstrap_port": 0}, "bootstrap_port", ">= 1"),
        ("smg", {"url": URL, "version": "1"}, "version", "unknown key"),
        ("smg-manifest", {"url": URL}, "manifest", "is missing"),
        ("smg-manifest", {"url": URL, "manifest": "a/b"}, "manifest", "matching regex"),
        ("vllm-router-zmq", {"url": URL, "manifest": ".."}, "manifest", "matching regex"),
        ("stack", {"url": URL, "lease_s": -1.0}, "lease_s", "> 0"),
    ],
)
def test_a_description_that_cannot_be_meant(
    kind: str, settings: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(says)) as raised:
        surface_of(kind, settings)
    assert raised.value.field == field
    assert raised.value.value == (kind if field == "kind" else settings.get(field))


def test_every_url_ends_without_a_slash() -> None:
    """Paths are put behind it, and `//v1/completions` is another one to some servers."""
    given = {"url": f"{URL}/", "serves_at": "http://10.0.0.2:8000//"}
    assert surface_of("stack", given).serves_at == "http://10.0.0.2:8000"
    etcd = surface_of("dynamo", {"url": URL, "etcd_url": "http://etcd:2379/"})
    assert etcd.settings.etcd_url == "http://etcd:2379"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("spelled", "url"),
    [
        ("http://GPU-1.Example:8000/", "http://gpu-1.example:8000"),
        ("HTTP://gpu-1:80", "http://gpu-1"),
        ("https://gpu-1:443/Path/", "https://gpu-1/Path"),
        ("https://gpu-1:80", "https://gpu-1:80"),
        ("http://[FD00:0:0::1]:8000", "http://[fd00::1]:8000"),
        ("http://[nonsense]:8000/", "http://[nonsense]:8000"),
        ("http://gpu-1:port/", "http://gpu-1:port"),
        ("grpc://GPU-1:50051", "grpc://gpu-1:50051"),
        ("gpu-1:8000/", "gpu-1:8000"),
    ],
)
def test_one_spelling_of_a_url(spelled: str, url: str) -> None:
    assert base_url(spelled) == base_url(base_url(spelled)) == url


def test_engines_have_the_spelling_that_lists_are_read_by() -> None:
    table = Table({"engines": {"a": "http://GPU-1:8000/"}}, "clusters[0]", known=None)
    assert read_engines(table, 2) == {"a": "http://gpu-1:8000"}
    twice = {"engines": {"a": "http://GPU-1:8000/", "b": "http://gpu-1:8000"}}
    with pytest.raises(ScenarioError, match="is the URL of another engine"):
        read_engines(Table(twice, "clusters[0]", known=None), 2)


def test_a_sum_that_is_no_number_is_not_passed_on() -> None:
    found = exposition.parse('a{x="1"} 2\na{x="2"} NaN\n')
    assert answers.total(found, "a", x="1") == 2.0
    assert answers.total(found, "a") is None
