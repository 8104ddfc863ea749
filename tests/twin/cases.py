"""Small fleets for the tests of the twin, and runs of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import ClusterPlan, Params
from routing.twin.fleet import Run, simulate
from routing.twin.policies import Fixed, Policy
from routing.twin.report import Report
from routing.twin.requests import Requests
from routing.twin.settings import Settings, parse_settings

PARAMS = Params(mode="active")


@dataclass(frozen=True)
class Told:
    """A workload that is one piece, told."""

    requests: Requests
    block_tokens: int | None = None

    def pieces(self, seed: int) -> Iterator[Requests]:
        yield self.requests


def told(at_s: Any, prompt: Any, output: Any = 1, *, site: Any = 0, blocks: Any = None) -> Told:
    at = np.asarray(at_s, dtype=np.float64)

    def whole(values: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype=np.int64), at.shape).copy()

    return Told(Requests(at, whole(prompt), whole(output), whole(site), blocks), 512)


def document(**changes: Any) -> dict[str, Any]:
    """A PrfaaS cluster `far` of 2 and a PD cluster `near` of 4, a second per 1,000 tokens at both,
    KV of 1 MB per 1,000 tokens over 0.08 Gbps = 10 MB/s, two decode slots of 0.1 s a step."""
    profile = {
        "prefill": [[1000, 1.0], [100_000, 100.0]],
        "decode": {"batch": 2, "step_s": 0.1},
    }
    plain: dict[str, Any] = {
        "fleet": {"name": "small", "slo": {"tokens_per_s": 5.0, "ttft_s": 10.0}},
        "model": {"bytes_per_token": 1000.0, "state_bytes": 0.0},
        "profiles": {"gpu": profile},
        "clusters": [
            {"name": "far", "kind": "prefill", "profile": "gpu", "instances": 2},
            {"name": "near", "kind": "pd", "profile": "gpu", "instances": 4},
        ],
        "links": [{"from": "far", "to": "near", "gbps": 0.08, "rtt_ms": 0.0}],
        "workload": {
            "rate_rps": 0.5,
            "output_tokens": 1,
            "lengths": {"kind": "lognormal", "mu": 7.0, "sigma": 0.5, "min": 100, "max": 10_000},
        },
    }
    return plain | changes


def parsed(**changes: Any) -> tuple[Scenario, Settings]:
    scenario = parse_scenario(plain := document(**changes))
    return scenario, parse_settings(plain, scenario)


def at(
    threshold: int | None, n_prefill: int = 2, n_decode: int = 2, **more: Any
) -> dict[str, ClusterPlan]:
    mode = "always_local" if threshold is None else "threshold"
    return {
        "near": ClusterPlan(mode, threshold, n_prefill, n_decode, remote={"far": 1.0}, **more),
    }


def run(
    workload: Any,
    policy: Policy | dict[str, ClusterPlan],
    *,
    duration_s: float = 1000.0,
    seed: int = 1,
    params: Params = PARAMS,
    warmup_s: float = 0.0,
    traffic: Any = None,
    **changes: Any,
) -> Report:
    """`traffic` is the scenario's `workload`, where it matters what the loop is told of it."""
    if traffic is not None:
        changes["workload"] = traffic
    scenario, settings = parsed(**changes)
    asked = Fixed(policy) if isinstance(policy, dict) else policy
    return simulate(
        Run(scenario, settings, workload, asked, params, seed, duration_s, warmup_s=warmup_s)
    )
