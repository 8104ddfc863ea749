"""From stored readings to findings: what is told, what is not, and what nobody can know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from routing import findings, fleets, truth_facts
from routing.core.scenario.document import parse_scenario
from routing.core.truth.disaggregation import RemoteLink
from routing.core.truth.finding import Clear, Finding, Report, Unknown
from routing.models import Fleet
from telemetry import canonical, exposition, wire
from tests.routing.cases import NOW, NOW_S, after, feed, link, make_fleet, scenario

pytestmark = pytest.mark.django_db

CAPTURES = Path(__file__).parents[2] / "../shared/data/captures/vllm"
EVERY_S = 30.0
IDLE = {"requests_running": 0.0, "requests_waiting": 0.0, "kv_cache_usage_ratio": 0.05}


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def made(at_s: float = 0.0) -> Report:
    return findings.report(Fleet.objects.get(pk="f1"), now=after(at_s))


def found(report: Report, name: str) -> list[Finding]:
    return [each for each in report.findings if each.name == name]


def unknown(report: Report, name: str) -> list[Unknown]:
    return [each for each in report.unknown if each.name == name]


def clear(report: Report, name: str) -> list[Clear]:
    return [each for each in report.clear if each.name == name]


def engine(
    path: str,
    role: str = "decode",
    *,
    since_s: float = -300.0,
    until_s: float = -1.0,
    state: str = "ok",
    per_s: dict[str, Any] | None = None,
    **signals: Any,
) -> None:
    """Readings of one engine; `per_s` are counters that rise by so much a second, labelled or not.

    `kv_transfer_seconds` counts transfers of half a second.
    """
    samples = []
    at_s = since_s
    while at_s <= until_s:
        told = {
            **signals,
            **{name: _at(rate, at_s - since_s) for name, rate in (per_s or {}).items()},
        }
        if "kv_transfer_seconds" in told:
            n = told["kv_transfer_seconds"]
            told["kv_transfer_seconds"] = wire.Histogram([1.0], [n, 0.0], n * 0.5)
        samples.append(
            wire.InstanceSample(
                id=path,
                role=role,
                engine="vllm",
                at_s=NOW_S + at_s,
                state=state,
                error=None if state == "ok" else "it says nothing",
                signals=wire.InstanceSignals(**told) if state == "ok" else wire.InstanceSignals(),
            )
        )
        at_s += EVERY_S
    feed(samples)


def _at(rate: Any, elapsed_s: float) -> Any:
    if isinstance(rate, dict):
        return {key: each * elapsed_s for key, each in rate.items()}
    return rate * elapsed_s


def gate(*, until_s: float = -1.0, per_s: dict[str, Any] | None = None, **signals: Any) -> None:
    at_s, samples = -300.0, []
    while at_s <= until_s:
        told = {
            **signals,
            **{name: _at(rate, at_s + 300.0) for name, rate in (per_s or {}).items()},
        }
        samples.append(
            wire.RouterSample(
                id="f1/pd/gw-1",
                kind="gate",
                at_s=NOW_S + at_s,
                signals=wire.RouterSignals(**told),
            )
        )
        at_s += EVERY_S
    feed(samples)


def captured(path: str, role: str, name: str) -> None:
    """An engine's metrics before its requests and after them, read as an agent reads them."""
    for when, at_s in (("before", -100.0), ("after", -5.0)):
        text = CAPTURES / f"{name}_{when}.txt"
        if not text.exists():
            pytest.skip(f"{text.name} is not here: captures of engines are not in the project")
        read = canonical.canonicalise(exposition.parse(text.read_text()))
        feed(
            [
                wire.InstanceSample(
                    id=path,
                    role=role,
                    engine="vllm",
                    at_s=NOW_S + at_s,
                    signals=canonical.to_instance_signals(read),
                )
            ]
        )


SOURCES = "prompt_tokens_by_source_total"


def by_source(computed: float, received: float) -> dict[str, float]:
    return {"local_compute": computed, "local_cache_hit": 0.0, "external_kv_transfer": received}


def prefill(**per_s: Any) -> None:
    engine("f1/pd/p0", "prefill", per_s={"prompt_tokens_total": 100.0, **per_s})


