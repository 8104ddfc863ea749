"""Links and rates: counters of an interface or a lab, and what they mean per second."""

from __future__ import annotations

import json

import pytest

from telemetry import wire
from telemetry.agent import links, rates
from telemetry.agent.http import ReadError
from telemetry.agent.rates import Reading
from telemetry.wire import InstanceSignals, LinkSignals, RouterSignals

LAB = {
    "prfaas->pd": {
        "at_s": 1.7e9,
        "tx_bytes_total": 5,
        "segments_sent_total": 7.0,
        "rtt_s": 0.005,
        "connections": 4,
        "capacity_gbps": 100.0,
        "something_new": "ignored",
    }
}


def test_a_lab_link() -> None:
    signals, at_s = links.from_lab(json.dumps(LAB), "prfaas->pd")
    assert at_s == 1.7e9
    assert signals == LinkSignals(
        tx_bytes_total=5.0,
        segments_sent_total=7.0,
        rtt_s=0.005,
        connections=4.0,
        capacity_gbps=100.0,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no link"),
        ('{"a->b": {}}', "it has a->b"),
        ('{"prfaas->pd": {"rtt_s": "fast"}}', "'fast' is not a number"),
        ('{"prfaas->pd": {"rtt_s": true}}', "True is not a number"),
        ('{"prfaas->pd": {"tx_bytes_total": NaN}}', "nan is no measurement"),
        ('{"prfaas->pd": {"tx_bytes_total": -1}}', "-1 is no measurement"),
        ('{"prfaas->pd": {"tx_bytes_total": 1e999}}', "inf is no measurement"),
        (f'{{"prfaas->pd": {{"tx_bytes_total": {"9" * 400}}}}}', "is no measurement"),
        ('{"prfaas->pd": {"at_s": 1700000000000}}', "epoch seconds"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_lab_that_answers_nonsense_is_a_failed_reading(text: str, why: str) -> None:
    with pytest.raises(ReadError, match=why) as caught:
        links.from_lab(text, "prfaas->pd")
    assert len(str(caught.value)) <= 500


def test_an_error_always_passes_the_consoles_door() -> None:
    why = str(ReadError("zero \0 and lone surrogate \ud800" + "x" * 1000))
    sample = wire.LinkSample(id="a->b", at_s=1.7e9, measured_layer="lab", error=why)
    batch = wire.Batch(v=1, agent="a", boot=1, seq=1, sent_at_s=1.7e9, links=[sample])
    assert wire.decode(wire.encode(batch)) == batch
    assert "\0" not in why


def test_link_rates() -> None:
    was = Reading(
        10.0,
        LinkSignals(
            tx_bytes_total=0.0, segments_sent_total=100.0, segments_retransmitted_total=5.0
        ),
    )
    now = Reading(
        12.0,
        LinkSignals(
            tx_bytes_total=2.5e9, segments_sent_total=300.0, segments_retransmitted_total=7.0
        ),
    )
    signals = rates.link(was, now)
    assert signals.tx_gbps == 10.0
    assert signals.retransmit_ratio == 0.01
    assert signals.rx_gbps is None
    assert signals.tx_bytes_total == 2.5e9


LINK_CASES: list[tuple[str, Reading[LinkSignals] | None, float | None]] = [
    ("first reading", None, None),
    ("clock set back", Reading(20.0, LinkSignals(tx_bytes_total=0.0)), None),
    ("same instant", Reading(12.0, LinkSignals(tx_bytes_total=0.0)), None),
    ("unknown before", Reading(11.0, LinkSignals()), None),
    ("reset", Reading(11.0, LinkSignals(tx_bytes_total=9e12)), 0.008),
]


@pytest.mark.parametrize(
    ("was", "want"), [c[1:] for c in LINK_CASES], ids=[c[0] for c in LINK_CASES]
)
def test_a_rate_is_absent_rather_than_invented(
    was: Reading[LinkSignals] | None, want: float | None
) -> None:
    assert rates.link(was, Reading(12.0, LinkSignals(tx_bytes_total=1e6))).tx_gbps == want


def test_no_segments_sent_is_no_retransmit_ratio() -> None:
    still = LinkSignals(segments_sent_total=5.0, segments_retransmitted_total=1.0)
    assert rates.link(Reading(1.0, still), Reading(2.0, still)).retransmit_ratio is None


def _instance(prompt: float, generated: float = 0.0) -> InstanceSignals:
    return InstanceSignals(
        prompt_tokens_total=prompt, generation_tokens_total=generated, prefix_cache_hit_ratio=0.9
    )


def test_instance_rates_and_the_intervals_hit_ratio() -> None:
    was = Reading(10.0, _instance(100, 50), 5e8, cache_hits=90.0, cache_queries=100.0)
    now = Reading(14.0, _instance(500, 58), 5e8, cache_hits=110.0, cache_queries=200.0)
    signals = rates.instance(was, now)
    assert signals.prompt_tokens_per_s == 100.0
    assert signals.generation_tokens_per_s == 2.0
    assert signals.prefix_cache_hit_ratio == 0.2
    assert rates.instance(None, was).prefix_cache_hit_ratio is None
    gauge_only = Reading(10.0, _instance(100))
    assert rates.instance(gauge_only, gauge_only).prefix_cache_hit_ratio == 0.9
    idle = rates.instance(now, Reading(15.0, now.signals, 5e8, 110.0, 200.0))
    assert idle.prompt_tokens_per_s == 0.0
    assert idle.prefix_cache_hit_ratio is None


def test_a_restarted_engine_counts_from_zero() -> None:
    """S-08: the start time tells a restart even where the counter overtook its old value."""
    was = Reading(10.0, _instance(100), 1.7e9)
    now = Reading(12.0, _instance(150), 1.7e9 + 60)
    assert rates.instance(was, now).prompt_tokens_per_s == 75.0
    fell = Reading(12.0, _instance(20), 0.0)
    assert rates.instance(Reading(10.0, _instance(100)), fell).prompt_tokens_per_s == 10.0


def test_router_rate_over_all_sides_and_reasons() -> None:
    was = Reading(10.0, RouterSignals(requests_total={"local|a": 10.0}))
    now = Reading(12.0, RouterSignals(requests_total={"local|a": 13.0, "remote|b": 2.0}))
    assert rates.router(was, now).requests_per_s == 2.5
    assert rates.router(None, now).requests_per_s is None
    assert rates.router(Reading(10.0, RouterSignals()), now).requests_per_s is None
