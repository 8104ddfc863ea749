"""How long an instance takes to finish what is on it, once nothing new comes. An estimate.

decode      the slots run side by side, each request output * step_s long; of n whose ages are
            spread evenly the last ends at n / (n + 1) of that, and what waits takes its turn
prefill     one prompt after the other: n * seconds of a mean prompt
"""

from __future__ import annotations

import math

from routing.core.scenario.document import Scenario


def drain_s(scenario: Scenario, cluster: str, role: str, requests: float) -> float:
    """Seconds from the cordon to the last of so many requests; 0 where there is none."""
    found, workload = scenario.cluster(cluster), scenario.workload(cluster)
    if found is None or workload is None or requests <= 0:
        return 0.0
    profile = scenario.profiles[found.profile]
    if role == "prefill":
        tokens = float(workload.lengths.tokens_below([math.inf])[0])
        return float(requests * float(profile.prefill.prefill_s(tokens)))
    slots = max(profile.decode.batch, 1.0)
    one_s = workload.output_tokens * profile.decode.step_s
    running = min(requests, slots)
    turns = math.ceil(max(requests - slots, 0.0) / slots)
    return float(one_s * (running / (running + 1.0) + turns))
