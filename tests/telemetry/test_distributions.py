"""Histograms over time and over sources, and quantiles that say when they do not know."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from telemetry import compaction, distributions, quantiles, rollups, tables, wire
from telemetry.distributions import Distribution
from telemetry.quantiles import Quantile, quantile
from tests.telemetry.batches import batch, instance, router, unique
from tests.telemetry.rows import commit, sql

T0 = float(int(time.time()) // 7200 * 7200 - 7200)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0.0, 0.0, 0.0], 0.5, Quantile(None)),
        ([4.0, 0.0, 0.0], 0.5, Quantile(0.5)),
        ([2.0, 2.0, 0.0], 0.75, Quantile(1.5)),
        ([1.0, 1.0, 8.0], 0.9, Quantile(2.0, is_above=True)),
        ([9.0, 0.0, 1.0], 0.9, Quantile(1.0)),
        ([0.0, 3.0, 0.0], 0.0, Quantile(1.0)),
    ],
)
def test_a_quantile_knows_when_it_is_above_the_largest_bound(
    counts: list[float], share: float, expected: Quantile
) -> None:
    assert quantile((1.0, 2.0), counts, share) == expected


def test_without_bounds_nothing_is_known() -> None:
    assert quantiles.quantile((), [5.0], 0.5) == Quantile(None)


def seen(*counts: float) -> wire.Histogram:
    return wire.Histogram(edges=[0.1, 1.0], counts=list(counts), sum=1.0)


def ask(path: str, *more: str, until_s: float = T0 + 40, points: int = 4) -> Distribution:
    return distributions.read(
        "instance",
        "ttft_seconds",
        paths=[path, *more],
        since_s=T0,
        until_s=until_s,
        max_points=points,
    )


@pytest.mark.usefixtures("landing_zone")
def test_gains_add_up_over_sources_and_restarts_at_every_stage() -> None:
    """The same answer from the landing zone, from chunks, from both, and from roll-ups."""
    tables.NAMES.forget()
    name = unique("f")
    one, two = f"{name}/pd/a", f"{name}/pd/b"

    def moment(i: int, a: wire.Histogram, b: wire.Histogram, epoch_s: float = 1e9) -> wire.Batch:
        at_s = T0 + 10 * i + 1
        return batch(
            name,
            instance(one, at_s, epoch_s=epoch_s, signals={"ttft_seconds": a}),
            instance(two, at_s, signals={"ttft_seconds": b}),
            seq=i,
        )

    sent = [
        moment(0, seen(5, 5, 0), seen(0, 0, 0)),
        moment(1, seen(6, 5, 0), seen(2, 0, 1)),
        moment(2, seen(7, 6, 1), seen(2, 0, 1), epoch_s=1e9 + 99),  # another process: all of it
        moment(3, seen(7, 8, 1), seen(1, 0, 0), epoch_s=1e9 + 99),  # b fell: what it shows now
    ]
    expected = [[0, 0, 0], [3, 0, 1], [7, 6, 1], [1, 2, 0]]
    commit(*sent[:2], received_s=T0 + 60)
    assert ask(one, two).counts.tolist() == [*expected[:2], [0, 0, 0], [0, 0, 0]]
    compaction.run(at_once=True)
    assert ask(one, two).counts.tolist() == [*expected[:2], [0, 0, 0], [0, 0, 0]]
    commit(*sent[2:], received_s=T0 + 61)
    assert ask(one, two).counts.tolist() == expected
    compaction.run(at_once=True)
    rollups.run(datetime.fromtimestamp(T0 + 7300, UTC))
    sql("TRUNCATE telemetry_landing, telemetry_chunk")
    assert ask(one, two).counts.tolist() == expected
    assert ask(one, two, points=2).counts.tolist() == [[3, 0, 1], [8, 8, 1]]
    assert ask(two).counts.tolist() == [[0, 0, 0], [2, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert ask("nobody/pd/x").edges == ()


@pytest.mark.usefixtures("landing_zone")
def test_other_buckets_are_left_out_and_counted() -> None:
    name = unique("f")
    other = wire.Histogram(edges=[7.0], counts=[1.0, 2.0], sum=1.0)
    for i, (a, b) in enumerate(((seen(0, 0, 0), other), (seen(9, 0, 0), other))):
        b = wire.Histogram(edges=[7.0], counts=[1.0 + i, 2.0 + i], sum=1.0)
        sent = [
            instance(f"{name}/pd/a", T0 + i, signals={"ttft_seconds": a}),
            instance(f"{name}/pd/b", T0 + i, signals={"ttft_seconds": b}),
        ]
        commit(batch(name, *sent, seq=i), received_s=T0 + 9)
    found = ask(f"{name}/pd/a", f"{name}/pd/b")
    assert found.edges == (0.1, 1.0)
    assert found.counts[0].tolist() == [9, 0, 0]
    assert found.n_left_out == 2


@pytest.mark.usefixtures("landing_zone")
def test_of_a_labelled_histogram_only_the_keys_asked_for() -> None:
    name = unique("f")
    for i in range(2):
        said = {"local": seen(2.0 * i, 0, 0), "remote": seen(0, 5.0 * i, 0)}
        sent = router(f"{name}/pd/gw", T0 + i, signals={"ttft_seconds": said})
        commit(batch(name, sent, seq=i), received_s=T0 + 9)
    question = {
        "paths": [f"{name}/pd/gw"],
        "since_s": T0,
        "until_s": T0 + 10,
        "max_points": 1,
    }
    both = distributions.read("router", "ttft_seconds", **question)
    remote = distributions.read("router", "ttft_seconds", key="remote", **question)
    assert both.counts.tolist() == [[2, 5, 0]]
    assert remote.counts.tolist() == [[0, 5, 0]]
