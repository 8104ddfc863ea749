"""The best thresholds, shares, and with free roles the best role split, of a whole fleet.

For a wanted headroom h each PD cluster has one cheapest way to carry h times its demand: as few
decode instances as that needs, all others prefill, and t as high as these prefill instances allow.
Any lower t only sends more to what is shared (PrfaaS instances, links), whichever PrfaaS cluster it
goes to. So h is feasible exactly when the shared stages carry the sum of these choices, shared out
in the best way (`sharing.least_load`), and since every choice only gets harder with h, the best h
is where that stops: first between two steps of the whole numbers of decode instances, by halving;
then between these, where everything is continuous, by secants. Ties fall to the highest t, that is
to the least Gbps; shares end as near to the remotes' own weights as carries it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from routing.core.model.curves import Array
from routing.core.model.kvcache import bytes_per_s
from routing.core.model.sharing import LeastLoad, Sharing, fullness
from routing.core.model.site_work import Site, SiteWork, Work
from routing.core.model.throughput import FleetModel, Setting, fullest, predict
from routing.core.types import Prediction

_SLACK = 1e-12
"""Relative: a bound met exactly must not be lost to rounding."""
_MOST_ROUNDED = 16
"""Sites up to which both sides of a whole token are tried. Some 1e-5 is at stake, more only where
all prompts are nearly of one length."""
_MOST_ROUNDS = 4
_NUDGE = _FULL = 1e-3
"""Relative: how much more is tried to see who is stuck, and how full counts as full."""
_LEAST = 1e-9
"""Capacity (of instances, bytes/s) and rate instead of none, so that what carries nothing has a
finite fullness like everything else."""
_LEAST_RPS = 1e-300
_RATE_CLOSE = 1e-6
_MOST_STEPS = 60
_TIE_ROLES = 1e-6
"""Relative: so much headroom no instance is moved for."""
_TIE = 1e-12
"""Relative: headrooms this close are equal, or rounding would choose between equal t."""


@dataclass(frozen=True)
class Freedom:
    """What may be chosen for one PD cluster of `instances`: t and the number that decode.

    `decode_now` decode at present; they stay where that carries as much.
    """

    t_low: float
    t_high: float
    instances: int
    decode_low: int
    decode_high: int
    decode_now: int | None = None

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
    model: FleetModel,
    freedom: Mapping[str, Freedom],
    *,
    headroom_target: float | None = None,
    enough: float = math.inf,
) -> Optimum:
    """The settings of greatest headroom, or the least remote ones that reach a target.

    Sites that do not share what limits get up to `enough` headroom of their own, whatever the
    fleet's is: a tie is no reason to overload one site because another one is.
    """
    search = _Search(model, freedom)
    target_rps = None if headroom_target is None else headroom_target * model.demand_rps
    rate = search.best_rate(target_rps)
    if len(model.sites) > 1:
        rate = search.lifted(rate, model.demand_rps * (headroom_target or enough))
    choices = search.with_fewer_moves(search.choices(rate))
    shares = search.shares(choices)
    # Plans hold whole tokens; which side of the exact t costs less depends on whether a local or a
    # shared stage is the tightest.
    settings = _settled(freedom, choices, shares, math.floor)
    if len(choices) <= _MOST_ROUNDED:
        above = _settled(freedom, choices, shares, math.ceil)
        if fullest(model, above) <= fullest(model, settings) * (1 + _TIE):
            settings = above
    return Optimum(settings, predict(model, settings))


def _settled(
    freedom: Mapping[str, Freedom],
    choices: Mapping[str, _Choice],
    shares: Mapping[str, dict[str, float]],
    rounding: Callable[[float], int],
) -> dict[str, Setting]:
    settings = {}
    for name, choice in choices.items():
        t, free = choice.t, freedom[name]
        if math.isfinite(t):
            t = min(max(float(rounding(t)), free.t_low), free.t_high)
        n_prefill = free.instances - choice.n_decode
        settings[name] = Setting(t, n_prefill, choice.n_decode, shares[name])
    return settings


class _Choice(NamedTuple):
    """The cheapest way of one site at one rate: t not yet whole, and the work it leaves."""

    t: float
    n_decode: int
    rate_rps: float
    work: Work


class _Search:
    """The search over the rate of all requests of the fleet, of which each site has its share."""

    def __init__(self, model: FleetModel, freedom: Mapping[str, Freedom]) -> None:
        self._model = model
        whole = model.demand_rps
        self._sites = [
            _SiteSearch(site, freedom[site.name], model.works[site.name], site.demand_rps / whole)
            for site in model.sites
        ]
        self._remotes = list(model.prefill)
        self._t_high = {name: free.t_high for name, free in freedom.items()}
        self._link_bytes_per_s = {
            link: max(bytes_per_s(gbps), _LEAST) for link, gbps in model.link_gbps.items()
        }
        self._prefill = {name: max(n, _LEAST) for name, n in model.prefill.items()}
        self._instances = np.array(list(self._prefill.values()))
        self._least: LeastLoad | None = None
        self._fixed: dict[str, _Choice] = {}
        self._has_choice = any(len(site.remotes) > 1 for site in model.sites)

    def best_rate(self, target_rps: float | None) -> float:
        """The greatest rate that is carried, requests/s, up to `target_rps`."""
        free = [site for site in self._sites if site.name not in self._fixed]
        high = min(site.most_rps for site in free)
        if target_rps is not None:
            high = min(high, target_rps)
        if high <= 0.0:
            return 0.0
        overfull = self._tightness(high)
        if overfull <= 1.0:
            return high
        steps = sorted({rate for site in free for rate in site.steps_rps if rate < high})
        first, last = 0, len(steps)  # steps[:first] are carried, steps[last:] are not
        low, below, by_guess = 0.0, -math.inf, True
        while first < last:
            middle = (first + last) // 2
            if by_guess:  # every other time, or a bad guess could take as many times as steps
                near = bisect_right(steps, _guess(low, below, high, math.log(overfull)))
                middle = min(max(near, first), last - 1)
            by_guess = not by_guess
            found = self._tightness(steps[middle])
            if found <= 1.0:
                first, low, below = middle + 1, steps[middle], math.log(max(found, 1e-300))
            else:
                last, high, overfull = middle, steps[middle], found
        return self._between(low, high, math.log(overfull))

    def _between(self, low: float, high: float, above: float) -> float:
        """Where tightness reaches 1 between a rate that is carried and one that is not, whose ln
        tightness is `above`.

        Secants of ln tightness over ln rate, nearly a straight line; halving where it is not.
        """
        below = -math.inf
        stayed = 0
        rate = low * (1 + 2 * _RATE_CLOSE)  # a step of decode instances may follow right after low
        for _ in range(_MOST_STEPS):
            if high - low <= _RATE_CLOSE * high or high <= _LEAST:
                break
            if not low < rate < high:
                rate = _guess(low, below, high, above)
            found = self._tightness(rate)
            if found <= 1.0:
                low, below = rate, math.log(max(found, 1e-300))
                above *= 0.5 if stayed > 0 else 1.0
                stayed = 1
            else:
                high, above = rate, math.log(found)
                below *= 0.5 if stayed < 0 else 1.0
                stayed = -1
            rate = math.nan
        return low

    def _tightness(self, rate_rps: float) -> float:
        """How full the tightest stage is at this rate when everybody does the cheapest; above 1:
        it is not carried."""
        tightest, choices = 0.0, {}
        for site in self._sites:
            found = self._fixed.get(site.name) or site.choice(rate_rps)
            if isinstance(found, float):
                tightest = max(tightest, found)
            else:
                choices[site.name] = found
        if tightest > 1.0:
            return tightest
        return max(tightest, self._shared_tightness(choices))

    def _shared_tightness(self, choices: Mapping[str, _Choice]) -> float:
        if self._has_choice:
            return self._least_load(self._sharing(choices)[1])
        used, tightest = dict.fromkeys(self._model.prefill, 0.0), 0.0
        for site in self._model.sites:
            for remote in site.remotes:
                choice = choices[site.name]
                used[remote.name] += choice.rate_rps * choice.work.remote_s[remote.name]
                sent = choice.rate_rps * choice.work.kv_bytes
                tightest = max(tightest, fullness(sent, self._link_bytes_per_s[remote.link]))
        loads = (fullness(load, self._prefill[name]) for name, load in used.items())
        return max(tightest, max(loads, default=0.0))

    def _least_load(self, sharing: Sharing) -> float:
        """The least load, or a bound of it that tells the same: the last program's shares may carry
        this as well, or its prices show that nothing does."""
        last = self._least
        if last is not None:
            if (carried := sharing.load(last.shares)) <= 1.0:
                return carried
            if (needed := sharing.least_load_by(last.prices)) > 1.0:
                return needed
        self._least = sharing.least_load()
        return self._least.load

    def _carrying(self, sharing: Sharing) -> Array:
        """Shares that carry this, if any do: the last program's where they still do."""
        if self._least is None or sharing.load(self._least.shares) > 1.0:
            self._least = sharing.least_load()
        return self._least.shares

    def choices(self, rate_rps: float) -> dict[str, _Choice]:
        """Everybody's cheapest way at a rate that is carried; where none is, at next to none."""
        found = {}
        for site in self._sites:
            choice = self._fixed.get(site.name) or site.choice(max(rate_rps, _LEAST))
            if isinstance(choice, float):
                choice = site.nothing_carried()
            t = self._model.works[site.name].end_of_gap(choice.t, self._t_high[site.name])
            found[site.name] = choice._replace(t=t)
        return found

    def lifted(self, rate_rps: float, enough_rps: float) -> float:
        """The rate of the sites that are not stuck at the fleet's, up to `enough_rps`.

        Max-min: what limits is found, the sites that depend on it keep their choice, the others go
        on; at most `_MOST_ROUNDS` times.
        """
        for _ in range(_MOST_ROUNDS):
            if rate_rps >= enough_rps:
                break
            choices = self.choices(rate_rps)
            stuck = self._stuck(choices, rate_rps * (1.0 + _NUDGE))
            self._fixed.update({name: choices[name] for name in stuck})
            if not stuck or len(self._fixed) == len(self._sites):
                break
            rate_rps = max(rate_rps, self.best_rate(enough_rps))
        return rate_rps

    def _stuck(self, choices: Mapping[str, _Choice], more_rps: float) -> list[str]:
        """Sites that a little more would not be carried for, by themselves or where they send."""
        shared, sharing = self._sharing(choices)
        found = [
            site.name
            for site in self._sites
            if site.name not in self._fixed and isinstance(site.choice(more_rps), float)
        ]
        if not shared:
            return found
        least = sharing.least_load()
        seconds = (sharing.seconds * least.shares).sum(axis=0)
        full = (seconds >= self._instances * (1.0 - _FULL)) & (least.prices > 0.0)
        reached = np.isfinite(sharing.link_use)
        sent = np.where(reached, sharing.link_use, 0.0) * least.shares
        room = reached & (sent < 1.0 - _FULL)
        found += [
            site.name
            for k, site in enumerate(shared)
            if site.name not in self._fixed
            and choices[site.name].work.kv_bytes > 0.0
            and not np.any(room[k] & ~full)
        ]
        return found

    def with_fewer_moves(self, choices: dict[str, _Choice]) -> dict[str, _Choice]:
        """The choices with as many sites as possible at the roles they have, in the order of sites,
        as long as the shared stages carry it with the shares that carried the choices."""
        moved = {s.name: s for s in self._sites if s.moves(choices[s.name])}
        if not moved:
            return choices
        kept = dict(choices)
        shared, sharing = self._sharing(choices)
        shares = self._carrying(sharing) if shared else np.zeros((0, len(self._remotes)))
        spare = self._instances * (1.0 + _TIE_ROLES) - (sharing.seconds * shares).sum(axis=0)
        rows = {site.name: k for k, site in enumerate(shared)}
        for name, site in moved.items():
            stays = site.staying(choices[name].rate_rps)
            if stays is None:
                continue
            if name in rows:
                k, alone = rows[name], self._sharing({name: stays}, [shared[rows[name]]])[1]
                if np.any(shares[k] > alone.most[0] * (1.0 + _TIE_ROLES)):
                    continue
                more = (alone.seconds[0] - sharing.seconds[k]) * shares[k]
                if np.any(more > spare):
                    continue
                spare = spare - more
            kept[name] = stays
        return kept

    def shares(self, choices: Mapping[str, _Choice]) -> dict[str, dict[str, float]]:
        """How everybody shares out what goes remote."""
        own = {site.name: dict(site.shares) for site in self._model.sites}
        if not self._has_choice:
            return own
        sites, sharing = self._sharing(choices)
        wanted = np.array([[own[s.name].get(name, 0.0) for name in self._remotes] for s in sites])
        found = sharing.nearest_shares(wanted)
        found[found < _LEAST] = 0.0  # rounding, which a link of no capacity would not bear
        found /= found.sum(axis=1, keepdims=True)
        for site, row in zip(sites, found.tolist(), strict=True):
            given = dict(zip(self._remotes, row, strict=True))
            own[site.name] = {remote.name: given[remote.name] for remote in site.remotes}
        return own

    def _sharing(
        self, choices: Mapping[str, _Choice], sites: list[Site] | None = None
    ) -> tuple[list[Site], Sharing]:
        """What `sites` (all with a remote) ask of shared stages."""
        if sites is None:
            sites = [site for site in self._model.sites if site.remotes]
        seconds = np.zeros((len(sites), len(self._remotes)))
        link_use = np.full(seconds.shape, np.inf)
        column = {name: m for m, name in enumerate(self._remotes)}
        for k, site in enumerate(sites):
            choice = choices[site.name]
            for remote in site.remotes:
                m = column[remote.name]
                seconds[k, m] = choice.rate_rps * choice.work.remote_s[remote.name]
                sent = choice.rate_rps * choice.work.kv_bytes
                link_use[k, m] = fullness(sent, self._link_bytes_per_s[remote.link])
        return sites, Sharing(seconds, link_use, self._instances)


