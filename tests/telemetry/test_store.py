"""Reading back: newest, windows, series with gaps, and what a missing value means."""

from __future__ import annotations

import pytest

from telemetry import bodies, history, store, wire
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import commit

pytestmark = pytest.mark.usefixtures("landing_zone")

T0 = 1_800_000_000.0
"""A fixed "now", on an hour's edge, so windows straddle two partitions."""


def running(path: str, *points: tuple[float, float | None]) -> None:
    """Store `requests_running` of an instance at T0 + offset."""
    samples = [
        instance(path, T0 + offset_s, signals={"requests_running": value})
        for offset_s, value in points
    ]
    commit(batch(unique("agent"), *samples), received_s=T0)


def test_latest_is_the_newest_by_reading_time_not_by_arrival() -> None:
    path = unique("f/pd/d")
    running(path, (5, 2.0))
    running(path, (-100, 9.0))
    [reading] = store.latest("instance", prefix=path, now_s=T0)
    assert (reading.at_s, reading.signals.requests_running) == (T0 + 5, 2.0)
    assert (reading.path, reading.role, reading.engine) == (path, "decode", "vllm")
    assert reading.received_s == T0


def test_latest_leaves_out_what_is_too_old_and_other_prefixes() -> None:
    fleet = unique("f")
    running(f"{fleet}/pd/new", (-10, 1.0))
    running(f"{fleet}/pd/old", (-4000, 1.0))
    running(f"{fleet}x/pd/other", (-10, 1.0))
    found = store.latest("instance", prefix=f"{fleet}/", now_s=T0, within_s=600)
    assert [r.path for r in found] == [f"{fleet}/pd/new"]


def test_a_reading_is_the_sample_as_it_was_shipped() -> None:
    name = unique("r")
    histogram = wire.Histogram(edges=[0.1, 1.0], counts=[1.0, 2.0, 0.0], sum=1.5)
    sample = router(
        f"f/pd/{name}",
        T0,
        plan_epoch=2,
        plan_version=7,
        signals={"ttft_seconds": {"local": histogram}, "upstream_up": {"local": 1.0}},
    )
    wan = link(f"{name}->pd", T0, rtt_s=0.005, congestion_control="bbr")
    commit(batch(unique("agent"), sample, wan), received_s=T0 + 0.5)
    [gate] = store.latest("router", prefix=sample.id, now_s=T0)
    assert gate == store.from_sample(sample, received_s=T0 + 0.5)
    assert (gate.engine, gate.plan_epoch, gate.plan_version) == ("gate", 2, 7)
    [path] = store.latest("link", prefix=wan.id, now_s=T0)
    assert path.signals == wan.signals
    assert path.measured_layer == "lab"


def test_a_window_holds_the_last_reading_of_each_bin() -> None:
    path = unique("f/pd/d")
    running(path, *((offset, 10.0 + offset) for offset in range(-7, 2)))
    found = store.window("instance", prefix=path, since_s=T0 - 6, until_s=T0, bin_s=2.0)
    assert [r.signals.requests_running for r in found[path]] == [6.0, 8.0, 10.0]


def test_a_window_asked_for_again_reads_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    path, n_read = unique("f/pd/d"), 0
    unpack = bodies.unpack

    def counting(body: bytes) -> wire.Batch:
        nonlocal n_read
        n_read += 1
        return unpack(body)

    monkeypatch.setattr(bodies, "unpack", counting)
    running(path, *((offset, 10.0 + offset) for offset in range(-7, 0)))
    asked = {"prefix": path, "since_s": T0 - 6, "bin_s": 2.0}
    first = store.window("instance", until_s=T0, **asked)
    n_first = n_read
    running(path, (0, 50.0))
    again = store.window("instance", until_s=T0, **asked)
    assert (n_first, n_read) == (3, 4)
    assert [r.signals.requests_running for r in first[path]] == [6.0, 8.0, 9.0]
    assert [r.signals.requests_running for r in again[path]] == [6.0, 8.0, 50.0]


def test_a_window_finds_what_a_clock_ahead_of_ours_stamped() -> None:
    path = unique("f/pd/d")
    running(path, (-3, 1.0), (40, 2.0))
    found = store.window("instance", prefix=path, since_s=T0 - 6, until_s=T0 + 60, bin_s=2.0)
    assert [r.signals.requests_running for r in found[path]] == [1.0, 2.0]


def test_a_series_is_a_mean_per_bin_and_an_empty_bin_is_a_gap() -> None:
    path, silent = unique("f/pd/d"), unique("f/pd/silent")
    running(path, (0, 1.0), (1, 3.0), (4, None), (6, 5.0))
    answer = history.series(
        "instance",
        "requests_running",
        paths=[path, silent],
        since_s=T0,
        until_s=T0 + 8,
        max_points=100,
    )
    assert answer == {
        "t": [T0, T0 + 2, T0 + 4, T0 + 6],
        "bin_s": 2.0,
        "series": {path: [2.0, None, None, 5.0], silent: [None] * 4},
    }


def test_a_counter_series_is_the_last_value_of_the_bin() -> None:
    name = unique("w")
    samples = [link(f"{name}->pd", T0 + i, tx_bytes_total=100.0 * i) for i in range(4)]
    commit(batch(unique("agent"), *samples), received_s=T0)
    answer = history.series(
        "link", "tx_bytes_total", paths=[f"{name}->pd"], since_s=T0, until_s=T0 + 4, max_points=10
    )
    assert answer["series"] == {f"{name}->pd": [100.0, 300.0]}


