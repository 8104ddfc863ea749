"""Every stage of a fleet, and how requests pass from one to the next.

Requests go one way: arrival, side, prefill, link, decode. Nothing of a later stage changes what an
earlier one does but through a plan, and plans change at known instants. So time is cut at those,
and between two cuts each stage runs by itself, in one tight loop over what the stage before it
told. That is exact, and needs no calendar that every event of the fleet has to pass through.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from routing.core.model.kvcache import KvModel
from routing.twin.pd import PdCluster, Remote
from routing.twin.prefill import PrefillPool
from routing.twin.requests import Requests
from routing.twin.row import AT, BYTES, DECODER, GIVEN, LINK, SITE, UNSET, Row, restart
from routing.twin.transfer import LinkFlows

_MOST_ROWS = 8192
"""Arrivals between two cuts: what the stages hold at once."""


class Arrivals:
    """A workload's requests, up to a time at a time."""

    def __init__(self, pieces: Iterator[Requests]) -> None:
        self._pieces = pieces
        self._piece: Requests | None = next(pieces, None)
        self._from = 0

    def until(self, until_s: float) -> Iterator[Requests]:
        """The next ones that arrive before `until_s`, `_MOST_ROWS` at most at once."""
        while self._piece is not None:
            piece, first = self._piece, self._from
            n = len(piece)
            last = int(np.searchsorted(piece.at_s[first:], until_s)) + first
            stop = min(last, first + _MOST_ROWS)
            if stop > first:
                self._from = stop
                yield _part(piece, first, stop)
            if self._from < n and stop == last:
                return
            if self._from == n:
                self._piece, self._from = next(self._pieces, None), 0


def _part(piece: Requests, first: int, stop: int) -> Requests:
    some = slice(first, stop)
    return Requests(
        piece.at_s[some],
        piece.prompt_tokens[some],
        piece.output_tokens[some],
        piece.site[some],
        None if piece.blocks is None else piece.blocks[some],
    )


