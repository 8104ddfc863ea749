"""Workloads drawn from distributions: each PD cluster's arrivals and lengths, merged by time.

Times, prompts and answers have random streams of their own, and so has each cluster. So another
rate leaves the n-th request's lengths the same, and another cluster changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.twin.pieces import limited, merged
from routing.twin.requests import Requests
from routing.twin.settings import Settings
from routing.twin.sites import Sessions, Site

PIECE = 16_384
"""Requests drawn at a time: half a megabyte, and enough that calls into numpy cost nothing."""


class SiteWorkload:
    """Requests of several PD clusters, in the order of `sites`, independent of each other.

    It runs until `duration_s` (not included) or for `n_requests` of all sites together, whichever
    comes first; without both, as long as the patterns do. `piece` changes no request.
    """

    def __init__(
        self,
        sites: Sequence[Site | Sessions],
        *,
        duration_s: float | None = None,
        n_requests: int | None = None,
        piece: int = PIECE,
    ) -> None:
        sizes = {site.block_tokens for site in sites if isinstance(site, Sessions)}
        if len(sizes) > 1:
            raise ValueError(f"block_tokens = {sorted(sizes)}: a workload has blocks of one size")
        self._sites = tuple(sites)
        self._block_tokens = next(iter(sizes), None)
        self._duration_s, self._n_requests, self._piece = duration_s, n_requests, piece

    @property
    def block_tokens(self) -> int | None:
        return self._block_tokens

    def pieces(self, seed: int) -> Iterator[Requests]:
        seeds = np.random.SeedSequence(seed).spawn(len(self._sites))
        streams = [self._of(i, site, seeds[i]) for i, site in enumerate(self._sites)]
        requests = streams[0] if len(streams) == 1 else merged(streams)
        return limited(requests, duration_s=self._duration_s, n_requests=self._n_requests)

    def _of(
        self, index: int, site: Site | Sessions, seeds: np.random.SeedSequence
    ) -> Iterator[Requests]:
        if isinstance(site, Sessions):
            return site.requests(index, seeds, piece=self._piece)
        blocks = self._block_tokens is not None
        return site.requests(index, seeds, piece=self._piece, blocks=blocks)


def scenario_workload(
    scenario: Scenario,
    settings: Settings,
    *,
    rate_rps: float | None = None,
    duration_s: float | None = None,
    n_requests: int | None = None,
    piece: int = PIECE,
) -> SiteWorkload:
    """The traffic that a scenario describes.

    `rate_rps` is put in the place of the sum of its workloads' rates: every site gets its share,
    curves and bursts keep their form. Raises ScenarioError where the arrivals are a trace's.
    """
    described_rps = sum(workload.rate_rps for workload in scenario.workloads)
    factor = 1.0 if rate_rps is None else rate_rps / described_rps
    sites = []
    for cluster, site in settings.sites.items():
        if site is None:
            raise ScenarioError("arrivals.kind", "trace", f"{cluster} needs the trace itself")
        sites.append(site if rate_rps is None else site.scaled(factor))
    return SiteWorkload(sites, duration_s=duration_s, n_requests=n_requests, piece=piece)