def test_bins_do_not_move_when_the_window_slides() -> None:
    first = history.series(
        "link", "tx_gbps", paths=[], since_s=T0 + 1, until_s=T0 + 601, max_points=40
    )
    later = history.series(
        "link", "tx_gbps", paths=[], since_s=T0 + 8, until_s=T0 + 608, max_points=40
    )
    assert first["bin_s"] == later["bin_s"] == 20.0
    assert set(first["t"][1:]) <= set(later["t"])
    assert {t % 20 for t in (*first["t"], *later["t"])} == {T0 % 20}


@pytest.mark.parametrize(
    ("least_s", "bin_s"), [(0.01, 2.0), (2.0, 2.0), (2.1, 5.0), (59, 60.0), (90_000, 172_800.0)]
)
def test_bins_are_round(least_s: float, bin_s: float) -> None:
    assert history.nice_bin_s(least_s) == bin_s


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"field": "at; DROP TABLE x"}, "field"),
        ({"kind": "nodes"}, "field"),
        ({"until_s": T0}, "until"),
        ({"max_points": 0}, "points"),
    ],
)
def test_a_question_that_cannot_be_answered_names_its_field(
    change: dict[str, object], field: str
) -> None:
    question = {
        "kind": "link", "field": "tx_gbps", "paths": [], "since_s": T0, "until_s": T0 + 60,
        "max_points": 10,
    }  # fmt: skip
    arguments = {**question, **change}
    with pytest.raises(store.QueryError) as caught:
        history.series(arguments.pop("kind"), arguments.pop("field"), **arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(store.QueryError):
        store.latest("nodes", now_s=T0)


NOTHING = wire.Histogram(edges=[1.0], counts=[0.0, 0.0], sum=0.0)
SEEN = wire.Histogram(edges=[1.0], counts=[2.0, 0.0], sum=1.0)
MORE = wire.Histogram(edges=[1.0], counts=[3.0, 0.0], sum=1.9)


@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [
        ({"ttft_seconds": NOTHING}, None, "idle"),
        ({"ttft_seconds": SEEN}, None, "value"),
        ({"ttft_seconds": SEEN}, {"ttft_seconds": SEEN}, "idle"),
        ({"ttft_seconds": MORE}, {"ttft_seconds": SEEN}, "value"),
        ({"ttft_seconds": SEEN}, {"ttft_seconds": MORE}, "value"),
        ({}, {"ttft_seconds": SEEN}, "missing"),
        ({"ttft_seconds": SEEN}, {}, "value"),
    ],
    ids=["nothing ever", "first sight", "nothing since", "more", "reset", "gone", "appeared"],
)
def test_idle_missing_and_value_are_told_apart(
    now: dict[str, object], before: dict[str, object] | None, expected: str
) -> None:
    """S-04, through the database: each reading is stored and read back."""
    path = unique("f/pd/d")
    samples = [instance(path, T0, signals=now)]
    if before is not None:
        samples.insert(0, instance(path, T0 - 2, signals=before))
    commit(batch(unique("agent"), *samples), received_s=T0)
    readings = store.window("instance", prefix=path, since_s=T0 - 4, until_s=T0, bin_s=2.0)[path]
    previous = readings[0] if before is not None else None
    assert store.signal_states(readings[-1], previous)["ttft_seconds"] == expected


def test_a_failed_read_is_neither_idle_nor_missing() -> None:
    """S-04."""
    path = unique("f/pd/d")
    failed = instance(path, T0, signals={}, state="failed", error="connection refused")
    commit(batch(unique("agent"), failed), received_s=T0)
    [reading] = store.latest("instance", prefix=path, now_s=T0)
    assert reading.error == "connection refused"
    assert set(store.signal_states(reading, None).values()) == {"failed"}


def test_a_zero_gauge_is_a_value_and_a_restart_is_no_base() -> None:
    before = store.from_sample(
        instance("f/pd/d", T0, epoch_s=1e9, signals={"ttft_seconds": SEEN}), received_s=T0
    )
    now = store.from_sample(
        instance(
            "f/pd/d", T0 + 2, epoch_s=1e9 + 5, signals={"ttft_seconds": SEEN, "requests_running": 0}
        ),
        received_s=T0,
    )
    states = store.signal_states(now, before)
    assert states["requests_running"] == "value"
    assert states["ttft_seconds"] == "value"
    assert states["kv_cache_usage_ratio"] == "missing"


def test_maps_of_histograms_are_idle_when_none_of_them_saw_anything() -> None:
    def gate(**counts: wire.Histogram) -> store.Reading:
        return store.from_sample(
            router("f/pd/g", T0, signals={"ttft_seconds": counts}), received_s=T0
        )

    quiet = gate(local=SEEN, remote=NOTHING)
    assert store.signal_states(gate(local=SEEN, remote=NOTHING), quiet)["ttft_seconds"] == "idle"
    assert store.signal_states(gate(local=SEEN, remote=SEEN), quiet)["ttft_seconds"] == "value"
    assert store.signal_states(gate(), quiet)["ttft_seconds"] == "missing"
