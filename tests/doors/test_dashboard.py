"""The Grafana dashboard asks for what the console exposes, in PromQL that is one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.doors.programs import asked, needs_prometheus, prometheus, until

FILE = Path(__file__).resolve().parents[2] / "docs/grafana/prfaas-console.json"


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(FILE.read_text())
    return document


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_panels_have_names_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells


@needs_prometheus
@pytest.mark.timeout(180)
def test_every_name_is_exposed_and_every_expression_is_promql(
    console: servers.Server, transactional_db: None, dashboard: dict[str, Any], tmp_path: Path
) -> None:
    text = console.request("GET", "/metrics").body.decode()
    exposed = set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE))
    wanted = {
        name
        for expression in expressions(dashboard)
        for name in re.findall(r"prfaas_[a-z0-9_]+", expression)
    }
    ends = ("", "_bucket", "_sum", "_count")
    assert not {name for name in wanted if not {name.removesuffix(end) for end in ends} & exposed}
    own = {name for name in exposed if name.startswith("prfaas_") and "created" not in name}
    assert not {name for name in own if not any(w.startswith(name) for w in wanted)}
    host, _, port = console.host.partition(":")
    config = f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: prfaas
  static_configs: [{{targets: ["{host}:{port}"]}}]
"""
    variables = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}
    with prometheus(tmp_path / "p", config) as url:
        until(lambda: asked(url, "prfaas_ingest_queued_batches"))
        for expression in expressions(dashboard):
            for name, value in variables.items():
                expression = expression.replace(name, value)
            asked(url, expression)
