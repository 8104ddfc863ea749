"""What a run of the twin was like: finished requests are folded into counts and forgotten.

What counts, and when. The measured window is from `warmup_s` to the instant of the report.

* Requests that arrived before `warmup_s` are not counted anywhere but in `throughput_rps` and the
  series. `requests` are all others that arrived: completed, unfinished, refused or lost.
* `throughput_rps`: answers that ended inside the window, whenever they arrived, per second.
* `goodput_rps`: requests that *arrived* inside the window and were served well, per second of it.
  What is still under way at the end is neither completed nor good, so a backlog shows.
* Served well (docs/contracts.md, `simulate`): TTFT <= slo.ttft_s, and mean time between tokens at
  most 1.02 / slo.tokens_per_s. TTFT is from arrival to the decode slot, so

      TTFT = queue + prefill + transfer (what of it prefill does not hide) + decode_wait

  The first token is out at that instant and each other one a step later, hence the mean time
  between tokens is (end - decode start) / (output_tokens - 1); one token has none between.
* `remote_fraction` is over the requests for which a side was chosen.

Durations are of completed requests. Missing is None: no quantile of nothing, no cost without price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from routing.core.jsonable import to_jsonable
from routing.core.scenario.document import Link, Slo
from routing.core.types import ClusterPlan
from routing.twin.meters import KvMeter, LinkMeter, PoolMeter
from routing.twin.series import Series
from routing.twin.sketch import Sketch

SLO_SLACK = 1.02
STAGES = ("queue", "prefill", "transfer", "decode_wait")
_FOLD_ROWS = 4096
"""Folding costs some hundred microseconds whatever the number of rows: small pieces wait."""
_ROWS_PER_SITE = 512
_BLOCK_ROWS = 16384
"""What is folded at once stays in a core's cache."""
_ROUNDING_S = 1e-6

Array = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Finished:
    """Requests whose last token's instant is known; every column has shape (n,).

    `site` is the index of the PD cluster, `reason` that of the reason for the side. Tokens:
    `uncached_tokens` is what was compared with t, `computed_tokens` what was really prefilled.
    Instants in seconds of the run, of the last attempt where there were `retries`: `ready_s` all KV
    is where it decodes, `decode_start_s` a slot is given, `end_s` the last token is out.
    `kv_bytes` crossed a link. The columns must not be changed after they were handed over.
    """

    at_s: Array
    site: Whole
    prompt_tokens: Whole
    output_tokens: Whole
    uncached_tokens: Whole
    computed_tokens: Whole
    reason: Whole
    remote: Flags
    prefill_start_s: Array
    prefill_end_s: Array
    ready_s: Array
    decode_start_s: Array
    end_s: Array
    kv_bytes: NDArray[Any]
    retries: Whole

    def __len__(self) -> int:
        return len(self.at_s)

    def __getitem__(self, rows: slice | Flags) -> Finished:
        return Finished(**{name: getattr(self, name)[rows] for name in _COLUMNS})

    @classmethod
    def joined(cls, pieces: Sequence[Finished]) -> Finished:
        if len(pieces) == 1:
            return pieces[0]
        return cls(
            **{name: np.concatenate([getattr(p, name) for p in pieces]) for name in _COLUMNS}
        )


_COLUMNS = tuple(field.name for field in fields(Finished))


@dataclass(frozen=True)
class UnderWay:
    """Requests that arrived and have not ended at the instant of a report; columns of shape (n,).

    `prefill_start_s` is below 0, or after that instant, where prefill has not begun.
    """

    at_s: Array
    site: Whole
    reason: Whole
    remote: Flags
    prefill_start_s: Array

    def __len__(self) -> int:
        return len(self.at_s)


@dataclass(frozen=True)
class Report:
    """Plain values, in the units of their names; `wall_s` is put in by who ran it.

    `costs` has the currency of the scenario's prices: `gpu` of the run, `links` of the run's share
    of a month of 30 days, None where a price is missing.
    """

    warmup_s: float
    until_s: float
    requests: int
    completed: int
    good: int
    unfinished: int
    refused: int
    lost: int
    throughput_rps: float | None
    goodput_rps: float | None
    good_fraction: float | None
    ttft_s: dict[str, float | None]
    stages_s: dict[str, dict[str, float | None]]
    inter_token_s: dict[str, float | None]
    remote_fraction: float | None
    reasons: dict[str, dict[str, float]]
    sites: dict[str, dict[str, Any]]
    tokens: dict[str, int]
    kv_bytes: int
    retries: int
    links: dict[str, dict[str, Any]]
    pools: dict[str, dict[str, float | None]]
    kv: dict[str, dict[str, float | None]]
    gpu_hours: float | None
    costs: dict[str, float | None]
    plans: list[dict[str, Any]]
    plan_changes: dict[str, int]
    series: dict[str, Any]
    wall_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_jsonable(self)
        return plain


