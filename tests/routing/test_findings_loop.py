"""What the loop finds, as findings: telemetry in, ticks, and what is told in the end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from routing import commands, findings, fleets, scheduler
from routing.core.effect import SHOWS_WITHIN_S
from routing.core.links.breaker import HOLD_S, PROBE_S
from routing.core.truth.finding import Finding, Report
from routing.models import Fleet, Tick
from telemetry import wire
from tests.routing.cases import EDGES, NOW_S, Gate, after, engines, feed, link, make_fleet, steady

pytestmark = pytest.mark.django_db

EVERY_S = 10.0
RATE_RPS = 2.5


def newest_t(fleet: Fleet) -> int | None:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    t = decision.plan["clusters"]["pd"]["threshold_tokens"]
    assert t is None or isinstance(t, int)
    return t


class Site:
    """A fleet under Poisson traffic whose one gate routes by the t that `rule` says.

    Lengths are log-normal, or one of `lengths` with equal chances.
    """

    def __init__(
        self, rule: Callable[[], float], lengths: tuple[int, ...] = (), **per_link: float
    ) -> None:
        self.fleet, self.rule, self.lengths = make_fleet(), rule, lengths
        self.gate = Gate(edges=sorted({*EDGES, *lengths}))
        self.rng = np.random.default_rng(3)
        self.link = {"tx_gbps": 9.0, "capacity_gbps": 100.0, "retransmit_ratio": 0.0, **per_link}
        self.failed = 0.0
        self.sent = 0.0
        self.transfer_s = 0.0
        self.at_s = 0.0
        if lengths:
            feed([self.gate.sample(NOW_S - 10.0)])
        else:
            feed(steady(self.gate, self.rng))

    def run(self, until_s: float) -> None:
        while self.at_s <= until_s:
            feed(engines("f1", at_s=self.at_s))
            feed([link(at_s=self.at_s, **self.link)])
            if self.transfer_s:
                self._transfers()
            self.tick()
            self.at_s += EVERY_S
            self.gate.arrive(self._arriving(), threshold=self.rule())
            sample = self.gate.sample(NOW_S + self.at_s)
            signals = msgspec.structs.replace(sample.signals, errors_total={"remote": self.failed})
            feed([msgspec.structs.replace(sample, signals=signals)])

    def _arriving(self) -> np.ndarray:
        n = self.rng.poisson(RATE_RPS * EVERY_S)
        if self.lengths:
            return self.rng.choice(self.lengths, n)
        return np.clip(self.rng.lognormal(9.9, 1.0, n), 128, 131072)

    def tick(self) -> Tick:
        found = scheduler.run_tick("f1", now=after(self.at_s), tick_s=2.0)
        assert found is not None
        return found

    def _transfers(self) -> None:
        """The sending engines count a transfer a second of 700 MB, each of `transfer_s`."""
        self.sent += EVERY_S
        signals = wire.InstanceSignals(
            kv_transfer_seconds=wire.Histogram(
                [1.0], [0.0, self.sent], self.sent * self.transfer_s
            ),
            kv_transfer_bytes_total=self.sent * 700e6,
            kv_transfer_failures_total=0.0,
            requests_waiting=0.0,
        )
        feed(
            [
                wire.InstanceSample(
                    id="f1/prfaas/p0",
                    role="prefill",
                    engine="vllm",
                    at_s=NOW_S + self.at_s,
                    signals=signals,
                )
            ]
        )

    def report(self) -> Report:
        return findings.report(Fleet.objects.get(pk="f1"), now=after(self.at_s - EVERY_S))

    def found(self, name: str) -> list[Finding]:
        return [each for each in self.report().findings if each.name == name]

    def is_clear(self, name: str) -> bool:
        return name in [each.name for each in self.report().clear]


@pytest.mark.parametrize(
    ("rule", "n_found"), [(4000.0, 0), (3999.0, 1)], ids=["remote above t", "remote from t on"]
)
def test_s36_at_t_itself_the_rule_is_local_and_another_rule_is_told(
    rule: float, n_found: int
) -> None:
    """L = t - 1, t, t + 1 in equal parts: a third is remote, with another bound two thirds are."""
    site = Site(lambda: rule, lengths=(3999, 4000, 4001))
    commands.place_hold(
        fleet="f1",
        cluster="pd",
        mode="threshold",
        threshold_tokens=4000,
        owner="ada",
        expires_at=after(3600.0),
        now=after(0.0),
        actor="ada",
        via="test",
        reason="test",
    )
    site.run(400.0)
    assert newest_t(site.fleet) == 4000
    told = site.found("SplitOffPrediction")
    assert len(told) == n_found
    assert site.is_clear("SplitOffPrediction") is not bool(n_found)
    for one in told:
        assert one.sentence.startswith("More")
        assert figures(one)["remote share, last minute"] == pytest.approx(2 / 3, abs=0.12)
        assert figures(one)["most that t gives"] == pytest.approx(1 / 3, abs=0.06)


def figures(found: Finding) -> dict[str, object]:
    return {each.what: each.value for each in found.evidence}


def test_s38_a_gate_that_does_not_follow_t_is_told_after_five_minutes() -> None:
    site = Site(lambda: 4000.0)
    site.run(60.0)
    begun_s = next(at for at in _changes() if at > 0.0)
    assert newest_t(site.fleet) != 4000
    (judged,) = [x for x in site.report().clear if x.name == "SplitOffPrediction"]
    assert judged.what == "not judged by t: t has just changed"
    site.run(begun_s + SHOWS_WITHIN_S - EVERY_S)
    assert site.found("NoEffect") == []
    site.run(begun_s + SHOWS_WITHIN_S + 2 * EVERY_S)
    (one,) = site.found("NoEffect")
    assert (one.subject, one.severity) == ("f1/pd", "bad")
    assert one.since_s == NOW_S + begun_s
    told = figures(one)
    before, now, expected = (
        told["remote share before the change"],
        told["remote share now"],
        told["remote share the new t should give"],
    )
    assert isinstance(before, float)
    assert now == pytest.approx(before, abs=0.12)
    assert expected == pytest.approx(0.49, abs=0.08)


def test_s38_a_gate_that_follows_is_no_finding() -> None:
    site = Site(lambda: float(newest_t(site.fleet) or 0))
    site.run(400.0)
    assert newest_t(site.fleet) != 4000
    assert site.found("NoEffect") == []
    assert site.found("SplitOffPrediction") == []
    assert site.is_clear("NoEffect")
    assert site.is_clear("SplitOffPrediction")


def test_a_gate_that_splits_by_another_rule_is_told_though_t_stands() -> None:
    """It sends only what is above 60,000 tokens, and the plan's t is never that high."""
    site = Site(lambda: 60_000.0)
    site.run(400.0)
    (one,) = site.found("SplitOffPrediction")
    assert one.sentence.startswith("Fewer requests run remote")
    told = figures(one)
    assert told["remote share, last minute"] == pytest.approx(0.13, abs=0.1)
    assert told["requests of that minute"] == pytest.approx(150.0, rel=0.25)


