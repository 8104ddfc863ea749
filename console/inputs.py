"""What the loop saw, by cluster and link: each value with its unit, grade, age and evidence.

A grade says how far a value is to be trusted: `fresh`, `stale` where it is older than the policy
takes for one, `assumed` where nobody measured it and something stood in its place, `missing`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy

from console import figures, link_states
from console.context import BAD, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from routing.core.types import LinkMemory

_BEFORE: Final = timedelta(minutes=10)
_AFTER: Final = timedelta(minutes=5)
"""So much around a decision its evidence shows."""
_SET_ASIDE: Final = (
    (_lazy("Silent, prefill"), "prefill_silent"),
    (_lazy("Silent, decode"), "decode_silent"),
    (_lazy("Warming up, prefill"), "prefill_warming"),
    (_lazy("Warming up, decode"), "decode_warming"),
)
_STATES: Final = {"idle": (*OFF, "idle"), "failed": (*BAD, "failed")}


@dataclass(frozen=True)
class Row:
    """A named value with its unit, exact value for the hover, grade, age and evidence."""

    name: str
    value: str
    title: str = ""
    state: Mark | None = None
    age: str = ""
    href: str = ""


@dataclass(frozen=True)
class Evidence:
    """Where the samples behind inputs are to be seen, around the moment they were used."""

    fleet: str
    at: datetime

    def signal(self, signal: str, cluster: str, **more: str) -> str:
        """The history of a signal of a cluster's instances or gates."""
        return self._page("signals", signal=signal, cluster=cluster, **more)

    def link(self, link: str) -> str:
        """One link's page."""
        return self._page("link", id=link)

    def _page(self, name: str, **asked: str) -> str:
        return f"{self._addresses[name]}?{urlencode(asked)}&{self._span}"

    @cached_property
    def _addresses(self) -> dict[str, str]:
        # A large fleet has thousands of inputs, each with its evidence.
        return {name: reverse(name, args=[self.fleet]) for name in ("signals", "link")}

    @cached_property
    def _span(self) -> str:
        ends = {"from": self.at - _BEFORE, "to": self.at + _AFTER}
        return urlencode({name: round(at.timestamp()) for name, at in ends.items()})


@dataclass(frozen=True)
class _Graded:
    """What one group's values have in common: how old they are, and since when that is too old."""

    age_s: float | None
    stale_after_s: float

    def mark(self, value: Any) -> Mark:
        if value is None:
            return Mark(*WARN, _("missing"))
        if self.age_s is not None and self.age_s > self.stale_after_s:
            return Mark(*WARN, _("stale"))
        return Mark(*GOOD, _("fresh"))

    def row(
        self,
        name: str,
        value: float | None,
        write: Callable[[float | None], str],
        href: str = "",
        *,
        state: str = "value",
    ) -> Row:
        mark = Mark(*_STATES[state]) if state in _STATES else self.mark(value)
        return Row(name, write(value), figures.exact(value), mark, figures.age(self.age_s), href)


def groups(
    observed: dict[str, Any],
    judged: Mapping[str, LinkMemory],
    evidence: Evidence,
    *,
    stale_after_s: float = STALE_AFTER_S,
    configured_gbps: Mapping[str, float] | None = None,
) -> list[tuple[str, list[Row]]]:
    """Each cluster and link with its rows. `judged` is what the loop found each link to be.

    `configured_gbps`: of each link, what counts where its capacity is not measured.
    """

    def graded(seen: dict[str, Any]) -> _Graded:
        return _Graded(seen["age_s"], stale_after_s)

    found = [
        (_("Cluster %(name)s") % {"name": name}, _pd_rows(name, pd, graded(pd), evidence))
        for name, pd in observed["pd"].items()
    ]
    found += [
        (_("Cluster %(name)s") % {"name": name}, _prefill_rows(name, seen, graded(seen), evidence))
        for name, seen in observed["prefill"].items()
    ]
    for name, link in observed["links"].items():
        configured = (configured_gbps or {}).get(name)
        rows = _link_rows(name, link, judged.get(name), configured, graded(link), evidence)
        found.append((_("Link %(replace)s") % {"replace": name.replace("->", " → ")}, rows))
    return found


def is_plain(group: tuple[str, list[Row]]) -> bool:
    """Whether all of a group is as it should be."""
    return all(row.state is None or row.state.tone == "good" for row in group[1])