def served_well(slo: Slo, *, ttft_s: Array, gen_s: Array, gaps: Array | Whole) -> Flags:
    """Whether requests kept the SLO, shape (n,): `gen_s` from the slot to the last token, over
    `gaps` steps."""
    # A step that just keeps the SLO must not fail it by the last bit of an instant.
    limit_s = gaps * (SLO_SLACK / slo.tokens_per_s) + _ROUNDING_S
    kept = (gen_s <= limit_s) | (gaps == 0)
    well: Flags = kept & (ttft_s <= slo.ttft_s + _ROUNDING_S)
    return well


class Recorder:
    """Folds a run as it goes. Memory: some 15 MB, whatever the length of the run.

    `sites` are the PD clusters and `reasons` the reasons for a side (core.placement.sides), in the
    order of the indices that `Finished` has. `pools` gives the facts of the profile of each pool
    told of by `pool`. What ends after `until_s`, where that is known, is unfinished.
    """

    def __init__(
        self,
        slo: Slo,
        *,
        sites: Sequence[str],
        reasons: Sequence[str],
        links: Sequence[Link] = (),
        pools: Mapping[str, Mapping[str, Any]] | None = None,
        warmup_s: float = 0.0,
        until_s: float = np.inf,
    ) -> None:
        self._slo = slo
        self._sites, self._reasons = tuple(sites), tuple(reasons)
        self._warmup_s, self._until_s = warmup_s, until_s
        self._waiting: list[Finished] = []
        self._n_waiting = 0
        self._fold_rows = max(_FOLD_ROWS, _ROWS_PER_SITE * len(self._sites))
        self._ttft = [Sketch() for _ in self._sites]
        self._stages = {stage: Sketch() for stage in STAGES}
        self._inter_token = Sketch()
        self._ended_in_window = 0
        # By site: (not good, good); by site and reason: (local, remote); by site.
        self._served: Whole = np.zeros((len(self._sites), 2), dtype=np.int64)
        self._sided: Whole = np.zeros((len(self._sites), len(self._reasons), 2), dtype=np.int64)
        self._late: Whole = np.zeros(len(self._sites), dtype=np.int64)
        self._not_served = {why: self._late.copy() for why in ("refused", "lost")}
        self._totals = dict.fromkeys(_TOTALS, 0)
        self._series = Series()
        self._links = {link.id: LinkMeter(link, warmup_s) for link in links}
        self._pools = {k: PoolMeter(k, facts, warmup_s) for k, facts in (pools or {}).items()}
        self._kv: dict[str, KvMeter] = {}
        self._plans: list[tuple[float, str, ClusterPlan, str]] = []
        self._running: dict[str, ClusterPlan] = {}

    def add(self, rows: Finished) -> None:
        """Requests in any order. Raises ValueError for columns of different lengths at once, for
        instants out of order at the latest when a report is asked for."""
        n = len(rows)
        for name in _COLUMNS:
            if getattr(rows, name).shape != (n,):
                raise ValueError(f"{name} has shape {getattr(rows, name).shape}, at_s ({n},)")
        self._waiting.append(rows)
        self._n_waiting += n
        if self._n_waiting >= self._fold_rows:
            self._flush()

    def refused(self, at_s: Array, site: Whole) -> None:
        """Arrivals, shape (n,), that nobody took."""
        self._never("refused", at_s, site)

    def lost(self, at_s: Array, site: Whole, begun_s: Array) -> None:
        """Arrivals, shape (n,), that were taken and will never be answered, and when they ceased to
        wait: prefill began, or they were given up."""
        self._never("lost", at_s, site)
        self._series.begun(begun_s)

    def link(
        self, link_id: str, from_s: float, until_s: float, n_bytes: float, capacity_bytes: float
    ) -> None:
        """What a link carried, of what it could have carried (`meters`)."""
        self._links[link_id].add(from_s, until_s, n_bytes, capacity_bytes)
        self._series.carried(link_id, from_s, until_s, n_bytes)

    def pool(
        self, name: str, from_s: float, until_s: float, n_instances: float, busy_s: float
    ) -> None:
        """How many instances a pool had, and how many seconds they worked in total."""
        self._pools[name].add(from_s, until_s, n_instances, busy_s)

    def kv(self, name: str, at_s: float, used_tokens: float, capacity_tokens: float | None) -> None:
        """What decode instances hold from now on; None: they have no limit."""
        self._kv.setdefault(name, KvMeter(self._warmup_s)).add(at_s, used_tokens, capacity_tokens)

    def plan_change(self, at_s: float, cluster: str, plan: ClusterPlan, reason: str = "") -> None:
        """What a cluster runs from now on; the first one is its start, an equal one no change."""
        if self._running.get(cluster) != plan:
            self._running[cluster] = plan
            self._plans.append((at_s, cluster, plan, reason))

    def report(self, until_s: float, under_way: UnderWay | None = None) -> Report:
        """The run as it stands at `until_s`; more may be told afterwards.

        `under_way`: everything that arrived and was not told of by `add`, `refused` or `lost`.
        """
        self._flush()
        sided, late, series = self._sided.copy(), self._late.copy(), self._series.copy()
        if under_way is not None and len(under_way):
            self._side(under_way, sided, series)
            begun_s = under_way.prefill_start_s
            series.begun(begun_s[(begun_s >= 0.0) & (begun_s <= until_s)])
            late += self._by_site(under_way.site[under_way.at_s >= self._warmup_s])
        window_s = until_s - self._warmup_s
        refused, lost = self._not_served["refused"], self._not_served["lost"]
        requests = self._served.sum(axis=1) + late + refused + lost
        n, good = int(requests.sum()), int(self._served[:, 1].sum())
        ttft = Sketch()
        for sketch in self._ttft:
            ttft.merge(sketch)
        links = self._link_reports(window_s) if window_s > 0.0 else {}
        pools = {name: meter.report() for name, meter in self._pools.items()}
        gpu_cost = _sum([pool["cost"] for pool in pools.values()])
        link_cost = _sum([link["cost"] for link in links.values()])
        return Report(
            warmup_s=self._warmup_s,
            until_s=until_s,
            requests=n,
            completed=int(self._served.sum()),
            good=good,
            unfinished=int(late.sum()),
            refused=int(refused.sum()),
            lost=int(lost.sum()),
            throughput_rps=self._ended_in_window / window_s if window_s > 0.0 else None,
            goodput_rps=good / window_s if window_s > 0.0 else None,
            good_fraction=_share(good, n),
            ttft_s=ttft.summary(),
            stages_s={stage: sketch.summary() for stage, sketch in self._stages.items()},
            inter_token_s=self._inter_token.summary(),
            remote_fraction=_share(int(sided[:, :, 1].sum()), int(sided.sum())),
            reasons=self._by_reason(sided.sum(axis=0)),
            sites={
                name: {
                    "requests": int(requests[i]),
                    "completed": int(self._served[i].sum()),
                    "good": int(self._served[i, 1]),
                    "unfinished": int(late[i]),
                    "refused": int(refused[i]),
                    "lost": int(lost[i]),
                    "goodput_rps": int(self._served[i, 1]) / window_s if window_s > 0.0 else None,
                    "ttft_s": self._ttft[i].summary(),
                    "remote_fraction": _share(int(sided[i, :, 1].sum()), int(sided[i].sum())),
                    "reasons": self._by_reason(sided[i]),
                }
                for i, name in enumerate(self._sites)
            },
            tokens={name: self._totals[f"{name}_tokens"] for name in _TOKENS},
            kv_bytes=self._totals["kv_bytes"],
            retries=self._totals["retries"],
            links=links,
            pools=pools,
            kv={name: meter.report(until_s) for name, meter in self._kv.items()},
            gpu_hours=_sum([pool["gpu_hours"] for pool in pools.values()]),
            costs={"gpu": gpu_cost, "links": link_cost, "total": _sum([gpu_cost, link_cost])},
            plans=[_plan_row(*change) for change in self._plans],
            plan_changes=self._changes(until_s),
            series=series.columns(until_s, self._thresholds()),
        )

    def _flush(self) -> None:
        if not self._n_waiting:
            return
        rows = Finished.joined(self._waiting)
        self._waiting, self._n_waiting = [], 0
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows if len(rows) <= _BLOCK_ROWS else rows[first : first + _BLOCK_ROWS]
            self._fold(block)

    def _fold(self, rows: Finished) -> None:
        self._side(rows, self._sided, self._series)
        begun_s = rows.prefill_start_s
        if float(rows.end_s.max()) > self._until_s:
            self._series.begun(begun_s[begun_s <= self._until_s])
            ended = rows.end_s <= self._until_s
            self._late += self._by_site(rows.site[~ended & (rows.at_s >= self._warmup_s)])
            rows = rows[ended]
        else:
            self._series.begun(begun_s)
        gen_s = rows.end_s - rows.decode_start_s
        gaps = rows.output_tokens - 1
        ttft_s = _span("TTFT", rows.at_s, rows.decode_start_s)
        good = served_well(self._slo, ttft_s=ttft_s, gen_s=gen_s, gaps=gaps)
        self._series.completed(rows.at_s, rows.end_s, ttft_s, good)
        self._ended_in_window += int(np.count_nonzero(rows.end_s >= self._warmup_s))
        if len(rows) and float(rows.at_s.min()) < self._warmup_s:
            counted = rows.at_s >= self._warmup_s
            rows, ttft_s, good = rows[counted], ttft_s[counted], good[counted]
        self._measure(rows, ttft_s, good)

    def _measure(self, rows: Finished, ttft_s: Array, good: Flags) -> None:
        """Completed requests that arrived inside the window."""
        n_sites = len(self._sites)
        served = np.bincount(rows.site * 2 + good, minlength=2 * n_sites)
        self._served += served.reshape(self._served.shape)
        for i, sketch in enumerate(self._ttft):
            sketch.add(ttft_s if n_sites == 1 else ttft_s[rows.site == i])
        instants = (
            *(rows.at_s, rows.prefill_start_s, rows.prefill_end_s),
            *(rows.ready_s, rows.decode_start_s),
        )
        for stage, before, after in zip(STAGES, instants, instants[1:], strict=False):
            self._stages[stage].add(_span(stage, before, after))
        for name in _TOTALS:
            self._totals[name] += int(getattr(rows, name).astype(np.int64, copy=False).sum())
        several = rows.output_tokens > 1
        if not several.all():
            rows = rows[several]
        gen_s = _span("decode", rows.decode_start_s, rows.end_s)
        self._inter_token.add(gen_s / (rows.output_tokens - 1))

    def _side(self, rows: Finished | UnderWay, sided: Whole, series: Series) -> None:
        """What is known at arrival, whether it ever ends."""
        series.arrived(rows.at_s)
        series.sided(rows.at_s, rows.remote)
        key = (rows.site * len(self._reasons) + rows.reason) * 2 + rows.remote
        if float(rows.at_s.min()) < self._warmup_s:
            key = key[rows.at_s >= self._warmup_s]
        found = np.bincount(key, minlength=sided.size)
        sided += found.reshape(sided.shape)

    def _never(self, why: str, at_s: Array, site: Whole) -> None:
        self._series.arrived(at_s)
        self._not_served[why] += self._by_site(site[at_s >= self._warmup_s])

    def _by_site(self, site: Whole) -> Whole:
        found: Whole = np.bincount(site, minlength=len(self._sites))
        return found

    def _by_reason(self, sided: Whole) -> dict[str, dict[str, float]]:
        """`sided` has shape (n_reasons, 2); reasons that nobody met are left out."""
        total = int(sided.sum())
        return {
            reason: {
                "requests": int(row.sum()),
                "share": int(row.sum()) / total,
                "remote": int(row[1]),
            }
            for reason, row in zip(self._reasons, sided, strict=True)
            if row.any()
        }

    def _link_reports(self, window_s: float) -> dict[str, dict[str, Any]]:
        found = {}
        for name, meter in self._links.items():
            link = meter.link
            back = self._links.get(f"{link.target}->{link.source}")
            found[name] = meter.report(window_s, back)
        return found

    def _changes(self, until_s: float) -> dict[str, int]:
        """Changes inside the window, by what they changed."""
        counts = {"all": 0, "threshold": 0, "roles": 0}
        before: dict[str, ClusterPlan] = {}
        for at_s, cluster, plan, _ in self._plans:
            old = before.get(cluster)
            before[cluster] = plan
            if old is not None and self._warmup_s <= at_s <= until_s:
                counts["all"] += 1
                sides = (old.mode, old.threshold_tokens) != (plan.mode, plan.threshold_tokens)
                counts["threshold"] += sides
                counts["roles"] += old.n_prefill != plan.n_prefill
        return counts

    def _thresholds(self) -> dict[str, list[tuple[float, int | None]]]:
        found: dict[str, list[tuple[float, int | None]]] = {}
        for at_s, cluster, plan, _ in self._plans:
            found.setdefault(cluster, []).append((at_s, plan.threshold_tokens))
        return found


_TOKENS = ("prompt", "output", "uncached", "computed")
_TOTALS = (*(f"{name}_tokens" for name in _TOKENS), "kv_bytes", "retries")


def _span(name: str, before_s: Array, after_s: Array) -> Array:
    """after - before, shape (n,). Raises ValueError where it is below 0 by more than rounding."""
    span_s = after_s - before_s
    if len(span_s):
        least_s = float(span_s.min())
        if not least_s >= -_ROUNDING_S:
            raise ValueError(f"{name} of a request took {least_s!r} s")
        if least_s < 0.0:
            span_s = np.maximum(span_s, 0.0)
    return span_s


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one is missing, or where there is nothing to sum."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _plan_row(at_s: float, cluster: str, plan: ClusterPlan, reason: str) -> dict[str, Any]:
    return {
        "at_s": at_s,
        "cluster": cluster,
        "mode": plan.mode,
        "threshold_tokens": plan.threshold_tokens,
        "n_prefill": plan.n_prefill,
        "n_decode": plan.n_decode,
        "remote": dict(plan.remote),
        "reason": reason,
    }
