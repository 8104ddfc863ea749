"""What is expected of a fleet's telemetry, what came, what fits. Pure: plain values in and out.

A source is anything an agent reads: an instance, a link, a gate. What it should tell is the table
of `wanted`; what it does tell is in its agent's report, or else in its newest reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import Final

import msgspec
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as _lazy
from django.utils.translation import ngettext

from console import figures
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, STALE_AFTER_S, WARN, Mark
from console.missing import Loop
from console.sources import read_mark
from console.wanted import Wanted, absent_of, wanted_of
from telemetry.wire import GATE_KIND, SourceReport

_FRESH: Final = Mark(*GOOD, _lazy("fresh"))
Key = tuple[str, str]
"""(kind, path) of a source."""

TROUBLE: Final = ("incomplete", "slow", "failed", "down", "silent", "never", "unmatched")
STATES: Final = ("fresh", *TROUBLE, "gone")
READ_WELL: Final = ("fresh", "incomplete")


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


class Heard(msgspec.Struct, frozen=True, gc=False):
    """A source of which samples came. `is_left`: its agent reports, and reads it no more.

    A struct as all that is made of each of thousands of sources: several times cheaper.
    """

    kind: str
    path: str
    role: str
    engine: str
    engine_version: str
    agent: str
    first_s: float
    last_s: float
    is_left: bool = False


class Read(msgspec.Struct, frozen=True, gc=False):
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


class SourceRow(msgspec.Struct, frozen=True, gc=False):
    """One source, judged. `read` is None where nobody told what it exposes.

    Sources that are alike share the very tuples of `wanted` and `lacks`.
    """

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
class Expected:
    """So many of a kind should report, so many do, so many of those are read well."""

    label: str
    expected: int
    received: int
    fresh: int

    @property
    def tone(self) -> str:
        return self._state[0]

    @property
    def mark(self) -> Mark:
        if self.received > self.expected:
            words = _("%(value)s more than expected") % {"value": self.received - self.expected}
        elif self.fresh >= self.expected:
            words = _("all read well")
        elif self.fresh == 0:
            words = _("none read")
        else:
            words = _("%(fresh)s read well") % {"fresh": self.fresh}
        return Mark(*self._state, words)

    @property
    def _state(self) -> tuple[str, str]:
        if self.fresh >= self.expected >= self.received:
            return GOOD
        return BAD if self.fresh == 0 and self.received <= self.expected else WARN


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
    placed = [(one, _cluster(one), *place_of(one.kind, one.path, ordered)) for one in heard]
    full = _full_clusters(placed, inventories, now_s)
    judge, rows = _Judge(now_s), []
    for one, cluster, fleet, why in placed:
        if shown is None or fleet == shown or (why and _may_be(one, shown, inventories)):
            read, inventory = reads.get((one.kind, one.path)), inventories.get(fleet)
            is_full = (fleet, cluster) in full
            rows.append(judge.row(one, cluster, read, inventory, why, is_full=is_full))
    known = {(one.kind, one.path) for one in heard}
    for inventory in inventories.values():
        if shown in (None, inventory.fleet):
            never = _never(inventory, known)
            known |= {(row.kind, row.path) for row in never}
            rows += never
    rows.sort(key=attrgetter("kind", "path"))
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
    placed: Iterable[tuple[Heard, str, str, str]],
    inventories: Mapping[str, Inventory],
    now_s: float,
) -> set[tuple[str, str]]:
    """Clusters of which as many instances are heard as they should have."""
    fresh = Counter(
        (fleet, cluster)
        for one, cluster, fleet, _why in placed
        if one.kind == "instance" and now_s - one.last_s <= STALE_AFTER_S
    )
    return {
        (inventory.fleet, name)
        for inventory in inventories.values()
        for name, site in inventory.sites.items()
        if fresh[inventory.fleet, name] >= site.instances
    }


class _Judge:
    """Judges source by source at one moment. Most of thousands are alike: what one lacks and how
    that is called is found out once for all of them."""

    def __init__(self, now_s: float) -> None:
        self._now_s = now_s
        self._lacks: dict[Hashable, tuple[Lack, ...]] = {}
        self._marks: dict[Hashable, Mark] = {}

    def row(
        self,
        one: Heard,
        cluster: str,
        read: Read | None,
        inventory: Inventory | None,
        why: str,
        *,
        is_full: bool,
    ) -> SourceRow:
        site = inventory.sites.get(cluster) if inventory else None
        report = read.report if read else None
        engine = one.engine or (report.engine if report else "")
        # Of what belongs to nothing nothing is wanted: first it needs a place. A router of another
        # make knows no sides; what it tells is shown.
        is_other = one.kind == "router" and engine not in ("", GATE_KIND)
        of = (one.kind, one.role, site.kind if site else "")
        wanted = () if why or is_other else wanted_of(*of)
        lacks = ()
        if wanted and read is not None and read.state == "ok":
            lacks = self._lacking(of, wanted, read)
        state, mark = self._state(one, read, why, lacks, is_full=is_full)
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

    def _lacking(
        self, of: tuple[str, str, str], wanted: tuple[Wanted, ...], read: Read
    ) -> tuple[Lack, ...]:
        """What of `wanted` a source does not tell, with the agent's reason where it gave one."""
        reasons = read.report.missing if read.report else {}
        alike = (of, read.found, tuple(reasons.items()))
        if alike not in self._lacks:
            untold = _("not exposed")
            self._lacks[alike] = tuple(
                Lack(want, next((reasons[n] for n in want.any_of if n in reasons), untold))
                for want in absent_of(wanted, read.found)
            )
        return self._lacks[alike]

    def _state(
        self, one: Heard, read: Read | None, why: str, lacks: Sequence[Lack], *, is_full: bool
    ) -> tuple[str, Mark]:
        if why:
            return "unmatched", Mark(*WARN, why)
        if one.is_left and one.kind == "instance":
            return "gone", self._called(_left, one.agent)
        if self._now_s - one.last_s > STALE_AFTER_S:
            if is_full and one.kind == "instance":
                return "gone", self._called(_replaced, one.last_s)
            return "silent", self._called(_silent, one.last_s)
        if read is not None and read.state != "ok":
            state = read.state if read.state in ("slow", "down") else "failed"
            return state, self._called(read_mark, read.state, read.error)
        if lacks and (n := sum(lack.want.decides for lack in lacks)):
            return "incomplete", self._called(_incomplete, n)
        return "fresh", _FRESH

    def _called(self, call: Callable[..., Mark], *by: Hashable) -> Mark:
        if (call, by) not in self._marks:
            self._marks[call, by] = call(*by)
        return self._marks[call, by]


def _left(agent: str) -> Mark:
    return Mark(*OFF, _("%(agent)s reads it no more") % {"agent": agent})


def _replaced(last_s: float) -> Mark:
    words = _("gone since %(since)s, not missed")
    return Mark(*OFF, words % {"since": figures.clock(last_s)})


def _silent(last_s: float) -> Mark:
    return Mark(*WARN, _("silent since %(since)s") % {"since": figures.clock(last_s)})


def _incomplete(n: int) -> Mark:
    text = ngettext(
        "%(n)s signal missing that decisions need",
        "%(n)s signals missing that decisions need",
        n,
    )
    return Mark(*WARN, text % {"n": n})


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


def utc(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
