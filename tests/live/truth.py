"""What a plan is worth by the scenario's true parameters, which the loop never sees."""

from __future__ import annotations

import copy
from typing import Any

from routing.core.model import fleetmodel
from routing.core.model.planner import plan_scenario
from routing.core.model.throughput import Setting, predict
from routing.core.scenario.document import parse_scenario


class FleetTruth:
    """Capacities of a whole fleet, thresholds and roles free. `mu` replaces that of every mix."""

    def __init__(self, document: dict[str, Any], *, mu: float | None = None) -> None:
        document = copy.deepcopy(document)
        if mu is not None:
            for workload in document.get("workloads", [document.get("workload")]):
                workload["lengths"]["mu"] = mu
        scenario = parse_scenario(document)
        self.best = plan_scenario(scenario, "exact")
        self._model = fleetmodel.of_scenario(scenario, "exact")

    def capacity_ratio(self, clusters: dict[str, Any]) -> float:
        """What a plan's clusters carry, as a share of what the best plan carries."""
        carried_rps = predict(self._model, _settings(clusters)).lambda_max_rps
        return float(carried_rps / self.best["lambda_max_rps"])

    def remote_fraction(self, cluster: str, threshold_tokens: float) -> float:
        """p(t): the share of a cluster's requests that are longer."""
        return self._model.works[cluster].at(threshold_tokens).remote_fraction


def _settings(clusters: dict[str, Any]) -> dict[str, Setting]:
    return {
        name: Setting(float(plan["threshold_tokens"]), plan["n_prefill"], plan["n_decode"])
        for name, plan in clusters.items()
    }
