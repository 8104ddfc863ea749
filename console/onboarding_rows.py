"""What is expected of a fleet's telemetry, what came, what fits. Pure: plain values in and out.

A source is anything an agent reads: an instance, a link, a gate. What it should tell is the table
of `wanted`; what it does tell is in its agent's report, or else in its newest reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.missing import Loop
from console.sources import freshness
from console.wanted import WANTED, Wanted, absent_of, wanted_of
from telemetry.wire import GATE_KIND, AgentReport, SourceReport

_FRESH: Final = Mark(*GOOD, _lazy("fresh"))
Key = tuple[str, str]
"""(kind, path) of a source."""

TROUBLE: Final = ("incomplete", "slow", "failed", "down", "silent", "never", "unmatched")
STATES: Final = ("fresh", *TROUBLE, "gone")
READ_WELL: Final = ("fresh", "incomplete")
UNMATCHED_KIND: Final = "unmatched"
"""A door's report has what no rule matched as a source of this kind (`telemetry.doors`)."""


@dataclass(frozen=True)
class Site:
    """A cluster of a scenario. `n_prefill` is None where it does not say how roles start."""

    kind: str
    profile: str
    instances: int
    n_prefill: int | None = None


@dataclass(frozen=True)
class Inventory:
    """What one fleet is made of. `gates` are those that asked for a plan, by id; `loop` is its
    newest tick with the plan in force."""

    fleet: str
    sites: Mapping[str, Site]
    links: Mapping[str, float]
    gates: tuple[str, ...] = ()
    loop: Loop | None = None

    def owns(self, row: SourceRow) -> bool:
        """Whether a row is of this fleet. A link may be of several."""
        if row.kind == "link":
            return row.path in self.links
        return row.fleet == self.fleet


@dataclass(frozen=True)
class Heard:
    """A source of which samples came. `is_left`: its agent reports, and reads it no more."""

    kind: str
    path: str
    role: str
    engine: str
    engine_version: str
    agent: str
    first_s: float
    last_s: float
    is_left: bool = False


@dataclass(frozen=True)
class Read:
    """What is known of one source's newest reading, by report or by the reading itself.

    `at_s` is when that was told, `heard_s` when it was last heard.
    """

    found: frozenset[str]
    at_s: float
    heard_s: float
    state: str = "ok"
    error: str = ""
    report: SourceReport | None = None


@dataclass(frozen=True)
class Lack:
    """A wanted signal that a source does not tell, and why not."""

    want: Wanted
    why: str


@dataclass(frozen=True)
class SourceRow:
    """One source, judged. `read` is None where nobody told what it exposes."""

    kind: str
    path: str
    state: str
    mark: Mark
    fleet: str = ""
    cluster: str = ""
    role: str = ""
    engine: str = ""
    engine_version: str = ""
    agent: str = ""
    first_s: float | None = None
    last_s: float | None = None
    read: Read | None = None
    wanted: tuple[Wanted, ...] = ()
    lacks: tuple[Lack, ...] = ()

    @property
    def name(self) -> str:
        """Its id without the fleet; a link's as it is."""
        return self.path if self.kind == "link" else self.path.partition("/")[2]

    @property
    def is_gate(self) -> bool:
        """Whether the loop counts its requests: a router of another make counts them again."""
        return self.kind == "router" and self.engine in ("", GATE_KIND)

    @property
    def report(self) -> SourceReport | None:
        return self.read.report if self.read else None

    @property
    def n_found(self) -> int:
        return len(self.wanted) - len(self.lacks)

    @property
    def in_trouble(self) -> bool:
        return self.state in TROUBLE

    @property
    def first_at(self) -> datetime | None:
        return utc(self.first_s)

    @property
    def last_at(self) -> datetime | None:
        return utc(self.last_s)


