"""Prefixes that are moved over a link before a prefill, in virtual time and over real HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from routing.lab.config import StackConfig, load_config
from routing.lab.engine import Job, Misdirected, Move
from tests.lab.serving import Served, lab
from tests.lab.small import MB, job, write_config
from tests.lab.timed import Lab, in_lab

BACK = """
[[links]]
from = "pd"
to = "far"
gbps = 0.08
[workload]
"""


def two_way(folder: Path, **options: Any) -> StackConfig:
    """The small fleet with a link back of 10 MB/s; that of the KV is ten times as fast."""
    path = write_config(folder, **options)
    scenario = folder / "scenario.toml"
    scenario.write_text(scenario.read_text().replace("[workload]", BACK))
    return load_config(path)


def moving(job: Job, way: str, tokens: int) -> Job:
    source, target = way.split("->")
    return replace(job, move=Move(source, target, tokens))


def test_a_prefix_is_brought_and_only_the_rest_is_computed(tmp_path: Path) -> None:
    """40 tokens of KV and a state are 60 MB = 0.6 s of the link and half of a 100 ms round trip;
    20 tokens take 4 s where 60 would take 12."""

    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), "far")
        shipped = lab.link.read().tx_bytes_total
        served = await lab.serve(moving(job(60), "far->pd", 40), None)
        assert served.stages["move"] == pytest.approx(0.65)
        assert served.stages["prefill"] == pytest.approx(4.0)
        assert served.stages["ttft"] == pytest.approx(4.65)
        assert served.cached_tokens == 40
        record = lab.records()["r"]
        assert (record["moved_tokens"], record["moved_bytes"]) == (40, 60 * MB)
        assert (record["side"], record["moved_link"], record["kv_bytes"]) == (
            *("local", "far->pd", 0),
        )
        truth = lab.fleet.truth.document(0)
        assert truth["kv_moved_bytes_by_link"] == {"far->pd": 60 * MB}
        assert truth["kv_moved_bytes_total"] == 60 * MB
        assert truth["kv_shipped_bytes_total"] == shipped
        assert truth["sides"]["local"]["moved_tokens"] == 40
        # It is in the cache of that instance now: the same again moves nothing.
        again = await lab.serve(moving(job(60, id="again"), "far->pd", 40), None)
        assert (again.stages["move"], again.cached_tokens) == (0.0, 56)
        assert lab.records()["again"]["moved_bytes"] == 0
        prefiller = lab.fleet.engines[record["prefill"]]
        assert prefiller.metrics.prompt_tokens_by_source == {
            "local_compute": 20 + 4,
            "local_cache_hit": 56,
            "external_kv_transfer": 40,
        }
        assert prefiller.metrics.transfer_bytes.sum == 60 * MB

    in_lab(two_way(tmp_path, rtt_ms=100.0), story)


@pytest.mark.parametrize(
    ("asked", "n_tokens", "moved"),
    [
        pytest.param(1000, 60, 40, id="what the source holds, not what was asked for"),
        pytest.param(30, 60, 28, id="whole blocks"),
        pytest.param(1000, 40, 36, id="never the last token"),
        pytest.param(3, 60, 0, id="less than a block"),
        pytest.param(0, 60, 0, id="nothing"),
    ],
)
def test_what_is_moved(tmp_path: Path, asked: int, n_tokens: int, moved: int) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), "far")
        served = await lab.serve(moving(job(n_tokens), "far->pd", asked), None)
        assert served.cached_tokens == moved
        record = lab.records()["r"]
        assert record["moved_tokens"] == moved
        assert record["moved_bytes"] == (20 + moved) * MB * (moved > 0)

    in_lab(two_way(tmp_path), story)


def test_only_what_the_destination_lacks_crosses(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(24, id="near"), None)
        await lab.serve(job(40, id="far"), "far")
        served = await lab.serve(moving(job(60), "far->pd", 40), None)
        assert served.cached_tokens == 40
        assert lab.records()["r"]["moved_bytes"] == (20 + 16) * MB
        assert lab.records()["r"]["prefill"] == lab.records()["near"]["prefill"]

    in_lab(two_way(tmp_path), story)


def test_a_prefix_moves_back_for_a_remote_prefill_and_its_kv_is_not_shipped(
    tmp_path: Path,
) -> None:
    """40 tokens back over 10 MB/s take 6 s; of 60 the KV of 20 and the state come home."""

    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), None)
        served = await lab.serve(moving(job(60), "pd->far", 40), "far")
        assert served.stages["move"] == pytest.approx(6.0)
        assert served.stages["prefill"] == pytest.approx(2.0)
        record = lab.records()["r"]
        assert (record["moved_bytes"], record["kv_bytes"]) == (60 * MB, 40 * MB)
        truth = lab.fleet.truth.document(0)
        assert truth["kv_moved_bytes_by_link"] == {"pd->far": 60 * MB}
        assert truth["kv_shipped_bytes_by_link"] == {"far->pd": 40 * MB}

    in_lab(two_way(tmp_path), story)


def test_with_linear_state_only_a_snapshot_is_worth_moving(tmp_path: Path) -> None:
    """The source has states after 24 and 40 tokens. For a prompt that leaves its way after 32 the
    deepest useful one is at 24; and what the destination has of blocks does not cross again."""

    async def story(lab: Lab) -> None:
        for n in (24, 40):
            await lab.serve(job(n, id=f"warm{n}"), "far")
        served = await lab.serve(moving(job(34), "far->pd", 32), None)
        assert served.cached_tokens == 24
        assert lab.records()["r"]["moved_bytes"] == (20 + 24) * MB
        # The destination now has blocks up to 32 and a state there: 8 tokens and a state to 40.
        served = await lab.serve(moving(job(60, id="next"), "far->pd", 50), None)
        assert served.cached_tokens == 40
        assert lab.records()["next"]["moved_bytes"] == (20 + 8) * MB
        # And what was moved can be gone on from.
        served = await lab.serve(job(48, id="last"), None)
        assert served.cached_tokens == 40

    in_lab(two_way(tmp_path, extra="linear_state = 'exact'"), story)


@pytest.mark.parametrize(("n_near", "kv_tokens"), [(44, 0), (34, 40 - 32), (8, 40 - 8)])
def test_blocks_that_the_destination_has_without_a_state_do_not_cross(
    tmp_path: Path, n_near: int, kv_tokens: int
) -> None:
    """The source has a state after 40 tokens; the destination has shared blocks, and its own state
    after 44, 32 or 8."""

    async def story(lab: Lab) -> None:
        await lab.serve(job(n_near, id="near"), None)
        await lab.serve(job(40, id="far"), "far")
        served = await lab.serve(moving(job(42), "far->pd", 40), None)
        assert served.cached_tokens == 40
        record = lab.records()["r"]
        assert (record["moved_tokens"], record["moved_bytes"]) == (
            *(kv_tokens, (20 + kv_tokens) * MB),
        )

    in_lab(two_way(tmp_path, extra="linear_state = 'exact'"), story)


def test_with_linear_state_a_shipment_skips_only_what_ends_at_a_snapshot(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        for n in (24, 44):
            await lab.serve(job(n, id=f"warm{n}"), None)
        await lab.serve(job(38), "far")
        assert lab.records()["r"]["held_tokens"] == 24
        assert lab.records()["r"]["kv_bytes"] == (20 + 14) * MB

    in_lab(two_way(tmp_path, extra="linear_state = 'exact'"), story)


def test_moves_and_shipments_share_the_link_fairly(tmp_path: Path) -> None:
    """A shipment of 120 MB and a move of 60 MB over 10 MB/s, each at half the rate meanwhile."""

    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), "far")
        lab.link.set_capacity(0.08)
        started_s = lab.now()
        shipped = lab.send(job(100, first=5000, output_tokens=1, id="shipped"), "far")
        await lab.at(started_s + 10.0)  # its prefill is over, 1 s of its 12 s was without bytes
        moved = await lab.serve(moving(job(60), "far->pd", 40), None)
        await shipped
        # 30 MB are left of the shipment: with equal shares both have sent 30 MB after 6 s, then
        # the move has the link for itself.
        assert moved.stages["move"] == pytest.approx(6.0 + 3.0)

    in_lab(two_way(tmp_path), story)


def test_the_destination_is_chosen_by_what_the_move_saves(tmp_path: Path) -> None:
    """A free instance after a move of 0.6 s beats the one that holds the prefix but has a queue;
    over a slow link the queue is shorter."""

    def with_link(gbps: float) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def story(lab: Lab) -> None:
            await lab.serve(job(40, id="far"), "far")
            await lab.serve(job(40, id="near"), None)
            near = lab.engine(lab.records()["near"]["prefill"].removeprefix("small/"))
            lab.link.set_capacity(gbps)

            async def occupy() -> None:
                async with near.generate(job(25, first=7000, output_tokens=1)):
                    pass

            busy = asyncio.create_task(occupy())  # for 5 s
            await asyncio.sleep(0.1)
            await lab.serve(moving(job(60), "far->pd", 40), None)
            await busy
            found.update(lab.records()["r"], elsewhere=lab.records()["r"]["prefill"] != near.id)

        in_lab(two_way(tmp_path), story)
        return found

    fast, slow = with_link(0.8), with_link(0.016)
    assert (fast["elsewhere"], fast["moved_tokens"]) == (True, 40)
    assert (slow["elsewhere"], slow["moved_tokens"]) == (False, 0)


def test_requests_on_their_way_count_in_the_queue_they_will_join(tmp_path: Path) -> None:
    """Two with a prefix to bring, at once: they go to different instances, which are not idle."""

    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), "far")
        tasks = [lab.send(moving(job(60, id=id), "far->pd", 40), None) for id in ("a", "b")]
        await asyncio.sleep(0.1)
        for name in ("pd/slow-1", "pd/slow-2"):
            assert not lab.engine(name).idle
            assert lab.engine(name).load().waiting_kv == 1
            worker = lab.stack.listing.find(name.removeprefix("pd/"))
            assert worker is not None
            assert worker.requests == 1
        await asyncio.gather(*tasks)
        records = lab.records()
        assert records["a"]["prefill"] != records["b"]["prefill"]
        assert [records[id]["stages_s"]["queue"] for id in ("a", "b")] == pytest.approx([0.0, 0.0])

    in_lab(two_way(tmp_path), story)


@pytest.mark.parametrize("when", ["before", "under way"])
def test_a_dead_link_makes_it_compute_instead(tmp_path: Path, when: str) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="warm"), "far")
        before = lab.link.read().tx_bytes_total
        if when == "before":
            lab.link.set_capacity(0.0)
        task, start_s = lab.send(moving(job(60), "far->pd", 40), None), lab.now()
        await lab.at(start_s + 0.2)
        lab.link.set_capacity(0.0)
        served = await task
        assert served.cached_tokens == 0
        record = lab.records()["r"]
        wasted = lab.link.read().tx_bytes_total - before
        assert (record["moved_tokens"], record["moved_bytes"]) == (0, wasted)
        assert (wasted > 0) == (when == "under way")
        want_s = 12.0 if when == "before" else 12.2
        assert served.stages["ttft"] == pytest.approx(want_s, abs=1e-3)

    in_lab(two_way(tmp_path), story)


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("elsewhere->pd", "no such cluster"),
        ("pd->pd", "no such link"),
    ],
)
def test_a_way_that_is_not_there_moves_nothing(tmp_path: Path, way: str, why: str) -> None:
    async def story(lab: Lab) -> None:
        served = await lab.serve(moving(job(60), way, 40), None)
        assert (served.cached_tokens, lab.records()["r"]["moved_bytes"]) == (0, 0), why

    in_lab(two_way(tmp_path), story)


def test_a_move_to_where_nothing_is_computed_is_refused_and_not_counted(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        for remote, way in ((None, "pd->far"), ("far", "far->pd")):
            with pytest.raises(Misdirected, match="computes in"):
                await lab.serve(moving(job(60), way, 40), remote)
        sides = lab.fleet.truth.document(0)["sides"]
        assert [side["requests"] for side in sides.values()] == [0, 0]

    in_lab(two_way(tmp_path), story)


async def asked(served: Served, url: str, header: str, n: int) -> tuple[int, Any, Any]:
    body = {"prompt": list(range(n)), "max_tokens": 2}
    headers = {"X-PrfaaS-Move": header}
    async with served.session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers


async def test_the_answer_tells_what_was_moved_and_the_link_counts_all(tmp_path: Path) -> None:
    async with lab(tmp_path) as served:
        await served.complete(served.far, list(range(40)))
        moved = []
        for header in (" far->pd ; tokens=36", "far->pd; tokens=40", "x->pd;tokens=40"):
            status, answer, headers = await asked(served, served.local, header, 60)
            assert status == 200
            moved.append(
                (
                    headers["X-PrfaaS-Moved-Tokens"],
                    answer["usage"]["prompt_tokens_details"]["cached_tokens"],
                    float(headers["X-Lab-Stage-Move"]) > 0.0,
                )
            )
        assert moved == [("36", 36, True), ("0", 56, False), ("0", 56, False)]
        _, headers = await served.complete(served.local, list(range(60)))
        assert "X-PrfaaS-Moved-Tokens" not in headers
        truth = served.fleet.truth.document(9)
        assert truth["kv_moved_bytes_by_link"] == {"far->pd": 56 * MB}
        link = served.fleet.links["far->pd"].read()
        assert link.tx_bytes_total == truth["kv_shipped_bytes_total"] + 56 * MB


@pytest.mark.parametrize(
    "header",
    [
        *("", "far->pd", "far->pd; tokens=", "far->pd; tokens=-1", "far->pd; tokens=1.5"),
        *("far; tokens=3", "->pd; tokens=3", "far->pd; tokens=3; x=1", "pd->far; tokens=3"),
    ],
)
async def test_a_bad_move_is_a_bad_request_that_names_the_header(
    tmp_path: Path, header: str
) -> None:
    async with lab(tmp_path) as served:
        status, answer, _ = await asked(served, served.local, header, 60)
        assert status == 400
        assert answer["error"]["param"] == "X-PrfaaS-Move"
        assert "X-PrfaaS-Move" in answer["error"]["message"]


async def test_a_client_that_goes_away_stops_the_move_and_its_bytes_are_counted(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path) as served:
        await served.complete(served.far, list(range(40)))
        link = served.fleet.links["far->pd"]
        before = link.read().tx_bytes_total
        link.set_capacity(0.08)  # 6 s for the move
        session = aiohttp.ClientSession()
        call = asyncio.create_task(
            session.post(
                f"{served.local}/v1/completions",
                json={"prompt": list(range(60))},
                headers={"X-PrfaaS-Move": "far->pd; tokens=40"},
            )
        )
        while link.read().tx_bytes_total == before:
            await asyncio.sleep(0.002)
        call.cancel()
        await asyncio.wait([call])
        await session.close()
        await served.settled()
        while (record := served.fleet.truth.document(1)["records"][0])["state"] != "cancelled":
            await asyncio.sleep(0.002)
        assert link.read().connections == 0
        assert 0 < record["moved_bytes"] < 60 * MB
        assert link.read().tx_bytes_total - before == record["moved_bytes"]
        assert record["moved_tokens"] == 0
