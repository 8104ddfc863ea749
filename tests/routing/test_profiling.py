"""`manage.py profile`: what stored engine histograms say of prefill times."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from django.core.management import CommandError, call_command

from routing.core.scenario.document import parse_scenario
from routing.profiling import rows_of
from telemetry import store, wire
from tests.routing.cases import NOW_S, feed, make_fleet, scenario

TRUE = (0.2, 5e-5, 3e-10)
# vLLM's own buckets, 1-2-5.
TOKEN_EDGES = [float(d * 10**p) for p in range(6) for d in (1, 2, 5)]
SECONDS_EDGES = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0]


class Engine:
    """A prefill instance with vLLM's two histograms."""

    def __init__(self, path: str, *, epoch_s: float = NOW_S - 90_000.0, role: str = "prefill"):
        self.path, self.epoch_s, self.role, self.version = path, epoch_s, role, "0.32.0"
        self.tokens, self.seconds, self.sums = np.zeros(19), np.zeros(14), [0.0, 0.0]

    def prefill(self, tokens: Any, *, slow: float = 1.0) -> None:
        tokens = np.asarray(tokens, dtype=np.float64)
        seconds = slow * (TRUE[0] + TRUE[1] * tokens + TRUE[2] * tokens**2)
        np.add.at(self.tokens, np.searchsorted(TOKEN_EDGES, tokens), 1)
        np.add.at(self.seconds, np.searchsorted(SECONDS_EDGES, seconds), 1)
        self.sums = [self.sums[0] + float(tokens.sum()), self.sums[1] + float(seconds.sum())]

    def sample(self, at_s: float, state: str = "ok") -> wire.InstanceSample:
        signals = wire.InstanceSignals(
            uncached_prompt_tokens=wire.Histogram(TOKEN_EDGES, self.tokens.tolist(), self.sums[0]),
            prefill_seconds=wire.Histogram(SECONDS_EDGES, self.seconds.tolist(), self.sums[1]),
        )
        return wire.InstanceSample(
            id=self.path,
            role=self.role,
            engine="vllm",
            engine_version=self.version,
            epoch_s=self.epoch_s,
            at_s=NOW_S + at_s,
            state=state,
            signals=signals if state == "ok" else wire.InstanceSignals(),
        )


def traffic(engine: Engine, *, seed: int = 1, minutes: int = 30) -> Iterator[wire.InstanceSample]:
    """A reading every 10 s up to NOW; one prefill in ten is three times as slow."""
    rng = np.random.default_rng(seed)
    for at_s in range(-60 * minutes, 1, 10):
        for tokens in np.clip(rng.lognormal(9.0, 1.3, rng.poisson(2)), 128, 131_072).round():
            engine.prefill([tokens], slow=3.0 if rng.random() < 0.1 else 1.0)
        yield engine.sample(float(at_s))


def readings(*samples: wire.InstanceSample) -> list[store.Reading]:
    return [store.from_sample(sample, received_s=sample.at_s) for sample in samples]


def test_a_row_is_what_was_gained_between_two_readings() -> None:
    engine = Engine("f1/prfaas/p0")
    first = engine.sample(0)
    engine.prefill([3000.0])
    second = engine.sample(10)
    engine.prefill([1500.0, 60_000.0])
    third = engine.sample(20)
    rows = rows_of([readings(first, second, engine.sample(15, state="failed"), third)])
    assert rows.requests.tolist() == [1, 2]
    assert rows.tokens.tolist() == [3000, 61_500]
    assert rows.tokens_squared[0] == 3000**2, "of one request the sum tells it exactly"
    assert rows.tokens_squared[1] == pytest.approx(1500**2 + 60_000**2, rel=0.15)
    assert rows.seconds[0] == pytest.approx(0.2 + 0.15 + 0.0027)
    assert rows.at_s.tolist() == [NOW_S, NOW_S + 10]
    assert rows.started_at_s.tolist() == [engine.epoch_s] * 2


def between(change: Any) -> tuple[wire.InstanceSample, wire.InstanceSample]:
    """Two readings of an engine that prefilled one prompt between them, and was changed."""
    engine = Engine("f1/pd/p0")
    first = engine.sample(0)
    engine.prefill([3000.0])
    change(engine)
    return first, engine.sample(10)


NO_ROW = [
    ("restarted", lambda e: setattr(e, "epoch_s", NOW_S + 5)),
    ("changed role", lambda e: setattr(e, "role", "decode")),
    ("counts differ", lambda e: np.add.at(e.seconds, 3, 1)),
    ("nothing", lambda e: (e.tokens.fill(0), e.seconds.fill(0))),
]


