"""Two PD clusters behind one PrfaaS cluster in one lab process, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routing.lab.config import load_config
from routing.lab.errors import LabError
from routing.lab.fleet import LabFleet, build
from routing.lab.load import parse_args, source_of
from routing.lab.runner import Runner
from routing.lab.serve import start
from tests.lab.small import MB, write_config

SECOND = """
[[clusters]]
name = "pd-b"
kind = "pd"
profile = "slow"
instances = 3
start = { n_prefill = 1 }
[[links]]
from = "far"
to = "pd-b"
gbps = 100.0
[[workload]]
cluster = "pd"
rate_rps = 100.0
output_tokens = 2
lengths = { kind = "lognormal", mu = 3.0, sigma = 0.5, min = 4, max = 60 }
[[workload]]
cluster = "pd-b"
rate_rps = 100.0
output_tokens = 2
lengths = { kind = "lognormal", mu = 3.0, sigma = 0.5, min = 4, max = 60 }
"""


def write_two(folder: Path, **options: Any) -> Path:
    fast = {"prefill_s": 0.05, "slow_prefill_s": 0.05, "step_s": 0.001, "gbps": 100.0}
    path = write_config(folder, **{"extra": "clusters = ['pd', 'pd-b']", **fast, **options})
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().partition("[workload]")[0] + SECOND)
    return path


class Two:
    def __init__(
        self, fleet: LabFleet, ready: dict[str, Any], session: aiohttp.ClientSession
    ) -> None:
        self.fleet, self.ready, self.session = fleet, ready, session

    async def complete(self, url: str, prompt: list[int]) -> Any:
        body = {"prompt": prompt, "max_tokens": 2}
        async with self.session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            await response.read()
            return response.headers

    async def get(self, url: str) -> Any:
        async with self.session.get(url) as response:
            assert response.status == 200
            return await response.json()

    async def workers(self, cluster: str) -> dict[str, Any]:
        listed = await self.get(f"{self.ready['upstreams'][cluster]['control']}/workers")
        return {w["id"].removeprefix("small/"): w for w in listed["workers"]}


@asynccontextmanager
async def two(folder: Path, **options: Any) -> AsyncIterator[Two]:
    config = load_config(write_two(folder, **options))
    async with AsyncExitStack() as closing:
        fleet = build(config)
        ready = await start(fleet, config, closing)
        session = await closing.enter_async_context(aiohttp.ClientSession())
        yield Two(fleet, ready, session)


async def test_each_cluster_has_its_own_ports_links_and_truth(tmp_path: Path) -> None:
    async with two(tmp_path) as lab:
        assert set(lab.ready["upstreams"]) == {"pd", "pd-b"}
        assert "local" not in lab.ready, "of two there is no one local upstream"
        assert [e["id"] for e in lab.ready["engines"]] == [
            *(f"small/pd/slow-{i}" for i in (1, 2, 3, 4)),
            *(f"small/pd-b/slow-{i}" for i in (1, 2, 3)),
            *(f"small/far/fast-{i}" for i in (1, 2)),
        ]
        for n, (cluster, ways) in enumerate(lab.ready["upstreams"].items()):
            for i, (url, where) in enumerate(
                ((ways["local"], cluster), (ways["remote"]["far"], "far"))
            ):
                for _ in range(n + 1):
                    headers = await lab.complete(url, [100 * n + i] * 50)
                    assert headers["X-Lab-Prefill"].split("/")[1] == where
                    assert headers["X-Lab-Decode"].split("/")[1] == cluster
        truth = await lab.get(f"{lab.ready['admin']}/truth?records=0")
        links = await lab.get(f"{lab.ready['admin']}/links")
        assert set(truth["clusters"]) == {"pd", "pd-b"}
        for cluster, requests in (("pd", 1), ("pd-b", 2)):
            own = truth["clusters"][cluster]
            assert [own["sides"][side]["requests"] for side in ("local", "remote")] == [
                requests,
                requests,
            ]
            assert own["kv_shipped_bytes_by_link"] == {f"far->{cluster}": requests * 70 * MB}
            assert links[f"far->{cluster}"]["tx_bytes_total"] == requests * 70 * MB
        assert truth["sides"]["remote"]["completed"] == 3
        assert truth["kv_shipped_bytes_total"] == 210 * MB


async def test_they_queue_for_the_same_prefill_instances_and_share_their_caches(
    tmp_path: Path,
) -> None:
    async with two(tmp_path) as lab:
        one, other = (lab.ready["upstreams"][name]["remote"]["far"] for name in ("pd", "pd-b"))
        await lab.complete(one, list(range(40)))
        body = {"prompt": list(range(60)), "max_tokens": 1}
        async with lab.session.post(f"{other}/v1/completions", json=body) as response:
            usage = (await response.json())["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 40
    async with two(tmp_path, prefill_s=3600.0) as lab:
        calls = [
            asyncio.create_task(lab.complete(lab.ready["upstreams"][name]["remote"]["far"], [i]))
            for i, name in enumerate(("pd", "pd", "pd-b", "pd-b"))
        ]
        engines = [lab.fleet.engines[f"small/far/fast-{i}"] for i in (1, 2)]
        while sum(e.queue.n_waiting for e in engines) < 2:
            await asyncio.sleep(0.005)
        assert [e.queue.n_waiting for e in engines] == [1, 1]
        for name in ("pd", "pd-b"):
            listed = await lab.workers(name)
            assert sum(listed[f"far/fast-{i}"]["requests"] for i in (1, 2)) == 2, "only its own"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_each_stack_has_its_own_listing(tmp_path: Path) -> None:
    async with two(tmp_path) as lab:
        control = lab.ready["upstreams"]["pd-b"]["control"]
        assert control == f"{lab.ready['admin']}/clusters/pd-b"
        body = {"status": "draining", "lease_s": 60}
        for name in ("fast-1", "slow-2"):
            async with lab.session.put(f"{control}/workers/{name}", json=body) as response:
                assert response.status == 200
        mine, theirs = await lab.workers("pd-b"), await lab.workers("pd")
        assert list(mine) == [
            "pd-b/slow-1",
            "pd-b/slow-2",
            "pd-b/slow-3",
            "far/fast-1",
            "far/fast-2",
        ]
        draining = [name for name, worker in mine.items() if worker["status"] == "draining"]
        assert draining == ["pd-b/slow-2", "far/fast-1"]
        assert {worker["status"] for worker in theirs.values()} == {"ready"}
        far = lab.ready["upstreams"]
        for name, want in (("pd-b", "small/far/fast-2"), ("pd", "small/far/fast-1")):
            headers = await lab.complete(far[name]["remote"]["far"], [ord(name[-1])] * 50)
            assert headers["X-Lab-Prefill"] == want


async def test_one_load_process_drives_each_cluster(tmp_path: Path) -> None:
    async with two(tmp_path) as lab:
        scenario = str(tmp_path / "scenario.toml")
        for seed, (cluster, ways) in enumerate(lab.ready["upstreams"].items()):
            targets = ("--target", ways["local"], "--target", ways["remote"]["far"])
            seeded = ("--scenario", scenario, "--cluster", cluster, "--seed", str(seed))
            config = parse_args([*targets, *seeded])
            runner = Runner(
                source_of(config),
                targets=config.targets,
                form="ids",
                model="",
                seed=seed,
                limit=6 + 2 * seed,
                record=None,
            )
            async with runner:
                await runner.run(asyncio.Event(), duration_s=None, drain_s=30.0)
            assert runner.summary()["failures"] == []
        truth = json.loads(json.dumps(lab.fleet.truth.document(0)))
        for cluster, n in (("pd", 3), ("pd-b", 4)):
            sides = truth["clusters"][cluster]["sides"]
            assert [sides[side]["completed"] for side in ("local", "remote")] == [n, n]


def test_a_load_of_a_cluster_without_a_workload_is_refused(tmp_path: Path) -> None:
    write_two(tmp_path)
    argv = ["--target", "http://a", "--scenario", str(tmp_path / "scenario.toml")]
    for cluster in ("far", "pd-c"):
        with pytest.raises(LabError, match="0 of 2 workloads fit"):
            source_of(parse_args([*argv, "--cluster", cluster]))
    with pytest.raises(LabError, match="2 of 2 workloads fit"):
        source_of(parse_args(argv))


def test_the_only_workload_is_of_the_only_pd_cluster(tmp_path: Path) -> None:
    write_config(tmp_path)
    argv = ["--target", "http://a", "--scenario", str(tmp_path / "scenario.toml")]
    source_of(parse_args([*argv, "--cluster", "pd"]))
    with pytest.raises(LabError, match="cluster: 0 of 1 workloads fit"):
        source_of(parse_args([*argv, "--cluster", "far"]))
