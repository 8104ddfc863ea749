"""The fleet's headroom in every draw of its lengths (uncertainty.py), quickly for many clusters.

A draw is a share per bucket, so work below t is a sum over whole buckets and a part of one:

    W_d(t) = sum_{b < i} q_db w_b + q_di part_i(t),     t in bucket i

with w_b the mean work of a request in bucket b. w and part depend on the buckets' edges and on the
curve alone, which clusters share; the sums are kept per site and curve.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from routing.core.model.curves import Array, Curve
from routing.core.model.kvcache import bytes_per_s
from routing.core.model.lengths import Below, BucketLengths
from routing.core.model.site_work import Site
from routing.core.model.throughput import FleetModel, Setting, shares_of
from routing.core.model.uncertainty import Outlook

_LEAST_HEADROOM = 1e-9


class _Buckets:
    """Buckets of given edges with a weight of 1 each, and the t that is looked at."""

    def __init__(self, edges: Array) -> None:
        self.edges = edges
        self.lengths = BucketLengths(edges, np.ones(len(edges) - 1))

    def at(self, t: Array) -> _At:
        t = np.clip(t, self.edges[0], self.edges[-1])
        bucket = np.clip(np.searchsorted(self.edges, t) - 1, 0, len(self.edges) - 2)
        each = self.lengths
        return _At(t, bucket, each.cdf(t), each.tokens_below(t), each.squares_below(t))


class _At(NamedTuple):
    """Thresholds (g,), the bucket each lies in, and F, M and Q of one each up to there."""

    t: Array
    bucket: NDArray[np.intp]
    mass: Array
    tokens: Array
    squares: Array


class _Curve:
    """One curve over buckets: mean work of a request in each, `whole` (n,), and up to t."""

    def __init__(self, buckets: _Buckets, curve: Curve) -> None:
        self._below = Below(buckets.lengths, curve)
        self._at_edges = self._below.many(buckets.edges)
        self.whole: Array = np.diff(self._at_edges)

    def part(self, at: _At) -> Array:
        """Work in the bucket of each t up to it, (g,)."""
        below = self._below.of_moments(at.t, at.mass, at.tokens, at.squares)
        part: Array = below - self._at_edges[at.bucket]
        return part


class _Work:
    """One curve's mean work below t in every draw of one site."""

    def __init__(self, curve: _Curve, shares: Array) -> None:
        self._curve, self._shares = curve, shares  # shares (n_draws, n)
        self._sums: Array = np.zeros((len(shares), shares.shape[1] + 1))
        np.cumsum(shares * curve.whole, axis=1, out=self._sums[:, 1:])

    def below(self, at: _At) -> Array:
        """E[g(L); L <= t], shape (n_draws, g)."""
        parts = self._shares[:, at.bucket] * self._curve.part(at)
        below: Array = self._sums[:, at.bucket] + parts
        return below

    def above(self, at: _At) -> Array:
        """E[g(L); L > t], shape (n_draws, g)."""
        beyond: Array = np.maximum(0.0, self._sums[:, -1:] - self.below(at))
        return beyond


class _SiteDraws:
    def __init__(
        self, site: Site, buckets: _Buckets, curves: Mapping[int, _Curve], kv: Curve, draws: Array
    ) -> None:
        self.site, self._buckets = site, buckets
        self._local = _Work(curves[id(site.profile.prefill.curve)], draws)
        self._kv = _Work(curves[id(kv)], draws) if site.remotes else None
        profiles = {id(remote.profile.curve) for remote in site.remotes}
        self._remote = {key: _Work(curves[key], draws) for key in profiles}

    def load(self, model: FleetModel, setting: Setting, t: Array) -> tuple[Array, dict[str, Array]]:
        """At each t (g,): how full the site's own stages are, and the seconds it asks of each
        PrfaaS cluster; shapes (n_draws, g)."""
        site, demand = self.site, self.site.demand_rps
        at = self._buckets.at(t if site.remotes else np.full_like(t, np.inf))
        local = demand * self._local.below(at) / max(setting.n_prefill, _LEAST_HEADROOM)
        own = np.maximum(local, demand * site.decode_s / max(setting.n_decode, _LEAST_HEADROOM))
        seconds: dict[str, Array] = {}
        if self._kv is not None:
            shares, sent = shares_of(site, setting), demand * self._kv.above(at)
            asked = {key: demand * work.above(at) for key, work in self._remote.items()}
            for remote in site.remotes:
                share, gbps = shares[remote.name], model.link_gbps[remote.link]
                capacity = max(bytes_per_s(gbps), _LEAST_HEADROOM)
                own = np.maximum(own, share / capacity * sent)
                seconds[remote.name] = share * asked[id(remote.profile.curve)]
        return own, seconds


