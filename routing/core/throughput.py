"""What a plan can carry: capacity of every stage, the bottleneck, the headroom.

One arriving request of a PD cluster brings, at threshold t and in the mean,

    p(t) = P(L > t)                     it goes remote
    local_s(t)  = E[T_pd(L); L <= t]    seconds of a local prefill instance
    remote_s(t) = E[T_prfaas(L); L > t] seconds of a remote prefill instance
    kv_bytes(t) = E[S_kv(L); L > t]     bytes on the link
    decode_s    = step_s * output / batch   seconds of a decode instance

so stages carry N_p/local_s, N_prfaas/remote_s, B/kv_bytes and N_d/decode_s whole requests a second
and lambda_max is the least of them (remote prefill and its transfer overlap layer by layer, hence a
minimum and not a sum). That is method `exact`. Method `paper` puts each class at its mean length,
p T(E[L | L > t]) for E[T(L); L > t]; with convex profiles it promises a little more.

PD clusters that share a PrfaaS cluster add up: a stage's load is the sum over clusters of demand
times work, and headroom is the factor all demands can grow by together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from routing.core.kvcache import KvModel, bytes_per_s, gbps
from routing.core.lengths import Array, Lengths, mean_seconds_below
from routing.core.profiles import PrefillProfile, Profile
from routing.core.types import Prediction, StageLoad

Method = Literal["exact", "paper"]
ALWAYS_LOCAL_T = math.inf
ALWAYS_REMOTE_T = 0.0
_UNUSED = 1e-12


@dataclass(frozen=True)
class Remote:
    """A PrfaaS cluster a PD cluster may send to; `weight` is its share of the remote requests."""

    name: str
    link: str
    profile: PrefillProfile
    weight: float


@dataclass(frozen=True)
class Site:
    """One PD cluster with its traffic; weights of `remotes` sum to 1 unless there is none."""

    name: str
    demand_rps: float
    lengths: Lengths
    output_tokens: float
    profile: Profile
    remotes: tuple[Remote, ...]

    @property
    def decode_s(self) -> float:
        """Seconds of one decode instance per request."""
        return 1.0 / self.profile.decode.requests_per_s(self.output_tokens)


@dataclass(frozen=True)
class FleetModel:
    """Sites and what they share: `prefill` instances per PrfaaS cluster, `link_gbps` per link."""

    kv: KvModel
    sites: tuple[Site, ...]
    prefill: dict[str, float]
    link_gbps: dict[str, float]
    method: Method = "exact"

    @property
    def demand_rps(self) -> float:
        return sum(site.demand_rps for site in self.sites)


@dataclass(frozen=True)
class Setting:
    """What one PD cluster runs, as the model sees it: t (inf = always local, 0 = always remote)."""

    threshold: float
    n_prefill: float
    n_decode: float


@dataclass(frozen=True)
class Work:
    """Mean work per arriving request at thresholds, arrays shaped like the thresholds.

    `remote_s` and `link_bytes` are already weighted by each remote's share.
    """

    remote_fraction: Array
    local_s: Array
    remote_s: dict[str, Array]
    link_bytes: dict[str, Array]


def work(kv: KvModel, site: Site, thresholds: ArrayLike, method: Method = "exact") -> Work:
    """Mean work one request of `site` brings at each threshold. Without a remote all is local."""
    t = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    if not site.remotes:
        t = np.full_like(t, ALWAYS_LOCAL_T)
    lengths = site.lengths
    below, tokens_below = lengths.cdf(t), lengths.tokens_below(t)
    above = np.maximum(0.0, lengths.cdf(math.inf) - below)
    tokens_above = np.maximum(0.0, lengths.tokens_below(math.inf) - tokens_below)
    kv_bytes = kv.state_bytes * above + kv.bytes_per_token * tokens_above

    def above_s(profile: PrefillProfile) -> Array:
        if method == "paper":
            return _at_mean_length(profile, above, tokens_above)
        whole = mean_seconds_below(lengths, profile, [ALWAYS_LOCAL_T])
        return np.maximum(0.0, whole - mean_seconds_below(lengths, profile, t))

    if method == "paper":
        local_s = _at_mean_length(site.profile.prefill, below, tokens_below)
    else:
        local_s = mean_seconds_below(lengths, site.profile.prefill, t)
    return Work(
        remote_fraction=above,
        local_s=local_s,
        remote_s={r.name: r.weight * above_s(r.profile) for r in site.remotes},
        link_bytes={r.link: r.weight * kv_bytes for r in site.remotes},
    )


def _at_mean_length(profile: PrefillProfile, mass: Array, tokens: Array) -> Array:
    """mass * T(tokens / mass), the paper's one-length-per-class work; 0 where a class is empty."""
    empty = mass <= 0.0
    mean_length = tokens / np.where(empty, 1.0, mass)
    seconds: Array = np.where(empty, 0.0, mass * profile.prefill_s(mean_length))
    return seconds