class TestFakeDisaggregation:
    def test_decode_that_computes_its_prompts_is_told(self, fleet: Fleet) -> None:
        """As smg 1.13 before vLLM: 200 for every request, and no KV ever moved."""
        prefill()
        nothing = {"kv_transfer_seconds": 0.0, "kv_transfer_bytes_total": 0.0}
        engine("f1/pd/d0", per_s={SOURCES: by_source(100.0, 0.0), **nothing})
        (one,) = found(made(), "FakeDisaggregation")
        assert (one.subject, one.severity) == ("f1/pd", "bad")
        assert "every decode instance (d0)" in one.sentence
        told = {each.what: each.value for each in one.evidence}
        assert told["of these computed on decode"] == 1.0
        assert told["KV transfers counted by engines"] == 0.0
        assert told["prompt tokens that came into use on decode"] == pytest.approx(24_000.0)
        assert one.longer

    def test_real_transfers_are_no_finding(self, fleet: Fleet) -> None:
        prefill()
        engine("f1/pd/d0", per_s={SOURCES: by_source(1.0, 100.0), "kv_transfer_seconds": 0.1})
        report = made()
        assert found(report, "FakeDisaggregation") == []
        assert [each.subject for each in clear(report, "FakeDisaggregation")] == ["f1/pd"]

    def test_an_engine_that_tells_nothing_is_unknown_and_not_well(self, fleet: Fleet) -> None:
        prefill()
        engine("f1/pd/d0", **IDLE)
        report = made()
        assert found(report, "FakeDisaggregation") == clear(report, "FakeDisaggregation") == []
        (one,) = unknown(report, "FakeDisaggregation")
        assert "neither prompt tokens by source nor KV transfers" in one.why

    def test_an_engine_that_does_not_tell_received_kv_apart_is_no_witness(
        self, fleet: Fleet
    ) -> None:
        prefill()
        engine("f1/pd/d0", per_s={SOURCES: {"local_compute": 100.0, "local_cache_hit": 0.0}})
        assert found(made(), "FakeDisaggregation") == []

    @pytest.mark.parametrize(
        ("decode", "is_fake"), [("metrics_pd_9602", False), ("metrics_agg", True)]
    )
    def test_texts_of_real_engines(self, decode: str, is_fake: bool, fleet: Fleet) -> None:
        """vLLM 0.32: a NIXL pair, then one engine that computes 13,442 tokens all by itself."""
        captured("f1/pd/p0", "prefill", "metrics_pd_9601")
        captured("f1/pd/d0", "decode", decode)
        report = made()
        assert bool(found(report, "FakeDisaggregation")) is is_fake
        assert bool(clear(report, "FakeDisaggregation")) is not is_fake
        # Both count expired KV, and none expired.
        assert [x.subject for x in clear(report, "LeaseShorterThanTimeout")] == ["f1/pd"]

    def test_what_it_computed_as_prefill_is_not_held_against_it(self, fleet: Fleet) -> None:
        """It changed its role two minutes ago, and its counters went on."""
        prefill()
        engine("f1/pd/x0", "prefill", until_s=-120.0, per_s={SOURCES: by_source(500.0, 0.0)})
        samples = []
        for i in range(5):
            total = by_source(90_000.0, 10_000.0 * i)
            samples.append(
                wire.InstanceSample(
                    id="f1/pd/x0",
                    role="decode",
                    engine="vllm",
                    at_s=NOW_S - 120.0 + 29.0 * i,
                    signals=wire.InstanceSignals(prompt_tokens_by_source_total=total),
                )
            )
        feed(samples)
        assert found(made(), "FakeDisaggregation") == []

    def test_a_restart_in_the_window_begins_a_new_count(self, fleet: Fleet) -> None:
        """The new process soon shows more than the old one ever did: all of it is its own."""
        prefill()
        for at_s, epoch_s, computed, received in (
            (-200.0, -1000.0, 100_000.0, 0.0),
            (-150.0, -1000.0, 100_000.0, 0.0),
            (-100.0, -140.0, 101_000.0, 50_000.0),
        ):
            feed(
                [
                    wire.InstanceSample(
                        id="f1/pd/d0",
                        role="decode",
                        engine="vllm",
                        epoch_s=NOW_S + epoch_s,
                        at_s=NOW_S + at_s,
                        signals=wire.InstanceSignals(
                            prompt_tokens_by_source_total=by_source(computed, received)
                        ),
                    )
                ]
            )
        (one,) = found(made(), "FakeDisaggregation")
        told = {each.what: each.value for each in one.evidence}
        assert told["prompt tokens that came into use on decode"] == 151_000.0


