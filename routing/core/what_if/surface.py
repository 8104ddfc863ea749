"""What one PD cluster carries over threshold and role split, and which lengths its prompts have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from routing.core.model.curves import Array
from routing.core.model.optimize import Freedom
from routing.core.model.site_work import Site
from routing.core.model.throughput import FleetModel, Setting, headroom_of, predict

_N_THRESHOLDS = 40
_MOST_ROWS = 32
_N_BUCKETS = 48


def surface(
    model: FleetModel,
    settings: Mapping[str, Setting],
    site: Site,
    free: Freedom,
    also_t: tuple[float, ...],
) -> dict[str, Any]:
    """Lambda of one cluster, requests/s: `lambda_rps[i][j]` at `n_prefill[i]` and `t_tokens[j]`.

    Other clusters keep their `settings`. `also_t` are thresholds that get columns of their own.
    Rows are every split the cluster may have, thinned out where there are very many.
    """
    low, high = free.t_low, free.t_high
    wanted = {round(t) for t in also_t if low <= t <= high and math.isfinite(t)}
    thresholds = sorted({*np.geomspace(low, high, _N_THRESHOLDS).round().astype(int), *wanted})
    chosen = settings[site.name]
    least, most = free.instances - free.decode_high, free.instances - free.decode_low
    rows = np.unique(np.linspace(least, most, min(most - least + 1, _MOST_ROWS)).round())
    splits = sorted({*rows.astype(int).tolist(), round(chosen.n_prefill)})
    columns = [_column(model, settings, site, free, float(t), splits) for t in thresholds]
    return {
        "t_tokens": [int(t) for t in thresholds],
        "n_prefill": splits,
        "lambda_rps": np.array(columns).T.tolist(),
    }


def _column(
    model: FleetModel,
    settings: Mapping[str, Setting],
    site: Site,
    free: Freedom,
    t: float,
    splits: list[int],
) -> Array:
    """What the site carries at one t by prefill instances, shape (len(splits),), requests/s.

    One prediction is enough: a split only changes how many instances share the site's own work.
    """
    chosen = settings[site.name]
    setting = Setting(t, chosen.n_prefill, chosen.n_decode, chosen.shares)
    prediction = predict(model, {**settings, site.name: setting})
    own = (f"local_prefill:{site.name}", f"decode:{site.name}")
    full = {stage.name: stage.utilisation_ratio for stage in prediction.stages}
    shared = replace(prediction, stages=tuple(s for s in prediction.stages if s.name not in own))
    n_prefill = np.array(splits, dtype=np.float64)
    local = (full.get(own[0]) or 0.0) * setting.n_prefill / n_prefill
    decode = (full.get(own[1]) or 0.0) * setting.n_decode / (free.instances - n_prefill)
    elsewhere = 1.0 / headroom_of(site, shared, setting)
    carried: Array = site.demand_rps / np.maximum(np.maximum(local, decode), elsewhere)
    return carried


def distribution(site: Site) -> dict[str, Any]:
    """The share of requests by length, over `edges` evenly apart in ln tokens, shape (n + 1,)."""
    mass, tokens, _ = site.lengths.at(math.inf)
    edges = np.geomspace(*_span(site), _N_BUCKETS + 1)
    below = np.asarray(site.lengths.cdf(edges)) / mass
    return {
        "edges_tokens": edges.tolist(),
        "share": np.diff(below).tolist(),
        "mean_tokens": tokens / mass,
    }


def _span(site: Site) -> tuple[float, float]:
    """Lengths between which all but a thousandth of the requests are, by halving in ln tokens."""

    def quantile(share: float) -> float:
        low, high = 0.0, math.log(1e12)
        for _ in range(50):
            middle = 0.5 * (low + high)
            if site.lengths.at(math.exp(middle))[0] < share:
                low = middle
            else:
                high = middle
        return math.exp(high)

    first, last = quantile(0.0005), quantile(0.9995)
    return (first, last) if last > 1.01 * first else (0.9 * first, 1.1 * first)