@dataclass(frozen=True)
class _Stage:
    name: str
    load: float
    """Capacity units in use at the present demand."""
    capacity: float
    demand_rps: float
    """Demand of the clusters that use this stage."""


def predict(model: FleetModel, settings: dict[str, Setting]) -> Prediction:
    """What the fleet carries under `settings` (one per site). Demands must be above zero.

    Stage names: `local_prefill:PD`, `decode:PD`, `remote_prefill:PRFAAS`, `link:A->B`.
    """
    works = {
        site.name: work(model.kv, site, settings[site.name].threshold, model.method)
        for site in model.sites
    }
    stages = _stages(model, settings, works)
    tightest = max(stages, key=_utilisation)
    # A stage that next to nothing uses has no capacity worth a number.
    used = [s for s in stages if _utilisation(s) > _UNUSED * min(1.0, _utilisation(tightest))]
    headroom = 1.0 / _utilisation(tightest) if tightest.capacity > 0 else 0.0
    shipped = _link_bytes_per_s(model, works)
    link_gbps = {link: gbps(rate) for link, rate in shipped.items()}
    remote_rps = sum(s.demand_rps * float(works[s.name].remote_fraction[0]) for s in model.sites)
    return Prediction(
        lambda_max_rps=headroom * model.demand_rps,
        headroom=headroom,
        remote_fraction=remote_rps / model.demand_rps,
        bottleneck=tightest.name,
        stages=tuple(
            StageLoad(
                name=stage.name,
                capacity_rps=stage.capacity / stage.load * stage.demand_rps,
                utilisation_ratio=_utilisation(stage) if stage.capacity > 0 else None,
            )
            for stage in used
        ),
        link_gbps=link_gbps,
        link_utilisation_ratio={
            link: rate / model.link_gbps[link] if model.link_gbps[link] > 0 else None
            for link, rate in link_gbps.items()
        },
    )


def _utilisation(stage: _Stage) -> float:
    if stage.load <= 0:
        return 0.0
    return stage.load / stage.capacity if stage.capacity > 0 else math.inf


def _stages(
    model: FleetModel, settings: dict[str, Setting], works: dict[str, Work]
) -> list[_Stage]:
    stages = []
    for site in model.sites:
        setting, demand = settings[site.name], site.demand_rps
        local = demand * float(works[site.name].local_s[0])
        stages.append(_Stage(f"local_prefill:{site.name}", local, setting.n_prefill, demand))
        stages.append(
            _Stage(f"decode:{site.name}", demand * site.decode_s, setting.n_decode, demand)
        )
    for name, instances in model.prefill.items():
        users = [site for site in model.sites if name in works[site.name].remote_s]
        load = sum(s.demand_rps * float(works[s.name].remote_s[name][0]) for s in users)
        demand = sum(site.demand_rps for site in users)
        stages.append(_Stage(f"remote_prefill:{name}", load, instances, demand))
    for link, rate in _link_bytes_per_s(model, works).items():
        users = [site for site in model.sites if link in works[site.name].link_bytes]
        demand = sum(site.demand_rps for site in users)
        capacity = bytes_per_s(model.link_gbps[link])
        stages.append(_Stage(f"link:{link}", rate, capacity, demand))
    return stages


def _link_bytes_per_s(model: FleetModel, works: dict[str, Work]) -> dict[str, float]:
    rates = dict.fromkeys(model.link_gbps, 0.0)
    for site in model.sites:
        for link, per_request in works[site.name].link_bytes.items():
            rates[link] += site.demand_rps * float(per_request[0])
    return rates
