"""When gates may look further than usual for the side that answers sooner.

Inside the band around t a gate takes the side whose first byte it expects sooner. The band is as
wide as the policy's `band_ratio`, and holds every length while t is certainly not what is needed:

* **apart**: requests queue on one side (`QUEUED` for each of its instances) and hardly any on the
  other (`APART` as many at most). So it is after an outage, when what had to wait is all on one
  side: at the best t that side gets as much as it can serve, and its queue stays. With queues on
  both sides, as in a burst, the best t is what serves most, and the band stays;
* **blind**: the cluster's telemetry is missing, or older than `BLIND` times what counts as old.
  Gates still hear their own requests.

It begins only while less than half of the hour's changes are used: what it opens has to be closed,
and neither may take what tuning and failures need. It ends when the queues are short (`SHORT`) and
even (`EVEN`), or gone (`CALM`), and no sooner than `congestion_clear_s` after the last change: a
band is not to open and close with every burst. Over a link that is congested, down or probed
nobody is relieved. A policy without a band has none here.
"""

from __future__ import annotations

import math

from routing.core.hysteresis import wait_until
from routing.core.situation import Situation
from routing.core.types import ClusterPlan, Params

Band = tuple[int, int] | None
QUEUED, SHORT, CALM = 8.0, 4.0, 0.5
APART, EVEN = 0.25, 0.5
BLIND = 2.0


def band(s: Situation, name: str, plan: ClusterPlan) -> tuple[Band, str]:
    """(the cluster's band, why it holds everything; empty where it is the policy's)."""
    usual = band_of(plan, s.params.band_ratio)
    if usual is None:
        return None, ""
    everything = every_length(s.params)
    wide = s.clusters[name].band == everything
    why = _why(s, name, plan, wide=wide)
    free_s = wait_until(s.memory.last_change_s, s.params.congestion_clear_s, s.now_s)
    if not why and wide and s.now_s < free_s:
        why = "its queues were uneven lately"
    return (everything, why) if why else (usual, "")


def every_length(params: Params) -> tuple[int, int]:
    """A band as wide as t may move. Short prompts too: behind a queue they wait like all others."""
    return params.t_min_tokens, params.t_max_tokens


def band_of(plan: ClusterPlan, ratio: float) -> Band:
    """The band around the plan's t that `band_ratio` asks for; None without t or ratio."""
    t = plan.threshold_tokens
    if t is None or ratio <= 0:
        return None
    return math.floor(t / (1.0 + ratio)), math.ceil(t * (1.0 + ratio))


def _why(s: Situation, name: str, plan: ClusterPlan, *, wide: bool) -> str:
    if any(view.congested or view.down or view.probing for view in s.views_into(name)):
        return ""
    if not wide and 2 * len(s.memory.changes_s) >= s.params.max_changes_per_hour:
        return ""
    return _blind(s, name) or _apart(s, name, plan, wide=wide)


def _blind(s: Situation, name: str) -> str:
    gap, age_s = s.gaps.get(name), s.observation.pd[name].age_s
    old = age_s is None or age_s > BLIND * s.params.stale_after_s
    return "its telemetry is missing or old" if gap and gap.missing and old else ""


def _apart(s: Situation, name: str, plan: ClusterPlan, *, wide: bool) -> str:
    """Words for queues that are too different; where they were, for what is left of that."""
    seen = s.observation.pd[name]
    local = _each(seen.queue_prefill, seen.n_prefill)
    remotes = [
        _each(there.queue_prefill, there.n_prefill)
        for remote, weight in plan.remote.items()
        if weight > 0.0 and (there := s.observation.prefill.get(remote)) is not None
        if there.age_s is None or there.age_s <= s.params.stale_after_s
    ]
    remote = min((each for each in remotes if each is not None), default=None)
    if local is None or remote is None:
        return ""
    more, less = max(local, remote), min(local, remote)
    if wide:
        over = more < CALM or (more < SHORT and less > EVEN * more)
    else:
        over = more < QUEUED or less > APART * more
    if over:
        return ""
    side = "local" if local >= remote else "remote"
    return (
        f"{more:.3g} requests wait for each {side} prefill instance, {less:.3g} on the other side"
    )


def _each(queue: float | None, n: int) -> float | None:
    return None if queue is None or n < 1 else queue / n
