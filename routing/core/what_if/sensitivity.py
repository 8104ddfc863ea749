"""One number at a time, 10 and 20 % either way: what is left of one cluster's headroom.

`kept`: t and roles stay as planned. `followed`: t, shares and free roles are the best ones again,
at the ends and where the model can say so (roles are whole instances, so not for these).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from routing.core.model.lengths import BucketLengths, Lengths, LogNormalLengths
from routing.core.model.optimize import Freedom, optimise
from routing.core.model.site_work import Site
from routing.core.model.throughput import FleetModel, Setting, headroom_of, predict

CHANGES = (-0.2, -0.1, 0.1, 0.2)
_FOLLOWED = (-0.2, 0.2)
_MOST_FOLLOWED = 8
"""Sites up to which the best plan is sought again for every number: some 10 searches."""


@dataclass(frozen=True)
class _Case:
    """`kind` of number, `place` it is of, and the fleet with it scaled by one factor."""

    kind: str
    place: str
    model: FleetModel
    setting: Setting
    is_searched: bool


def sensitivity(
    model: FleetModel,
    settings: Mapping[str, Setting],
    site: Site,
    freedom: Mapping[str, Freedom],
) -> list[dict[str, Any]]:
    """Per number its headroom of `site` after each of `CHANGES`, the one that can
    take most of it first.

    A cluster's headroom is of the stages it uses at its own demand, shared stages included."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for change in CHANGES:
        for case in _cases(model, settings, site, 1.0 + change):
            row = found.setdefault(
                (case.kind, case.place),
                {"kind": case.kind, "place": case.place, "kept": [], "followed": []},
            )
            row["kept"].append(_headroom(case.model, settings, site.name, case.setting))
            followed = None
            is_small = len(model.sites) <= _MOST_FOLLOWED
            if case.is_searched and is_small and change in _FOLLOWED:
                best = optimise(case.model, freedom).settings
                followed = _headroom(case.model, best, site.name, best[site.name])
            row["followed"].append(followed)
    rows = list(found.values())
    return sorted(rows, key=lambda row: min(row["kept"]))


def _headroom(
    model: FleetModel, settings: Mapping[str, Setting], name: str, setting: Setting
) -> float:
    prediction = predict(model, {**settings, name: setting})
    site = next(site for site in model.sites if site.name == name)
    return headroom_of(site, prediction, setting)


def _cases(
    model: FleetModel, settings: Mapping[str, Setting], site: Site, factor: float
) -> Iterator[_Case]:
    setting = settings[site.name]

    def with_site(changed: Site) -> FleetModel:
        sites = tuple(changed if s.name == site.name else s for s in model.sites)
        return replace(model, sites=sites)

    faster = replace(site, demand_rps=site.demand_rps * factor)
    yield _Case("rate", site.name, with_site(faster), setting, True)
    longer = replace(site, lengths=scaled(site.lengths, factor))
    yield _Case("mean_length", site.name, with_site(longer), setting, True)
    wordier = replace(site, output_tokens=site.output_tokens * factor)
    yield _Case("output", site.name, with_site(wordier), setting, True)
    more = replace(setting, n_prefill=setting.n_prefill * factor)
    yield _Case("prefill_instances", site.name, model, more, False)
    more = replace(setting, n_decode=setting.n_decode * factor)
    yield _Case("decode_instances", site.name, model, more, False)
    for remote in site.remotes:
        instances = {**model.prefill, remote.name: model.prefill[remote.name] * factor}
        larger = replace(model, prefill=instances)
        yield _Case("remote_instances", remote.name, larger, setting, True)
        gbps = {**model.link_gbps, remote.link: model.link_gbps[remote.link] * factor}
        yield _Case("link", remote.link, replace(model, link_gbps=gbps), setting, True)


def scaled(lengths: Lengths, factor: float) -> Lengths:
    """The distribution of `factor` times the length, its bounds included.

    Raises TypeError for a distribution that scenarios do not describe."""
    if isinstance(lengths, LogNormalLengths):
        return LogNormalLengths(
            mu=lengths.mu + math.log(factor),
            sigma=lengths.sigma,
            min_tokens=lengths.min_tokens * factor,
            max_tokens=lengths.max_tokens * factor,
        )
    if isinstance(lengths, BucketLengths):
        return BucketLengths(lengths.edges * factor, lengths.weights)
    raise TypeError(f"no way to scale {type(lengths).__name__}")
