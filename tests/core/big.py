"""A fleet of many PD clusters that share a few PrfaaS clusters, as the loop sees it."""

from __future__ import annotations

from typing import Any

import numpy as np

from routing.core.model.lengths import LogNormalLengths
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.types import ClusterPlan, Observation, Plan, PrefillObservation
from tests.core.cases import demo_document, exact_histogram, link, pd


def big_fleet(n_pd: int, n_prfaas: int, seed: int = 1) -> tuple[Scenario, Observation, Plan]:
    """Every PD cluster is linked to every PrfaaS cluster; no two have the same traffic."""
    rng = np.random.default_rng(seed)
    document: dict[str, Any] = demo_document()
    remotes = [f"prfaas{m}" for m in range(n_prfaas)]
    clusters: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": "prefill",
            "profile": "h200",
            "instances": int(rng.integers(n_pd // 2 + 1, n_pd + 2)),
        }
        for name in remotes
    ]
    prefill = {c["name"]: PrefillObservation(c["instances"], age_s=1.0) for c in clusters}
    links, workloads, seen, plans, link_seen = [], [], {}, {}, {}
    for k in range(n_pd):
        name, size = f"pd{k}", int(rng.integers(4, 17))
        rate, mu = size * rng.uniform(0.25, 0.35), rng.uniform(9.4, 10.1)
        clusters.append(
            {
                "name": name,
                "kind": "pd",
                "profile": "h20",
                "instances": size,
                "control_urls": [f"http://{name}"],
            }
        )
        for remote in remotes:
            gbps = float(rng.uniform(4.0, 60.0))
            links.append({"from": remote, "to": name, "gbps": gbps, "rtt_ms": 5.0})
            link_seen[f"{remote}->{name}"] = link(capacity_gbps=gbps, tx_gbps=0.2 * gbps)
        lengths = {"kind": "lognormal", "mu": mu, "sigma": 1.0, "min": 128, "max": 131072}
        workloads.append(
            {"cluster": name, "rate_rps": rate, "output_tokens": 1024, "lengths": lengths}
        )
        n_prefill = max(1, size * 3 // 8)
        histogram = exact_histogram(1500, LogNormalLengths(mu, 1.0, 128, 131_072))
        seen[name] = pd(
            demand_rps=rate, lengths=histogram, n_prefill=n_prefill, n_decode=size - n_prefill
        )
        shares = dict.fromkeys(remotes, 1.0 / n_prfaas)
        plans[name] = ClusterPlan("threshold", 19_800, n_prefill, size - n_prefill, shares)
    del document["workload"]
    document.update(clusters=clusters, links=links, workloads=workloads)
    scenario = parse_scenario(document)
    observation = Observation(1000.0, scenario.fleet, seen, prefill, link_seen)
    return scenario, observation, Plan(scenario.fleet, 1, 1, plans)
