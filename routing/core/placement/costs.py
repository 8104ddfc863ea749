"""What moving and computing a request cost in a scenario, for `explain.explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from routing.core.model.kvcache import bytes_per_s
from routing.core.model.profiles import PrefillProfile
from routing.core.placement.explain import Costs, Path
from routing.core.scenario.document import Scenario


def costs_of(scenario: Scenario, *, capacity_gbps: Mapping[str, float], free_ratio: float) -> Costs:
    """Costs by the scenario's model, profiles and links.

    `capacity_gbps` holds what links were measured to carry, the scenario's own figure stands for
    the others; a transfer is given `free_ratio` of it. Raises ValueError for a ratio not in 0..1.
    """
    if not 0.0 <= free_ratio <= 1.0:
        raise ValueError(f"free_ratio = {free_ratio}: must be in 0..1")
    kv = scenario.model
    return Costs(
        kv_bytes=lambda tokens: float(kv.kv_bytes(tokens)),
        prefill_s={
            cluster.name: _seconds(scenario.profiles[cluster.profile].prefill)
            for cluster in scenario.clusters
        },
        paths={
            link.id: Path(
                bytes_per_s=bytes_per_s(capacity_gbps.get(link.id, link.usable_gbps)) * free_ratio,
                rtt_s=link.rtt_s or 0.0,
            )
            for link in scenario.links
        },
    )


def _seconds(profile: PrefillProfile) -> Callable[[int, int], float]:
    """Nothing to compute takes no time, whatever the profile's line says at zero."""

    def prefill_s(tokens: int, cached_tokens: int) -> float:
        return float(profile.prefill_s(tokens, cached_tokens)) if tokens > 0 else 0.0

    return prefill_s