class TestRemoteLink:
    def of(self, fleet: Fleet) -> RemoteLink:
        known = fleets.scenario_of(fleet)
        seen = truth_facts.read("f1", known, at_s=NOW_S)
        (one,) = truth_facts.remote_links(seen, known, {"pd": 4000.0})
        return one

    def test_only_what_the_rule_sent_and_the_far_side_served_must_show(self, fleet: Fleet) -> None:
        by_reason = {"local|Short": 5.0, "remote|Long": 1.0, "remote|LocalDown": 3.0}
        gate(per_s={"requests_total": by_reason, "errors_total": {"remote": 0.2}})
        assert self.of(fleet).requests == pytest.approx(0.8 * 240.0)

    @pytest.mark.parametrize(
        ("signals", "carried_bytes"),
        [
            ({"tx_bytes_total": 1e9}, 4e9),
            ({"tx_gbps": 8.0}, 8.0 * 120.0 * 1.25e8),
            ({"rtt_s": 0.1}, None),
        ],
    )
    def test_what_a_link_carried(self, signals, carried_bytes, fleet: Fleet) -> None:
        for i in range(5):
            told = {k: v * i if k == "tx_bytes_total" else v for k, v in signals.items()}
            feed([link(at_s=-150.0 + EVERY_S * i, **told)])
        assert self.of(fleet).carried_bytes == carried_bytes

    def test_where_two_clusters_send_neither_link_is_judged(self, fleet: Fleet) -> None:
        document = scenario("f3")
        document["clusters"].append({**document["clusters"][0], "name": "east"})
        document["links"].append({**document["links"][0], "from": "east"})
        known = parse_scenario(document)
        seen = truth_facts.read("f1", known, at_s=NOW_S)
        assert list(truth_facts.remote_links(seen, known, {"pd": 4000.0})) == []


class TestPrerequisites:
    def test_a_gate_that_hears_no_kv_events_while_engines_compute(self, fleet: Fleet) -> None:
        prefill()
        gate(kv_events_total={"pd|stored": 0.0, "pd|removed": 0.0})
        (one,) = [x for x in found(made(), "PrerequisiteMissing") if x.subject == "f1/pd/gw-1"]
        assert "KV events of pd" in one.sentence
        assert "kv-events-config" in one.next_step

    def test_events_that_come_are_well_and_none_configured_is_not_asked(self, fleet: Fleet) -> None:
        prefill()
        gate(per_s={"kv_events_total": {"pd|stored": 3.0}})
        assert any("KV events of pd" in x.what for x in clear(made(), "PrerequisiteMissing"))

    def test_answers_that_call_cached_what_prefill_computed(self, fleet: Fleet) -> None:
        """trust_cached_tokens before a decode engine that counts received KV as cached."""
        caches = {"prefix_cache_queries_total": 100.0, "prefix_cache_hits_total": 20.0}
        prefill(**caches)
        gate(
            per_s={
                "engine_prompt_tokens_total": {"local": 100.0, "remote": 0.0},
                "engine_cached_tokens_total": {"local": 98.0, "remote": 0.0},
            }
        )
        (one,) = [x for x in found(made(), "PrerequisiteMissing") if x.subject == "f1/pd/gw-1"]
        assert "trust_cached_tokens = false" in one.next_step
        told = {each.what: each.value for each in one.evidence}
        assert told["cached share by the answers"] == pytest.approx(0.98)
        assert told["hit share of the prefill engines"] == pytest.approx(0.2)

    def test_prefill_engines_without_a_prefix_cache(self, fleet: Fleet) -> None:
        prefill(prefix_cache_queries_total=0.0, prefix_cache_hits_total=0.0)
        (one,) = found(made(), "PrerequisiteMissing")
        assert (one.subject, one.severity) == ("f1/pd", "warn")
        assert "is off" in one.sentence

    def test_prefill_engines_that_do_not_tell(self, fleet: Fleet) -> None:
        prefill()
        (one,) = found(made(), "PrerequisiteMissing")
        assert "tells of its prefix cache" in one.sentence


