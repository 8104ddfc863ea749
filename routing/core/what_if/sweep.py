"""How full stages get and how long a first token takes as the load grows, under one plan.

Two marks on the load: the *knee*, where load over mean time to first token is greatest (Kleinrock's
power: beyond it a request waits more than it is worth), and where that time passes the SLO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from routing.core.model.site_work import Site
from routing.core.model.throughput import FleetModel, Setting, headroom_of, predict
from routing.core.what_if.waiting import first_tokens

_N_POINTS = 80
_N_SEARCHED = 800
_UP_TO = 0.99
"""Of what is carried at most: at 1 every wait is infinite."""


def sweep(
    model: FleetModel, settings: Mapping[str, Setting], site: Site, *, slo_ttft_s: float
) -> dict[str, Any]:
    """`load_rps` of one cluster while the whole fleet grows alike, and what each stage does there.

    `knee_rps` and `slo_rps` are loads; `slo_rps` is None where even an empty fleet is slower."""
    setting = settings[site.name]
    prediction = predict(model, settings)
    most = headroom_of(site, prediction, setting)
    first = first_tokens(model, settings)[site.name]
    factor = most * np.linspace(0.0, _UP_TO, _N_POINTS)
    searched = most * np.linspace(0.0, _UP_TO, _N_SEARCHED)
    ttft_s = first.mean_s(searched)
    within = np.flatnonzero(ttft_s <= slo_ttft_s)
    pools = {pool.name: pool for _, pool in first.waits}
    used = {*pools, f"local_prefill:{site.name}", *(f"link:{r.link}" for r in site.remotes)}
    return {
        "load_rps": (site.demand_rps * factor).tolist(),
        "demand_rps": site.demand_rps,
        "most_rps": site.demand_rps * most,
        "stages": [
            {
                "name": stage.name,
                "utilisation": (factor * (stage.utilisation_ratio or 0.0)).tolist(),
                "wait_s": _finite(pools[stage.name].wait_s(factor))
                if stage.name in pools
                else None,
            }
            for stage in prediction.stages
            if stage.name in used
        ],
        "ttft_s": _finite(first.mean_s(factor)),
        "ttft_now_s": _finite(first.mean_s(np.array([1.0])))[0],
        "service_s": first.service_s,
        "knee_rps": site.demand_rps * float(searched[np.argmax(searched / ttft_s)]),
        "slo_rps": site.demand_rps * float(searched[within[-1]]) if len(within) else None,
    }


def _finite(seconds: Any) -> list[float | None]:
    return [float(s) if np.isfinite(s) else None for s in seconds]