@pytest.mark.parametrize(("case", "change"), NO_ROW, ids=[case for case, _ in NO_ROW])
def test_what_does_not_belong_together_is_no_row(case, change) -> None:
    assert len(rows_of([readings(*between(change))]).requests) == 0
    assert len(rows_of([]).requests) == 0


@pytest.mark.parametrize(("epoch_s", "started_s"), [(NOW_S - 900, NOW_S + 10), (0.0, np.nan)])
def test_a_role_taken_on_begins_a_warm_up_and_an_unknown_start_is_one(epoch_s, started_s) -> None:
    engine = Engine("f1/pd/p0", epoch_s=epoch_s, role="decode")
    samples = [engine.sample(0)]
    engine.role = "prefill"
    for at_s in (10, 20):
        samples.append(engine.sample(at_s))
        engine.prefill([3000.0])
    samples.append(engine.sample(30))
    found = rows_of([readings(*samples)]).started_at_s
    assert np.array_equal(found, [started_s] * 2, equal_nan=True)


def run(*words: str) -> Any:
    out = io.StringIO()
    call_command(
        "profile", "--fleet", "f1", "--from", str(NOW_S - 1800), "--to", str(NOW_S), *words,
        stdout=out,
    )  # fmt: skip
    return out.getvalue()


@pytest.mark.django_db
def test_the_fit_stands_beside_the_scenarios_profile() -> None:
    make_fleet()
    feed(traffic(Engine("f1/prfaas/p0")))
    feed(traffic(Engine("f1/prfaas/p1"), seed=2))
    feed(traffic(Engine("f1/pd/d0", role="decode"), seed=3))
    found = json.loads(run("--json"))
    assert found["clusters"]["pd"]["refused"]["reason"] == "NoInstance"
    prfaas = found["clusters"]["prfaas"]
    assert prfaas["engines"] == ["vllm 0.32.0"]
    fit = prfaas["fit"]
    assert fit["n_requests"] > 400
    assert fit["n_wild"] > 20
    for row in prfaas["compared"]:
        true_s = TRUE[0] + TRUE[1] * row["tokens"] + TRUE[2] * row["tokens"] ** 2
        assert row["fit_s"] == pytest.approx(true_s, rel=0.06)
    # The scenario's H200 needs 0.44 s for 1,024 tokens.
    assert prfaas["compared"][0]["scenario_s"] == pytest.approx(0.44)


@pytest.mark.django_db
def test_what_it_prints_is_a_profile_of_a_scenario() -> None:
    make_fleet()
    feed(traffic(Engine("f1/prfaas/p0")))
    text = run("--cluster", "prfaas")
    assert "1,024 tokens: scenario 0.440 s, measured 0.25" in text
    document = scenario()
    document["profiles"]["h200"] |= tomllib.loads(text)["profiles"]["h200"]
    profile = parse_scenario(document).profiles["h200"]
    assert profile.facts["engine_version"] == "0.32.0"
    assert profile.facts["measured_on"] == "2026-11-29"
    assert profile.prefill.range_tokens[0] < 2000


@pytest.mark.django_db
def test_two_engine_versions_are_no_one_profile() -> None:
    make_fleet()
    engine = Engine("f1/prfaas/p0")
    samples = list(traffic(engine))
    engine.version = "0.33.0"
    feed([*samples[:-1], engine.sample(0.0)])
    refused = json.loads(run("--cluster", "prfaas", "--json"))["clusters"]["prfaas"]["refused"]
    assert refused["reason"] == "SeveralEngines"
    assert "vllm 0.32.0, vllm 0.33.0" in refused["message"]
    assert "no fit, SeveralEngines" in run("--cluster", "prfaas")


BAD = [
    (["--fleet", "nobody"], "--fleet='nobody'"),
    (["--cluster", "nowhere"], "--cluster='nowhere'"),
    (["--from", "yesterday"], "--from='yesterday'"),
    (["--from", "nan"], "--from='nan'"),
    (["--to", "2020-01-01"], "--to='2020-01-01'"),
    (["--warm-up", "-1"], "--warm-up=-1.0"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("words", "says"), BAD, ids=lambda v: " ".join(v))
def test_bad_input_is_one_line_and_exit_2(words, says) -> None:
    make_fleet()
    with pytest.raises(CommandError) as refused:
        run(*words)
    assert refused.value.returncode == 2
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