class FleetDraws:
    """Headroom of a fleet in every draw of its sites' lengths."""

    def __init__(self, model: FleetModel, outlooks: Mapping[str, Outlook]) -> None:
        self._model = model
        kv = model.kv.curve
        buckets: dict[bytes, _Buckets] = {}
        curves: dict[tuple[bytes, int], _Curve] = {}
        self._sites = {}
        for site in model.sites:
            outlook = outlooks[site.name]
            edges = outlook.edges.tobytes()
            shared = buckets.setdefault(edges, _Buckets(outlook.edges))
            profiles = (site.profile.prefill, *(remote.profile for remote in site.remotes))
            used = {id(curve): curve for curve in (kv, *(each.curve for each in profiles))}
            for key, curve in used.items():
                if (edges, key) not in curves:
                    curves[edges, key] = _Curve(shared, curve)
            its_own = {key: curves[edges, key] for key in used}
            self._sites[site.name] = _SiteDraws(site, shared, its_own, kv, outlook.draws)

    def headroom(self, settings: Mapping[str, Setting]) -> Array:
        """Headroom under `settings`, shape (n_draws,)."""
        return self.at(settings).headroom

    def at(self, settings: Mapping[str, Setting]) -> Loads:
        """The loads of every site under `settings`."""
        return Loads(self._model, self._sites, settings)


class Loads:
    """How full everything is in every draw, under settings of which one at a time may change."""

    def __init__(
        self,
        model: FleetModel,
        sites: Mapping[str, _SiteDraws],
        settings: Mapping[str, Setting],
    ) -> None:
        self._model, self._sites = model, sites
        self._row = {name: k for k, name in enumerate(sites)}
        each = [
            site.load(model, settings[name], np.array([settings[name].threshold]))
            for name, site in sites.items()
        ]
        self._own = np.concatenate([own for own, _ in each], axis=1)  # (n_draws, K)
        self._asked = [{name: s[:, 0] for name, s in seconds.items()} for _, seconds in each]
        self._total = {name: np.zeros(len(self._own)) for name in model.prefill}
        for asked in self._asked:
            for name, seconds in asked.items():
                self._total[name] += seconds

    def copy(self) -> Loads:
        """The same, to be changed without changing this."""
        other = copy.copy(self)
        other._own, other._asked = self._own.copy(), [dict(each) for each in self._asked]
        other._total = {name: total.copy() for name, total in self._total.items()}
        return other

    @property
    def headroom(self) -> Array:
        """Shape (n_draws,)."""
        fullest = self._own.max(axis=1)
        for name, seconds in self._total.items():
            fullest = np.maximum(fullest, self._fullness(name, seconds))
        return _headroom(fullest)

    def along(self, name: str, setting: Setting, grid: Array) -> Along:
        """What it is while site `name` runs `setting` at each t of `grid` (g,)."""
        k = self._row[name]
        own, seconds = self._sites[name].load(self._model, setting, grid)
        others = np.delete(self._own, k, axis=1).max(axis=1, initial=0.0)
        its, asked = own, self._asked[k]
        for remote, total in self._total.items():
            if remote in seconds:
                rest = np.maximum(total - asked[remote], 0.0)
                full = self._fullness(remote, rest[:, None] + seconds[remote])
                its = np.maximum(its, full)
            else:
                others = np.maximum(others, self._fullness(remote, total))
        fullest = np.maximum(its, others[:, None])
        return Along(_headroom(fullest), _headroom(its), own, seconds)

    def headroom_of(self, name: str) -> Array:
        """Headroom of one site, by its own stages and the shared ones it uses, (n_draws,)."""
        k = self._row[name]
        fullest = self._own[:, k]
        for remote in self._asked[k]:
            fullest = np.maximum(fullest, self._fullness(remote, self._total[remote]))
        return _headroom(fullest)

    def take(self, name: str, along: Along, i: int) -> None:
        """Site `name` runs the `i`th t of `along` from now on."""
        k = self._row[name]
        self._own[:, k] = along.own[:, i]
        for remote, seconds in along.seconds.items():
            self._total[remote] += seconds[:, i] - self._asked[k][remote]
            self._asked[k][remote] = seconds[:, i]

    def _fullness(self, remote: str, seconds: Array) -> Array:
        full: Array = seconds / max(self._model.prefill[remote], _LEAST_HEADROOM)
        return full


class Along(NamedTuple):
    """Along a grid of t of one site: the headroom of the fleet and of the site, how full its own
    stages are, and the seconds it asks of each PrfaaS cluster; shapes (n_draws, g)."""

    headroom: Array
    its_headroom: Array
    own: Array
    seconds: dict[str, Array]


def _headroom(fullest: Array) -> Array:
    headroom: Array = 1.0 / np.clip(fullest, _LEAST_HEADROOM, 1.0 / _LEAST_HEADROOM)
    return headroom