@dataclass(frozen=True)
class SignalRow:
    """How many of the sources that should tell a signal do, and the commonest reason why not."""

    want: Wanted
    n_wanted: int
    n_found: int
    why: str = ""
    example: str = ""

    @property
    def mark(self) -> Mark:
        if self.n_found == self.n_wanted:
            return Mark(*GOOD, _("told by all"))
        tone = (BAD if self.n_found == 0 else WARN) if self.want.decides else OFF
        return Mark(
            *tone,
            _("told by none")
            if self.n_found == 0
            else _("not by %(n_lacking)s") % {"n_lacking": self.n_lacking},
        )

    @property
    def n_lacking(self) -> int:
        return self.n_wanted - self.n_found


@dataclass(frozen=True)
class StrangerRow:
    """Names of series no map knows, by engine: in how many sources, and one of them."""

    engine: str
    series: str
    n_sources: int
    example: str


@dataclass(frozen=True)
class Expected:
    """So many of a kind should report, so many do, so many of those are read well."""

    label: str
    expected: int
    received: int
    fresh: int

    @property
    def mark(self) -> Mark:
        if self.received > self.expected:
            return Mark(
                *WARN, _("%(value)s more than expected") % {"value": self.received - self.expected}
            )
        if self.fresh >= self.expected:
            return Mark(*GOOD, _("all read well"))
        if self.fresh == 0:
            return Mark(*BAD, _("none read"))
        return Mark(*WARN, _("%(fresh)s read well") % {"fresh": self.fresh})


def source_rows(
    heard: Iterable[Heard],
    reads: Mapping[Key, Read],
    inventories: Mapping[str, Inventory],
    *,
    shown: str | None,
    now_s: float,
) -> list[SourceRow]:
    """Every source of fleet `shown` (None: of all fleets), and those that belong to no fleet.

    Expected links and gates nobody reads are rows as well, in state `never`; instances have no
    name until they report. Sources that were silent for a day are left out.
    """
    heard = [one for one in heard if now_s - one.last_s <= FORGOTTEN_AFTER_S]
    # A link of several fleets is the shown one's first.
    ordered = {shown: inventories[shown], **inventories} if shown else inventories
    places = {(one.kind, one.path): place_of(one.kind, one.path, ordered) for one in heard}
    full = _full_clusters(heard, places, inventories, now_s)
    rows = []
    for one in heard:
        fleet, why = places[one.kind, one.path]
        if shown is None or fleet == shown or (why and _may_be(one, shown, inventories)):
            read = reads.get((one.kind, one.path))
            is_full = (fleet, _cluster(one)) in full
            rows.append(_row(one, read, inventories.get(fleet), why, now_s, is_full=is_full))
    known = {(one.kind, one.path) for one in heard}
    for inventory in inventories.values():
        if shown in (None, inventory.fleet):
            never = _never(inventory, known)
            known |= {(row.kind, row.path) for row in never}
            rows += never
    rows.sort(key=lambda row: (row.kind, row.path))
    return rows


def place_of(kind: str, path: str, inventories: Mapping[str, Inventory]) -> tuple[str, str]:
    """(the fleet a source belongs to, why to none): one of the two is empty."""
    if kind == "link":
        owner = next((i.fleet for i in inventories.values() if path in i.links), "")
        return owner, "" if owner else _("no fleet has this link")
    fleet, _slash, rest = path.partition("/")
    if fleet not in inventories:
        return "", _("no fleet is called %(fleet)s") % {"fleet": fleet}
    cluster = rest.partition("/")[0]
    if cluster not in inventories[fleet].sites:
        return "", _("fleet %(fleet)s has no cluster %(cluster)s") % {
            "fleet": fleet,
            "cluster": cluster,
        }
    return fleet, ""


def _may_be(one: Heard, shown: str, inventories: Mapping[str, Inventory]) -> bool:
    """A source without a place may be a misspelt one of this fleet, unless it names another."""
    named = one.path.partition("/")[0] if one.kind != "link" else ""
    return named == shown or named not in inventories


def _cluster(one: Heard) -> str:
    return "" if one.kind == "link" else one.path.split("/")[1]


