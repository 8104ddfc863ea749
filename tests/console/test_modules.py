"""All modules of a page are asked for at once, and none that it does not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import console
from console.templatetags.modules import imported, modules

SCRIPTS = Path(console.__file__).parent / "static" / "console"


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.glob("*.js")))
def test_what_a_module_imports_is_known(name: str) -> None:
    found = imported(name)
    named = {other for each in found for other in _named_in(each)}
    assert named | {name} == set(found)
    assert len(found) == len(set(found))


def _named_in(name: str) -> list[str]:
    return re.findall(r'(?:from|import) "\./([^"]+)"', (SCRIPTS / name).read_text())


def test_a_page_preloads_its_own_and_the_frame_and_runs_its_own() -> None:
    html = modules("fleet.js", "detail.js")
    preloaded = re.findall(r'modulepreload" href="/static/console/(\w+\.js)"', html)
    assert preloaded == list(imported("fleet.js", "detail.js", "frame.js"))
    assert {"charts.js", "live_lines.js", "socket.js"} < set(preloaded)
    assert re.findall(r'type="module" src="/static/console/(\w+\.js)"', html) == [
        "fleet.js",
        "detail.js",
    ]