def _changes() -> list[float]:
    """Seconds at which ticks adopted a plan."""
    rows = Tick.objects.filter(action="adopt").order_by("seq")
    return [row.at.timestamp() - NOW_S for row in rows]


def test_s41_slow_transfers_on_an_empty_link_are_told_and_move_no_t() -> None:
    """Utilisation 8 %, no retransmits, transfers ten times slower than their share of the link."""
    calm = Site(lambda: float(newest_t(calm.fleet) or 0), tx_gbps=8.0, connections=8.0)
    calm.transfer_s = 0.06
    calm.run(100.0)
    assert calm.found("FlowLimited") == []
    assert calm.is_clear("FlowLimited")
    calm.transfer_s = 8 * 0.7 / 9.2
    calm.run(150.0)
    (one,) = calm.found("FlowLimited")
    assert (one.subject, one.severity) == ("prfaas->pd", "warn")
    told = figures(one)
    assert told["use of the link"] == pytest.approx(0.08)
    assert told["retransmits"] == 0.0
    assert told["a transfer's mean speed"] == pytest.approx(9.2, rel=0.05)
    assert "more connections" in one.next_step
    reasons = set(Tick.objects.filter(at__gt=after(100.0)).values_list("reason", flat=True))
    assert reasons
    assert not reasons & {"Congestion", "CongestionCleared", "LinkDown", "LinkLimit"}
    assert fleets.memory_after(fleets.newest_tick(calm.fleet)).links["prfaas->pd"].trouble == "none"


