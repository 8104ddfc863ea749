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

from console import figures
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.sources import freshness
from console.wanted import WANTED, Wanted, wanted_of
from telemetry.wire import GATE_KIND, AgentReport, SourceReport

_FRESH: Final = Mark(*GOOD, "fresh")
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
    """What one fleet is made of. `gates` are those that asked for a plan, by id."""

    fleet: str
    sites: Mapping[str, Site]
    links: Mapping[str, float]
    gates: tuple[str, ...] = ()

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
            return Mark(*GOOD, "told by all")
        tone = (BAD if self.n_found == 0 else WARN) if self.want.decides else OFF
        return Mark(*tone, "told by none" if self.n_found == 0 else f"not by {self.n_lacking}")

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
            return Mark(*WARN, f"{self.received - self.expected} more than expected")
        if self.fresh >= self.expected:
            return Mark(*GOOD, "all read well")
        if self.fresh == 0:
            return Mark(*BAD, "none read")
        return Mark(*WARN, f"{self.fresh} read well")


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
        return owner, "" if owner else "no fleet has this link"
    fleet, _, rest = path.partition("/")
    if fleet not in inventories:
        return "", f"no fleet is called {fleet}"
    cluster = rest.partition("/")[0]
    if cluster not in inventories[fleet].sites:
        return "", f"fleet {fleet} has no cluster {cluster}"
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
    reasons = read.report.missing if read.report else {}
    return tuple(
        Lack(want, next((reasons[n] for n in want.any_of if n in reasons), "not exposed"))
        for want in wanted
        if not want.is_in(read.found)
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
        return "gone", Mark(*OFF, f"{one.agent} reads it no more")
    if now_s - one.last_s > STALE_AFTER_S:
        since = figures.clock(one.last_s)
        if is_full and one.kind == "instance":
            return "gone", Mark(*OFF, f"gone since {since}, not missed")
        return "silent", Mark(*WARN, f"silent since {since}")
    if read is not None and read.state != "ok":
        state = read.state if read.state in ("slow", "down") else "failed"
        now = datetime.fromtimestamp(now_s, UTC)
        return state, freshness(read.state, read.error, one.last_s, now)
    if n := sum(lack.want.decides for lack in lacks):
        signals = "signal" if n == 1 else "signals"
        return "incomplete", Mark(*WARN, f"{n} {signals} missing that decisions need")
    return "fresh", _FRESH


def _never(inventory: Inventory, known: set[Key]) -> list[SourceRow]:
    expected = [("link", path) for path in inventory.links]
    expected += [("router", path) for path in inventory.gates]
    return [
        SourceRow(
            kind=kind,
            path=path,
            state="never",
            mark=Mark(*WARN, "read by no agent"),
            fleet=inventory.fleet,
            cluster="" if kind == "link" else path.split("/")[1],
        )
        for kind, path in expected
        if (kind, path) not in known
    ]


def expectations(inventory: Inventory, rows: Sequence[SourceRow]) -> list[Expected]:
    """Instances by cluster, links, gates: expected, received, read well."""
    mine = [row for row in rows if inventory.owns(row) and row.state != "gone"]
    found = []
    for name, site in inventory.sites.items():
        here = [row for row in mine if row.kind == "instance" and row.cluster == name]
        found.append(_expected(f"instances of {name}", site.instances, here))
    if inventory.links:
        links = [row for row in mine if row.kind == "link"]
        found.append(_expected("links", len(inventory.links), links))
    for name, site in inventory.sites.items():
        if site.kind == "pd":
            gates = [row for row in mine if row.is_gate and row.cluster == name]
            found.append(_expected(f"gates of {name}", max(len(gates), 1), gates))
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
        (row.engine or "unknown", row.path, row.report) for row in rows if row.report is not None
    ]
    for agent, report in reports.items():
        unmatched = (source for source in report.sources if source.kind == UNMATCHED_KIND)
        told += [("no rule", f"{agent}, {source.id}", source) for source in unmatched]
    # Most sources tell one of a few lists (`telemetry.reports` shares them): count those first.
    alike: dict[tuple[str, int], tuple[list[str], list[str]]] = {}
    for engine, place, source in told:
        if source.unmatched:
            key = (engine, id(source.unmatched))
            alike.setdefault(key, (source.unmatched, []))[1].append(place)
    seen: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for (engine, _), (names, places) in alike.items():
        for series in names:
            seen[engine, series] += len(places)
            example.setdefault((engine, series), places[0])
    ordered = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    return [
        StrangerRow(engine, series, n, example[engine, series]) for (engine, series), n in ordered
    ]


def utc(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
