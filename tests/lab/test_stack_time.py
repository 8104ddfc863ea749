"""One emulated fleet in virtual time: stages, queues, caches, bytes on the link, cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from routing.lab.config import load_config
from routing.lab.engine import RoleRefused, Unavailable
from routing.lab.errors import LabError
from routing.lab.pd import PdStack
from tests.lab.small import MB, job, small_config, write_config
from tests.lab.timed import Lab, in_lab


def test_local_takes_its_prefill_and_ships_nothing(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        served = await lab.serve(job(50, output_tokens=5), None)
        assert served.stages == {
            "move": 0.0,
            "queue": 0.0,
            "prefill": 10.0,
            "transfer": 0.0,
            "decode_wait": 0.0,
            "ttft": 10.0,
        }
        assert (served.first_s, served.end_s) == pytest.approx((10.0, 10.0 + 4 * 0.5))

    in_lab(small_config(tmp_path), story)


def test_remote_waits_for_the_last_layer_only(tmp_path: Path) -> None:
    """5 s of prefill in 10 layers; 70 MB are 0.7 s of the link, the last layer 0.07 s; then half
    of a 100 ms round trip."""

    async def story(lab: Lab) -> None:
        served = await lab.serve(job(50), "far")
        assert served.stages["prefill"] == pytest.approx(5.0)
        assert served.stages["transfer"] == pytest.approx(0.07 + 0.05)
        assert served.first_s == pytest.approx(5.12)
        record = lab.records()["r"]
        assert record["kv_bytes"] == 20 * MB + 50 * MB
        assert (record["side"], record["state"]) == ("remote", "completed")

    in_lab(small_config(tmp_path, rtt_ms=100.0), story)


def test_a_slow_link_hides_the_prefill_not_the_other_way_round(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        served = await lab.serve(job(50), "far")
        # First layer at 0.5 s, then 70 MB at 1 MB/s.
        assert served.first_s == pytest.approx(0.5 + 70.0)
        assert served.stages["transfer"] == pytest.approx(65.5)

    in_lab(small_config(tmp_path, gbps=0.008), story)


def test_the_next_prefill_starts_while_the_kv_still_leaves(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        tasks = [lab.send(job(50, first=i * 1000, id=str(i)), "far") for i in range(4)]
        await asyncio.gather(*tasks)
        # Two instances, two prefills each, back to back, though each KV takes minutes to leave.
        ends = [r["stages_s"]["queue"] + r["stages_s"]["prefill"] for r in lab.records().values()]
        assert sorted(ends) == pytest.approx([5.0, 5.0, 10.0, 10.0])

    in_lab(small_config(tmp_path, gbps=0.008), story)


def test_prefill_is_first_come_first_served(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engine = lab.engine("pd/slow-1")
        order: list[str] = []

        async def use(id: str) -> None:
            async with engine.generate(job(10, first=int(id) * 100, output_tokens=1)):
                order.append(f"{id} {lab.now():.1f}")

        await asyncio.gather(*(use(str(i)) for i in range(3)))
        assert order == ["0 2.0", "1 4.0", "2 6.0"]

    in_lab(small_config(tmp_path), story)


def test_an_engine_by_itself_prefills_and_decodes(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engine = lab.engine("pd/slow-1")
        async with engine.generate(job(50, output_tokens=5)) as generation:
            assert lab.now() == pytest.approx(10.0)
            counts = [(n, round(lab.now(), 3)) async for n in generation.tokens()]
        # The first token at once, then every two, then what is left; one step each.
        assert counts == [(1, 10.0), (3, 11.0), (5, 12.0)]
        sources = engine.metrics.prompt_tokens_by_source
        assert sources == {"local_compute": 50, "local_cache_hit": 0, "external_kv_transfer": 0}
        assert engine.metrics.generation_tokens == 5

    in_lab(small_config(tmp_path), story)


def test_decode_slots_are_shared_and_then_queued_for(tmp_path: Path) -> None:
    """Two decode instances of two slots: the fifth request waits for the first to end."""

    async def story(lab: Lab) -> None:
        # Prefills take 0.2 s, answers 10 s.
        tasks = [lab.send(job(1, first=i * 9, output_tokens=21, id=str(i)), None) for i in range(5)]
        served = await asyncio.gather(*tasks)
        assert [s.stages["decode_wait"] for s in served[:4]] == [0.0] * 4
        assert sorted(r["decode"] for r in lab.records().values()) == (
            ["small/pd/slow-3"] * 3 + ["small/pd/slow-4"] * 2
        )
        assert served[4].first_s == pytest.approx(10.2)

    in_lab(small_config(tmp_path), story)


def test_the_kv_of_a_remote_prefill_waits_as_deferred(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        task = lab.send(job(50), "far")
        await lab.at(6.0)  # computed at 5 s, on the link until 70.5 s
        load = lab.engine("pd/slow-3").load()
        assert (load.running, load.waiting_kv, load.waiting_slot) == (0, 1, 0)
        # Its KV still takes room where it was computed.
        assert lab.engine("far/fast-1").load().kv_usage_ratio > 0.0
        assert not lab.engine("far/fast-1").idle
        await task

    in_lab(small_config(tmp_path, gbps=0.008), story)


@pytest.mark.parametrize(
    ("scope", "want_cached"), [("instance", [0, 0, 48]), ("cluster", [0, 48, 48])]
)
def test_caches_are_per_instance_or_per_cluster(
    tmp_path: Path, scope: str, want_cached: list[int]
) -> None:
    """Three engines used directly: the same prompt on one, another, and the first again."""

    async def story(lab: Lab) -> None:
        cached = []
        for name in ("pd/slow-1", "pd/slow-2", "pd/slow-1"):
            async with lab.engine(name).generate(job(50)) as generation:
                cached.append(generation.cached_tokens)
                async for _ in generation.tokens():
                    pass
        assert cached == want_cached

    in_lab(small_config(tmp_path, extra=f"cache_scope = '{scope}'"), story)


def test_a_cached_prefix_is_not_computed_again(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40), "far")
        served = await lab.serve(job(60), "far")
        assert served.cached_tokens == 40
        assert served.stages["prefill"] == pytest.approx(2.0)

    in_lab(small_config(tmp_path), story)


def test_the_longest_cached_prefix_is_chosen_unless_its_queue_costs_more(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(80, id="warm"), None)
        follow = lab.send(job(90, id="follow"), None)  # 2 s where it is cached, 18 s elsewhere
        busy = lab.send(job(100, first=5000, id="busy"), None)  # 20 s: goes to the idle one
        await asyncio.sleep(0.1)
        late = lab.send(job(90, id="late"), None)
        await asyncio.gather(follow, busy, late)
        records = lab.records()
        where = {id: r["prefill"] for id, r in records.items()}
        assert where["follow"] == where["warm"] == where["late"] != where["busy"]

    async def worse(lab: Lab) -> None:
        await lab.serve(job(80, id="warm"), None)
        long = [lab.send(job(100, first=5000 + i, id=f"long{i}"), None) for i in (0, 500)]
        third = lab.send(job(100, first=9000, id="third"), None)
        await asyncio.sleep(0.1)
        # Both are busy for 20 s or more: the queue of the one with the prefix decides.
        follow = lab.send(job(90, id="follow"), None)
        await asyncio.gather(*long, third, follow)
        where = {id: r["prefill"] for id, r in lab.records().items()}
        assert where["third"] == where["warm"] != where["follow"]

    in_lab(small_config(tmp_path), story)
    in_lab(small_config(tmp_path), worse)


@pytest.mark.parametrize(
    ("holds", "want_mb"),
    [
        pytest.param("local_prefix", 20 + 60 - 40, id="the local prefix stays where it is"),
        pytest.param("nothing", 20 + 60, id="the whole KV, each time"),
    ],
)
def test_what_the_pd_cluster_holds_does_not_cross_the_link(
    tmp_path: Path, holds: str, want_mb: int
) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="local"), None)
        await lab.serve(job(60, id="remote"), "far")
        # What came over the link was dropped after use: the same again costs the same bytes.
        await lab.serve(job(60, id="again"), "far")
        records = lab.records()
        assert records["remote"]["kv_bytes"] == records["again"]["kv_bytes"] == want_mb * MB
        assert records["again"]["cached_tokens"] == 56

    in_lab(small_config(tmp_path, extra=f"decode_holds = '{holds}'"), story)


@pytest.mark.parametrize(
    ("cancel_at_s", "where"),
    [
        pytest.param(1.0, "waiting for a prefill turn", id="queued"),
        pytest.param(12.0, "in prefill, layers on the link", id="prefill"),
        pytest.param(16.0, "computed, KV still on the link", id="transfer"),
        pytest.param(35.0, "KV there, waiting for a slot", id="slot"),
        pytest.param(44.0, "decoding", id="decode"),
    ],
)
def test_a_client_that_goes_away_frees_everything(
    tmp_path: Path, cancel_at_s: float, where: str
) -> None:
    """The request is queued until 10 s, prefilled until 15 s, its KV (70 MB, sharing 10 MB/s with
    that of others) is there at about 32 s, and the first slot is free at about 40 s."""

    async def story(lab: Lab) -> None:
        # Two long prefills occupy both instances; four answers occupy all decode slots.
        others = [lab.send(job(100, first=i * 1000, output_tokens=1), "far") for i in range(2)]
        talkers = [
            lab.send(job(1, first=i * 9 + 500, output_tokens=80, id=f"t{i}"), None)
            for i in range(4)
        ]
        await asyncio.sleep(0.01)
        victim = lab.send(job(50, first=7000, output_tokens=40, id="victim"), "far")
        await lab.at(cancel_at_s)
        victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        state_bytes = lab.records()["victim"]["kv_bytes"]
        assert lab.records()["victim"]["state"] == "cancelled"
        if where.startswith("waiting for a prefill"):
            assert state_bytes == 0
        elif "on the link" in where:
            assert 0 < state_bytes < 70 * MB
        else:
            assert state_bytes == 70 * MB
        await asyncio.gather(*others, *talkers)

    in_lab(small_config(tmp_path, gbps=0.08), story)


def test_a_cancelled_prefill_gives_its_turn_to_the_next_at_once(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engine = lab.engine("pd/slow-1")

        async def use(first: int) -> float:
            async with engine.generate(job(50, first=first, output_tokens=1)):
                return lab.now()

        first, second = asyncio.create_task(use(0)), asyncio.create_task(use(1000))
        await lab.at(3.0)
        first.cancel()
        assert await second == pytest.approx(13.0)
        # An unfinished prefill leaves nothing in the cache.
        assert engine.cache.held_tokens(job(50).prompt) == 0

    in_lab(small_config(tmp_path), story)


def test_roles_switch_only_when_idle(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        decoder, prefiller = lab.engine("pd/slow-3"), lab.engine("pd/slow-1")
        task = lab.send(job(50, output_tokens=9), None)
        for at_s, engine in ((1.0, prefiller), (11.0, decoder)):
            await lab.at(at_s)
            with pytest.raises(RoleRefused) as refused:
                engine.switch_role("prefill")
            assert refused.value.busy
        await task
        listing = lab.stack.listing
        worker = listing.find("slow-3")
        assert worker is not None
        listing.drain(worker, 60.0)
        assert decoder.switch_role("prefill") == "decode"
        listing.relist(worker, "prefill")
        worker.ready()
        # Three prefill side by side now.
        tasks = [
            lab.send(job(50, first=i * 900, output_tokens=1, id=str(i)), None) for i in range(3)
        ]
        served = await asyncio.gather(*tasks)
        assert [s.stages["queue"] for s in served] == [0.0] * 3

    in_lab(small_config(tmp_path), story)


def test_a_prefill_cluster_only_prefills_and_a_role_must_exist(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        for name, role in (("far/fast-1", "decode"), ("pd/slow-1", "both")):
            with pytest.raises(RoleRefused) as refused:
                lab.engine(name).switch_role(role)
            assert not refused.value.busy

    in_lab(small_config(tmp_path), story)


def test_a_new_role_starts_with_an_empty_cache(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40), None)
        engine = lab.engine("pd/slow-1")
        assert len(engine.cache) == 10
        engine.switch_role("decode")
        assert len(engine.cache) == 0

    in_lab(small_config(tmp_path), story)


def test_a_side_that_cannot_serve_says_why(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        lab.link.set_capacity(0.0)
        assert lab.stack.trouble("far") == "link far->pd is down"
        assert lab.stack.trouble(None) is None
        with pytest.raises(Unavailable, match="link far->pd is down"):
            await lab.serve(job(10), "far")
        assert lab.records()["r"]["state"] == "refused"

    in_lab(small_config(tmp_path), story)


def test_the_truth_adds_up(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(40, id="a"), None)
        await lab.serve(job(60, id="b"), None)
        await lab.serve(job(80, id="c"), "far")
        sides = lab.fleet.truth.document(0)["sides"]
        assert sides["local"]["prompt_tokens"] == 100
        assert sides["local"]["cached_tokens"] == 40
        assert sides["remote"]["requests"] == sides["remote"]["completed"] == 1
        assert sides["local"]["output_tokens"] == 6
        assert lab.fleet.truth.document(2)["records"][0]["id"] == "b"

    in_lab(small_config(tmp_path), story)


def test_a_decode_instance_counts_what_it_received_not_what_it_computed(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        await lab.serve(job(50, output_tokens=5), "far")
        metrics = lab.engine("pd/slow-3").metrics
        assert metrics.prompt_tokens_by_source == {
            "local_compute": 0,
            "local_cache_hit": 0,
            "external_kv_transfer": 50,
        }
        assert metrics.transfer_bytes.sum == 70 * MB
        assert metrics.generation_tokens == 5
        assert (metrics.inter_token.sum, sum(metrics.inter_token.counts)) == (4 * 0.5, 4)
        assert lab.engine("far/fast-1").metrics.transfer_bytes.sum == 0

    in_lab(small_config(tmp_path), story)


def test_tokens_are_counted_while_they_come(tmp_path: Path) -> None:
    async def story(lab: Lab) -> None:
        engine = lab.engine("pd/slow-1")

        async def talk() -> None:
            async with engine.generate(job(50, output_tokens=9)) as generation:
                async for _ in generation.tokens():
                    pass

        task = asyncio.create_task(talk())
        for at_s, want in ((9.9, 0), (10.1, 1), (11.6, 4), (13.9, 8), (14.1, 9)):
            await lab.at(at_s)
            engine.slots.count_tokens()
            assert engine.metrics.generation_tokens == want
        await task

    in_lab(small_config(tmp_path), story)


SECOND_PD = """
[[clusters]]
name = "pd2"
kind = "pd"
profile = "slow"
instances = 2
[[links]]
from = "far"
to = "pd2"
gbps = 0.8
schedule = [[100.0, 0.0], [200.0, 0.8]]
"""


def test_two_pd_clusters_share_a_prefill_cluster_and_have_their_own_links(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(scenario.read_text().replace("[workload]", SECOND_PD + "[workload]"))

    async def story(lab: Lab) -> None:
        one, two = lab.fleet.stacks["pd"], lab.fleet.stacks["pd2"]

        async def use(stack: PdStack, first: int) -> str:
            async with stack.generate(job(50, first=first, output_tokens=1), "far") as generation:
                return generation.headers["X-Lab-Decode"].split("/")[1]

        assert await asyncio.gather(use(one, 0), use(two, 900)) == ["pd", "pd2"]
        shipped = {id: link.read().tx_bytes_total for id, link in lab.fleet.links.items()}
        assert shipped == {"far->pd": 70 * MB, "far->pd2": 70 * MB}
        # A link follows its schedule: down at 100 s, back at 200 s.
        for at_s, down in ((99.0, False), (101.0, True), (201.0, False)):
            await lab.at(at_s)
            assert lab.fleet.links["far->pd2"].down is down
            assert not lab.link.down

    in_lab(load_config(path), story)


def test_a_link_between_pd_clusters_is_refused(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    scenario = tmp_path / "scenario.toml"
    text = scenario.read_text().replace("[workload]", SECOND_PD + "[workload]")
    scenario.write_text(text.replace('from = "far"\nto = "pd2"', 'from = "pd"\nto = "pd2"'))

    async def story(lab: Lab) -> None:
        raise AssertionError("built")

    with pytest.raises(LabError, match=r"links\[1\]\.from"):
        in_lab(load_config(path), story)
