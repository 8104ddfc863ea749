"""A real Prometheus remote-writes to a live console."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from telemetry import store
from tests import servers
from tests.doors.programs import asked, needs_prometheus, page, prometheus, until
from tests.doors.texts import ENGINE, RULES
from tests.telemetry.batches import unique

pytestmark = pytest.mark.timeout(180)


def config(console: str, token: str, fleet: str, engine_port: int) -> str:
    return f"""
global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}
scrape_configs:
- job_name: vllm
  static_configs:
  - targets: ["127.0.0.1:{engine_port}"]
    labels: {{fleet: "{fleet}", cluster: pd, role: decode}}
- job_name: other
  static_configs: [{{targets: ["127.0.0.1:{engine_port}"]}}]
remote_write:
- url: http://{console}/api/v1/write
  authorization: {{credentials: {token}}}
  queue_config: {{batch_send_deadline: 500ms}}
"""


def newest(fleet: str) -> store.Reading | None:
    found = store.latest("instance", prefix=f"{fleet}/", now_s=time.time())
    assert len(found) <= 1
    return found[0] if found else None


@needs_prometheus
def test_a_real_prometheus_remote_writes_to_us(
    console: servers.Server, token: str, tmp_path: Path
) -> None:
    fleet = unique("rw")
    with (
        page(tmp_path / "engine", ENGINE) as port,
        prometheus(tmp_path / "p", config(console.host, token, fleet, port)),
    ):
        first = until(lambda: newest(fleet))
        later = until(lambda: (r := newest(fleet)) and r.at_s > first.at_s and r)
        assert later.path == f"{fleet}/pd/127.0.0.1:{port}"
        assert (later.state, later.role, later.engine) == ("ok", "decode", "vllm")
        assert later.signals.requests_running == 7.0
        assert later.signals.requests_waiting == 40.0
        assert later.signals.ttft_seconds.counts == [1.0, 3.0, 1.0]
        assert later.signals.prompt_tokens_per_s == 0.0
        assert later.epoch_s == 1.7959552631e9
        (tmp_path / "engine" / "metrics").unlink()
        until(lambda: newest(fleet).state == "failed")
        assert "up is 0" in newest(fleet).error


@needs_prometheus
@pytest.mark.fault
def test_what_prometheus_scraped_while_the_console_was_dead_arrives(
    token: str, tmp_path: Path
) -> None:
    fleet = unique("rw")
    rules = tmp_path / "doors.toml"
    rules.write_text(RULES)
    console = servers.start(tmp_path / "console.log", CONSOLE_DOORS_RULES=str(rules))
    try:
        with (
            page(tmp_path / "engine", ENGINE) as port,
            prometheus(tmp_path / "p", config(console.host, token, fleet, port)) as url,
        ):
            until(lambda: newest(fleet))
            console.kill()
            killed_s = time.time()
            until(lambda: asked(url, f'timestamp(up{{job="vllm"}}) > {killed_s + 4.0}'))
            console = servers.start(
                tmp_path / "console.log", port=console.port, CONSOLE_DOORS_RULES=str(rules)
            )
            until(lambda: newest(fleet).at_s > killed_s + 5.0)
            [scraped] = asked(url, 'up{job="vllm"}[2m]')
        found = store.window(
            "instance",
            prefix=f"{fleet}/",
            since_s=killed_s - 1.0,
            until_s=killed_s + 4.0,
            bin_s=0.1,
        )
        [readings] = found.values()
        stored = {round(reading.at_s, 3) for reading in readings}
        wanted = {at_s for at_s, _ in scraped["values"] if killed_s - 1.0 < at_s <= killed_s + 4.0}
        assert len(wanted) >= 8
        assert wanted <= stored
        assert all(reading.signals.requests_running == 7.0 for reading in readings)
    finally:
        console.stop()
