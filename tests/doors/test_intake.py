"""From series to samples: windows, staleness, restarts, bounds, and what is told of them."""

from __future__ import annotations

import pytest

from telemetry import wire
from telemetry.doors import intake as module
from telemetry.doors.intake import Receipt, Refused
from telemetry.doors.points import Point
from telemetry.doors.reporting import report
from tests.doors.sending import PATH, T0_S, TARGET, Sender, intake
from tests.doors.texts import ENGINE, RULES


@pytest.fixture
def sender() -> Sender:
    return Sender(intake())


def test_a_scrape_becomes_the_sample_an_agent_would_have_shipped(sender: Sender) -> None:
    receipt = sender.scrape(ENGINE, 0.0)
    assert receipt.n_refused == 0
    [sample] = sender.samples(1.0)
    assert isinstance(sample, wire.InstanceSample)
    assert (sample.id, sample.role, sample.engine, sample.state) == (PATH, "decode", "vllm", "ok")
    assert sample.at_s == T0_S
    assert sample.epoch_s == 1.7959552631e9
    assert sample.signals.requests_running == 7.0
    assert sample.signals.ttft_seconds == wire.Histogram(
        edges=[0.1, 1.0], counts=[1.0, 3.0, 1.0], sum=3.5
    )
    assert all(window.state == "done" for window in receipt.windows)


def test_rates_are_made_of_two_scrapes(sender: Sender) -> None:
    sender.scrape(ENGINE, 0.0)
    sender.samples(1.0)
    sender.scrape(ENGINE.replace('0"', '0"').replace(" 1000\n", " 1500\n"), 10.0)
    [sample] = sender.samples(11.0)
    assert sample.signals.prompt_tokens_per_s == 50.0


def test_a_scrape_in_several_requests_is_one_sample(sender: Sender) -> None:
    sender.write("vllm:num_requests_running", 3.0, 0.0, engine="0")
    assert sender.samples(0.1) == []
    late = Receipt(T0_S + 0.2)
    sender.write("vllm:num_requests_running", 4.0, 0.0, engine="1", receipt=late)
    assert sender.samples(0.3) == [], "0.25 s have not passed since the last of it came"
    [sample] = sender.samples(0.5)
    assert sample.signals.requests_running == 7.0


def test_a_scrape_that_never_settles_is_shown_after_a_second(sender: Sender) -> None:
    for i in range(6):
        now = Receipt(T0_S + 0.2 * i)
        sender.write("vllm:num_requests_running", 1.0, 0.0, engine=i, receipt=now)
        assert len(sender.samples(0.2 * i + 0.01)) == (i == 5)


def test_scrapes_that_come_mixed_are_samples_in_the_order_of_time(sender: Sender) -> None:
    for engine in "01":  # as two shards of a sender that catches up would bring them
        for at_s in (0.0, 5.0, 10.0):
            now = Receipt(T0_S + 20.0)
            sender.write("vllm:num_requests_running", at_s, at_s, engine=engine, receipt=now)
    samples = sender.samples(21.0)
    assert [sample.at_s - T0_S for sample in samples] == [0.0, 5.0, 10.0]
    assert [sample.signals.requests_running for sample in samples] == [0.0, 10.0, 20.0]


def test_what_comes_after_its_scrape_was_shown_counts_from_the_next(sender: Sender) -> None:
    sender.write("vllm:num_requests_running", 3.0, 0.0, engine="0")
    assert len(sender.samples(1.0)) == 1
    late = Receipt(T0_S + 2.0)
    sender.write("vllm:num_requests_running", 4.0, 0.0, engine="1", receipt=late)
    assert late.n_taken == 1
    assert sender.samples(3.0) == []
    assert [window.state for window in late.windows] == ["done"], "its answer need not wait"
    sender.write("vllm:num_requests_running", 3.0, 5.0, engine="0")
    [sample] = sender.samples(6.0)
    assert sample.signals.requests_running == 7.0


