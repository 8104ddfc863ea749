"""Waiting times against queueing theory, through the very stages that fleets run on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing.twin.report import Report
from tests.twin.cases import Told, at, document, run, told

N = 1_000_000
"""At these loads a mean wait is then known to 0.8 %."""


def _told(
    rng: np.random.Generator, rate_rps: float, prompt: np.ndarray, output: np.ndarray
) -> Told:
    at_s = np.cumsum(rng.exponential(1.0 / rate_rps, N))
    return told(at_s, np.maximum(1, np.rint(prompt)), np.maximum(1, np.rint(output)))


def lasting_s(workload: Told) -> float:
    return float(workload.requests.at_s[-1]) + 10_000.0


def _prefill(report: Report) -> float:
    waited = report.stages_s["queue"]["mean"]
    assert waited is not None
    return waited


def erlang_c(servers: int, load: float) -> float:
    """P(wait) of M/M/c with `load` = lambda / mu. Erlang, 1917."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    full = load**servers / math.factorial(servers) * servers / (servers - load)
    return full / (sum(terms) + full)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("load", [0.4, 0.6])
def test_prefill_of_exponential_lengths_waits_as_m_m_c(servers: int, load: float) -> None:
    rng = np.random.default_rng([servers, round(load * 10)])
    # 1,000 tokens a second: of 5,000 a whole token does not matter.
    mean_s = 5.0
    rate_rps = servers * load / mean_s
    workload = _told(rng, rate_rps, rng.exponential(mean_s * 1000.0, N), np.ones(N))
    clusters = document()["clusters"]
    clusters[1]["instances"] = servers + 1
    report = run(
        workload,
        at(None, n_prefill=servers, n_decode=1),
        duration_s=lasting_s(workload),
        clusters=clusters,
    )
    expected_s = erlang_c(servers, servers * load) * mean_s / (servers * (1.0 - load))
    assert report.completed == N
    assert _prefill(report) == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize("load", [0.4, 0.6])
def test_prefill_of_one_length_waits_as_m_d_1(load: float) -> None:
    rng = np.random.default_rng([8, round(load * 10)])
    workload = _told(rng, load / 5.0, np.full(N, 5000.0), np.ones(N))
    report = run(workload, at(None, n_prefill=1, n_decode=3), duration_s=lasting_s(workload))
    # Pollaczek and Khinchine: W = rho s / (2 (1 - rho)) for a constant service time s.
    assert _prefill(report) == pytest.approx(load * 5.0 / (2.0 * (1.0 - load)), rel=0.03)


@pytest.mark.parametrize("load", [0.4, 0.6])
def test_decode_of_exponential_answers_waits_as_m_m_c(load: float) -> None:
    # One instance of two slots, a token each 0.1 s: M/M/2.
    rng = np.random.default_rng([9, round(load * 10)])
    mean_s = 50.0
    workload = _told(rng, 2 * load / mean_s, np.ones(N), 1.0 + rng.exponential(mean_s / 0.1, N))
    report = run(workload, at(None, n_prefill=3, n_decode=1), duration_s=lasting_s(workload))
    expected_s = erlang_c(2, 2 * load) * mean_s / (2.0 * (1.0 - load))
    assert report.stages_s["decode_wait"]["mean"] == pytest.approx(expected_s, rel=0.03)


def test_a_pooled_queue_is_what_sending_to_the_soonest_makes() -> None:
    # Two at once and a third: it goes where it is done first, whatever was given in turns.
    report = run(told([0.0, 0.0, 0.0], [9000, 1000, 1000]), at(None), duration_s=100.0)
    assert report.stages_s["queue"]["mean"] == pytest.approx(1.0 / 3.0)
