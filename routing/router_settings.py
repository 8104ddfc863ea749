"""Are the routers of a scenario described as their makes can be? Asked where a fleet is made."""

from __future__ import annotations

from routing.adapters.registry import SettingsError, surface_of
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError


def checked(scenario: Scenario) -> Scenario:
    """The scenario itself. Raises ScenarioError naming a router's field and what stood there."""
    for cluster in scenario.clusters:
        for router in cluster.routers:
            try:
                surface_of(router.kind, router.settings)
            except SettingsError as exc:
                field = f"{router.field}.{exc.field}"
                raise ScenarioError(field, exc.value, exc.message) from None
    return scenario