def test_a_rank_that_ends_vanishes_from_sums(sender: Sender) -> None:
    """S-21."""
    sender.write("vllm:num_requests_running", 3.0, 0.0, engine="0")
    sender.write("vllm:num_requests_running", 4.0, 0.0, engine="1")
    sender.samples(1.0)
    sender.write("vllm:num_requests_running", 3.0, 5.0, engine="0")
    sender.write("vllm:num_requests_running", None, 5.0, engine="1")
    [sample] = sender.samples(6.0)
    assert sample.signals.requests_running == 3.0
    assert sender.intake.n_series == 1
    sender.write("vllm:num_requests_running", 5.0, 10.0, engine="1")
    [sample] = sender.samples(11.0)
    assert sample.signals.requests_running == 8.0, "and may come back"


def test_a_series_without_news_is_gone_after_the_ttl(sender: Sender) -> None:
    sender.write("vllm:num_requests_running", 3.0, 0.0, engine="0")
    sender.write("vllm:num_requests_running", 4.0, 0.0, engine="1")
    sender.samples(1.0)
    for at_s, running in ((299.0, 7.0), (301.0, 3.0)):
        sender.write("vllm:num_requests_running", 3.0, at_s, engine="0")
        [sample] = sender.samples(at_s + 1.0)
        assert sample.signals.requests_running == running


def test_a_silent_target_is_forgotten(sender: Sender) -> None:
    sender.scrape(ENGINE, 0.0)
    sender.samples(1.0)
    sender.samples(400.0)
    assert (sender.intake.n_series, list(sender.intake.targets)) == (0, [])
    sender.scrape(ENGINE, 401.0)
    assert len(sender.samples(402.0)) == 1


def test_a_target_that_is_forgotten_while_a_request_is_read_is_known_again(
    sender: Sender,
) -> None:
    labels = (("__name__", "vllm:num_requests_running"), *TARGET.items())
    series = sender.intake.series(labels)
    sender.samples(0.0)
    assert list(sender.intake.targets) == [], "nothing was heard of it for ever so long"
    sender.intake.take(series, [Point(3.0, round(T0_S * 1000))], Receipt(T0_S))
    [sample] = sender.samples(1.0)
    assert sample.signals.requests_running == 3.0
    [target] = sender.intake.targets
    assert sender.intake.series(labels) is series
    assert series.target is target


def test_a_target_all_of_whose_series_end_is_gone(sender: Sender) -> None:
    """S-20: as Prometheus says it when a target leaves its discovery."""
    sender.write("vllm:num_requests_running", 3.0, 0.0)
    sender.write("up", 1.0, 0.0)
    sender.samples(1.0)
    sender.write("vllm:num_requests_running", None, 5.0)
    sender.write("up", None, 5.0)
    [sample] = sender.samples(6.0)
    assert (sample.id, sample.state) == (PATH, "gone")


def test_a_scrape_that_failed_is_a_failed_sample_not_an_idle_one(sender: Sender) -> None:
    sender.scrape(ENGINE, 0.0)
    sender.samples(1.0)
    sender.write("up", 0.0, 5.0)
    [sample] = sender.samples(6.0)
    assert (sample.state, sample.signals) == ("failed", wire.InstanceSignals())


def test_a_target_without_a_known_engine_says_so(sender: Sender) -> None:
    sender.write("strange_total", 1.0, 0.0)
    [sample] = sender.samples(1.0)
    assert sample.state == "failed"
    assert "no series of vllm among the 1" in (sample.error or "")


def test_a_role_that_moves_moves_the_sample(sender: Sender) -> None:
    sender.write("vllm:num_requests_running", 3.0, 0.0)
    sender.samples(1.0)
    other = Sender(sender.intake, {**TARGET, "role": "prefill"})
    sender.write("vllm:num_requests_running", None, 5.0)
    other.write("vllm:num_requests_running", 2.0, 5.0)
    [sample] = sender.samples(6.0)
    assert isinstance(sample, wire.InstanceSample)
    assert (sample.role, sample.state, sample.signals.requests_running) == ("prefill", "ok", 2.0)