def _full_clusters(
    heard: Iterable[Heard],
    places: Mapping[Key, tuple[str, str]],
    inventories: Mapping[str, Inventory],
    now_s: float,
) -> set[tuple[str, str]]:
    """Clusters of which as many instances are heard as they should have."""
    fresh = Counter(
        (places[one.kind, one.path][0], _cluster(one))
        for one in heard
        if one.kind == "instance" and now_s - one.last_s <= STALE_AFTER_S
    )
    return {
        (inventory.fleet, name)
        for inventory in inventories.values()
        for name, site in inventory.sites.items()
        if fresh[inventory.fleet, name] >= site.instances
    }


def _row(
    one: Heard,
    read: Read | None,
    inventory: Inventory | None,
    why: str,
    now_s: float,
    *,
    is_full: bool,
) -> SourceRow:
    cluster = _cluster(one)
    site = inventory.sites.get(cluster) if inventory else None
    report = read.report if read else None
    engine = one.engine or (report.engine if report else "")
    # Of what belongs to nothing nothing is wanted: first it needs a place. A router of another
    # make knows no sides; what it tells is shown.
    is_other = one.kind == "router" and engine not in ("", GATE_KIND)
    wanted = () if why or is_other else wanted_of(one.kind, one.role, site.kind if site else "")
    lacks = () if read is None or read.state != "ok" else lacking(wanted, read)
    state, mark = _state(one, read, why, lacks, now_s, is_full=is_full)
    return SourceRow(
        kind=one.kind,
        path=one.path,
        state=state,
        mark=mark,
        fleet=inventory.fleet if inventory else "",
        cluster=cluster,
        role=one.role,
        engine=engine,
        engine_version=one.engine_version or (report.engine_version if report else ""),
        agent=one.agent,
        first_s=one.first_s,
        last_s=one.last_s,
        read=read,
        wanted=wanted,
        lacks=lacks,
    )


def lacking(wanted: Iterable[Wanted], read: Read) -> tuple[Lack, ...]:
    """What of `wanted` a source does not tell, with the agent's reason where it gave one."""
    absent = absent_of(tuple(wanted), read.found)
    if not absent:
        return ()
    reasons, untold = read.report.missing if read.report else {}, _("not exposed")
    return tuple(
        Lack(want, next((reasons[n] for n in want.any_of if n in reasons), untold))
        for want in absent
    )


def _state(
    one: Heard,
    read: Read | None,
    why: str,
    lacks: Sequence[Lack],
    now_s: float,
    *,
    is_full: bool,
) -> tuple[str, Mark]:
    if why:
        return "unmatched", Mark(*WARN, why)
    if one.is_left and one.kind == "instance":
        return "gone", Mark(*OFF, _("%(agent)s reads it no more") % {"agent": one.agent})
    if now_s - one.last_s > STALE_AFTER_S:
        since = figures.clock(one.last_s)
        if is_full and one.kind == "instance":
            return "gone", Mark(*OFF, _("gone since %(since)s, not missed") % {"since": since})
        return "silent", Mark(*WARN, _("silent since %(since)s") % {"since": since})
    if read is not None and read.state != "ok":
        state = read.state if read.state in ("slow", "down") else "failed"
        now = datetime.fromtimestamp(now_s, UTC)
        return state, freshness(read.state, read.error, one.last_s, now)
    if n := sum(lack.want.decides for lack in lacks):
        text = ngettext(
            "%(n)s signal missing that decisions need",
            "%(n)s signals missing that decisions need",
            n,
        )
        return "incomplete", Mark(*WARN, text % {"n": n})
    return "fresh", _FRESH


def _never(inventory: Inventory, known: set[Key]) -> list[SourceRow]:
    expected = [("link", path) for path in inventory.links]
    expected += [("router", path) for path in inventory.gates]
    return [
        SourceRow(
            kind=kind,
            path=path,
            state="never",
            mark=Mark(*WARN, _("read by no agent")),
            fleet=inventory.fleet,
            cluster="" if kind == "link" else path.split("/")[1],
        )
        for kind, path in expected
        if (kind, path) not in known
    ]


