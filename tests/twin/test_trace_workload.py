"""A trace as a workload: as it was, thinned, shifted, repeated, for one cluster or several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from routing.core.scenario.document import parse_scenario
from routing.twin.pieces import joined
from routing.twin.requests import Requests
from routing.twin.trace_rows import TraceError
from routing.twin.trace_workload import Laps, TraceWorkload, trace_workload
from routing.twin.traces import Trace
from tests.twin.fleets import ONE_PD, TWO_PD, WORKLOAD, document
from tests.twin.trace_texts import EXPORT, mooncake, parsed


def trace(n: int = 100, *, seed: int = 9) -> Trace:
    """Gaps of 1 or 2 s; conversations of two requests, the second one block longer."""
    rng = np.random.default_rng(seed)
    at_ms = 1000 * np.cumsum(rng.integers(1, 3, n))
    rows = [
        (int(at_ms[i]), 512 * (2 + i % 2), i + 1, [i // 2, 1000 + i // 2, 2000 + i][: 2 + i % 2])
        for i in range(n)
    ]
    return parsed(mooncake(*rows))


def run(workload: TraceWorkload, seed: int = 1) -> Requests:
    return joined(list(workload.pieces(seed)))


def test_as_it_is_every_seed_gives_exactly_the_trace() -> None:
    given = trace()
    for seed in (1, 2):
        found = run(TraceWorkload(given), seed)
        assert found.at_s.tolist() == given.at_s.tolist()
        assert found.prompt_tokens.tolist() == given.prompt_tokens.tolist()
        assert found.output_tokens.tolist() == given.output_tokens.tolist()
        assert found.blocks == given.blocks
        assert set(found.site.tolist()) == {0}


def test_speed_divides_the_times() -> None:
    given = trace()
    assert run(TraceWorkload(given, speed=4.0)).at_s.tolist() == (given.at_s / 4.0).tolist()


def test_a_seed_keeps_whole_conversations() -> None:
    given = trace(2000)
    one, same, other = (run(TraceWorkload(given, keep_ratio=0.3), seed) for seed in (1, 1, 2))
    assert one.output_tokens.tolist() == same.output_tokens.tolist()
    assert one.output_tokens.tolist() != other.output_tokens.tolist()
    assert len(one) == pytest.approx(600, abs=110)
    kept = (one.output_tokens - 1) // 2
    assert np.all(np.bincount(kept)[np.unique(kept)] == 2)
    assert np.isin(one.at_s, given.at_s).all()


def test_a_seed_shifts_where_the_trace_begins_and_it_wraps_around() -> None:
    given = trace()
    found = run(TraceWorkload(given, shift=True), 5)
    order = found.output_tokens - 1
    assert sorted(order.tolist()) == list(range(100))
    assert order[0] > 0
    assert np.all(np.diff(order) % 100 == 1)
    assert found.at_s[0] == 0.0
    gaps = np.diff(found.at_s)
    gap_s = 1.0 / given.mean_rps
    for (row, _), gap in zip(pairwise(order.tolist()), gaps, strict=True):
        wanted = gap_s if row == 99 else given.at_s[row + 1] - given.at_s[row]
        assert gap == pytest.approx(wanted)
    starts = {int(run(TraceWorkload(given, shift=True), s).output_tokens[0]) for s in range(20)}
    assert len(starts) > 10


@pytest.mark.parametrize("laps", ["same", "fresh"])
def test_laps_repeat_the_trace_at_its_rate(laps: Laps) -> None:
    given = trace()
    found = run(TraceWorkload(given, laps=laps, n_requests=1050))
    assert len(found) == 1050
    assert np.all(np.diff(found.at_s) > 0)
    assert 1050 / found.at_s[-1] == pytest.approx(given.mean_rps, rel=0.02)
    assert found.output_tokens[:100].tolist() == found.output_tokens[300:400].tolist()
    assert found.blocks is not None
    of_laps = [set().union(*found.blocks[i : i + 100]) for i in range(0, 1000, 100)]
    if laps == "same":
        assert all(ids == of_laps[0] for ids in of_laps)
    else:
        assert all(not ids & other for ids, other in pairwise(of_laps))
        assert [len(ids) for ids in found.blocks[:100]] == [len(i) for i in found.blocks[100:200]]
        one, other = found.blocks[200], found.blocks[201]
        assert tuple(other[:2]) == tuple(one), "within a lap prefixes are shared as in the trace"


def test_each_lap_is_thinned_anew() -> None:
    found = run(TraceWorkload(trace(), laps="same", keep_ratio=0.5, duration_s=10_000.0))
    lap = trace().span_s + 1.0 / trace().mean_rps
    kept = [
        found.output_tokens[(found.at_s >= i * lap) & (found.at_s < (i + 1) * lap)].tolist()
        for i in range(5)
    ]
    assert len({tuple(rows) for rows in kept}) == 5
    assert found.at_s[-1] < 10_000.0


def test_pieces_of_any_size_are_the_same_requests() -> None:
    whole, small = (
        run(
            TraceWorkload(
                trace(),
                shift=True,
                keep_ratio=0.7,
                laps="fresh",
                n_requests=500,
                piece=piece,
            ),
            3,
        )
        for piece in (16_384, 7)
    )
    assert whole.at_s.tobytes() == small.at_s.tobytes()
    assert whole.output_tokens.tobytes() == small.output_tokens.tobytes()
    assert whole.blocks == small.blocks


def test_fresh_prompts_are_those_of_their_rows_with_higher_ids() -> None:
    given = trace()
    varied = TraceWorkload(given, shift=True, keep_ratio=0.7, laps="fresh", n_requests=500)
    found = run(varied, 3)
    assert given.blocks is not None
    assert found.blocks is not None
    laps = []
    for answer, blocks in zip(found.output_tokens.tolist(), found.blocks, strict=True):
        own = given.blocks[answer - 1]
        higher = {new - old for new, old in zip(blocks, own, strict=True)}
        assert len(higher) == 1
        laps.append(higher.pop() / given.n_ids)
    assert laps == sorted(laps)
    assert set(laps) == set(range(int(laps[-1]) + 1))


def test_a_trace_may_be_brought_to_a_rate() -> None:
    described = parse_scenario(document(fleet=ONE_PD + WORKLOAD))
    workload = trace_workload(
        described, trace(2000), rate_rps=8.0, keep_ratio=0.5, laps="fresh", n_requests=10_000
    )
    found = run(workload)
    assert 10_000 / found.at_s[-1] == pytest.approx(8.0, rel=0.05)


def test_conversations_stay_with_one_cluster_and_clusters_get_their_share() -> None:
    described = parse_scenario(document(fleet=TWO_PD))
    given = trace(4000)
    found = run(trace_workload(described, given))
    sites = found.site.reshape(-1, 2)
    assert np.all(sites[:, 0] == sites[:, 1])
    assert np.mean(found.site == 0) == pytest.approx(0.75, abs=0.04)


def test_rows_that_name_their_cluster_arrive_there() -> None:
    described = parse_scenario(document(fleet=TWO_PD))
    assert run(trace_workload(described, parsed(EXPORT))).site.tolist() == [0, 1]
    other = parse_scenario(document())
    with pytest.raises(TraceError, match="cluster = 'pd2': is no PD cluster of f"):
        trace_workload(other, parsed(EXPORT))


def test_a_single_moment_has_no_rate_and_is_not_repeated() -> None:
    moment = parsed(mooncake((5, 10, 1, [1])))
    assert run(TraceWorkload(moment)).at_s.tolist() == [0.0]
    with pytest.raises(TraceError, match="one moment"):
        TraceWorkload(moment, laps="same")
    with pytest.raises(TraceError, match="no rate"):
        trace_workload(parse_scenario(document()), moment, rate_rps=3.0)


@pytest.mark.parametrize("given", [{"speed": 0.0}, {"keep_ratio": 0.0}, {"laps": "twice"}])
def test_what_a_trace_cannot_be_made_to_do_is_named(given: dict[str, object]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} = "):
        TraceWorkload(trace(), **given)  # type: ignore[arg-type]
