"""Which documents a gate accepts, refuses and keeps: versions only rise, acks name what runs."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.core.placement.rule import Rule
from routing.gate.plan import PlanState, offer
from tests.gate.peers import plan


def after(*documents: Any, state: PlanState | None = None) -> PlanState:
    state = state or PlanState()
    for document in documents:
        raw = document if isinstance(document, bytes) else json.dumps(document).encode()
        state = offer(state, raw, fleet="F", cluster="pd")
    return state


def test_without_a_plan_it_says_so() -> None:
    ack = PlanState().ack("F/pd/g1")
    assert (ack.state, ack.epoch, ack.version_running, ack.error) == ("no_plan", None, None, None)


ORDER = [
    # name, documents offered in turn as (epoch, version), what runs, ack state
    ("first", [(1, 5)], "1.5", "running"),
    ("newer version", [(1, 5), (1, 6)], "1.6", "running"),
    ("same again", [(1, 5), (1, 5)], "1.5", "running"),
    ("older version is refused", [(1, 5), (1, 4)], "1.5", "refused"),
    ("older epoch is refused whatever its version", [(2, 1), (1, 99)], "2.1", "refused"),
    ("newer epoch wins whatever its version", [(1, 99), (2, 1)], "2.1", "running"),
    ("a refusal ends with the next good one", [(1, 5), (1, 4), (1, 6)], "1.6", "running"),
    ("or when the running one is repeated", [(1, 5), (1, 4), (1, 5)], "1.5", "running"),
]


@pytest.mark.parametrize(("name", "numbers", "runs", "state"), ORDER, ids=[c[0] for c in ORDER])
def test_only_newer_plans_run(
    name: str, numbers: list[tuple[int, int]], runs: str, state: str
) -> None:
    got = after(*(plan(*number) for number in numbers))
    assert got.running is not None
    assert got.running.name == runs
    ack = got.ack("F/pd/g1")
    assert f"{ack.epoch}.{ack.version_running}" == runs
    assert ack.state == state
    assert (ack.error is None) == (state == "running")


def test_the_refusal_of_an_older_plan_names_both() -> None:
    error = after(plan(1, 5), plan(1, 4)).ack("F/pd/g1").error
    assert error == "refused plan 1.4: older than 1.5, which runs"


BAD = [
    # name, change to a good document, words of the error
    ("no JSON", b"{", ["document"]),
    ("not an object", b"[1]", ["document", "object"]),
    ("another fleet", plan(fleet="G"), ["fleet", "'G'", "'F'"]),
    ("negative epoch", plan(-1, 1), ["epoch", "-1"]),
    ("version no integer", plan(1, 1) | {"version": 1.5}, ["version", "int"]),
    ("cluster missing", plan(cluster="pd2"), ["clusters", "'pd2'", "'pd'"]),
    ("unknown mode", plan(mode="sometimes"), ["clusters.pd", "sometimes"]),
    ("mode null", plan(mode=None), ["clusters.pd", "mode"]),
    ("threshold null in mode threshold", plan(threshold_tokens=None), ["threshold_tokens", "not 0"]),
    ("threshold negative", plan(threshold_tokens=-1), ["threshold_tokens", "-1"]),
    ("threshold a text", plan(threshold_tokens="4000"), ["clusters.pd", "threshold_tokens", "got `str`"]),
    ("threshold with always_local", plan(mode="always_local"), ["threshold_tokens", "1000", "null"]),
    ("negative weight", plan(remote={"prfaas": -1.0}), ["remote.prfaas", "-1.0"]),
    ("infinite weight", json.dumps(plan(remote={"prfaas": 7.25})).replace("7.25", "1e999").encode(), ["out of range"]),
    ("negative limit", plan(max_remote_in_flight=-1), ["max_remote_in_flight", "-1"]),
    ("cache mode it does not know", plan(cache_mode="plenty"), ["clusters.pd", "cache_mode", "plenty"]),
    ("cache mode null", plan(cache_mode=None), ["clusters.pd", "cache_mode"]),
    ("moves of a cluster, not a link", plan(moves={"prfaas": 0}), ["clusters.pd.moves", "'prfaas'", "A->B"]),
    ("moves to nowhere", plan(moves={"prfaas->": 0}), ["clusters.pd.moves", "'prfaas->'"]),
    ("moves negative", plan(moves={"prfaas->pd": -1}), ["clusters.pd.moves.prfaas->pd", "-1"]),
    ("moves a fraction", plan(moves={"prfaas->pd": 0.5}), ["clusters.pd", "moves"]),
    ("band above t", plan(band=[1001, 2000]), ["clusters.pd.band", "[1001, 2000]", "1000"]),
    ("band below t", plan(band=[0, 999]), ["clusters.pd.band", "[0, 999]", "1000"]),
    ("band turned round", plan(band=[2000, 0]), ["clusters.pd.band", "[2000, 0]"]),
    ("band negative", plan(band=[-1, 2000]), ["clusters.pd.band", "[-1, 2000]"]),
    ("band of one", plan(band=[1000]), ["clusters.pd", "band"]),
    ("band without a threshold", plan(mode="always_local", threshold_tokens=None, band=[0, 1]), ["clusters.pd.band", "[0, 1]", "always_local"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "document", "words"), BAD, ids=[c[0] for c in BAD])
def test_a_bad_document_is_refused_by_field_and_value_and_the_last_good_one_runs(
    name: str, document: Any, words: list[str]
) -> None:
    state = after(plan(1, 5), document)
    ack = state.ack("F/pd/g1")
    assert (ack.epoch, ack.version_running, ack.state) == (1, 5, "refused")
    assert ack.error is not None
    for word in words:
        assert word in ack.error
    assert after(document).ack("F/pd/g1").state == "refused"
    assert after(document).running is None


def test_absent_threshold_is_its_own_error() -> None:
    document = plan()
    del document["clusters"]["pd"]["threshold_tokens"]
    assert "absent" in str(after(document).refusal)


def test_what_each_mode_becomes() -> None:
    def rule(**entry: Any) -> Rule:
        running = after(plan(**entry)).running
        assert running is not None
        return running.rule

    weights = {"prfaas": 1.0}
    assert rule(threshold_tokens=0) == Rule("threshold", 0, weights, None)
    assert rule(mode="always_local", threshold_tokens=None) == Rule("always_local", None, weights)
    assert rule(mode="always_remote", threshold_tokens=None, max_remote_in_flight=0) == Rule(
        "always_remote", None, weights, 0
    )
    assert rule(band=[1000, 1000]) == Rule("threshold", 1000, weights, band=(1000, 1000))
    moves = {"prfaas->pd": 0, "pd->prfaas": 8192}
    assert rule(cache_mode="abundant", moves=moves, band=[500, 2000]) == Rule(
        "threshold", 1000, weights, cache_mode="abundant", moves=moves, band=(500, 2000)
    )


def test_a_plan_from_before_there_were_moves_and_bands_is_the_plain_rule() -> None:
    document = plan()
    for name in ("band", "cache_mode", "moves"):
        document["clusters"]["pd"].pop(name, None)
    running = after(document).running
    assert running is not None
    assert running.rule == Rule("threshold", 1000, {"prfaas": 1.0})


def test_a_rule_says_all_that_it_does() -> None:
    said = str(
        Rule(
            "threshold",
            1000,
            {"prfaas": 1.0},
            max_remote_in_flight=3,
            cache_mode="abundant",
            moves={"prfaas->pd": 4096},
            band=(500, 2000),
        )
    )
    assert said == (
        "threshold 1000 tokens in the band 500..2000, remote prfaas 1, at most 3 in flight, "
        "caches abundant, moving prfaas->pd from 4096"
    )
    assert str(Rule("always_local", None, {})) == "always_local, remote nobody, caches scarce"


def test_other_clusters_and_unknown_fields_cannot_stop_this_gate() -> None:
    document = plan() | {"signed_by": "x"}
    document["clusters"]["other"] = {"mode": "from the future"}
    document["clusters"]["pd"]["transport"] = {"prfaas": {"connections": 8, "pacing_gbps": None}}
    document["clusters"]["pd"]["colour"] = 3
    assert after(document).ack("F/pd/g1").state == "running"


def test_notes_stand_in_the_ack_beside_a_refusal() -> None:
    ack = after(plan(1, 5), plan(1, 4)).ack("F/pd/g1", notes=("prfaas is down",))
    assert ack.error == "refused plan 1.4: older than 1.5, which runs; prfaas is down"
    ack = after(plan(1, 5)).ack("F/pd/g1", notes=("prfaas is down",))
    assert (ack.state, ack.error) == ("running", "prfaas is down")
