"""How PD clusters share their remote requests out to several PrfaaS clusters.

With t, roles and rates given, a share w_km of site k on PrfaaS cluster m costs m's instances
`seconds[k, m] * w_km` a second and fills the link between them by `link_use[k, m] * w_km` of what
it carries. Two questions, both over

    sum_m w_km = 1,    0 <= w_km,    link_use[k, m] w_km <= 1

* `least_load`: how evenly can it be done, the least z with sum_k seconds[k, m] w_km <= z N_m for
  all m; z <= 1 means that it can be carried. A linear program (HiGHS through scipy).
* `nearest_shares`: of all shares that carry it, the ones nearest to wanted ones,

    min sum_k rho_k sum_m (w_km - a_km)^2 / 2,     rho_k the seconds k asks for where it asks most

  Vertices of the linear program jump from one extreme to another when a number moves a little;
  these shares are unique, so they move only as far as they have to and treat equals as equals. By
  its dual, a concave function of one price per PrfaaS cluster: given prices every site's shares
  are the projection of a - price * seconds / rho onto what its links allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog, minimize

from routing.core.model.curves import Array

_NEWTON_STEPS = 40
_RIDGE = 1e-9
_CLIMB_STEPS = 300
_PARTS = tuple(0.5**i for i in range(12))
_OVERLOAD = 1e-6
"""Relative: what nearest shares may ask beyond what is there, or the tightest case had none."""


class LeastLoad(NamedTuple):
    """`load` z, `shares` (K, M) that reach it, and the `prices` (M,) that prove it least."""

    load: float
    shares: Array
    prices: Array


@dataclass(frozen=True)
class Sharing:
    """K sites and M PrfaaS clusters of `instances` (M,).

    `seconds` and `link_use` have shape (K, M); inf in `link_use`: the site has no such link. Every
    site has at least one link.
    """

    seconds: Array
    link_use: Array
    instances: Array

    @property
    def most(self) -> Array:
        """The largest share each link carries, at most 1, shape (K, M)."""
        with np.errstate(divide="ignore"):
            return np.minimum(1.0, 1.0 / self.link_use)

    def load(self, shares: Array) -> float:
        """How full the fullest PrfaaS cluster or link is with these shares (K, M)."""
        with np.errstate(invalid="ignore"):
            links = np.where(shares > 0.0, shares * self.link_use, 0.0)
        seconds = (self.seconds * shares).sum(axis=0)
        loads = [fullness(float(s), float(n)) for s, n in zip(seconds, self.instances, strict=True)]
        return max(float(links.max()), *loads)

    def least_load_by(self, prices: Array) -> float:
        """A load that no shares undercut, by any prices (M,) with sum(prices * instances) = 1.

        Each site then asks for as much as the dearest: its cheapest shares at these prices. The
        prices of `least_load` give the least load itself.
        """
        cost = self.seconds * prices
        order = np.argsort(cost, axis=1)
        most = np.take_along_axis(self.most, order, axis=1)
        before = np.cumsum(most, axis=1) - most
        taken = np.clip(1.0 - before, 0.0, most)
        return float((taken * np.take_along_axis(cost, order, axis=1)).sum())

    def least_load(self) -> LeastLoad:
        """The least z, and shares that reach it. Above 1: nothing carries this.

        Where links alone do not carry it, z says by how much they fall short.
        """
        unpriced = np.zeros(len(self.instances))
        short = self._links_short()
        if short > 1.0:
            return LeastLoad(short, _capped(self.most), unpriced)
        n_sites, n_remotes = self.seconds.shape
        n_shares = n_sites * n_remotes
        site, remote = np.divmod(np.arange(n_shares), n_remotes)
        load, whole = np.zeros((n_remotes, n_shares + 1)), np.zeros((n_sites, n_shares + 1))
        load[remote, np.arange(n_shares)] = self.seconds.ravel()
        load[:, -1] = -self.instances
        whole[site, np.arange(n_shares)] = 1.0
        found = linprog(
            np.append(np.zeros(n_shares), 1.0),
            A_ub=load,
            b_ub=np.zeros(n_remotes),
            A_eq=whole,
            b_eq=np.ones(n_sites),
            bounds=[*((0.0, most) for most in self.most.ravel().tolist()), (0.0, None)],
            method="highs-ds",
        )
        if found.x is None:
            return LeastLoad(math.inf, _capped(self.most), unpriced)
        return LeastLoad(
            float(found.x[-1]),
            np.asarray(found.x[:-1]).reshape(n_sites, n_remotes),
            -np.asarray(found.ineqlin.marginals),
        )

    def _links_short(self) -> float:
        """The least factor all links would have to grow by, 1 or less where they carry it."""
        worst = 0.0
        for row in self.link_use:
            # sum_m min(1, z / u_m) = 1 in z: the links in the order in which they reach a share 1.
            uses = np.sort(row[np.isfinite(row)])
            if uses[0] <= 0.0:
                continue
            worst = max(worst, min(1.0 / float((1.0 / uses).sum()), float(uses[0])))
        return worst

    def nearest_shares(self, wanted: Array) -> Array:
        """The shares nearest to `wanted` (K, M) that all can carry, those of `least_load` if no
        prices are found that give them.

        `wanted` rows sum to 1. Exceeds instances by `_OVERLOAD` at most.
        """
        most, rho = self.most, np.maximum(self.seconds.max(axis=1, keepdims=True), 1e-300)
        # Prices are in units that make a price of 1 move a site's shares by about 1.
        pull = self.seconds / (rho * self.instances) * self.instances.mean()
        scale = float(self.instances.mean())

        def excess(shares: Array) -> Array:
            """How far each PrfaaS cluster is over what it has, half the allowance beyond."""
            load: Array = (self.seconds * shares).sum(axis=0)
            return load / self.instances - 1.0 - 0.5 * _OVERLOAD

        def at(prices: Array) -> tuple[Array, float]:
            """Shares at prices, and the dual there, which the right prices maximise."""
            shares = _projected(wanted - prices * pull, most)
            away = 0.5 * float((rho * (shares - wanted) ** 2).sum())
            return shares, away + scale * float(prices @ excess(shares))

        prices = np.zeros(len(self.instances))
        found, dual = at(prices)
        for _ in range(_NEWTON_STEPS):
            if self._carried(found):
                return found
            step = self._newton(prices, found, excess(found), pull, most) - prices
            # A whole step may cross a corner of the dual: as much of it as does not lower it.
            for part in _PARTS:
                tried = prices + part * step
                shares, value = at(tried)
                if value >= dual:
                    prices, found, dual = tried, shares, value
                    break
            else:
                break
        # Flat where no share lies between its bounds: slower, but it needs no curvature.

        def downhill(prices: Array) -> tuple[float, Array]:
            shares, value = at(prices)
            return -value, -scale * excess(shares)

        climbed = minimize(
            downhill,
            prices,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * len(prices),
            options={"ftol": 0.0, "gtol": 1e-9, "maxiter": _CLIMB_STEPS},
        )
        found = at(np.asarray(climbed.x))[0]
        return found if self._carried(found) else self.least_load().shares

    def _newton(
        self, prices: Array, shares: Array, excess: Array, pull: Array, most: Array
    ) -> Array:
        """Prices (M,) at which the loads would meet the instances, were the shares that are
        between their bounds now to stay so: the dual is quadratic as long as they do."""
        free = (shares > 0.0) & (shares < most)
        n_free = np.maximum(free.sum(axis=1), 1)
        weight = self.seconds / self.instances * free
        slope = (weight[:, :, None] * (pull * free)[:, None, :] / n_free[:, None, None]).sum(axis=0)
        slope -= np.diag((weight * pull).sum(axis=0))
        dear = (prices > 0.0) | (excess > 0.0)
        step = np.zeros(len(prices))
        held = slope[np.ix_(dear, dear)] - _RIDGE * np.eye(int(dear.sum()))
        step[dear] = np.linalg.solve(held, -excess[dear])
        raised: Array = np.maximum(0.0, prices + step)
        return raised

    def _carried(self, shares: Array) -> bool:
        return bool(np.all((self.seconds * shares).sum(axis=0) <= self.instances * (1 + _OVERLOAD)))


def _projected(points: Array, most: Array) -> Array:
    """The nearest rows with sum 1 and 0 <= w <= `most`; shapes (K, M)."""
    # w = clip(points - nu, 0, most) for the nu per row that makes the sum 1. The sum falls in
    # straight pieces between the nu where a share leaves 0 or reaches its most: (K, 2 M) of them.
    marks = np.sort(np.concatenate([points, points - most], axis=1), axis=1)
    sums = np.clip(points[:, None, :] - marks[:, :, None], 0.0, most[:, None, :]).sum(axis=2)
    rows = np.arange(len(points))
    after = np.clip((sums > 1.0).sum(axis=1), 1, marks.shape[1] - 1)  # sums only fall along a row
    left, right = marks[rows, after - 1], marks[rows, after]
    high, low = sums[rows, after - 1], sums[rows, after]
    part = np.where(high > low, (high - 1.0) / np.where(high > low, high - low, 1.0), 0.0)
    nu = left + np.clip(part, 0.0, 1.0) * (right - left)
    return _capped(np.clip(points - nu[:, None], 0.0, most))


def fullness(load: float, capacity: float) -> float:
    """How much of a capacity a load takes; inf where there is a load and no capacity."""
    if load <= 0.0:
        return 0.0
    return load / capacity if capacity > 0.0 else math.inf


def _capped(shares: Array) -> Array:
    """Rows scaled to sum 1."""
    total = shares.sum(axis=1, keepdims=True)
    scaled: Array = np.where(total > 0.0, shares / np.maximum(total, 1e-300), 1.0 / shares.shape[1])
    return scaled
