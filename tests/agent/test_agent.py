"""The whole agent against real peers: what it ships, and what it does when they go and come."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from telemetry import wire
from telemetry.agent import config
from tests.agent.site import Eventually, Site, n_read, samples

EPP_TEXT = """\
llm_d_epp_request_total{model_name="m",priority="0"} 100
llm_d_epp_flow_control_queue_size{fairness_id="a"} 7
"""
LAB = {"prfaas->pd": {"at_s": 1.7e9, "tx_bytes_total": 1000, "capacity_gbps": 100.0}}


def _n_bytes(spool: Path) -> int:
    return sum(path.stat().st_size for path in spool.glob("*.segment"))


async def test_one_round_ships_engines_gates_and_links(
    site: Site, console: Any, engine: Any, gate: Any, tmp_path: Path
) -> None:
    gate.pages["/links"] = json.dumps(LAB)
    (tmp_path / "dev").write_text("eth0: 10 0 0 0 0 0 0 0 20 0 0 0 0 0 0 0\n")
    site.engine(engine.url)
    site.add("routers", id="f/pd/gate-0", url=f"{gate.url}/metrics")
    site.add(
        "links", id="prfaas->pd", source="lab", url=f"{gate.url}/links", measured_layer="emulated"
    )
    site.add(
        "links",
        id="pd->prfaas",
        source="proc_net_dev",
        interface="eth0",
        path=str(tmp_path / "dev"),
        measured_layer="interface",
        capacity_gbps=25.0,
    )
    await site.once()
    [batch] = console.batches
    [instance] = batch.instances
    assert (instance.state, instance.engine, instance.role) == ("ok", "vllm", "prefill")
    assert instance.epoch_s == 1.7959552631e9
    assert instance.signals.requests_waiting == 40.0
    assert instance.signals.ttft_seconds.counts == [1.0, 4.0, 1.0]
    assert instance.signals.prompt_tokens_per_s is None
    [router] = batch.routers
    assert (router.plan_epoch, router.plan_version) == (1, 42)
    assert router.signals.upstream_up == {"local": 1.0, "remote:prfaas": 0.0}
    lab, interface = batch.links
    assert lab.at_s == 1.7e9
    assert lab.signals == wire.LinkSignals(tx_bytes_total=1000.0, capacity_gbps=100.0)
    assert interface.measured_layer == "interface"
    assert interface.signals == wire.LinkSignals(
        rx_bytes_total=10.0, tx_bytes_total=20.0, capacity_gbps=25.0
    )


async def test_a_router_of_another_make_is_read_by_its_own_map(
    site: Site, console: Any, gate: Any
) -> None:
    site.add("routers", id="f/pd/gate-0", url=f"{gate.url}/metrics")
    site.add("routers", id="f/pd/epp", kind="llm-d", url=f"{gate.url}/epp")
    site.add("routers", id="f/pd/wrong", kind="smg", url=f"{gate.url}/epp")
    gate.pages["/epp"] = EPP_TEXT
    await site.once()
    [read] = samples(console, "f/pd/epp")
    assert (read.kind, read.state) == ("llm-d", "ok")
    assert read.signals.requests_total == {"all|request": 100.0}
    assert read.signals.requests_waiting == 7.0
    assert (read.plan_epoch, read.plan_version) == (None, None)
    [own] = samples(console, "f/pd/gate-0")
    assert (own.kind, own.plan_epoch, own.plan_version) == ("gate", 1, 42)
    [wrong] = samples(console, "f/pd/wrong")
    assert (wrong.state, wrong.error.partition(" in ")[0]) == ("failed", "no series of smg")


async def test_idle_missing_and_failed_arrive_as_three_things(
    site: Site, console: Any, engine: Any, gate: Any, eventually: Eventually
) -> None:
    """S-04, the agent's side; an engine that is down is a fourth."""
    text = engine.pages["/metrics"]
    engine.pages["/metrics"] = text.replace('engine="1",model_name="m"} 0.8', 'engine="1"} NaN')
    site.engine(engine.url)
    site.engine(gate.url, "not-an-engine")
    site.engine("http://127.0.0.1:1", "down")
    await site.once()
    [fine] = samples(console, "f/pd/p0")
    assert fine.state == "ok"
    assert fine.signals.inter_token_seconds.count == 0.0
    assert fine.signals.kv_cache_usage_ratio is None
    [wrong] = samples(console, "f/pd/not-an-engine")
    assert wrong.state == "failed"
    assert "no series of a known engine" in wrong.error
    [down] = samples(console, "f/pd/down")
    assert down.state == "down"
    assert "Cannot connect" in down.error
    assert down.signals == wire.InstanceSignals()


