"""The instances of a fleet, all of them: a list that the server sorts, narrows and pages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from console import csv_cells, sources
from console.context import Mark
from console.listing import Column, Listing, listing
from console.opened import opened
from console.plans import hue
from console.roles import readable
from console.signal_words import ROLES
from routing.core.scenario.document import Scenario
from routing.models import Fleet
from telemetry import counters, store, wire
from telemetry.quantiles import Quantile, quantile

PER_PAGE: Final = 50
WINDOW_S: Final = 60.0
UNKNOWN: Final = Quantile(None)


@dataclass(frozen=True, eq=False)
class InstanceRow:
    """One engine by its newest reading; figures are None where that did not measure them.

    `kind` is its cluster's; `recent` are its readings at both ends of the last minute, where those
    were asked for. What only some rows of thousands are asked for is found out when it is.
    """

    reading: store.Reading
    kind: str
    now: datetime
    recent: tuple[store.Reading, ...] = ()

    @property
    def path(self) -> str:
        return self.reading.path

    @cached_property
    def id(self) -> str:
        """Its path without the fleet."""
        return self.path.split("/", 1)[1]

    @property
    def cluster(self) -> str:
        return self.id.split("/", 1)[0]

    @property
    def name(self) -> str:
        return self.id.split("/", 1)[1]

    @property
    def role(self) -> str:
        return self.reading.role

    @property
    def hue(self) -> str:
        return hue(self.kind, self.role)

    @cached_property
    def state(self) -> str:
        return sources.state_of(self.reading, self.now)

    @cached_property
    def mark(self) -> Mark:
        read = self.reading
        return sources.freshness(read.state, read.error, read.received_s, self.now)

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.reading.received_s, UTC)

    @property
    def age_s(self) -> float:
        return max(self.now.timestamp() - self.reading.received_s, 0.0)

    @property
    def signals(self) -> wire.InstanceSignals:
        signals = self.reading.signals
        assert isinstance(signals, wire.InstanceSignals), "an instance's reading"
        return signals

    @property
    def running(self) -> float | None:
        return self.signals.requests_running

    @property
    def waiting(self) -> float | None:
        return self.signals.requests_waiting

    @property
    def kv_ratio(self) -> float | None:
        return self.signals.kv_cache_usage_ratio

    @property
    def prompt_tokens_per_s(self) -> float | None:
        return self.signals.prompt_tokens_per_s

    @property
    def generation_tokens_per_s(self) -> float | None:
        return self.signals.generation_tokens_per_s

    @property
    def engine(self) -> str:
        return f"{self.reading.engine} {self.reading.engine_version}".strip()

    @cached_property
    def ttft(self) -> Quantile:
        """The median time to the first token of the last minute."""
        return ttft_of(self.recent)


_GRAVITY: Final = ("down", "failed", "slow", "silent", "ok")
"""States from the gravest on: so they are sorted."""
COLUMNS: Final = (
    Column("name", _("Instance"), lambda row: row.path, is_name=True),
    Column("cluster", _("Cluster"), lambda row: row.cluster, is_usual=False),
    Column("role", _("Role"), lambda row: row.role),
    Column("state", _("State"), lambda row: _GRAVITY.index(row.state)),
    Column("running", _("Running"), lambda row: row.running, is_number=True),
    Column("waiting", _("Waiting"), lambda row: row.waiting, is_number=True),
    Column("kv", _("KV in use"), lambda row: row.kv_ratio, is_number=True),
    Column("ttft", _("TTFT P50"), lambda row: row.ttft.value, is_number=True),
    Column("prompt", _("Prompt"), lambda row: row.prompt_tokens_per_s, is_number=True),
    Column("output", _("Output"), lambda row: row.generation_tokens_per_s, is_number=True),
    Column("engine", _("Engine"), lambda row: row.engine),
    Column("age", _("Age"), lambda row: row.age_s, is_number=True),
)
NEWEST_COLUMNS: Final = tuple(
    replace(column, is_usual=column.is_usual and column.key != "ttft") for column in COLUMNS
)
"""The same, showing of itself only what newest readings tell: other pages' shorter list."""
STATES: Final = (
    ("ok", _("fresh")),
    ("silent", _("silent")),
    ("slow", _("unresponsive")),
    ("failed", _("read failed")),
    ("down", _("down")),
)
"""What `state` may be, and how the filter calls it."""


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponseBase:
    """A page of the list, or all that the filter leaves as CSV."""
    found, scenario = opened(request, fleet)
    now = timezone.now()
    asked = request.GET
    rows = rows_of(found, scenario, now, with_ttft=sorts_by_ttft(asked))
    if asked.get("format") == "csv":
        return _csv(found, narrowed(rows, asked))
    shown = listed(rows, asked, per_page=PER_PAGE)
    if "ttft" in shown.shown:
        shown = with_ttft(shown, now)
    context = {
        "fleet": found,
        "list": shown,
        "clusters": sorted({row.cluster for row in rows} | {c.name for c in scenario.clusters}),
        "roles": ROLES,
        "states": STATES,
        "asked": {name: asked.get(name, "") for name in ("q", "cluster", "role", "state")},
        "is_narrowed": shown.total != shown.all_total or bool(asked.get("q")),
    }
    return render(request, "instances.html", context)


