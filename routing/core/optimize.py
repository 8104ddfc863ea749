"""The best thresholds, and with free roles the best role split, of a whole fleet.

For a wanted headroom h each PD cluster has one cheapest way to carry h times its demand: as few
decode instances as that needs, all others prefill, and t as high as these prefill instances allow.
Any lower t only sends more to what is shared (PrfaaS instances, links). So h is feasible exactly
when the shared stages carry the sum of these choices, and since every choice only gets harder with
h, the best h is found by bisection; ties fall to the highest t, that is to the least Gbps.
Thresholds come out to the token: a geometric grid first, then whole numbers around its answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from routing.core.kvcache import bytes_per_s
from routing.core.lengths import Array
from routing.core.throughput import FleetModel, Setting, Site, Work, predict, work
from routing.core.types import Prediction

_GRID_RATIO = 1.01
_BISECTIONS = 50
_SLACK = 1e-12
"""Relative: a bound met exactly must not be lost to rounding."""
_TIE = 1e-9
"""Relative: headrooms this close are equal, or rounding would choose between equal t."""


@dataclass(frozen=True)
class Freedom:
    """What may be chosen for one PD cluster of `instances`: t and the number that decode."""

    t_low: float
    t_high: float
    instances: int
    decode_low: int
    decode_high: int

    @staticmethod
    def of_threshold(t_low: float, t_high: float, *, n_prefill: int, n_decode: int) -> Freedom:
        """Roles stay; only t may move."""
        return Freedom(t_low, t_high, n_prefill + n_decode, n_decode, n_decode)


@dataclass(frozen=True)
class Optimum:
    """Settings per PD cluster and what they carry."""

    settings: dict[str, Setting]
    prediction: Prediction


def optimise(
    model: FleetModel, freedom: dict[str, Freedom], *, headroom_target: float | None = None
) -> Optimum:
    """The settings of greatest headroom, or the least remote ones that reach a target."""
    search = _Search(
        model,
        freedom,
        {s.name: _geometric(freedom[s.name].t_low, freedom[s.name].t_high) for s in model.sites},
    )
    search = _Search(model, freedom, search.finer_grids(*search.bracket(headroom_target)))
    settings = search.cheapest(search.bracket(headroom_target)[0])
    assert settings is not None, "the lower end of a bracket is feasible"
    return Optimum(settings, predict(model, settings))


class _Search:
    """Bisection on headroom over one grid of thresholds per site, shape (g,) each."""

    def __init__(
        self, model: FleetModel, freedom: dict[str, Freedom], grids: dict[str, Array]
    ) -> None:
        self.model, self.freedom, self.grids = model, freedom, grids
        self.works: dict[str, Work] = {
            site.name: work(model.kv, site, grids[site.name], model.method) for site in model.sites
        }

    def bracket(self, target: float | None) -> tuple[float, float]:
        """A feasible headroom and one that is not, a tie apart (equal if nothing limits)."""
        low = 0.0
        high = min(
            self.freedom[s.name].decode_high / (s.demand_rps * s.decode_s) for s in self.model.sites
        )
        if target is not None:
            high = min(high, target)
        if self.cheapest(high) is not None:
            return high, high
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self.cheapest(middle) is None:
                high = middle
            else:
                low = middle
        return low * (1 - _TIE), high * (1 + _TIE)

    def cheapest(self, headroom: float) -> dict[str, Setting] | None:
        """The cheapest settings that carry `headroom` times every demand, None if none do."""
        settings: dict[str, Setting] = {}
        used = dict.fromkeys(self.model.prefill, 0.0)
        shipped = dict.fromkeys(self.model.link_gbps, 0.0)
        for site in self.model.sites:
            free, rate = self.freedom[site.name], headroom * site.demand_rps
            needed = math.ceil(rate * site.decode_s * (1 - _SLACK))
            n_decode = max(free.decode_low, needed)
            at = self._highest_t(site, rate_rps=rate, n_prefill=free.instances - n_decode)
            if n_decode > free.decode_high or at is None:
                return None
            t = float(self.grids[site.name][at])
            settings[site.name] = Setting(t, free.instances - n_decode, n_decode)
            for remote, seconds in self.works[site.name].remote_s.items():
                used[remote] += rate * float(seconds[at])
            for link, size in self.works[site.name].link_bytes.items():
                shipped[link] += rate * float(size[at])
        fits = all(used[name] <= n * (1 + _SLACK) for name, n in self.model.prefill.items())
        return settings if fits and self._carried(shipped) else None

    def _carried(self, shipped: dict[str, float]) -> bool:
        limits = self.model.link_gbps
        return all(rate <= bytes_per_s(limits[k]) * (1 + _SLACK) for k, rate in shipped.items())

    def _highest_t(self, site: Site, *, rate_rps: float, n_prefill: float) -> int | None:
        """Index of the highest t whose local prefill `n_prefill` instances carry, if any."""
        load = self.works[site.name].local_s * rate_rps
        n_fit = int(np.searchsorted(load, n_prefill * (1 + _SLACK), side="right"))
        return n_fit - 1 if n_fit > 0 else None

    def finer_grids(self, low: float, high: float) -> dict[str, Array]:
        """Per site every whole threshold next to where the best headroom of this grid is found.

        At `low` no t above the next grid point fits locally, at `high` none above `bottom` does;
        all between carry the same (a gap in the lengths), so a better t lies at one of the ends.
        """
        settings = self.cheapest(low)
        assert settings is not None, "the lower end of a bracket is feasible"
        finer = {}
        for site in self.model.sites:
            grid, setting = self.grids[site.name], settings[site.name]
            top = int(np.searchsorted(grid, setting.threshold))
            bottom = self._highest_t(
                site, rate_rps=high * site.demand_rps, n_prefill=setting.n_prefill
            )
            ends = [_whole_around(grid, top), _whole_around(grid, bottom or 0)]
            finer[site.name] = np.unique(np.concatenate(ends))
        return finer


def _geometric(low: float, high: float) -> Array:
    """Whole thresholds from `low` to `high`, each about `_GRID_RATIO` above the one before."""
    if not math.isfinite(high) or high <= low:
        return np.array([low])
    first = max(low, 1.0)
    steps = max(1, math.ceil(math.log(max(high / first, 1.0)) / math.log(_GRID_RATIO)))
    return np.unique([low, *np.round(np.geomspace(first, max(high, first), steps + 1)), high])


def _whole_around(grid: Array, at: int) -> Array:
    """Every whole number between the neighbours of a grid point."""
    low, high = grid[max(0, at - 1)], grid[min(at + 1, len(grid) - 1)]
    return np.arange(low, high + 1.0) if math.isfinite(high) else np.array([low])
