"""What shorter prompts are worth: one cluster's headroom by what is left of its lengths."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from routing.core.model import fleetmodel
from routing.core.model.optimize import optimise
from routing.core.model.planner import freedom_of
from routing.core.model.throughput import headroom_of
from routing.core.scenario.document import Scenario
from routing.core.what_if.sensitivity import scaled


def headroom_by_length(
    scenario: Scenario, cluster: str, factors: Iterable[float]
) -> dict[float, float | None]:
    """Per factor the headroom of the best plan when `cluster`'s uncached lengths are that many
    times what the scenario says; None where nothing limits it.

    `cluster` is a PD cluster in service; factors are above 0.
    """
    model = fleetmodel.of_scenario(scenario, "exact")
    freedom = {site.name: freedom_of(scenario, site) for site in model.sites}
    site = next(site for site in model.sites if site.name == cluster)
    found: dict[float, float | None] = {}
    for factor in set(factors):
        changed = replace(site, lengths=scaled(site.lengths, factor))
        sites = tuple(changed if each is site else each for each in model.sites)
        best = optimise(replace(model, sites=sites), freedom)
        headroom = headroom_of(changed, best.prediction, best.settings[cluster])
        found[factor] = headroom if math.isfinite(headroom) else None
    return found
