"""Mean work of one PD cluster's requests at a threshold, one t at a time.

Exact sums over the pieces of a curve, kept so that a t costs one look at the distribution: the
search for the best plan asks for thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from routing.core.model.curves import Curve, Moments
from routing.core.model.kvcache import KvModel
from routing.core.model.lengths import Below, Lengths
from routing.core.model.profiles import PrefillProfile, Profile

Method = Literal["exact", "paper"]
T_CLOSE_TOKENS = 0.01
_CLOSE = 1e-7
_NOTHING = 1e-12
"""Relative: rounding."""
_MOST_STEPS = 80


@dataclass(frozen=True)
class Remote:
    """A PrfaaS cluster a PD cluster may send to, over `link`.

    `weight` is the share of the remote requests it gets where nothing else is said; the weights of
    a site sum to 1.
    """

    name: str
    link: str
    profile: PrefillProfile
    weight: float


@dataclass(frozen=True)
class Site:
    """One PD cluster with its traffic."""

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

    @cached_property
    def shares(self) -> dict[str, float]:
        """The remotes' own weights."""
        return {remote.name: remote.weight for remote in self.remotes}


class Work(NamedTuple):
    """Mean work per arriving request of a site at one t.

    `remote_s` and `kv_bytes` are those of one PrfaaS cluster that got all the remote requests.
    """

    remote_fraction: float
    local_s: float
    remote_s: dict[str, float]
    kv_bytes: float


class Bound(NamedTuple):
    """A threshold and the seconds of local prefill below it."""

    t: float
    local_s: float


class SiteWork:
    """The work of one site. Without a remote all of it is local, whatever t is."""

    def __init__(self, kv: KvModel, site: Site, method: Method) -> None:
        self.site, self._method = site, method
        self._known: dict[tuple[float, float], list[Bound]] = {}
        lengths = site.lengths
        self._whole = lengths.at(math.inf)
        self._local = Below(lengths, site.profile.prefill.curve)
        self._kv = Below(lengths, kv.curve)
        profiles = {id(r.profile): r.profile for r in site.remotes}
        below = {key: Below(lengths, profile.curve) for key, profile in profiles.items()}
        self._remote = [(r.name, r.profile.curve, below[id(r.profile)]) for r in site.remotes]

    def at(self, t: float) -> Work:
        """Work at threshold `t`: inf = always local, 0 = always remote."""
        if not self._remote:
            t = math.inf
        moments, whole = self.site.lengths.at(t), self._whole
        mass = max(0.0, whole[0] - moments[0])
        if self._method == "paper":
            tokens = max(0.0, whole[1] - moments[1])
            remote_s = {name: _at_mean(curve, mass, tokens) for name, curve, _ in self._remote}
        else:
            remote_s = {
                name: max(0.0, below.whole - below.at(t, moments))
                for name, _, below in self._remote
            }
        return Work(
            remote_fraction=mass,
            local_s=self._local_s(t, moments),
            remote_s=remote_s,
            kv_bytes=max(0.0, self._kv.whole - self._kv.at(t, moments)),
        )

    def local_s(self, t: float) -> float:
        """Seconds of local prefill alone."""
        return self._local_s(t, self.site.lengths.at(t))

    def _local_s(self, t: float, moments: Moments) -> float:
        if self._method == "paper":
            return _at_mean(self.site.profile.prefill.curve, moments[0], moments[1])
        return self._local.at(t, moments)

    def known(self, low: float, high: float) -> list[Bound]:
        """Thresholds of low..high that were looked at, with both ends, ascending. Whoever looks at
        more of them adds them: every search of the same work begins where the last one ended."""
        if (low, high) not in self._known:
            self._known[low, high] = [Bound(t, self.local_s(t)) for t in (low, high)]
        return self._known[low, high]

    def end_of_gap(self, t: float, high: float) -> float:
        """The highest t up to `high` that asks for no more local prefill: nobody sends a length in
        between. Whole tokens beyond `t`."""
        most = self.local_s(t) * (1.0 + _NOTHING)
        if t >= high or self.local_s(min(t + 1.0, high)) > most:
            return t
        first, last = math.floor(t) + 1, math.ceil(high)  # first costs nothing, last may
        while first < last:
            middle = (first + last + 1) // 2
            if self.local_s(float(middle)) <= most:
                first = middle
            else:
                last = middle - 1
        return min(float(first), high)

    def highest_t(self, budget_s: float, low: Bound, high: Bound) -> tuple[Bound, Bound]:
        """The highest t of `low`..`high` whose local prefill takes at most `budget_s` a request.

        `low` has to fit and `high` must not; so do the two that come back. The lower one is
        `T_CLOSE_TOKENS` below the other, or asks for all but `_CLOSE` of the budget.
        """
        # Illinois: the secant of a bracket, an end's value halved when it stays twice in a row. It
        # aims a little below the budget, so as to end on the side that fits.
        aim_s = budget_s * (1.0 - 0.5 * _CLOSE)
        below, above = low.local_s - aim_s, high.local_s - aim_s
        stayed = 0
        for _ in range(_MOST_STEPS):
            if high.t - low.t <= T_CLOSE_TOKENS or low.local_s >= budget_s * (1.0 - _CLOSE):
                break
            t = high.t - above * (high.t - low.t) / (above - below)
            # Off the ends, so that both close in even where the secant hits the mark.
            t = min(max(t, low.t + 0.4 * T_CLOSE_TOKENS), high.t - 0.4 * T_CLOSE_TOKENS)
            local_s = self.local_s(t)
            if local_s <= budget_s:
                low, below = Bound(t, local_s), local_s - aim_s
                above *= 0.5 if stayed > 0 else 1.0
                stayed = 1
            else:
                high, above = Bound(t, local_s), local_s - aim_s
                below *= 0.5 if stayed < 0 else 1.0
                stayed = -1
        return low, high


def _at_mean(curve: Curve, mass: float, tokens: float) -> float:
    """mass * T(tokens / mass), the paper's one-length-per-class work; 0 where a class is empty."""
    return mass * curve.at(tokens / mass) if mass > 0.0 else 0.0