@pytest.mark.parametrize(
    ("what", "gbps", "n_found"), [("nothing crosses", 0.0, 1), ("KV crosses", 9.0, 0)]
)
def test_a_link_that_carries_no_kv_of_remote_requests(what: str, gbps: float, n_found: int) -> None:
    """The gate sends hundreds of long prompts to a far side that computes none of them."""
    site = Site(lambda: float(newest_t(site.fleet) or 1e9), tx_gbps=gbps)
    site.run(160.0)
    told = [x for x in site.found("FakeDisaggregation") if x.subject == "prfaas->pd"]
    assert len(told) == n_found
    for one in told:
        shown = figures(one)
        assert shown["bytes the link carried"] == 0.0
        assert shown["least tokens of each, by the rule"] == pytest.approx(3333.0, abs=700.0)


def test_a_link_whose_transfers_nobody_measures_is_unknown_and_not_well() -> None:
    site = Site(lambda: float(newest_t(site.fleet) or 0))
    site.run(20.0)
    report = site.report()
    assert not site.is_clear("FlowLimited")
    (one,) = [each for each in report.unknown if each.name == "FlowLimited"]
    assert "neither connections nor the time of transfers" in one.why


def test_s43_failing_transfers_open_the_breaker_and_success_closes_it() -> None:
    site = Site(lambda: float(newest_t(site.fleet) or 1e9))
    site.run(20.0)
    assert site.is_clear("TransferFailures")
    site.gate.arrive([20_000.0] * 12)
    site.failed = 11.0
    site.run(site.at_s + EVERY_S)  # told at the end of one step, seen by the tick of the next
    opened_s = site.at_s - EVERY_S
    assert fleets.newest_adopted(site.fleet).plan["clusters"]["pd"]["mode"] == "always_local"
    (one,) = site.found("TransferFailures")
    assert (one.subject, one.severity, one.since_s) == ("prfaas->pd", "bad", NOW_S + opened_s)
    told = figures(one)
    assert told["breaker"] == "open"
    assert told["limit of the path"] == 0.2
    (judged,) = [x for x in site.report().clear if x.name == "SplitOffPrediction"]
    assert judged.what == "not judged by t: the breaker of prfaas->pd is open"
    site.run(opened_s + HOLD_S + EVERY_S)
    (half,) = site.found("TransferFailures")
    assert (figures(half)["breaker"], half.severity) == ("half open", "warn")
    site.run(opened_s + HOLD_S + PROBE_S + 60.0)
    assert site.found("TransferFailures") == []
    assert site.is_clear("TransferFailures")


def test_a_loop_that_stands_still_leaves_its_checks_unknown() -> None:
    site = Site(lambda: 4000.0)
    site.run(20.0)
    late = findings.report(Fleet.objects.get(pk="f1"), now=after(200.0))
    names = {each.name for each in late.unknown}
    assert {"NoEffect", "SplitOffPrediction", "FlowLimited", "TransferFailures"} <= names
    assert not {each.name for each in late.clear} & {"NoEffect", "TransferFailures"}