FAILURES: list[tuple[str, dict[str, Any], str, str]] = [
    ("an error", {"status": 500}, "failed", "HTTP 500"),
    ("another page", {"pages": {"/metrics": "<html>hello</html>"}}, "failed", "no series of"),
    ("no answer", {"hang": True}, "slow", "no answer within 0.3 s"),
    ("not found", {"pages": {}}, "failed", "HTTP 404"),
    ("hangs up", {"hang_up": True}, "down", "Server disconnected"),
]


@pytest.mark.parametrize(
    ("broken", "state", "why"), [c[1:] for c in FAILURES], ids=[c[0] for c in FAILURES]
)
async def test_a_failed_scrape_is_shipped_with_its_error(
    site: Site, console: Any, engine: Any, broken: dict[str, Any], state: str, why: str
) -> None:
    """S-18: down, failing and slow are three things."""
    for name, value in broken.items():
        setattr(engine, name, value)
    if engine.hang:
        site.settings = {"timeout_s": 0.3}
    site.engine(engine.url)
    await site.once()
    [sample] = samples(console, "f/pd/p0")
    assert sample.state == state
    assert why in sample.error


async def test_a_slow_engine_holds_up_nobody(
    site: Site, console: Any, engine: Any, gate: Any, eventually: Eventually
) -> None:
    """S-18: three time-outs in a row are unresponsive, maybe busy."""
    gate.hang = True
    site.settings = {"timeout_s": 0.5}
    site.engine(engine.url)
    site.engine(gate.url, "slow")
    async with site.running():
        await eventually(lambda: len(samples(console, "f/pd/slow")) >= 3)
        # One reading of it in flight at a time, while the other goes on.
        assert len(samples(console, "f/pd/p0")) > gate.n_gets
    found = samples(console, "f/pd/slow")
    assert {sample.state for sample in found} == {"slow"}
    lasting = [s.error.startswith("unresponsive, maybe busy, 3 times") for s in found[:3]]
    assert lasting == [False, False, True]


