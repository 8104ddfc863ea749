"""An engine tells its own role: what an agent reports while it changes, fails, talks nonsense."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from telemetry import wire
from telemetry.agent.config import Config, load
from telemetry.agent.instances import Instance
from telemetry.agent.roster import Roster
from telemetry.agent.sources import Source
from telemetry.strict_toml import TomlError
from tests.agent.site import Eventually, Site, samples

ID = "f/pd/p0"


async def read(source: Source) -> wire.InstanceSample:
    sample = await source.read()
    assert isinstance(sample, wire.InstanceSample)
    wire.check_sample(sample, "")
    return sample


def config_of(url: str, **settings: Any) -> Config:
    instance = Instance(id=ID, role="prefill", url=f"{url}/metrics", **settings)
    return Config(agent="a", console_url="http://c", spool_dir="s", instances=(instance,))


def source_of(config: Config, session: aiohttp.ClientSession) -> Source:
    roster = Roster(session=session, clock=lambda: 1.7e9)
    assert roster.update(config, {}) == []
    [source] = roster.sources
    return source


def says(role: object) -> str:
    return json.dumps({"num_running_reqs": 0, "disagg_mode": role, "epoch_s": 1.7e9})


async def test_the_role_is_what_the_engine_says_and_survives_its_silence(engine: Any) -> None:
    config = config_of(engine.url, role_url=f"{engine.url}/v1/loads")
    async with aiohttp.ClientSession() as session:
        source = source_of(config, session)
        first = await read(source)
        assert (first.state, first.role) == ("ok", "prefill"), "configured, until it was heard"
        assert "its role cannot be read, prefill is kept" in source.warnings[0]

        engine.pages["/v1/loads"] = says("decode")
        assert (await read(source)).role == "decode"
        assert not source.warnings

        del engine.pages["/v1/loads"]
        kept = await read(source)
        assert (kept.state, kept.role) == ("ok", "decode")
        assert kept.signals.requests_waiting == 40.0
        assert "decode is kept" in source.warnings[0]

        await engine.stop()
        down = await read(source)
        assert (down.state, down.role) == ("down", "decode")
        await engine.start()
        engine.pages["/v1/loads"] = says("both")
        assert (await read(source)).role == "both"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says("banana"), "disagg_mode='banana': must be one of prefill, decode, both"),
        (says(None), "disagg_mode=None"),
        (says(["prefill"]), "disagg_mode=['prefill']"),
        (says("Prefill"), "disagg_mode='Prefill'"),
        (says("\ud800\0" * 100), "disagg_mode='\\ud800\\x00"),
        ("{}", "disagg_mode=None"),
        ("[]", "disagg_mode=None"),
        ("prefill", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
async def test_a_role_that_is_none_fails_the_reading(engine: Any, answer: str, why: str) -> None:
    engine.pages["/v1/loads"] = says("decode")
    config = config_of(engine.url, role_url=f"{engine.url}/v1/loads")
    async with aiohttp.ClientSession() as session:
        source = source_of(config, session)
        assert (await read(source)).role == "decode"
        engine.pages["/v1/loads"] = answer
        wrong = await read(source)
        assert (wrong.state, wrong.role) == ("failed", "decode")
        assert why in (wrong.error or "")
        assert wrong.signals == wire.InstanceSignals()
        engine.pages["/v1/loads"] = says("prefill")
        again = await read(source)
        assert (again.state, again.role) == ("ok", "prefill")


async def test_a_running_agent_follows_a_switch_and_says_what_it_cannot_read(
    site: Site,
    console: Any,
    engine: Any,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    engine.pages["/loads"] = json.dumps({"mode": "prefill"})
    site.add(
        "instances",
        id=ID,
        role="decode",
        url=f"{engine.url}/metrics",
        role_url=f"{engine.url}/loads",
        role_key="mode",
    )
    async with site.running():
        await eventually(lambda: samples(console, ID))
        engine.pages["/loads"] = json.dumps({"mode": "decode"})
        await eventually(lambda: samples(console, ID)[-1].role == "decode")
        del engine.pages["/loads"]
        await eventually(lambda: "its role cannot be read" in caplog.text)
    roles = [sample.role for sample in samples(console, ID)]
    assert roles[0] == "prefill", "what it says goes before what is configured"
    assert roles == sorted(roles, reverse=True), "switched once, never back"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('role_url = "engine:8000/v1/loads"', "instances[0].role_url='engine:8000/v1/loads'"),
        ('role_key = ""', "instances[0].role_key=''"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(
        'agent = "a"\nconsole_url = "http://c"\nspool_dir = "s"\n'
        f'[[instances]]\nid = "{ID}"\nrole = "prefill"\nurl = "http://e/metrics"\n{line}\n'
    )
    with pytest.raises(TomlError) as caught:
        load(path)
    assert why in str(caught.value)