class Stages:
    """The clusters and links of one run. `run` moves all of it on to a time.

    `clusters` are the PD clusters, in the order of the scenario, `pools` the prefill pools of
    PrfaaS clusters, `links` all links, both by name in the order of the scenario.
    """

    def __init__(
        self,
        *,
        clusters: Sequence[PdCluster],
        pools: Mapping[str, PrefillPool],
        links: Mapping[str, LinkFlows],
        kv: KvModel,
        arrivals: Arrivals,
    ) -> None:
        self.clusters, self.pools, self.links = list(clusters), dict(pools), dict(links)
        self._kv, self._arrivals = kv, arrivals
        self.arrived: list[Row] = []
        """Requests that were routed since somebody last emptied it."""

    def run(self, until_s: float) -> list[Row]:
        """On to `until_s`; the rows whose last token is out by then."""
        done: list[Row] = []
        self._look()
        for requests in self._arrivals.until(until_s):
            rows = self._routed(requests, done)
            self.arrived += rows
            self._flow(float(requests.at_s[-1]), done)
        self._flow(until_s, done)
        return done

    def again(self, rows: Iterable[Row], now_s: float) -> None:
        """Requests that lost what was done for them begin anew; what they share is forgotten."""
        self._look()
        begun = sorted(rows, key=itemgetter(AT))
        for row in begun:
            restart(row, now_s)
        self._place(begun)

    def resume(self, now_s: float) -> None:
        """Routes what was stranded anew: instances, links or the plan are others now."""
        self._look()
        for pool in self._all_pools:
            rows, pool.stranded = pool.stranded, []
            for row in rows:
                row[GIVEN] = now_s
            self._place(rows)

    def _place(self, rows: Sequence[Row]) -> None:
        """Routes rows without blocks."""
        self._expect([row for row in rows if self.clusters[row[SITE]].place(row, ())])

    def _look(self) -> None:
        for cluster in self.clusters:
            cluster.look()

    def lose(self, rows: Sequence[Row]) -> None:
        """Takes rows whose instance is gone out of the stages behind it."""
        lost = {id(row): row for row in rows}
        for cluster in self.clusters:
            cluster.forget(lost)
        for flows in self.links.values():
            flows.forget(lost)

    def sent_to(self, cluster: PdCluster, decoder: int) -> list[Row]:
        """What is still on a link to a decode instance."""
        rows = itertools.chain.from_iterable(flows.rows for flows in self.links.values())
        return [r for r in rows if r[SITE] == cluster.index and r[DECODER] == decoder]

    def forget_done(self, now_s: float) -> None:
        """Memory does not grow with the run."""
        for pool in self._all_pools:
            pool.forget_done(now_s)

    @property
    def _all_pools(self) -> list[PrefillPool]:
        return [cluster.pool for cluster in self.clusters] + list(self.pools.values())

    @property
    def under_way(self) -> list[Row]:
        """Everything that arrived and has not ended."""
        found = {id(row): row for pool in self._all_pools for row in pool.stranded}
        for cluster in self.clusters:
            found |= {id(row): row for row in cluster.decode.under_way}
        for flows in self.links.values():
            found |= {id(row): row for row in flows.rows if row[AT] != UNSET}
        return sorted(found.values(), key=itemgetter(AT))

    def _flow(self, until_s: float, done: list[Row]) -> None:
        """Links, then decode, on to `until_s`."""
        for flows in self.links.values():
            arrived = flows.run(until_s)
            if not arrived:
                continue
            if len(self.clusters) == 1:
                self.clusters[0].decode.arrive(arrived)
            else:
                for cluster in self.clusters:
                    mine = [row for row in arrived if row[SITE] == cluster.index]
                    cluster.decode.arrive(mine)
        for cluster in self.clusters:
            ended = cluster.decode.run(until_s)
            if cluster.listens:
                cluster.hear(until_s)
            cluster.n_remote -= sum(row[LINK] >= 0 for row in ended)
            done += ended

    def _routed(self, requests: Requests, done: list[Row]) -> list[Row]:
        """Arrivals as rows, each with its side, its prefill instance, and its link if any."""
        if requests.blocks is None and all(cluster.simple for cluster in self.clusters):
            return self._routed_by_length(requests)
        rows = _rows(requests, np.zeros(len(requests), dtype=np.int64))
        blocks = requests.blocks or itertools.repeat(())
        sites = [(cluster, cluster.steps) for cluster in self.clusters]
        placed: list[Row] = []
        for row, prefix in zip(rows, blocks):  # noqa: B905  (repeat never ends)
            cluster, steps = sites[row[SITE]]
            if steps:
                self._expect(placed)
                placed.clear()
                self._flow(row[AT], done)
            if cluster.place(row, prefix):
                placed.append(row)
        self._expect(placed)
        return rows

    def _expect(self, placed: Sequence[Row]) -> None:
        """Tells decode pools of prefills that will end."""
        if len(self.clusters) == 1:
            self.clusters[0].decode.expect(placed)
        else:
            for cluster in self.clusters:
                cluster.decode.expect([row for row in placed if row[SITE] == cluster.index])

    def _routed_by_length(self, requests: Requests) -> list[Row]:
        """All at once, where nothing but lengths decides."""
        rows: list[Row] = []
        to_remotes: dict[str, list[tuple[PdCluster, Remote, list[Row], list[float]]]] = {}
        for cluster in self.clusters:
            mine = requests
            if len(self.clusters) > 1:
                mine = _of_site(requests, cluster.index)
            if not len(mine):
                continue
            wants, reasons = cluster.split(mine.prompt_tokens)
            local = _rows(mine, reasons, ~wants)
            cluster.pool.take(local, cluster.pool.service.many(mine.prompt_tokens[~wants]))
            cluster.decode.expect(local)
            rows += local
            for remote, chosen in cluster.shared_out(wants):
                sent = _rows(mine, reasons, chosen)
                tokens = mine.prompt_tokens[chosen]
                for row, size in zip(sent, self._kv.kv_bytes(tokens).tolist(), strict=True):
                    row[LINK], row[BYTES] = remote.link, size
                part = (cluster, remote, sent, remote.pool.service.many(tokens))
                to_remotes.setdefault(remote.name, []).append(part)
                rows += sent
        for name, parts in to_remotes.items():
            self._take_together(self.pools[name], parts)
        return rows

    def _take_together(
        self,
        pool: PrefillPool,
        parts: Sequence[tuple[PdCluster, Remote, list[Row], list[float]]],
    ) -> None:
        """One PrfaaS pool gets what several PD clusters send, in order of arrival."""
        if len(parts) == 1:
            pool.take(parts[0][2], parts[0][3])
        else:
            pairs = [pair for part in parts for pair in zip(part[2], part[3], strict=True)]
            pairs.sort(key=lambda pair: pair[0][GIVEN])
            pool.take([row for row, _ in pairs], [seconds for _, seconds in pairs])
        for cluster, remote, sent, _ in parts:
            remote.flows.send(sent)
            cluster.decode.expect(sent)
            cluster.n_remote += len(sent)


def _of_site(requests: Requests, index: int) -> Requests:
    mine = requests.site == index
    return Requests(
        requests.at_s[mine],
        requests.prompt_tokens[mine],
        requests.output_tokens[mine],
        requests.site[mine],
    )


def _rows(
    requests: Requests,
    reasons: NDArray[np.int64],
    chosen: NDArray[np.bool_] | None = None,
) -> list[Row]:
    """Fresh rows, of the `chosen` requests only if that is given."""
    columns = (
        requests.at_s,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.site,
        reasons,
    )
    at, prompt, output, site, reason = (
        (column if chosen is None else column[chosen]).tolist() for column in columns
    )
    n = len(at)
    unset, none, zero = [UNSET] * n, [-1] * n, [0] * n
    return list(
        map(
            list,
            zip(
                *(at, prompt, output, site),
                *(prompt, prompt, reason, none),
                *(at, unset, unset, unset, unset, unset),
                *([0.0] * n, zero, none),
                strict=True,
            ),
        )
    )