def rows_of(
    fleet: Fleet, scenario: Scenario, now: datetime, *, with_ttft: bool = False
) -> list[InstanceRow]:
    """Everything of the fleet that was read in the last day, by path."""
    prefix = f"{fleet.pk}/"
    recent = recent_of(prefix, now) if with_ttft else {}
    return rows_from(sources.newest("instance", prefix, now), scenario, now, recent)


def rows_from(
    readings: Iterable[store.Reading],
    scenario: Scenario,
    now: datetime,
    recent: Mapping[str, Sequence[store.Reading]] = MappingProxyType({}),
) -> list[InstanceRow]:
    """The same of readings at hand."""
    kinds = {each.name: each.kind for each in scenario.clusters}
    return [row_of(reading, kinds, now, recent.get(reading.path, ())) for reading in readings]


def row_of(
    reading: store.Reading,
    kinds: Mapping[str, str],
    now: datetime,
    recent: Sequence[store.Reading] = (),
) -> InstanceRow:
    """A reading as a row; `kinds` are those of clusters by name."""
    kind = kinds.get(reading.path.split("/", 2)[1], "pd")
    return InstanceRow(reading, kind, now, tuple(recent))


def recent_of(
    prefix: str, now: datetime, paths: Collection[str] | None = None
) -> dict[str, list[store.Reading]]:
    """By path, readings at both ends of the last minute: what histograms saw lies between. Of
    `paths` only if given."""
    now_s = now.timestamp()
    span = {"since_s": now_s - WINDOW_S, "until_s": now_s, "bin_s": WINDOW_S / 2}
    return store.window("instance", prefix=prefix, paths=paths, **span)


def ttft_of(readings: Sequence[store.Reading]) -> Quantile:
    """The median of what was observed between the first and the last of these readings."""
    if len(readings) < 2:
        return UNKNOWN
    first, last = readings[0], readings[-1]
    gained = counters.histogram_increase(
        getattr(first.signals, "ttft_seconds", None),
        getattr(last.signals, "ttft_seconds", None),
        restarted=first.epoch_s != last.epoch_s,
    )
    return UNKNOWN if gained is None else quantile(gained.edges, gained.counts, 0.5)


def narrowed(rows: Iterable[InstanceRow], asked: QueryDict) -> list[InstanceRow]:
    """Those whose path, role, engine or state contains `q`, of the cluster, role and state."""
    words = asked.get("q", "").lower()
    exact = {key: value for key in ("cluster", "role", "state") if (value := asked.get(key))}
    left = [row for row in rows if all(getattr(row, key) == value for key, value in exact.items())]
    if not words:
        return left
    states = _words_of(left)
    return [
        row
        for row, state in zip(left, states, strict=True)
        if words in f"{row.path} {row.role} {row.engine} {state}".lower()
    ]


def _words_of(rows: Iterable[InstanceRow]) -> Iterator[str]:
    """How the state of each is called: thousands are called alike."""
    known: dict[tuple[str, str | None, float | None], str] = {}
    for row in rows:
        read = row.reading
        alike = (row.state, read.error, read.received_s if row.state == "silent" else None)
        if alike not in known:
            known[alike] = row.mark.text
        yield known[alike]


def sorts_by_ttft(asked: QueryDict) -> bool:
    """Whether the address asks for an order for which every row's last minute must be read."""
    return asked.get("sort", "").removeprefix("-") == "ttft"


def with_ttft(shown: Listing, now: datetime) -> Listing:
    """The page of a list with its rows' last minute, read for these rows alone."""
    paths = {row.path for row in shown.rows if not row.recent}
    recent = recent_of("", now, paths) if paths else {}
    rows = [
        row if row.recent else replace(row, recent=tuple(recent.get(row.path, ())))
        for row in shown.rows
    ]
    return replace(shown, rows=rows)


def listed(
    rows: list[InstanceRow],
    asked: QueryDict,
    *,
    per_page: int,
    columns: Sequence[Column] = COLUMNS,
) -> Listing:
    return listing(narrowed(rows, asked), columns, asked, all_total=len(rows), per_page=per_page)


_CSV: Final[tuple[tuple[str, Any], ...]] = (
    ("cluster", lambda row: row.cluster),
    ("instance", lambda row: row.name),
    ("role", lambda row: row.role),
    ("state", lambda row: str(row.mark.text)),
    ("read_at", lambda row: row.at),
    ("age_s", lambda row: round(row.age_s, 3)),
    ("requests_running", lambda row: row.running),
    ("requests_waiting", lambda row: row.waiting),
    ("kv_cache_usage_ratio", lambda row: row.kv_ratio),
    ("prompt_tokens_per_s", lambda row: row.prompt_tokens_per_s),
    ("generation_tokens_per_s", lambda row: row.generation_tokens_per_s),
    ("engine", lambda row: row.engine),
)


def _csv(fleet: Fleet, rows: list[InstanceRow]) -> HttpResponseBase:
    cells = ([value(row) for _name, value in _CSV] for row in rows)
    return csv_cells.stream(cells, [name for name, _value in _CSV], f"{fleet.pk}-instances")