class _SiteSearch:
    """One site's cheapest choices."""

    def __init__(self, site: Site, free: Freedom, work: SiteWork, share: float) -> None:
        self.name, self._free, self._work = site.name, free, work
        self._share, self._decode_s = share, site.decode_s
        self._known = work.known(free.t_low, free.t_high)
        self._least_local_s, self._most = self._known[0].local_s, self._known[-1]
        per_instance = 1.0 / (share * self._decode_s)
        self.most_rps = free.decode_high * per_instance
        self.steps_rps = [n * per_instance for n in range(free.decode_low, free.decode_high)]

    def choice(self, rate_rps: float) -> _Choice | float:
        """What the site does at this rate of the whole fleet, or, above 1, how overfull it is."""
        own_rps = max(rate_rps * self._share, _LEAST_RPS)
        n_decode = max(self._free.decode_low, self._needed(own_rps))
        if n_decode > self._free.decode_high:
            return math.inf
        return self._with_roles(own_rps, n_decode)

    def nothing_carried(self) -> _Choice:
        """What is left where the site carries nothing at any t: as little local as may be."""
        t = self._free.t_low
        return _Choice(t, self._free.decode_low, _LEAST, self._work.at(t))

    def moves(self, choice: _Choice) -> bool:
        """Whether a choice takes other roles than there are."""
        now = self._free.decode_now
        return now is not None and choice.n_decode != now

    def staying(self, own_rps: float) -> _Choice | None:
        """What the site does at its own rate with the roles it has; None if that is not carried."""
        now = self._free.decode_now
        if now is None or now < self._needed(own_rps):
            return None
        found = self._with_roles(own_rps, now)
        return found if isinstance(found, _Choice) else None

    def _needed(self, own_rps: float) -> int:
        return math.ceil(own_rps * self._decode_s * (1 - _SLACK))

    def _with_roles(self, own_rps: float, n_decode: int) -> _Choice | float:
        budget_s = (self._free.instances - n_decode) / own_rps * (1 + _SLACK)
        if self._least_local_s > budget_s:
            return self._least_local_s / budget_s if budget_s > 0.0 else math.inf
        # A little more, or rounding would not see that lengths nobody sends cost nothing.
        t = self._highest_t(budget_s * (1 + _SLACK))
        return _Choice(t, n_decode, own_rps, self._work.at(t))

    def _highest_t(self, budget_s: float) -> float:
        if self._most.local_s <= budget_s:
            return self._most.t
        known = self._known
        after = bisect_right(known, budget_s, key=_local_s)
        found = self._work.highest_t(budget_s, known[after - 1], known[after])
        known[after:after] = found
        return found[0].t


_local_s = attrgetter("local_s")


def _guess(low: float, below: float, high: float, above: float) -> float:
    """The next rate to try between `low` and `high`, whose ln tightness are `below` and `above`."""
    if low <= 0.0 or not math.isfinite(above) or not math.isfinite(below):
        # With everything else the same, tightness grows at least as the rate does.
        first = high * math.exp(-above) if math.isfinite(above) else 0.0
        return first if low < first < high else 0.5 * (low + high)
    a, b = math.log(low), math.log(high)
    rate = math.exp(b - above * (b - a) / (above - below))
    # Off the ends, so that both close in even where the secant hits the mark.
    margin = 0.4 * _RATE_CLOSE * high
    return min(max(rate, low + margin), high - margin)