def _pd_rows(name: str, pd: dict[str, Any], graded: _Graded, evidence: Evidence) -> list[Row]:
    def of(signal: str, **more: str) -> str:
        return evidence.signal(signal, name, **more)

    waiting = "instance.requests_waiting"
    rows = [
        graded.row(
            _("Demand"),
            pd["demand_rps"],
            figures.rate,
            of("router.requests_per_s"),
            state=pd["demand_state"],
        ),
        graded.row(
            _("Remote share, last minute"),
            pd["remote_share"],
            figures.percent,
            of("router.uncached_tokens", side="judged"),
        ),
        _lengths(pd["lengths"], graded, of("router.uncached_tokens", side="judged")),
        graded.row(
            _("Waiting for prefill"), pd["queue_prefill"], _requests, of(waiting, role="prefill")
        ),
        graded.row(
            _("Waiting for decode"), pd["queue_decode"], _requests, of(waiting, role="decode")
        ),
        graded.row(
            _("Decode's KV memory"),
            pd.get("decode_kv_usage_ratio"),
            figures.percent,
            of("instance.kv_cache_usage_ratio", role="decode"),
        ),
        graded.row(
            _("Put back by decode"),
            pd.get("preemptions_per_s"),
            figures.rate,
            of("instance.preemptions_total", role="decode"),
        ),
        _instances(pd, graded, of("instance.requests_running")),
    ]
    for title, key in _SET_ASIDE:
        if pd.get(key):
            names = ", ".join(pd[key])
            rows.append(Row(title, names, state=Mark(*WARN, _("assumed full"))))
    if pd["gates_silent"]:
        names = ", ".join(pd["gates_silent"])
        rows.append(Row(_("Silent gates"), names, state=Mark(*WARN, _("assumed as before"))))
    return rows


def _lengths(lengths: dict[str, Any] | None, graded: _Graded, href: str) -> Row:
    age = figures.age(graded.age_s)
    if lengths is None:
        return Row(_("Uncached lengths"), figures.NONE, "", graded.mark(None), age, href)
    title = _("%(n_seen)s requests seen in all; the oldest used is %(oldest_s)s old") % {
        "n_seen": figures.exact(lengths["n_seen"]),
        "oldest_s": figures.duration(lengths["oldest_s"]),
    }
    value = _("%(n_effective)s requests") % {
        "n_effective": figures.significant(lengths["n_effective"])
    }
    return Row(_("Uncached lengths"), value, title, graded.mark(lengths), age, href)


def _instances(pd: dict[str, Any], graded: _Graded, href: str) -> Row:
    value = _("%(n_prefill)s prefill, %(n_decode)s decode") % {
        "n_prefill": pd["n_prefill"],
        "n_decode": pd["n_decode"],
    }
    mark = graded.mark(pd)
    if pd["n_prefill"] <= 0 or pd["n_decode"] <= 0:
        mark = Mark(*WARN, _("assumed: the plan's"))
    return Row(_("Instances"), value, state=mark, age=figures.age(graded.age_s), href=href)


def _prefill_rows(
    name: str, seen: dict[str, Any], graded: _Graded, evidence: Evidence
) -> list[Row]:
    href = evidence.signal("instance.requests_waiting", name, role="prefill")
    mark = graded.mark(seen)
    if seen["n_prefill"] <= 0:
        mark = Mark(*WARN, _("assumed: the scenario's"))
    return [
        graded.row(_("Waiting for prefill"), seen["queue_prefill"], _requests, href),
        Row(
            _("Instances"),
            _("%(n_prefill)s prefill") % {"n_prefill": seen["n_prefill"]},
            "",
            mark,
            figures.age(graded.age_s),
            href,
        ),
    ]


def _link_rows(
    name: str,
    link: dict[str, Any],
    judged: LinkMemory | None,
    configured_gbps: float | None,
    graded: _Graded,
    evidence: Evidence,
) -> list[Row]:
    href = evidence.link(name)
    capacity = graded.row(_("Capacity"), link["capacity_gbps"], figures.gbps, href)
    if link["capacity_gbps"] == 0:
        capacity = _as(capacity, Mark(*BAD, _("down")))
    elif link["capacity_gbps"] is None and configured_gbps is not None:
        capacity = Row(
            *(_("Capacity"), figures.gbps(configured_gbps), figures.exact(configured_gbps)),
            *(Mark(*WARN, _("assumed: the scenario's")), "", href),
        )
    rows = [
        graded.row(_("Egress"), link["tx_gbps"], figures.gbps, href, state=link["state"]),
        capacity,
        graded.row(_("Retransmits"), link["retransmit_ratio"], figures.percent, href),
        graded.row(_("Round trip"), link["rtt_s"], figures.duration, href),
    ]
    if judged is not None:
        mark = link_states.mark(judged.label)
        rows.append(
            Row(_("Judged"), judged.signs or _("no sign of trouble"), state=mark, href=href)
        )
    return rows


def _as(row: Row, mark: Mark) -> Row:
    return Row(row.name, row.value, row.title, mark, row.age, row.href)


def _requests(value: float | None) -> str:
    return figures.with_unit(value, "request" if value == 1 else "requests")