@pytest.mark.parametrize(
    ("at_s", "words"),
    [
        (4.0, "out of order"),
        (400.0, "in the future"),
        (-T0_S, "not in milliseconds"),
        (T0_S * 999.0, "not in milliseconds"),
    ],
)
def test_samples_that_can_never_be_taken_are_counted(
    sender: Sender, at_s: float, words: str
) -> None:
    sender.write("vllm:num_requests_running", 3.0, 5.0)
    receipt = Receipt(T0_S + 5.0)
    sender.write("vllm:num_requests_running", 4.0, at_s, receipt=receipt)
    assert (receipt.n_taken, receipt.n_refused) == (0, 1)
    assert words in receipt.words()


def test_the_same_request_again_waits_for_the_same_commit(sender: Sender) -> None:
    """S-16: whether its first answer was lost or it was refused for now."""
    first = sender.write("vllm:num_requests_running", 3.0, 0.0)
    [due] = sender.intake.due(T0_S + 1.0)
    again = sender.write("vllm:num_requests_running", 3.0, 0.0)
    assert (again.n_taken, again.n_repeated, again.n_refused) == (0, 1, 0)
    assert again.windows == first.windows
    assert [window.state for window in again.windows] == ["waiting"]
    sender.intake.settle(due, stored=True)
    assert [window.state for window in again.windows] == ["done"]
    assert sender.write("vllm:num_requests_running", 3.0, 0.0).windows == set()


def test_a_counter_that_was_born_again_ahead_of_its_old_value_is_a_restart() -> None:
    sender = Sender(intake())
    born_ms = int(T0_S * 1000) - 1_000_000
    sender.write("vllm:prompt_tokens_total", 100.0, 0.0, start_ms=born_ms)
    [sample] = sender.samples(1.0)
    assert sample.epoch_s == born_ms / 1000
    again_ms = int(T0_S * 1000) + 4_000
    sender.write("vllm:prompt_tokens_total", 150.0, 10.0, start_ms=again_ms)
    [sample] = sender.samples(11.0)
    assert sample.epoch_s == again_ms / 1000
    assert sample.signals.prompt_tokens_per_s == 15.0, "150 since the restart, not 50"


def test_gains_are_added_up_once() -> None:
    sender = Sender(intake())
    for at_s, gain in ((0.0, 5.0), (10.0, 7.0), (10.0, 7.0)):
        sender.write("vllm:prompt_tokens_total", gain, at_s, delta=True)
    [first, second] = sender.samples(11.0)
    assert first.signals.prompt_tokens_total == 5.0
    assert second.signals.prompt_tokens_total == 12.0
    assert second.signals.prompt_tokens_per_s == 0.7


def test_what_no_rule_takes_is_counted_and_listed(sender: Sender) -> None:
    """S-19."""
    other = Sender(sender.intake, {"job": "mystery", "instance": "x"})
    for i in range(module.MAX_LISTED + 50):
        receipt = other.write(f"m{i}", 1.0, 0.0)
        assert (receipt.n_left_out, receipt.n_refused) == (1, 0)
    sender.scrape(ENGINE, 0.0)
    sender.samples(1.0)
    told = report(sender.intake, started_s=T0_S)
    source, unmatched = told.sources
    assert (source.kind, source.id, source.engine, source.state) == (
        "instance", PATH, "vllm", "ok",
    )  # fmt: skip
    assert "requests_running" in source.found
    assert "kv_transfer_bytes_total" in source.missing
    assert (unmatched.kind, unmatched.n_unmatched) == ("unmatched", 250)
    assert len(unmatched.unmatched) == module.MAX_LISTED
    assert unmatched.warnings == ["no rule matches (job='mystery', instance='x')"]


def test_replicas_are_one_series() -> None:
    sender = Sender(intake('ignore_labels = ["replica"]\n' + RULES))
    sender.write("vllm:num_requests_running", 3.0, 0.0, replica="a")
    sender.write("vllm:num_requests_running", 3.0, 0.1, replica="b")
    [sample] = sender.samples(1.0)
    assert sample.signals.requests_running == 3.0


