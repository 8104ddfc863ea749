"""Did t do what it should? The share of requests that ran remote, held against the model's.

* `NoEffect`: a change of t was pushed, and what it should have brought has not shown (`effect`).
* `SplitOffPrediction`: whatever t is and however long it has been so, the share gates count is off
  what the lengths they count give: 1 - F(t), or anything between the band's ends where gates
  choose by waits.

The second is judged over several ticks and with the noise of a minute's requests taken off:
sqrt(p (1 - p) / n) of a share p of n requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from routing.core.effect import SHOWS_WITHIN_S, Effect
from routing.core.model.lengths import Lengths
from routing.core.truth.finding import Clear, Figure, Finding, Outcome, Unknown
from routing.core.types import ClusterPlan

NO_EFFECT, OFF = "NoEffect", "SplitOffPrediction"
OFF_BY = 0.10
"""Of all requests, besides noise: lengths as the model has them are of five minutes, a share is of
one."""
NOISE_SD = 3.0
LEAST_LOOKS = 5


def no_effect(subject: str, seen: Effect | None, now_s: float) -> Outcome:
    """`seen` None: no change of t waits to show."""
    if seen is None:
        return Clear(NO_EFFECT, subject, "the last change of t has shown, or none was made lately")
    if seen.share is None or seen.expected is None:
        what = "remote share" if seen.share is None else "length of its requests"
        return Unknown(
            NO_EFFECT,
            subject,
            f"t was changed, and no gate tells the {what}",
            "Let an agent read the cluster's gates",
        )
    if not seen.is_overdue(now_s):
        left_s = max(SHOWS_WITHIN_S - (now_s - seen.since_s), 0.0)
        return Clear(NO_EFFECT, subject, f"a change of t has {left_s:.0f} s left to show")
    return Finding(
        name=NO_EFFECT,
        subject=subject,
        severity="bad",
        sentence="t was changed, gates acknowledged, and the remote share did not follow",
        evidence=(
            Figure("remote share before the change", seen.before, "ratio", "measured"),
            Figure("remote share now", seen.share, "ratio", "measured"),
            Figure("remote share the new t should give", seen.expected, "ratio", "inferred"),
            Figure("time it was given", SHOWS_WITHIN_S, "s", "assumed"),
        ),
        next_step="Send one long prompt through a gate and read X-PrfaaS-Side and X-PrfaaS-Reason "
        "of its answer. If they obey t, look for traffic that passes the gates by; if not, look at "
        "the gate's reasons under Request, and at PrerequisiteMissing here",
        since_s=seen.since_s,
    )


def band_of(plan: ClusterPlan) -> tuple[float, float]:
    """The lengths between which gates choose by waits, tokens; both t where there is no band."""
    t = float(plan.threshold_tokens or 0)
    return (t, t) if plan.band is None else (float(plan.band[0]), float(plan.band[1]))


def expected(plan: ClusterPlan, lengths: Lengths | None) -> tuple[float, float] | None:
    """(least, most) of the remote share that the plan's rule gives; None: lengths are unknown."""
    if plan.mode != "threshold":
        share = 1.0 if plan.mode == "always_remote" else 0.0
        return share, share
    if lengths is None:
        return None
    low, high = band_of(plan)
    below = lengths.cdf([low, high])
    return 1.0 - float(below[1]), 1.0 - float(below[0])


@dataclass(frozen=True)
class Look:
    """One tick of a cluster. `expected` is (least, most) of the share, `n_requests` how many the
    share is of; None: not known then."""

    at_s: float
    share: float | None
    expected: tuple[float, float] | None
    n_requests: float | None

    @property
    def off(self) -> float | None:
        """How far the share lies outside, with its sign, beyond noise; None where not known."""
        if self.share is None or self.expected is None or not self.n_requests:
            return None
        least, most = self.expected
        near = min(max(self.share, least), most)
        noise = NOISE_SD * math.sqrt(near * (1.0 - near) / self.n_requests)
        off = self.share - near
        return math.copysign(max(abs(off) - noise, 0.0), off)


def off_prediction(
    subject: str, looks: Sequence[Look], *, excused: str = "", limited: bool = False
) -> Outcome:
    """`looks` ascending in time. `excused` says why the share cannot be what t gives just now (a
    link is down, a plan has just changed); `limited`: the plan bounds what may be remote, so that
    less than expected is no wonder."""
    if excused:
        return Clear(OFF, subject, f"not judged by t: {excused}")
    known = [(look, look.off) for look in looks if look.off is not None]
    if len(known) < LEAST_LOOKS:
        return Unknown(
            OFF,
            subject,
            f"the remote share or the lengths behind it are known of {len(known)} looks, "
            f"{LEAST_LOOKS} are needed",
            "Wait for traffic; where there is some, let an agent read the cluster's gates",
        )
    first, last = known[0][1] or 0.0, known[-1][1] or 0.0
    sign = math.copysign(1.0, last)
    astray = all((off or 0.0) * sign >= OFF_BY for _, off in known)
    if not astray or (limited and sign < 0):
        return Clear(OFF, subject, "the remote share is what t gives")
    look = known[-1][0]
    least, most = look.expected or (0.0, 0.0)
    more = "more" if first > 0 else "fewer"
    return Finding(
        name=OFF,
        subject=subject,
        severity="warn",
        sentence=f"{more.capitalize()} requests run remote than the running t gives",
        evidence=(
            Figure("remote share, last minute", look.share, "ratio", "measured"),
            Figure("least that t gives", least, "ratio", "inferred"),
            Figure("most that t gives", most, "ratio", "inferred"),
            Figure("requests of that minute", look.n_requests, "requests", "inferred"),
            Figure("looks that agree", float(len(known)), "", "measured"),
        ),
        next_step="Put a length and its cached tokens into the page Request and compare with what "
        "the gates count by reason (prfaas_gate_requests_total): RemoteLimit, RemoteDown and "
        "LocalDown are not t. If the lengths themselves are wrong, see PrerequisiteMissing",
        since_s=known[0][0].at_s,
        longer=True,
    )
