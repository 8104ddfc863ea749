"""The case study as values: its scenario document, its hardware, observations of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from routing.core.model import fleetmodel
from routing.core.model.curves import Array, Curve
from routing.core.model.lengths import Below, Lengths, LogNormalLengths
from routing.core.model.site_work import Method
from routing.core.model.throughput import FleetModel
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import (
    ClusterPlan,
    LengthHistogram,
    LinkObservation,
    Observation,
    PdObservation,
    Plan,
    PrefillObservation,
)

LINK = "prfaas->pd"
WIRE_EDGES = np.array([*np.geomspace(128, 131_072, 74), 1_048_576.0])
TRUE_LENGTHS = LogNormalLengths(9.9, 1.0, 128, 131_072)

_DECODE = {"batch": 20, "step_s": 0.025}
_DEMO: dict[str, Any] = {
    "fleet": {"name": "prfaas-1t", "slo": {"tokens_per_s": 40.0, "ttft_s": 10.0}},
    "model": {"bytes_per_token": 17280, "state_bytes": 182347366},
    "profiles": {
        "h200": {
            "prefill": [
                *([1024, 0.44], [8192, 0.72], [27486, 1.63265]),
                *([45046, 2.48447], [62410, 3.51], [131072, 7.40]),
            ],
            "decode": dict(_DECODE),
        },
        "h20": {
            "prefill": [[10224, 1.829], [27486, 4.265], [62410, 9.73]],
            "decode": dict(_DECODE),
        },
    },
    "clusters": [
        {"name": "prfaas", "kind": "prefill", "profile": "h200", "instances": 4},
        {"name": "pd", "kind": "pd", "profile": "h20", "instances": 8},
    ],
    "links": [{"from": "prfaas", "to": "pd", "gbps": 100.0, "rtt_ms": 5.0}],
    "workload": {
        "rate_rps": 3.0,
        "output_tokens": 1024,
        "lengths": {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 128, "max": 131072},
    },
    "baselines": {"homogeneous": {"profile": "h20", "instances": 12}},
}


def demo_document() -> dict[str, Any]:
    return copy.deepcopy(_DEMO)


def demo_scenario(**link: Any) -> Scenario:
    """The case study; keywords change its one link."""
    document = demo_document()
    document["links"][0].update(link)
    return parse_scenario(document)


def demo_model(method: Method = "exact", **link: Any) -> FleetModel:
    return fleetmodel.of_scenario(demo_scenario(**link), method)


def exact_histogram(n: float = 1500.0, lengths: LogNormalLengths = TRUE_LENGTHS) -> LengthHistogram:
    """`n` requests spread over the wire's buckets exactly as the distribution says."""
    below = np.array([0.0, *lengths.cdf(WIRE_EDGES), 1.0])
    return LengthHistogram(tuple(WIRE_EDGES.tolist()), tuple((n * np.diff(below)).tolist()), n, n)


def pd(**changes: Any) -> PdObservation:
    facts: dict[str, Any] = {
        "demand_rps": 2.5,
        "demand_state": "value",
        "lengths": exact_histogram(),
        "n_prefill": 3,
        "n_decode": 5,
        "age_s": 1.0,
    }
    return PdObservation(**{**facts, **changes})


def link(**changes: Any) -> LinkObservation:
    facts: dict[str, Any] = {
        "capacity_gbps": 100.0,
        "tx_gbps": 9.0,
        "state": "value",
        "retransmit_ratio": 0.0,
        "rtt_s": 0.005,
        "age_s": 1.0,
    }
    return LinkObservation(**{**facts, **changes})


def seen(now_s: float = 1000.0, **changes: Any) -> Observation:
    """The healthy case study at `now_s`; `pd=`, `link=` replace its parts."""
    return Observation(
        now_s=now_s,
        fleet="prfaas-1t",
        pd={"pd": changes.get("pd", pd())},
        prefill={"prfaas": PrefillObservation(n_prefill=4, age_s=1.0)},
        links={LINK: changes.get("link", link())},
    )


def plan(threshold: int | None = 4000, **changes: Any) -> Plan:
    """3/5 with `threshold`, or always local where it is None."""
    mode = "always_local" if threshold is None else "threshold"
    facts: dict[str, Any] = {"remote": {"prfaas": 1.0}, "mode": mode}
    cluster = ClusterPlan(
        **{"threshold_tokens": threshold, "n_prefill": 3, "n_decode": 5, **facts, **changes}
    )
    return Plan("prfaas-1t", 1, 1, {"pd": cluster})


def mean_below(lengths: Lengths, curve: Curve, t: ArrayLike) -> Array:
    """E[g(L); L <= t] at many t, in the curve's unit; shape of `t`."""
    return Below(lengths, curve).many(t)
