"""A stack's own listing of its workers, over real HTTP; leases in virtual time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from routing.lab.engine import Unavailable
from routing.lab.workers import NotNow, Worker
from tests.lab.serving import Served, lab
from tests.lab.small import job, small_config
from tests.lab.timed import Lab, in_lab


async def workers(served: Served) -> dict[str, Any]:
    _, text = await served.get(f"{served.ready['control']}/workers")
    return {worker["id"].removeprefix("small/"): worker for worker in json.loads(text)["workers"]}


async def put(served: Served, name: str, body: Any) -> tuple[int, Any]:
    url = f"{served.ready['control']}/workers/{quote(name, safe='')}"
    async with served.session.put(url, json=body) as response:
        return response.status, await response.json()


async def drain(served: Served, name: str) -> None:
    status, answer = await put(served, name, {"status": "draining", "lease_s": 600})
    assert status == 200, answer


async def test_a_stack_lists_its_own_instances_and_those_of_its_prfaas_clusters(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as served:
        assert served.ready["control"] == f"{served.admin}/clusters/pd"
        assert await workers(served) == {
            name: {
                "id": f"small/{name}",
                "url": served.engines[name],
                "worker_type": role,
                "status": "ready",
                "requests": 0,
                "lease_s": None,
            }
            for name, role in (
                ("pd/slow-1", "prefill"),
                ("pd/slow-2", "prefill"),
                ("pd/slow-3", "decode"),
                ("pd/slow-4", "decode"),
                ("far/fast-1", "prefill"),
                ("far/fast-2", "prefill"),
            )
        }


@pytest.mark.parametrize("name", ["slow-1", "small/pd/slow-1"])
async def test_a_role_moves_in_the_contracts_steps(tmp_path: Path, name: str) -> None:
    async with lab(tmp_path) as served:
        status, worker = await put(served, name, {"status": "draining", "lease_s": 60.0})
        assert (status, worker["status"], worker["worker_type"]) == (200, "draining", "prefill")
        assert 0.0 < worker["lease_s"] <= 60.0
        url = served.engines["pd/slow-1"]
        assert (await served.post(f"{url}/pd_role_switch", {"new_role": "decode"}))[0] == 200
        status, worker = await put(served, name, {"worker_type": "decode"})
        assert (status, worker["status"], worker["worker_type"]) == (200, "draining", "decode")
        status, worker = await put(served, name, {"status": "ready"})
        assert (status, worker["status"], worker["lease_s"]) == (200, "ready", None)
        await drain(served, "slow-3")
        await drain(served, "slow-4")
        _, headers = await served.complete(served.local, list(range(50)))
        assert headers["X-Lab-Decode"] == "small/pd/slow-1"
        assert headers["X-Lab-Prefill"] == "small/pd/slow-2"


@pytest.mark.parametrize(
    ("name", "body", "status", "names"),
    [
        ("slow-9", {"status": "ready"}, 404, "slow-9"),
        ("other/slow-1", {"status": "ready"}, 404, "other/slow-1"),
        ("slow-1", {"status": "away"}, 422, "status"),
        ("slow-1", {"status": "draining"}, 422, "lease_s"),
        ("slow-1", {"status": "draining", "lease_s": 0}, 422, "lease_s"),
        ("slow-1", {"status": "draining", "lease_s": "long"}, 422, "lease_s"),
        ("slow-1", {"status": "ready", "lease_s": 1}, 422, "lease_s"),
        ("slow-1", {"worker_type": "both"}, 422, "worker_type"),
        ("slow-1", {"worker_type": "decode", "status": "ready"}, 422, "status"),
        ("slow-1", {}, 422, "status"),
        ("slow-1", [], 422, ""),
        ("slow-1", {"worker_type": "decode"}, 409, "small/pd/slow-1 is not draining"),
        ("fast-1", {"worker_type": "decode"}, 422, "worker_type"),
    ],
)
async def test_a_change_that_cannot_be_is_refused_by_name(
    tmp_path: Path, name: str, body: Any, status: int, names: str
) -> None:
    async with lab(tmp_path) as served:
        before = await workers(served)
        got, answer = await put(served, name, body)
        assert got == status
        assert answer["error"]
        if status == 422:
            assert answer["field"] == names
            assert answer["value"] == (body.get(names) if isinstance(body, dict) else body)
        else:
            assert names in answer["error"]
        assert await workers(served) == before


async def test_an_unknown_cluster_has_no_workers(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        assert (await served.get(f"{served.admin}/clusters/far/workers"))[0] == 404


async def test_the_last_ready_worker_of_a_role_is_not_drained(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        for first, last in (("slow-1", "slow-2"), ("slow-4", "slow-3"), ("fast-2", "fast-1")):
            await drain(served, first)
            status, answer = await put(served, last, {"status": "draining", "lease_s": 9})
            assert (status, "last ready" in answer["error"]) == (409, True)
            await drain(served, first)  # the same again only renews its lease


async def test_an_engine_tells_its_load_and_role(tmp_path: Path) -> None:
    async with lab(tmp_path, slow_prefill_s=3600.0) as served:
        url = served.engines["pd/slow-1"]

        async def loads() -> Any:
            return json.loads((await served.get(f"{url}/v1/loads"))[1])

        idle = await loads()
        started_s = served.fleet.engines["small/pd/slow-1"].started_s
        assert idle == {
            "num_running_reqs": 0,
            "num_waiting_reqs": 0,
            "disagg_mode": "prefill",
            "epoch_s": started_s,
        }
        calls = [
            asyncio.create_task(served.post(f"{url}/v1/completions", {"prompt": [i] * 50}))
            for i in range(3)
        ]
        while (await loads())["num_waiting_reqs"] < 2:
            await asyncio.sleep(0.005)
        assert (await loads())["num_running_reqs"] == 1
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await served.settled()
        await served.post(f"{url}/pd_role_switch", {"new_role": "decode"})
        assert await loads() == {**idle, "disagg_mode": "decode"}


async def test_under_overload_drained_workers_get_nothing_more_and_end_empty(
    tmp_path: Path,
) -> None:
    """12 requests at once: 2 prefill for 0.3 s, then 6 each are at two decode workers of 2 slots,
    for 0.9 s. One of each is drained with work in its queue."""
    async with lab(tmp_path, slow_prefill_s=0.1, step_s=0.015) as served:

        async def one(i: int) -> tuple[int, str, str]:
            body = {"prompt": [i] * 50, "max_tokens": 20}
            status, _, headers = await served.post(f"{served.local}/v1/completions", body)
            return status, headers["X-Lab-Prefill"], headers["X-Lab-Decode"]

        async def drain_with(name: str, n_requests: int) -> int:
            while (await workers(served))[f"pd/{name}"]["requests"] < n_requests:
                await asyncio.sleep(0.002)
            await drain(served, name)
            left: int = (await workers(served))[f"pd/{name}"]["requests"]
            return left

        first = [asyncio.create_task(one(i)) for i in range(12)]
        left = {"pd/slow-1": await drain_with("slow-1", 4), "pd/slow-3": 12}
        assert left["pd/slow-1"] > 1
        left["pd/slow-3"] = await drain_with("slow-3", 4)
        assert left["pd/slow-3"] > 2, "running and waiting ones"
        second = [asyncio.create_task(one(100 + i)) for i in range(2)]
        while left["pd/slow-3"]:
            now = await workers(served)
            for name, before in left.items():
                assert now[name]["requests"] <= before
                left[name] = now[name]["requests"]
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*first, *second)
        assert {status for status, *_ in answers} == {200}
        assert {tuple(where) for _, *where in answers[12:]} == {
            ("small/pd/slow-2", "small/pd/slow-4")
        }
        assert all(worker["requests"] == 0 for worker in (await workers(served)).values())
        assert served.fleet.engines["small/pd/slow-3"].idle


async def test_two_that_disagree_refuse_the_request_and_nothing_hangs(tmp_path: Path) -> None:
    """The engine has another role than its stack lists: 503 and no trace of the request."""
    async with lab(tmp_path) as served:
        for name, role, wanted in (
            ("pd/slow-3", "prefill", "decode"),
            ("pd/slow-4", "prefill", "decode"),
            ("pd/slow-1", "decode", "prefill"),
            ("pd/slow-2", "decode", "prefill"),
        ):
            await served.post(f"{served.engines[name]}/pd_role_switch", {"new_role": role})
            if name != "pd/slow-4":
                continue
            status, answer, _ = await served.post(f"{served.far}/v1/completions", {"prompt": [1]})
            assert status == 503
            assert f"has the role {role}, not {wanted}" in answer["error"]["message"]
        status, answer, _ = await served.post(f"{served.local}/v1/completions", {"prompt": [1]})
        assert (status, "not prefill" in answer["error"]["message"]) == (503, True)
        await served.settled()
        assert all(worker["requests"] == 0 for worker in (await workers(served)).values())


async def test_a_client_that_goes_away_is_no_longer_counted(tmp_path: Path) -> None:
    async with lab(tmp_path, slow_prefill_s=3600.0) as served:
        session = aiohttp.ClientSession()
        body = {"prompt": list(range(50))}
        call = asyncio.create_task(session.post(f"{served.local}/v1/completions", json=body))
        while (await workers(served))["pd/slow-1"]["requests"] == 0:
            await asyncio.sleep(0.005)
        call.cancel()
        await asyncio.wait([call])
        await session.close()
        while (await workers(served))["pd/slow-1"]["requests"]:
            await asyncio.sleep(0.005)
        assert served.fleet.engines["small/pd/slow-1"].idle


def worker(lab: Lab, name: str) -> Worker:
    found = lab.stack.listing.find(name)
    assert found is not None
    return found


def test_a_drain_nobody_renews_ends_with_the_role_the_engine_has(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        listing, kept, moved = lab.stack.listing, worker(lab, "slow-1"), worker(lab, "slow-3")
        listing.drain(kept, 10.0)
        await lab.at(6.0)
        listing.drain(kept, 10.0)  # renewed
        listing.drain(moved, 10.0)
        assert moved.engine.switch_role("prefill") == "decode"  # and then its console died
        await lab.at(15.9)
        assert (kept.status, kept.lease_s) == ("draining", pytest.approx(0.1))
        await lab.at(16.1)
        assert (kept.status, kept.worker_type) == ("ready", "prefill")
        assert (moved.status, moved.worker_type) == ("ready", "prefill")
        # A drain that was ended in time does not end a later one.
        listing.drain(kept, 10.0)
        kept.ready()
        await lab.at(20.0)
        listing.drain(kept, 10.0)
        await lab.at(27.0)
        assert kept.status == "draining"
        await lab.at(31.0)

    in_lab(small_config(tmp_path), story)


def test_a_listed_role_that_the_engine_never_took_is_corrected_by_the_lease(
    tmp_path: Path,
) -> None:
    async def story(lab: Lab) -> None:
        listing, moved = lab.stack.listing, worker(lab, "slow-3")
        listing.drain(moved, 10.0)
        listing.relist(moved, "prefill")
        await lab.at(11.0)
        assert (moved.status, moved.worker_type) == ("ready", "decode")

    in_lab(small_config(tmp_path), story)


def test_kv_that_still_leaves_keeps_a_prefill_worker_from_being_empty(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        task = lab.send(job(50), "far")  # computed by 5 s, its KV takes 70 s more
        await lab.at(30.0)
        far, load = worker(lab, "fast-1"), lab.engine("far/fast-1").load()
        assert (far.requests, load.running, load.shipping) == (1, 0, 1)
        assert not far.engine.idle
        assert worker(lab, "slow-3").requests == 1
        await task
        assert far.requests == worker(lab, "slow-3").requests == 0

    in_lab(small_config(tmp_path, gbps=0.008), story)


def test_a_slow_reader_does_not_keep_a_decode_worker_from_being_empty(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        decoder = worker(lab, "slow-3")
        async with lab.stack.generate(job(50, output_tokens=9), None):
            assert decoder.requests == 1
            await asyncio.sleep(60.0)  # its slot is free since the last token was out
            assert decoder.engine.idle
            assert decoder.requests == 0

    in_lab(small_config(tmp_path), story)


def test_a_draining_decode_worker_is_not_chosen_for_a_prefill_under_way(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        task = lab.send(job(50), None)
        await lab.at(5.0)
        lab.stack.listing.drain(worker(lab, "slow-3"), 100.0)
        with pytest.raises(NotNow, match="small/pd/slow-4"):
            lab.stack.listing.drain(worker(lab, "slow-4"), 100.0)
        await task
        assert lab.records()["r"]["decode"] == "small/pd/slow-4"

    in_lab(small_config(tmp_path), story)


def test_an_engine_of_another_role_refuses_what_a_stack_sends(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        with pytest.raises(Unavailable, match="has the role decode, not prefill"):
            async with lab.engine("pd/slow-3").prefill(job(10), arrived_s=lab.start_s):
                raise AssertionError("prefilled")
        with (
            pytest.raises(Unavailable, match="has the role prefill, not decode"),
            lab.engine("pd/slow-1").receive(job(10)),
        ):
            raise AssertionError("received")

    in_lab(small_config(tmp_path), story)