class TestLease:
    def test_kv_that_expired_is_told_with_its_count(self, fleet: Fleet) -> None:
        prefill(kv_expired_total=0.02)
        gate(read_timeout_s=600.0)
        (one,) = found(made(), "LeaseShorterThanTimeout")
        assert (one.subject, one.severity) == ("f1/pd", "bad")
        told = {each.what: each.value for each in one.evidence}
        assert told["requests whose KV expired unfetched"] == pytest.approx(5.4, rel=0.15)
        assert told["longest wait of the gate"] == 600.0

    def test_engines_that_do_not_count_it_are_unknown(self, fleet: Fleet) -> None:
        prefill()
        gate(read_timeout_s=600.0)
        report = made()
        assert found(report, "LeaseShorterThanTimeout") == []
        (one,) = unknown(report, "LeaseShorterThanTimeout")
        assert "waits 600 s" in one.why

    def test_none_expired_is_well(self, fleet: Fleet) -> None:
        prefill(kv_expired_total=0.0)
        gate(read_timeout_s=60.0)
        assert [x.subject for x in clear(made(), "LeaseShorterThanTimeout")] == ["f1/pd"]


class TestLeaks:
    def test_s42_nothing_runs_and_kv_is_held_for_longer_than_the_lease(self, fleet: Fleet) -> None:
        engine("f1/pd/d7", since_s=-600.0, **{**IDLE, "kv_cache_usage_ratio": 0.6})
        report = made()
        (one,) = found(report, "LeakSuspected")
        assert (one.subject, one.severity) == ("f1/pd/d7", "bad")
        assert one.since_s == pytest.approx(NOW_S - 540.0, abs=EVERY_S)
        told = {each.what: (each.value, each.grade) for each in one.evidence}
        assert told["KV memory in use"] == (0.6, "measured")
        assert told["lease of KV that waits to be fetched"] == (480.0, "assumed")

    @pytest.mark.parametrize(
        ("what", "since_s", "signals"),
        [
            ("it held it for seven minutes", -420.0, {"kv_cache_usage_ratio": 0.6}),
            ("it runs", -600.0, {"kv_cache_usage_ratio": 0.6, "requests_running": 2.0}),
            ("it holds next to nothing", -600.0, {}),
        ],
    )
    def test_s42_who_does_not_leak(self, what, since_s, signals, fleet: Fleet) -> None:
        engine("f1/pd/d7", since_s=since_s, **{**IDLE, **signals})
        report = made()
        assert found(report, "LeakSuspected") == []
        assert [x.subject for x in clear(report, "LeakSuspected")] == ["f1/pd"]

    def test_s42_who_does_not_tell_running_is_unknown(self, fleet: Fleet) -> None:
        engine("f1/pd/d7", since_s=-600.0, kv_cache_usage_ratio=0.6)
        report = made()
        assert found(report, "LeakSuspected") == []
        (one,) = unknown(report, "LeakSuspected")
        assert "(d7)" in one.why


def test_nothing_was_ever_read(fleet: Fleet) -> None:
    """Nothing is found, and nothing is well."""
    report = made()
    assert report.findings == ()
    names = {each.name for each in report.unknown}
    assert {"NoEffect", "SplitOffPrediction", "FlowLimited", "TransferFailures"} <= names
    assert {each.name for each in report.clear} <= {"RoleNotReady"}


def test_only_readings_of_this_fleet_count(fleet: Fleet) -> None:
    make_fleet("f2")
    engine("f2/pd/d0", per_s={SOURCES: by_source(100.0, 0.0)})
    engine("f2/pd/p0", "prefill", per_s={"prompt_tokens_total": 100.0})
    assert found(made(), "FakeDisaggregation") == []
    other = findings.report(Fleet.objects.get(pk="f2"), now=NOW)
    assert [x.subject for x in found(other, "FakeDisaggregation")] == ["f2/pd"]