def test_series_are_bounded_per_target_and_in_all(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SERIES_PER_TARGET", 3)
    monkeypatch.setattr(module, "MAX_SERIES", 5)
    monkeypatch.setattr(module, "MAX_TARGETS", 3)
    for engine in range(3):
        sender.write("vllm:num_requests_running", 1.0, 0.0, engine=engine)
    with pytest.raises(Refused, match="more than 3 series of f/pd/e0"):
        sender.write("vllm:num_requests_running", 1.0, 0.0, engine=3)
    other = Sender(sender.intake, {**TARGET, "instance": "e1"})
    for engine in range(2):
        other.write("vllm:num_requests_running", 1.0, 0.0, engine=engine)
    with pytest.raises(Refused, match="more than 5 series"):
        other.write("vllm:num_requests_running", 1.0, 0.0, engine=2)
    with pytest.raises(Refused, match="more than 5 series"):
        Sender(sender.intake, {**TARGET, "instance": "e2"}).write("up", 1.0, 0.0)
    with pytest.raises(Refused, match="more than 3 targets"):
        Sender(sender.intake, {**TARGET, "instance": "e3"}).write("up", 1.0, 0.0)
    assert report(sender.intake, started_s=T0_S).n_dropped_series == 4
    [first, second] = sender.samples(1.0)
    assert (first.signals.requests_running, second.signals.requests_running) == (3.0, 2.0)


def test_a_place_that_no_batch_could_carry_is_refused(sender: Sender) -> None:
    with pytest.raises(Refused, match="at most 300 characters"):
        Sender(sender.intake, {**TARGET, "instance": "x" * 400}).write("up", 1.0, 0.0)


def test_what_waits_is_bounded(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    for engine in range(3):
        assert not sender.intake.full
        sender.write("vllm:num_requests_running", 1.0, 0.0, engine=engine)
    assert sender.intake.full
    sender.samples(1.0)
    assert not sender.intake.full


LINK = """
[[rules]]
kind = "link"
match = { job = "node" }
id = "{site}->pd"
interface = "bond0"
measured_layer = "bond"
host_tcp = true
capacity_gbps = 100.0
"""


def test_a_link_is_one_interface_of_a_host() -> None:
    """S-10: a bond and its members are not added up."""
    sender = Sender(intake(LINK), {"job": "node", "site": "p"})
    for i in range(2):
        for device, share in (("bond0", 2), ("eth0", 1), ("eth1", 1)):
            n_bytes = 1e12 + i * share * 6.25e9
            sender.write("node_network_transmit_bytes_total", n_bytes, 10.0 * i, device=device)
            sender.write("node_network_receive_bytes_total", 5.0, 10.0 * i, device=device)
        sender.write("node_netstat_Tcp_OutSegs", 1000.0 * i, 10.0 * i)
        sender.write("node_netstat_Tcp_RetransSegs", 10.0 * i, 10.0 * i)
    _, sample = sender.samples(11.0)
    assert isinstance(sample, wire.LinkSample)
    assert (sample.id, sample.state, sample.measured_layer) == ("p->pd", "ok", "bond")
    assert sample.signals.tx_gbps == pytest.approx(10.0)
    assert sample.signals.retransmit_ratio == pytest.approx(0.01)
    assert sample.signals.capacity_gbps == 100.0


def test_a_link_whose_interface_is_not_there_says_so() -> None:
    sender = Sender(intake(LINK), {"job": "node", "site": "p"})
    sender.write("node_network_transmit_bytes_total", 1.0, 0.0, device="eth0")
    [sample] = sender.samples(1.0)
    assert sample.state == "failed"
    assert "bond0" in (sample.error or "")


def test_a_point_that_is_nan_is_no_measurement(sender: Sender) -> None:
    sender.scrape(ENGINE.replace('running{engine="0",model_name="m"} 3', "running NaN"), 0.0)
    [sample] = sender.samples(1.0)
    assert sample.state == "ok"
    assert sample.signals.requests_running is None
    assert sample.signals.requests_waiting == 40.0


def test_points_of_one_request_are_taken_in_their_order(sender: Sender) -> None:
    series = sender.intake.series((("__name__", "up"), *TARGET.items()))
    receipt = Receipt(T0_S + 10.0)
    points = [Point(1.0, round((T0_S + at_s) * 1000)) for at_s in (0.0, 5.0, 4.0, 10.0)]
    sender.intake.take(series, points, receipt)
    assert (receipt.n_taken, receipt.n_refused) == (3, 1)
