"""Recorded intervals as a workload: how many requests came in each, and how long they were.

What a console keeps of its traffic is not requests but, per interval, a rate and histograms. The
twin draws new requests from them: Poisson at each interval's rate, lengths from its histograms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from routing.core.model.lengths import from_histogram, usable
from routing.core.scenario.document import Scenario, Workload
from routing.core.types import LengthHistogram
from routing.twin.arrivals import Curve
from routing.twin.lengths import DrawnTokens, FixedTokens, SteppedTokens, TokensAt
from routing.twin.sites import Site
from routing.twin.workload import SiteWorkload

_SAME_MOMENT_S = 1e-3
"""Intervals that overlap by less are neighbours: their times were rounded somewhere."""


@dataclass(frozen=True)
class Interval:
    """`rate_rps` from `at_s` for `for_s`; lengths None where they were not recorded."""

    at_s: float
    for_s: float
    rate_rps: float
    prompt: TokensAt | None = None
    output: TokensAt | None = None

    @classmethod
    def observed(
        cls,
        at_s: float,
        for_s: float,
        demand_rps: float,
        *,
        uncached_tokens: LengthHistogram | None,
        output_tokens: float | None,
    ) -> Interval:
        """Of telemetry: a histogram of uncached prompts, and the mean of the answers."""
        prompt = None
        if uncached_tokens is not None and usable(uncached_tokens):
            prompt = DrawnTokens(from_histogram(uncached_tokens))
        output = None if output_tokens is None else FixedTokens(output_tokens)
        return cls(at_s, for_s, demand_rps, prompt, output)


Recording = Mapping[str | None, Sequence[Interval]]
"""By PD cluster, in order of time; None: of all of them together."""


def recorded_workload(
    scenario: Scenario,
    recording: Recording,
    *,
    rate_ratio: float = 1.0,
    duration_s: float | None = None,
    n_requests: int | None = None,
) -> SiteWorkload:
    """The recording from its first interval, time 0, to the end of its last.

    `rate_ratio` multiplies the rates; between intervals nothing arrives. Lengths that an interval
    lacks are those of the scenario's workload. What came to all clusters together is shared out in
    proportion to the rates of their workloads. Raises ValueError naming what does not fit.
    """
    workloads = [
        workload
        for cluster in scenario.clusters
        if (workload := scenario.workload(cluster.name)) is not None
    ]
    by_cluster = _by_cluster(scenario, workloads, recording)
    begins = [each[0].at_s for each in by_cluster.values() if each]
    if not any(interval.rate_rps > 0 for each in by_cluster.values() for interval in each):
        raise ValueError("the recording has no traffic")
    sites = [_site(each, by_cluster[each.cluster], min(begins)) for each in workloads]
    return SiteWorkload(
        [site.scaled(rate_ratio) for site in sites], duration_s=duration_s, n_requests=n_requests
    )


def _by_cluster(
    scenario: Scenario, workloads: Sequence[Workload], recording: Recording
) -> dict[str, list[Interval]]:
    found: dict[str, list[Interval]] = {workload.cluster: [] for workload in workloads}
    for name, intervals in recording.items():
        _check(name, intervals)
        if name is None:
            summed_rps = sum(workload.rate_rps for workload in workloads)
            for each in workloads:
                share = each.rate_rps / summed_rps
                found[each.cluster] += [replace(i, rate_rps=i.rate_rps * share) for i in intervals]
        elif name in found:
            found[name] += intervals
        else:
            known = ", ".join(found)
            raise ValueError(f"cluster = {name!r}: is no PD cluster of {scenario.fleet} ({known})")
    return found


def _check(name: str | None, intervals: Sequence[Interval]) -> None:
    end_s = None
    for i, interval in enumerate(intervals):
        where = f"interval {i} of {name or 'all clusters'}"
        if not interval.for_s > 0:
            raise ValueError(f"{where}: for_s = {interval.for_s!r} must be above 0")
        if not interval.rate_rps >= 0:
            raise ValueError(f"{where}: rate_rps = {interval.rate_rps!r} must not be below 0")
        if end_s is not None and interval.at_s < end_s - _SAME_MOMENT_S:
            raise ValueError(f"{where}: at_s = {interval.at_s!r} is before the end of the last one")
        end_s = interval.at_s + interval.for_s


def _site(workload: Workload, intervals: Sequence[Interval], begin_s: float) -> Site:
    prompt: TokensAt = DrawnTokens(workload.lengths)
    output: TokensAt = FixedTokens(workload.output_tokens)
    if not intervals:
        return Site(Curve(((0.0, 0.0),)), prompt, output)
    starts_s = tuple(interval.at_s - begin_s for interval in intervals)
    return Site(
        Curve(tuple(_steps(intervals, begin_s))),
        SteppedTokens(starts_s, tuple(interval.prompt or prompt for interval in intervals)),
        SteppedTokens(starts_s, tuple(interval.output or output for interval in intervals)),
    )


def _steps(intervals: Sequence[Interval], begin_s: float) -> Iterator[tuple[float, float]]:
    """The rate of each interval from its beginning to its end, and none outside."""
    end_s = 0.0
    for interval in intervals:
        start_s = interval.at_s - begin_s
        if start_s > end_s:
            yield end_s, 0.0
            yield start_s, 0.0
        end_s = start_s + interval.for_s
        yield start_s, interval.rate_rps
        yield end_s, interval.rate_rps
    yield end_s, 0.0