RowsAt = Mapping[tuple[str, str, str], Sequence[SourceRow]]
"""Rows by fleet, kind and cluster, which of links is empty: a link may be of several fleets and
stands at the one that its row names."""


def rows_at(rows: Iterable[SourceRow]) -> RowsAt:
    """Looked for in once per cluster, where going through all rows each time would be slow."""
    found: dict[tuple[str, str, str], list[SourceRow]] = {}
    for row in rows:
        found.setdefault((row.fleet, row.kind, row.cluster), []).append(row)
    return found


def expectations(
    inventory: Inventory, there: RowsAt, link_rows: Mapping[str, SourceRow]
) -> list[Expected]:
    """Instances by cluster, links, gates: expected, received, read well. `link_rows` are those of
    links by id, whichever fleet they name."""

    def at(kind: str, cluster: str) -> list[SourceRow]:
        rows = there.get((inventory.fleet, kind, cluster), ())
        return [row for row in rows if row.state != "gone"]

    found = []
    for name, site in inventory.sites.items():
        here = at("instance", name)
        found.append(_expected(_("instances of %(name)s") % {"name": name}, site.instances, here))
    if inventory.links:
        links = [link_rows[path] for path in inventory.links if path in link_rows]
        links = [row for row in links if row.state != "gone"]
        found.append(_expected(_("links"), len(inventory.links), links))
    for name, site in inventory.sites.items():
        if site.kind == "pd":
            gates = [row for row in at("router", name) if row.is_gate]
            found.append(
                _expected(_("gates of %(name)s") % {"name": name}, max(len(gates), 1), gates)
            )
    return found


def _expected(label: str, expected: int, rows: Sequence[SourceRow]) -> Expected:
    received = sum(row.last_s is not None for row in rows)
    fresh = sum(row.state in READ_WELL for row in rows)
    return Expected(label, expected, received, fresh)


def signal_rows(rows: Iterable[SourceRow]) -> list[SignalRow]:
    """Every wanted signal, over the sources of which is known what they expose: silent ones too,
    for silence is another trouble than a signal that is not there."""
    known = [row for row in rows if row.read is not None and row.read.state == "ok"]
    n_wanted: Counter[Wanted] = Counter()
    why: dict[Wanted, Counter[str]] = {}
    example: dict[tuple[Wanted, str], str] = {}
    for row in known:
        n_wanted.update(row.wanted)
        for lack in row.lacks:
            why.setdefault(lack.want, Counter())[lack.why] += 1
            example.setdefault((lack.want, lack.why), row.path)
    commonest = {want: reasons.most_common(1)[0][0] for want, reasons in why.items()}
    return [
        SignalRow(
            want=want,
            n_wanted=n_wanted[want],
            n_found=n_wanted[want] - sum(why[want].values()) if want in why else n_wanted[want],
            why=commonest.get(want, ""),
            example=example[want, commonest[want]] if want in commonest else "",
        )
        for want in WANTED
        if n_wanted[want]
    ]


def stranger_rows(
    rows: Iterable[SourceRow], reports: Mapping[str, AgentReport]
) -> list[StrangerRow]:
    """Series that no map knows, and those no rule of a door matched; of most sources first."""
    told = [
        (row.engine or _("unknown"), row.path, row.report) for row in rows if row.report is not None
    ]
    for agent, report in reports.items():
        unmatched = (source for source in report.sources if source.kind == UNMATCHED_KIND)
        told += [(_("no rule"), f"{agent}, {source.id}", source) for source in unmatched]
    # Most sources tell one of a few lists (`telemetry.reports` shares them): count those first.
    alike: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
    for engine, place, source in told:
        if source.unmatched:
            key = (engine, id(source.unmatched))
            alike.setdefault(key, (source.unmatched, []))[1].append(place)
    seen: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for (engine, _names), (names, places) in alike.items():
        for series in names:
            seen[engine, series] += len(places)
            example.setdefault((engine, series), places[0])
    ordered = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    return [
        StrangerRow(engine, series, n, example[engine, series]) for (engine, series), n in ordered
    ]


def utc(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
