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

A PD cluster shares its remote requests out to PrfaaS clusters by weights, whatever their length.
Clusters that use the same PrfaaS cluster add up: a stage's load is the sum over clusters of demand
times work, and headroom is the factor all demands can grow by together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from routing.core.model.kvcache import KvModel, bytes_per_s, gbps
from routing.core.model.site_work import Method, Site, SiteWork, Work
from routing.core.types import Prediction, StageLoad

ALWAYS_LOCAL_T = math.inf
ALWAYS_REMOTE_T = 0.0
_UNUSED = 1e-12


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

    @cached_property
    def works(self) -> dict[str, SiteWork]:
        """The work of every site's requests, by the site's name."""
        return {site.name: SiteWork(self.kv, site, self.method) for site in self.sites}


@dataclass(frozen=True)
class Setting:
    """What one PD cluster runs, as the model sees it: t (inf = always local, 0 = always remote),
    roles, and how it shares remote requests out; None: by the remotes' own weights."""

    threshold: float
    n_prefill: float
    n_decode: float
    shares: Mapping[str, float] | None = None


class _Stage(NamedTuple):
    """`load` is capacity units in use at the present demand, `demand_rps` that of its users."""

    name: str
    load: float
    capacity: float
    demand_rps: float

    @property
    def utilisation(self) -> float:
        if self.load <= 0:
            return 0.0
        return self.load / self.capacity if self.capacity > 0 else math.inf


def predict(model: FleetModel, settings: Mapping[str, Setting]) -> Prediction:
    """What the fleet carries under `settings` (one per site). Demands must be above zero.

    Stage names: `local_prefill:PD`, `decode:PD`, `remote_prefill:PRFAAS`, `link:A->B`.
    """
    works = {name: work.at(settings[name].threshold) for name, work in model.works.items()}
    stages = [(stage.utilisation, stage) for stage in _stages(model, settings, works)]
    fullest, tightest = max(stages, key=lambda each: each[0])
    headroom = 1.0 / fullest if tightest.capacity > 0 else 0.0
    shipped = _link_bytes_per_s(model, settings, works)
    link_gbps = {link: gbps(rate) for link, rate in shipped.items()}
    demand_rps = model.demand_rps
    remote_rps = sum(s.demand_rps * works[s.name].remote_fraction for s in model.sites)
    return Prediction(
        lambda_max_rps=headroom * demand_rps,
        headroom=headroom,
        remote_fraction=remote_rps / demand_rps,
        bottleneck=tightest.name,
        stages=tuple(
            StageLoad(
                name=stage.name,
                capacity_rps=stage.capacity / stage.load * stage.demand_rps,
                utilisation_ratio=used if stage.capacity > 0 else None,
            )
            for used, stage in stages
            # A stage that next to nothing uses has no capacity worth a number.
            if used > _UNUSED * min(1.0, fullest)
        ),
        link_gbps=link_gbps,
        link_utilisation_ratio={
            link: rate / model.link_gbps[link] if model.link_gbps[link] > 0 else None
            for link, rate in link_gbps.items()
        },
    )


def fullest(model: FleetModel, settings: Mapping[str, Setting]) -> float:
    """How full the tightest stage is at the present demand: 1 / headroom."""
    works = {name: work.at(settings[name].threshold) for name, work in model.works.items()}
    return max(stage.utilisation for stage in _stages(model, settings, works))


def headroom_of(site: Site, prediction: Prediction, setting: Setting) -> float:
    """The headroom of one site: by the stages it uses, its own and shared ones."""
    shares, used = shares_of(site, setting), {f"local_prefill:{site.name}", f"decode:{site.name}"}
    for remote in site.remotes:
        if shares[remote.name] > 0.0:
            used |= {f"remote_prefill:{remote.name}", f"link:{remote.link}"}
    fullest = 0.0
    for stage in prediction.stages:
        if stage.name in used:
            full = stage.utilisation_ratio
            fullest = max(fullest, math.inf if full is None else full)
    return 1.0 / fullest if fullest > 0.0 else math.inf


def _stages(
    model: FleetModel, settings: Mapping[str, Setting], works: Mapping[str, Work]
) -> list[_Stage]:
    stages = []
    remote_s, senders_rps = dict.fromkeys(model.prefill, 0.0), dict.fromkeys(model.prefill, 0.0)
    on_link_rps = dict.fromkeys(model.link_gbps, 0.0)
    for site in model.sites:
        setting, work, demand = settings[site.name], works[site.name], site.demand_rps
        stages.append(
            _Stage(f"local_prefill:{site.name}", demand * work.local_s, setting.n_prefill, demand)
        )
        stages.append(
            _Stage(f"decode:{site.name}", demand * site.decode_s, setting.n_decode, demand)
        )
        shares = shares_of(site, setting)
        for remote in site.remotes:
            remote_s[remote.name] += demand * shares[remote.name] * work.remote_s[remote.name]
            senders_rps[remote.name] += demand
            on_link_rps[remote.link] += demand
    for name, load in remote_s.items():
        instances = model.prefill[name]
        stages.append(_Stage(f"remote_prefill:{name}", load, instances, senders_rps[name]))
    for link, rate in _link_bytes_per_s(model, settings, works).items():
        capacity = bytes_per_s(model.link_gbps[link])
        stages.append(_Stage(f"link:{link}", rate, capacity, on_link_rps[link]))
    return stages


def shares_of(site: Site, setting: Setting) -> Mapping[str, float]:
    """How a site shares its remote requests out under a setting: one share per remote of it."""
    return site.shares if setting.shares is None else setting.shares


def _link_bytes_per_s(
    model: FleetModel, settings: Mapping[str, Setting], works: Mapping[str, Work]
) -> dict[str, float]:
    rates = dict.fromkeys(model.link_gbps, 0.0)
    for site in model.sites:
        shares, kv_bytes = shares_of(site, settings[site.name]), works[site.name].kv_bytes
        for remote in site.remotes:
            rates[remote.link] += site.demand_rps * shares[remote.name] * kv_bytes
    return rates
