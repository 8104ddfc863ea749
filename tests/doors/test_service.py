"""The doors as the console runs them: what the settings say, and rules that change."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from telemetry.doors import service as module
from telemetry.doors.receiver import WRITE_PATH
from telemetry.doors.service import Service
from tests.doors import bodies
from tests.doors.calling import Grants, Queue, call
from tests.doors.test_receiver import SNAPPY
from tests.doors.texts import RULES


@pytest.fixture
def rules(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "doors.toml"
    settings.ENV = {**settings.ENV, "CONSOLE_DOORS_RULES": str(path)}
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    return path


def body(now_ms: int) -> bytes:
    target = {"job": "vllm", "instance": "e0", "fleet": "f", "cluster": "pd", "role": "decode"}
    return bodies.v1(("vllm:num_requests_running", target, 3.0, now_ms))


async def written(made: Service, at_ms: int) -> tuple[int, str]:
    answer = await call(made.app, WRITE_PATH, body(at_ms), SNAPPY)
    return answer.status, answer.text


async def test_rules_are_followed_and_bad_ones_change_nothing(
    rules: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules.write_text("[[rules]]")
    queue = Queue()
    made = Service(queue.offer, Grants(), None)
    made.start()
    now_ms = round(time.time() * 1000)
    status, words = await written(made, now_ms)
    assert status == 503
    assert "doors stay closed" in words
    assert "rules[0]={}" in words
    rules.write_text(RULES)
    while (await written(made, now_ms))[0] == 503:
        await asyncio.sleep(0.02)
    rules.write_text("[[rules]]\nmatch = 1")
    while "stay as they were" not in caplog.text:
        await asyncio.sleep(0.02)
    assert (await written(made, now_ms + 1000))[0] == 204
    rules.write_text(RULES.replace("{fleet}", "other"))
    while {sample.id for sample in queue.samples()} != {"f/pd/e0", "other/pd/e0"}:
        now_ms += 1000
        assert (await written(made, now_ms))[0] in (204, 503)
    await made.stop()
    boots = [batch.boot for batch in queue.batches]
    assert boots == sorted(boots)


async def test_without_a_setting_nothing_is_open_and_nothing_is_sent(settings: Any) -> None:
    made = Service(Queue().offer, Grants(), module.forwarder())
    made.start()
    assert await written(made, 0) == (
        404, "no mapping rules: set CONSOLE_DOORS_RULES (docs/doors.md)\n",
    )  # fmt: skip
    assert (module.forwarder(), module.history()) == (None, None)
    await made.stop()


def test_both_ways_of_history_carry_the_headers(settings: Any) -> None:
    settings.ENV = {
        **settings.ENV,
        "CONSOLE_FORWARD_URL": "http://mimir/api/v1/push",
        "CONSOLE_HISTORY_URL": "http://mimir/prometheus",
        "CONSOLE_HISTORY_HEADERS": {"X-Scope-OrgID": "t"},
    }
    client = module.history()
    assert client is not None
    assert (client.url, client.headers) == ("http://mimir/prometheus", {"X-Scope-OrgID": "t"})
    assert module.forwarder() is not None