async def test_rates_stand_beside_totals_from_the_second_reading_on(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """S-08: through a restart of the engine too."""
    text = engine.pages["/metrics"]
    site.engine(engine.url)
    async with site.running():
        await eventually(lambda: samples(console, "f/pd/p0"))
        engine.pages["/metrics"] = text.replace(
            'prompt_tokens_total{engine="0",model_name="m"} 1000.0',
            'prompt_tokens_total{engine="0",model_name="m"} 1500.0',
        )
        await eventually(
            lambda: samples(console, "f/pd/p0")[-1].signals.prompt_tokens_total == 1734.0
        )
        engine.pages["/metrics"] = text.replace("1.7959552631e+09", "1.7959559999e+09").replace(
            'prompt_tokens_total{engine="0",model_name="m"} 1000.0',
            'prompt_tokens_total{engine="0",model_name="m"} 10.0',
        )
        await eventually(
            lambda: samples(console, "f/pd/p0")[-1].signals.prompt_tokens_total == 244.0
        )
    found = samples(console, "f/pd/p0")
    assert found[0].signals.prompt_tokens_per_s is None
    gains = [
        now.signals.prompt_tokens_per_s * (now.at_s - was.at_s)
        for was, now in itertools.pairwise(found)
    ]
    assert [round(gain) for gain in gains if round(gain)] == [500, 244]


async def test_the_engines_version_is_asked_once_a_process(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    engine.pages["/version"] = '{"version": "0.32.0"}'
    site.engine(engine.url)
    async with site.running():
        await eventually(lambda: len(samples(console, "f/pd/p0")) >= 3)
        engine.pages["/version"] = '{"version": "0.33.0"}'
        engine.pages["/metrics"] = engine.pages["/metrics"].replace("17959552631", "17959559999")
        engine.pages["/metrics"] = engine.pages["/metrics"].replace(
            "1.7959552631e+09", "1.7959559999e+09"
        )
        await eventually(lambda: samples(console, "f/pd/p0")[-1].engine_version == "0.33.0")
    versions = [sample.engine_version for sample in samples(console, "f/pd/p0")]
    assert versions == sorted(versions)
    assert set(versions) == {"0.32.0", "0.33.0"}


async def test_state_changes_are_one_line_each(
    site: Site, console: Any, engine: Any, eventually: Eventually, caplog: Any
) -> None:
    caplog.set_level(logging.INFO, "telemetry.agent")
    site.engine(engine.url)
    async with site.running():
        await eventually(lambda: samples(console, "f/pd/p0"))
        engine.status = 500
        await eventually(
            lambda: [s.state for s in samples(console, "f/pd/p0")].count("failed") >= 3
        )
        engine.status = 200
        await eventually(lambda: samples(console, "f/pd/p0")[-1].state == "ok")
    lines = [record.message for record in caplog.records if "f/pd/p0" in record.message]
    assert len(lines) == 2
    assert "cannot be read: HTTP 500" in lines[0]
    assert "can be read again" in lines[1]


async def test_a_reading_the_console_would_refuse_takes_no_other_with_it(
    site: Site, console: Any, engine: Any, gate: Any, eventually: Eventually
) -> None:
    gate.pages["/metrics"] = gate.pages["/metrics"].replace("plan_version 42", "plan_version 1e20")
    site.engine(engine.url)
    site.add("routers", id="f/pd/g0", url=f"{gate.url}/metrics")
    async with site.running():
        await eventually(lambda: samples(console, "f/pd/g0"))
        await eventually(lambda: samples(console, "f/pd/p0"))
    refused = samples(console, "f/pd/g0")[-1]
    assert (refused.state, refused.signals) == ("failed", wire.RouterSignals())
    assert f"plan_version={10**20}: must be in 0..2^63-1" in refused.error
    assert samples(console, "f/pd/p0")[-1].state == "ok"


async def test_the_console_goes_and_comes_back(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """Everything arrives once, the current batch at once, the rest in order."""
    site.engine(engine.url)
    async with site.running():
        await eventually(lambda: len(console.batches) >= 2)
        await console.stop()
        before, n_gets = len(console.batches), engine.n_gets
        await eventually(lambda: engine.n_gets >= n_gets + 10)
        await console.start()
        await eventually(lambda: len(console.batches) >= before + 2)
        await eventually(lambda: n_read(console) == max(console.seqs()))
    first, *later = console.batches[before:]
    [current] = first.instances
    history = [s.at_s for b in later for s in b.instances if s.at_s < current.at_s]
    assert len(history) >= 9
    assert history == sorted(history)
    assert len({sample.at_s for sample in samples(console, "f/pd/p0")}) == max(console.seqs())
    assert _n_bytes(site.folder / "spool") == 0


async def test_a_full_spool_drops_the_oldest_and_says_how_many(
    site: Site,
    console: Any,
    engine: Any,
    eventually: Eventually,
    caplog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "telemetry.agent")
    monkeypatch.setattr(config, "MIN_SPOOL_BYTES", 1000)
    site.settings = {"spool_max_bytes": 10_000}
    site.engine(engine.url)
    await console.stop()
    async with site.running():
        await eventually(lambda: "dropped the oldest" in caplog.text)
        await console.start()
        spooled = site.folder / "spool"
        await eventually(lambda: console.batches and _n_bytes(spooled) == 0)
    dropped = sum(
        record.args[1] for record in caplog.records if "dropped the oldest" in record.message
    )
    assert dropped > 0
    assert n_read(console) == max(console.seqs()) - dropped


async def test_once_says_whether_the_console_took_it(site: Site, console: Any, engine: Any) -> None:
    site.engine(engine.url)
    assert await site.once() == 0
    await console.stop()
    assert await site.once() == 1
    await console.start()
    assert await site.once() == 0
    assert n_read(console) == 3


async def test_a_console_that_splits_gets_every_sample_once(
    site: Site, console: Any, engine: Any
) -> None:
    console.respond = lambda batch: web.Response(status=413) if len(batch.instances) > 1 else None
    for i in range(5):
        site.engine(engine.url, f"p{i}")
    await site.once()
    assert sorted(s.id for b in console.batches for s in b.instances) == [
        f"f/pd/p{i}" for i in range(5)
    ]


async def _lines_until(process: asyncio.subprocess.Process, text: str) -> None:
    assert process.stderr is not None
    while text not in (line := (await process.stderr.readline()).decode()):
        assert line, "the agent ended"


@pytest.mark.fault
async def test_sigterm_spools_what_is_unsent_and_a_restart_sends_it(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    await console.stop()
    site.engine(engine.url)
    process = await site.process()
    await _lines_until(process, "console away")
    await eventually(lambda: engine.n_gets >= 8)
    process.send_signal(signal.SIGTERM)
    _, errors = await process.communicate()
    assert process.returncode == 0
    assert b"batches stay in the spool" in errors
    assert b"Traceback" not in errors

    await console.start()
    again = await site.process()
    await eventually(lambda: n_read(console) >= 10)
    again.send_signal(signal.SIGTERM)
    await again.communicate()
    assert again.returncode == 0
    assert len({batch.boot for batch in console.batches}) == 1
    assert n_read(console) == max(console.seqs())
    assert len({sample.at_s for sample in samples(console, "f/pd/p0")}) == n_read(console)


@pytest.mark.fault
async def test_a_killed_agent_with_a_torn_spool_goes_on(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    await console.stop()
    site.engine(engine.url)
    process = await site.process()
    await eventually(lambda: engine.n_gets >= 6)
    process.kill()
    await process.communicate()
    [segment] = (site.folder / "spool").glob("*.segment")
    whole = segment.stat().st_size
    os.truncate(segment, whole - 7)

    await console.start()
    again = await site.process()
    await _lines_until(again, "after the last whole record, cut")
    # New readings and history alternate, so wait for both kinds.
    await eventually(lambda: n_read(console) >= 8 and max(console.seqs()) > 65536)
    again.send_signal(signal.SIGTERM)
    await again.communicate()
    seqs, found = console.seqs(), samples(console, "f/pd/p0")
    assert len(set(seqs)) == len(seqs)
    assert len({sample.at_s for sample in found}) == len(found)
    # The numbers of the first run are never used for a reading of the second.
    assert all(seq < 1000 or seq > 65536 for seq in seqs)


@pytest.mark.fault
async def test_once_print_shows_the_batch_and_ships_nothing(
    site: Site, console: Any, engine: Any
) -> None:
    site.engine(engine.url)
    process = await site.process("--once", "--print")
    out, errors = await process.communicate()
    assert process.returncode == 0, errors
    document = json.loads(out)
    assert document["instances"][0]["signals"]["requests_waiting"] == 40.0
    assert console.offers == []
    assert not (site.folder / "spool").exists()


@pytest.mark.fault
async def test_an_older_boot_ends_the_process_with_code_3(
    site: Site, console: Any, engine: Any
) -> None:
    console.respond = lambda batch: web.json_response({"error": "newer boot 9"}, status=409)
    site.engine(engine.url)
    process = await site.process()
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert b"newer boot 9" in errors
    assert b"another agent of that name" in errors
    assert b"Traceback" not in errors


@pytest.mark.fault
async def test_two_agents_on_one_spool_are_refused(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    site.engine(engine.url)
    async with site.running():
        await eventually(lambda: console.batches)
        process = await site.process("--once")
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"another agent is using it" in errors
