"""How long requests wait for a pool, and a mean time to first token: an estimate, no simulation.

A pool of c servers with Poisson arrivals, first come first served from one queue, any service
time S (Erlang C; Allen and Cunneen's approximation, which is exact for c = 1):

    wait = C(c, a) * E[S] / (c - a) * E[S^2] / (2 E[S]^2),    a = rate * E[S]

Burst arrivals, several queues, the tail of a transfer and batches that fill up are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaincc, gammaln

from routing.core.model.curves import Array, Curve
from routing.core.model.lengths import Below
from routing.core.model.profiles import MAX_PROMPT_TOKENS
from routing.core.model.site_work import Site
from routing.core.model.throughput import ALWAYS_LOCAL_T, FleetModel, Setting, shares_of

_KNOTS = 257
"""Pieces for the square of a curve that bends: within half a percent from 1 to a million tokens."""


@dataclass(frozen=True)
class Pool:
    """Servers with work at the present demand: `work` is the mean number of them busy, `mean_s`
    and `square_s2` the first two moments of a service."""

    name: str
    servers: float
    work: float
    mean_s: float
    square_s2: float

    def wait_s(self, factor: ArrayLike) -> Array:
        """Mean wait at `factor` times the present demand, s; inf where there is too much of it."""
        busy = np.asarray(factor, dtype=np.float64) * self.work
        free = np.maximum(self.servers - busy, 0.0)
        waiting = erlang_c(self.servers, np.minimum(busy, self.servers * (1.0 - 1e-12)))
        with np.errstate(divide="ignore"):
            wait: Array = np.where(
                free > 0.0, waiting * self.square_s2 / (2.0 * self.mean_s * free), np.inf
            )
        return wait


def erlang_c(servers: float, busy: ArrayLike) -> Array:
    """The share of arrivals that wait, of `servers` with `busy` of them in use in the mean.

    Shape of `busy`, below `servers`; servers need not be whole (the gamma function between)."""
    a = np.asarray(busy, dtype=np.float64)
    with np.errstate(divide="ignore"):
        blocked = np.exp(
            servers * np.log(a) - a - gammaln(servers + 1.0) - np.log(gammaincc(servers + 1.0, a))
        )
    waiting: Array = blocked / (1.0 - a / servers * (1.0 - blocked))
    return waiting


def squared(curve: Curve) -> Curve:
    """The square of a curve: exact where it is straight, through `_KNOTS` points where it bends."""
    if curve.is_linear:
        a, b = np.asarray(curve.constant), np.asarray(curve.linear)
        parts = (a * a, 2.0 * a * b, b * b)
        return Curve(curve.breaks, *(tuple(part.tolist()) for part in parts))
    knots = np.geomspace(1.0, MAX_PROMPT_TOKENS, _KNOTS)
    values = curve.value(knots) ** 2
    slopes = np.diff(values) / np.diff(knots)
    starts = values[:-1] - slopes * knots[:-1]
    return Curve(
        tuple(knots[1:-1].tolist()),
        tuple(starts.tolist()),
        tuple(slopes.tolist()),
        (0.0,) * len(slopes),
    )


@dataclass(frozen=True)
class FirstToken:
    """The mean time to first token of one site: prefill, waits for prefill by share, for decode."""

    service_s: float
    waits: tuple[tuple[float, Pool], ...]

    def mean_s(self, factor: ArrayLike) -> Array:
        """At `factor` times the present demand of the whole fleet; inf where a pool is full."""
        total: Array = np.full(np.shape(factor), self.service_s)
        for share, pool in self.waits:
            total = total + share * pool.wait_s(factor)
        return total


def first_tokens(model: FleetModel, settings: Mapping[str, Setting]) -> dict[str, FirstToken]:
    """The time to first token of every site's requests under `settings`, transfers hidden behind
    their prefill."""
    remote_pools = {name: _remote_pool(model, settings, name) for name in model.prefill}
    return {site.name: _first_token(model, settings, site, remote_pools) for site in model.sites}


def _first_token(
    model: FleetModel,
    settings: Mapping[str, Setting],
    site: Site,
    remote_pools: Mapping[str, Pool | None],
) -> FirstToken:
    setting = settings[site.name]
    work = model.works[site.name].at(setting.threshold)
    shares = shares_of(site, setting)
    waits = []
    local = _local_pool(model, settings, site)
    if local is not None:
        waits.append((1.0 - work.remote_fraction, local))
    service_s = work.local_s
    for remote in site.remotes:
        service_s += shares[remote.name] * work.remote_s[remote.name]
        pool = remote_pools[remote.name]
        if pool is not None and shares[remote.name] > 0.0:
            waits.append((work.remote_fraction * shares[remote.name], pool))
    waits.append((1.0, _decode_pool(site, setting)))
    return FirstToken(service_s, tuple(waits))


def _local_pool(model: FleetModel, settings: Mapping[str, Setting], site: Site) -> Pool | None:
    setting = settings[site.name]
    work = model.works[site.name].at(setting.threshold)
    share = 1.0 - work.remote_fraction
    if work.local_s <= 0.0 or share <= 0.0:
        return None
    t = setting.threshold if site.remotes else ALWAYS_LOCAL_T
    below = Below(site.lengths, squared(site.profile.prefill.curve))
    square = below.at(t, site.lengths.at(t))
    return Pool(
        f"local_prefill:{site.name}",
        setting.n_prefill,
        site.demand_rps * work.local_s,
        work.local_s / share,
        square / share,
    )


def _remote_pool(model: FleetModel, settings: Mapping[str, Setting], name: str) -> Pool | None:
    """All that reaches one PrfaaS cluster, from every site that sends to it."""
    rate_rps = work = square = 0.0
    for site in model.sites:
        remote = next((r for r in site.remotes if r.name == name), None)
        if remote is None:
            continue
        setting = settings[site.name]
        sent_rps = site.demand_rps * shares_of(site, setting)[name]
        done = model.works[site.name].at(setting.threshold)
        below = Below(site.lengths, squared(remote.profile.curve))
        t = setting.threshold
        rate_rps += sent_rps * done.remote_fraction
        work += sent_rps * done.remote_s[name]
        square += sent_rps * max(0.0, below.whole - below.at(t, site.lengths.at(t)))
    if rate_rps <= 0.0 or work <= 0.0:
        return None
    return Pool(
        f"remote_prefill:{name}", model.prefill[name], work, work / rate_rps, square / rate_rps
    )


def _decode_pool(site: Site, setting: Setting) -> Pool:
    """Slots of decode instances. Only the mean output is known: services count as exponential."""
    decode = site.profile.decode
    mean_s = decode.step_s * site.output_tokens
    return Pool(
        f"decode:{site.name}",
        setting.n_decode * decode.batch,
        site.demand_rps * mean_s,
        mean_s,
        2.0 * mean_s * mean_s,
    )
