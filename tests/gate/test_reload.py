"""Other settings while requests go on: nothing is dropped, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from routing.gate.__main__ import Listener, _reload_when
from routing.gate.config import ConfigError, load_config
from routing.gate.settings import GateConfig
from routing.gate.tls import load_trust
from tests.gate.certificates import Authority, needs_openssl
from tests.gate.peers import (
    RunningGate,
    Upstream,
    all_running,
    gate_config,
    gate_running,
    plan,
    under_way,
    until,
)
from tests.gate.test_process import gate_process

FILE = Path("gate.toml")


def reload(gate: RunningGate, config: GateConfig) -> None:
    gate.gate.reload(config, trust=load_trust(config, FILE), file=FILE)


async def test_what_is_known_of_a_stack_that_stays_is_kept(
    local: Upstream, remote: Upstream
) -> None:
    async with gate_running(gate_config(local.url, {"prfaas": remote.url})) as gate:
        await gate.run_plan(plan(threshold_tokens=10_000))
        await gate.complete(list(range(2048)))
        [before] = gate.gate.local.upstreams
        async with Upstream().running() as second:
            reload(gate, gate_config([local.url, second.url], {"prfaas": remote.url}))
            assert gate.gate.local.upstreams[0] is before
            assert len(before.index) == 4
            response, _ = await gate.complete(list(range(3000)))
            assert response.headers["X-PrfaaS-Upstream"] == local.url.removeprefix("http://")
            await gate.complete(list(range(10_000, 12_000)))
            assert len(second.requests) == 1
            metrics = await gate.metrics()
            assert 'prfaas_gate_upstream_up{side="local",upstream="local"}' not in metrics
            assert sum(name.startswith("prfaas_gate_upstream_up") for name in metrics) == 3
            reload(gate, gate_config(local.url, {"other": remote.url}))
            assert gate.gate.local.upstreams == (before,)
            assert list(gate.gate.remotes) == ["other"]
            error = gate.gate.ack().error
            assert error == "the plan names remote 'prfaas', which has no upstream here"
            response, _ = await gate.complete(list(range(20_000)))
            assert response.headers["X-PrfaaS-Reason"] == "NoRemote"


async def test_another_cache_is_another_stack(local: Upstream) -> None:
    async with gate_running(gate_config(local.url)) as gate:
        await gate.complete(list(range(2048)))
        reload(gate, gate_config(local.url, capacity=1_000_000))
        assert len(gate.gate.local.upstreams[0].index) == 0


async def test_a_stream_outlives_the_upstream_it_came_from(
    local: Upstream, remote: Upstream
) -> None:
    local.open.clear()
    async with gate_running(gate_config(local.url)) as gate:
        async with under_way(gate, stream=True):
            await until(lambda: local.requests)
            reload(gate, gate_config(remote.url))
            response, _ = await gate.complete([1])
            assert (response.status, len(remote.requests)) == (200, 1)
            local.open.set()
        assert (await gate.metrics())['prfaas_gate_in_flight{side="local"}'] == 0


async def test_a_stack_that_left_and_came_back_is_not_one_more_to_try(
    local: Upstream, remote: Upstream
) -> None:
    """It failed the request before; the one that is well must get it."""
    sick, well = local, remote
    sick.open.clear()
    well.open.clear()
    both = gate_config([sick.url, well.url], health_interval_s=600.0)
    async with gate_running(both) as gate:
        first = asyncio.create_task(gate.complete([1]))
        await until(lambda: sick.requests)
        second = asyncio.create_task(gate.complete([2]))
        await until(lambda: well.requests)
        reload(gate, gate_config([well.url], health_interval_s=600.0))
        reload(gate, both)
        sick.status = 500
        sick.open.set()
        await until(lambda: len(well.requests) == 2 or first.done())
        well.open.set()
        assert [(await task)[0].status for task in (first, second)] == [200, 200]
        assert len(sick.requests) == 1


class Door:
    """A listener that cannot listen, the first time."""

    def __init__(self) -> None:
        self.n_asked = 0

    async def listen(self, context: Any) -> None:
        self.n_asked += 1
        if self.n_asked == 1:
            raise OSError(24, "Too many open files")


async def test_a_reload_that_goes_wrong_is_not_the_last(tmp_path: Path, local: Upstream) -> None:
    path = written(tmp_path / "gate.toml", local.url)
    config = load_config(path)
    async with gate_running(config) as gate:
        asked, door = asyncio.Event(), Door()
        task = asyncio.create_task(_reload_when(asked, gate.gate, cast(Listener, door), path))
        reloads = gate.gate.metrics.reloads.values
        asked.set()
        await until(lambda: reloads["refused",] or task.done())
        assert "listener stays as it was" in str(gate.gate.reload_error)
        asked.set()
        await until(lambda: reloads["applied",] or task.done())
        assert gate.gate.reload_error is None
        task.cancel()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"router": "F/pd/other"}, "router = 'F/pd/other'"),
        ({"block_tokens": 64}, "block_tokens = 64"),
        ({"port": 1}, "port = 1"),
    ],
)
async def test_what_a_gate_is_built_on_needs_a_restart(
    local: Upstream, remote: Upstream, settings: dict[str, Any], words: str
) -> None:
    async with gate_running(gate_config(local.url)) as gate:
        with pytest.raises(ConfigError) as caught:
            reload(gate, gate_config(remote.url, **settings))
        assert words in str(caught.value)
        assert "restart the gate" in str(caught.value)
        await gate.complete([1])
        assert len(local.requests) == 1, "nothing of it was taken"


async def test_limits_tenants_and_timeouts_change(local: Upstream) -> None:
    async with gate_running(gate_config(local.url)) as gate:
        assert gate.gate.proxy.admission is None, "what is not asked for costs nothing"
        local.open.clear()
        async with under_way(gate):
            await until(lambda: local.requests)
            reload(gate, gate_config(local.url, tenants={"rps": 0.001}, read_timeout_s=0.1))
            response, _ = await gate.complete([1])
            assert response.status == 504
            response, _ = await gate.complete([1])
            assert response.status == 429
            local.open.set()
        reload(gate, gate_config(local.url))
        response, _ = await gate.complete([1])
        assert response.status == 200
        assert (await gate.metrics())["prfaas_gate_read_timeout_seconds"] == 600


def written(path: Path, upstream: str, extra: str = "", top: str = "") -> Path:
    path.write_text(
        f'router = "F/pd/g1"\nport = 0\nplan_file = "plan.json"\n{top}\n'
        f'[upstreams.local]\nurl = "{upstream}"\n{extra}\n'
    )
    return path


async def health(url: str, client: aiohttp.ClientSession) -> dict[str, Any]:
    async with client.get(url + "/healthz") as answer:
        document: dict[str, Any] = await answer.json()
        return document


async def test_sighup_takes_a_good_file_and_says_why_not_a_bad_one(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    path = written(tmp_path / "gate.toml", local.url)
    async with gate_process(path) as (process, url), aiohttp.ClientSession() as client:

        async def reloads(outcome: str) -> float:
            async with client.get(url + "/metrics") as answer:
                name = f'prfaas_gate_reloads_total{{outcome="{outcome}"}} '
                page = await answer.text()
            return next(float(line.split()[-1]) for line in page.splitlines() if name in line)

        async def becomes(outcome: str, n: int) -> None:
            process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(20.0):
                while await reloads(outcome) != n:
                    await asyncio.sleep(0.02)

        for n, (text, words) in enumerate(
            (("colour = 3", "colour = 3: unknown key"), ("block_tokens = 7", "restart the gate")), 1
        ):
            written(path, remote.url, top=text)
            await becomes("refused", n)
            said = await health(url, client)
            assert words in said["error"]
            assert said["reload"].startswith("reload refused, the settings before stay")
            async with client.post(url + "/v1/completions", json={"prompt": "a"}) as answer:
                assert answer.status == 200
        assert (len(local.requests), len(remote.requests)) == (2, 0)
        written(path, remote.url)
        await becomes("applied", 1)
        assert (await health(url, client))["error"] is None
        async with client.post(url + "/v1/completions", json={"prompt": "a"}) as answer:
            assert answer.status == 200
        assert (len(local.requests), len(remote.requests)) == (2, 1)


@needs_openssl
async def test_a_new_certificate_is_shown_and_old_streams_go_on(
    tmp_path: Path, local: Upstream
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    chain = {"old": old.issue("gate-old"), "new": new.issue("gate-new")}

    def install(which: str) -> None:
        for source, name in zip(chain[which], ("gate.pem", "gate.key"), strict=True):
            (tmp_path / name).write_bytes(source.read_bytes())

    install("old")
    tls = '[tls]\ncert_file = "gate.pem"\nkey_file = "gate.key"'
    path = written(tmp_path / "gate.toml", local.url, tls)
    local.open.clear()
    async with (
        gate_process(path) as (process, url),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=old.client())) as before,
    ):
        assert url.startswith("https://")
        stream = asyncio.create_task(
            before.post(url + "/v1/completions", json={"prompt": "a", "stream": True})
        )
        await until(lambda: local.requests)
        install("new")
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(20.0):
            while True:
                connector = aiohttp.TCPConnector(ssl=new.client())
                async with aiohttp.ClientSession(connector=connector) as after:
                    try:
                        assert (await health(url, after))["ok"]
                        break
                    except aiohttp.ClientConnectorCertificateError:
                        await asyncio.sleep(0.05)
        local.open.set()
        response = await stream
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


class Site:
    """Stacks that come, go and fall sick behind one gate, and clients that notice nothing."""

    def __init__(self, gate: RunningGate, near: list[Upstream], far: list[Upstream]) -> None:
        self.gate, self.near, self.far = gate, near, far
        self.statuses: Counter[int] = Counter()
        self.reasons: Counter[str] = Counter()
        self.n_truncated = 0

    async def stream(self, rng: random.Random) -> None:
        prompt = [rng.randrange(1 << 20) for _ in range(rng.choice((10, 3000)))]
        try:
            response, body = await self.gate.complete(prompt, stream=True)
        except aiohttp.ClientPayloadError:
            self.n_truncated += 1
            return
        self.statuses[response.status] += 1
        self.reasons[response.headers["X-PrfaaS-Reason"]] += 1
        self.n_truncated += response.status == 200 and not body.endswith(b"data: [DONE]\n\n")

    def config(self, n_near: int, n_far: int) -> GateConfig:
        return gate_config(
            [u.url for u in self.near[:n_near]],
            {"prfaas": [u.url for u in self.far[:n_far]]},
            breaker={"open_s": 0.05, "max_open_s": 0.2},
            retries_per_side=2,  # two of three may fall sick in one moment
        )

    async def disturb(self, rng: random.Random, n_times: int) -> None:
        """At any time one local stack is well; all of the remote may be sick."""
        for _ in range(n_times):
            await asyncio.sleep(0.1)
            for upstream in (*self.near[1:], *self.far):
                upstream.status = rng.choice((200, 200, 200, 503, 500))
                upstream.healthy = rng.random() < 0.8
            reload(self.gate, self.config(rng.randint(1, 3), rng.randint(1, 3)))
            await self.receive_plan(rng.choice((5, 1000)))
        await self.show_every_reason()

    async def show_every_reason(self) -> None:
        """What chance may have passed over: requests of both lengths, then no remote stack."""
        for upstream in (*self.near, *self.far):
            upstream.status, upstream.healthy = 200, True
        await self.receive_plan(1000)
        await until(lambda: self.reasons["Short"] and self.reasons["Long"])
        for upstream in self.far:
            upstream.status, upstream.healthy = 500, False
        await until(lambda: self.reasons["RemoteDown"])

    async def receive_plan(self, threshold_tokens: int) -> None:
        sent = plan(1, self.version(), threshold_tokens=threshold_tokens)
        await self.gate.gate.board.receive(json.dumps(sent).encode())

    def version(self) -> int:
        running = self.gate.gate.board.state.running
        return 1 if running is None else running.version + 1


async def disturbed(n_streams: int, n_disturbances: int) -> None:
    rng = random.Random(3)
    event = b'data: {"choices":[{"text":"a","index":0}]}\n\n'
    async with all_running([Upstream() for _ in range(6)]) as upstreams:
        near, far = upstreams[:3], upstreams[3:]
        for upstream in upstreams:
            upstream.stream, upstream.pause_s = [event] * 20, 0.01
        config = gate_config(near[0].url, {"prfaas": far[0].url}, retries_per_side=2)
        async with gate_running(config) as gate:
            site = Site(gate, near, far)
            await gate.run_plan(plan(threshold_tokens=1000))
            disturbing = asyncio.create_task(site.disturb(rng, n_disturbances))
            streams: list[asyncio.Task[None]] = []
            while not disturbing.done() or len(streams) < n_streams:
                n_open = sum(not task.done() for task in streams)
                streams += [
                    asyncio.create_task(site.stream(rng)) for _ in range(n_streams - n_open)
                ]
                await asyncio.sleep(0.05)
            await asyncio.gather(disturbing, *streams)
            assert (site.n_truncated, set(site.statuses)) == (0, {200}), site.statuses
            metrics = await gate.metrics()
            assert metrics['prfaas_gate_in_flight{side="local"}'] == 0
            assert metrics['prfaas_gate_in_flight{side="remote"}'] == 0


async def test_streams_survive_sick_upstreams_reloads_and_new_thresholds() -> None:
    await disturbed(20, 20)


@pytest.mark.slow
async def test_two_hundred_streams_at_once_do_so_too() -> None:
    await disturbed(200, 60)
