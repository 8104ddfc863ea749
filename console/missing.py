"""What is missing, since when, and what still works, in sentences. Pure: plain values in and out.

One finding a cause: an agent that fell silent stands for everything it reads, a database that does
not answer for all that would be written to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from console import figures
from console.core_words import reason_lazily
from console.phrases import in_other_languages, joined, listed, said, said_n

Kind = Literal["instance", "link", "router"]
Plan = tuple[int, int]

ACK_AFTER_S: Final = 10.0
"""A gate that runs an older plan this long after a newer one was issued has not acknowledged it."""
CLOCK_AHEAD_S: Final = 5.0
"""A tick this far in the future was written before the clock was set back."""
_NAMED: Final = 3
"""So many of a kind are named; more are counted."""
_APART: Final = 10
"""So many silent agents are a finding each; more are one."""


@dataclass(frozen=True)
class Finding:
    """`what` for so long, since `since_s`: `effect`. Without `since_s` no time is known.

    `n` counts what it tells of. Words are spoken in the language in which they are read.
    """

    key: str
    what: str
    since_s: float | None
    effect: str
    tone: str = "warn"
    n: int = 1

    def sentence(self, now_s: float) -> str:
        if self.since_s is None:
            return f"{self.what}: {self.effect}."
        return _("%(what)s for %(lasts)s (since %(at)s): %(effect)s.") % {
            "what": self.what,
            "lasts": figures.duration(int(max(now_s - self.since_s, 0.0))),
            "at": figures.clock(self.since_s),
            "effect": self.effect,
        }

    def jsonable(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "what": str(self.what),
            "since_s": self.since_s,
            "effect": str(self.effect),
            "tone": self.tone,
            "said": in_other_languages(what=self.what, effect=self.effect),
        }


@dataclass(frozen=True)
class Source:
    """Something an agent reads, as it was read last. `plan` is what a router says it runs,
    `down_since_s` since when a link says that it has no capacity."""

    kind: Kind
    path: str
    agent: str
    received_s: float
    failing_since_s: float | None = None
    error: str = ""
    down_since_s: float | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class Loop:
    """The newest tick and the plan in force, issued at `plan_since_s`."""

    at_s: float
    mode: str
    action: str
    reason: str
    plan: Plan | None = None
    plan_since_s: float | None = None


@dataclass(frozen=True)
class View:
    """What one web process knows of a fleet.

    `agents` maps a name to when it was heard last, `reads` a name to the (kind, path) it reads.
    `links` are all that should be read, `pds` the clusters that decode. The
    `_away_s` say since when something does not answer.
    """

    fleet: str
    agents: Mapping[str, float]
    reads: Mapping[str, Iterable[tuple[str, str]]]
    sources: Iterable[Source]
    links: Iterable[str]
    loop: Loop | None
    stale_s: float
    loop_stale_s: float
    pds: Collection[str] = ()
    database_away_s: float | None = None
    broker_away_s: float | None = None
    reread_s: float = field(default=5.0)


def findings(view: View, now_s: float) -> list[Finding]:
    """Everything that is missing at `now_s`, the widest cause first; empty when all is well."""
    found = [*_broker(view, now_s)]
    if view.database_away_s is not None:
        return [_database(view), *found]
    if not found:  # without the broker the loop has no clock: that is said already
        found += _loop(view, now_s)
    silent = {name: at_s for name, at_s in view.agents.items() if now_s - at_s > view.stale_s}
    found += _agents(view, silent, now_s)
    sources = [source for source in view.sources if source.agent not in silent]
    found += _sources(view, sources, now_s)
    found += _links(view, sources, silent, now_s)
    found += _unacknowledged(view, sources, now_s)
    return found


def _database(view: View) -> Finding:
    return Finding(
        "database",
        said("The database has not answered"),
        view.database_away_s,
        said(
            "nothing is stored or decided and figures are of then; agents keep their samples, "
            "%(gates)s",
            gates=_gates_words(view),
        ),
        "bad",
    )


def _broker(view: View, now_s: float) -> list[Finding]:
    if view.broker_away_s is None:
        return []
    return [
        Finding(
            "broker",
            said("Valkey has not answered"),
            view.broker_away_s,
            said(
                "the loop has no clock and keeps the plan, news of other processes stays away and "
                "this page re-reads every %(span)s; samples are stored, %(gates)s",
                span=figures.duration(view.reread_s),
                gates=_gates_words(view),
            ),
            "bad",
        )
    ]


def _loop(view: View, now_s: float) -> list[Finding]:
    if view.loop is None:
        return []
    ahead_s = view.loop.at_s - now_s
    if ahead_s > CLOCK_AHEAD_S:
        return [
            Finding(
                "clock",
                said(
                    "The clock was set back: the newest tick is of %(at)s, %(span)s from now",
                    at=figures.stamp(view.loop.at_s),
                    span=figures.duration(round(ahead_s)),
                ),
                None,
                said(
                    "figures may stand still and silence shows late until then, %(gates)s",
                    gates=_gates_words(view),
                ),
                "bad",
            )
        ]
    if -ahead_s <= view.loop_stale_s:
        return []
    return [
        Finding(
            "loop",
            said("The loop has not ticked"),
            view.loop.at_s,
            said(
                "beat or worker is down; t stays as it is, samples are stored, %(gates)s",
                gates=_gates_words(view),
            ),
            "bad",
        )
    ]


def _agents(view: View, silent: Mapping[str, float], now_s: float) -> list[Finding]:
    # An agent whose sources another one reads by now is not missed.
    missed = [name for name in sorted(silent) if view.reads.get(name)]
    groups = [[name] for name in missed] if len(missed) <= _APART else [missed]
    found = []
    for names in groups:
        key, what = f"agent:{names[0]}", said("Agent %(name)s has been silent", name=names[0])
        if len(names) > 1:
            key, what = (
                "agents",
                said("%(n)s agents (%(names)s) have been silent", n=len(names), names=_list(names)),
            )
        since_s = min(silent[name] for name in names)
        words = (_what_they_read(view, names), _gates_words(view), _loop_words(view, now_s))
        found.append(Finding(key, what, since_s, joined("; ", words), n=len(names)))
    return found


def _what_they_read(view: View, agents: Iterable[str]) -> str:
    reads = sorted(read for agent in agents for read in view.reads[agent])
    clusters = sorted({path.split("/")[1] for kind, path in reads if kind == "instance"})
    links = [_arrow(path) for kind, path in reads if kind == "link"]
    gates = [_short(path) for kind, path in reads if kind == "router"]
    parts = []
    if clusters:
        parts.append(said("the queues of %(names)s", names=_list(clusters)))
    if links:
        n, names = len(links), _list(links)
        parts.append(said_n("link %(names)s", "links %(names)s", n, names=names))
    if gates:
        n, names = len(gates), _list(gates)
        parts.append(said_n("gate %(names)s", "gates %(names)s", n, names=names))
    return said("no new figures of %(parts)s", parts=joined(", ", parts))


def _sources(view: View, sources: list[Source], now_s: float) -> list[Finding]:
    """Engines and gates that fell silent or fail although their agent is heard, by cluster."""
    silent: dict[tuple[str, str], list[Source]] = {}
    failing: dict[tuple[str, str], list[Source]] = {}
    for source in sources:
        if source.kind == "link":
            continue
        place = (source.kind, source.path.split("/")[1])
        if now_s - source.received_s > view.stale_s:
            silent.setdefault(place, []).append(source)
        elif source.failing_since_s is not None:
            failing.setdefault(place, []).append(source)
    found = []
    for (kind, cluster), rows in sorted(silent.items()):
        since_s = min(row.received_s for row in rows)
        effect = _without(kind, cluster, view, now_s)
        what = _named(kind, cluster, rows, _SILENT)
        found.append(Finding(f"silent:{kind}:{cluster}", what, since_s, effect))
    for (kind, cluster), rows in sorted(failing.items()):
        since_s = min(row.failing_since_s or now_s for row in rows)
        why = next((row.error for row in rows if row.error), "")
        effect = _without(kind, cluster, view, now_s)
        if why:
            effect = joined("; ", (why, effect))
        what = _named(kind, cluster, rows, _UNREAD)
        found.append(Finding(f"failing:{kind}:{cluster}", what, since_s, effect))
    return found


def _without(kind: str, cluster: str, view: View, now_s: float) -> str:
    if kind == "router":
        return said("if it lives it routes by its last plan, other gates route on")
    return said(
        "%(cluster)s is shown without it; %(loop)s",
        cluster=cluster,
        loop=_loop_words(view, now_s),
    )


_SILENT: Final = {
    "instance": (
        gettext_noop("Instance %(name)s has been silent"),
        gettext_noop("%(n)s instances of %(cluster)s (%(names)s) have been silent"),
    ),
    "router": (
        gettext_noop("Gate %(name)s has been silent"),
        gettext_noop("%(n)s gates of %(cluster)s (%(names)s) have been silent"),
    ),
}
_UNREAD: Final = {
    "instance": (
        gettext_noop("Instance %(name)s could not be read"),
        gettext_noop("%(n)s instances of %(cluster)s (%(names)s) could not be read"),
    ),
    "router": (
        gettext_noop("Gate %(name)s could not be read"),
        gettext_noop("%(n)s gates of %(cluster)s (%(names)s) could not be read"),
    ),
}
_Words = Mapping[str, tuple[str, str]]


def _named(kind: str, cluster: str, rows: list[Source], words: _Words) -> str:
    one, many = words[kind]
    if len(rows) == 1:
        return said(one, name=_short(rows[0].path))
    names = [row.path.split("/", 2)[2] for row in rows]
    return said(many, n=len(rows), cluster=cluster, names=_list(names))


def _links(
    view: View, sources: list[Source], silent: Mapping[str, float], now_s: float
) -> list[Finding]:
    read = {source.path: source for source in sources if source.kind == "link"}
    covered = {path for name in silent for kind, path in view.reads.get(name, ()) if kind == "link"}
    found = []
    for path in view.links:
        source, key, link = read.get(path), f"link:{path}", _arrow(path)
        effect = said("its use and loss are unknown; %(loop)s", loop=_loop_words(view, now_s))
        if source is None:
            if view.agents and path not in covered:
                words = said("Link %(link)s is read by no agent", link=link)
                found.append(Finding(key, words, None, effect))
        elif now_s - source.received_s > view.stale_s:
            words = said("Link %(link)s has been unread", link=link)
            found.append(Finding(key, words, source.received_s, effect))
        elif source.failing_since_s is not None:
            words = said("Link %(link)s could not be read", link=link)
            if source.error:
                effect = joined(" ", (effect, f"({source.error})"))
            found.append(Finding(key, words, source.failing_since_s, effect))
        elif source.down_since_s is not None:
            effect = joined("; ", (_without_link(view, path, read), _loop_words(view, now_s)))
            words = said("Link %(link)s has been down", link=link)
            found.append(Finding(key, words, source.down_since_s, effect, "bad"))
    return found


def _without_link(view: View, path: str, read: Mapping[str, Source]) -> str:
    """What its clusters do while a link is down."""
    target = path.split("->")[1]
    if target not in view.pds:
        return said("no prefix moves to %(cluster)s, it computes them", cluster=target)
    others = [
        _arrow(link)
        for link in view.links
        if link != path
        and link.split("->")[1] == target
        and (link not in read or read[link].down_since_s is None)
    ]
    if others:
        return said(
            "%(cluster)s prefills locally or over %(links)s", cluster=target, links=_list(others)
        )
    return said("%(cluster)s prefills locally", cluster=target)


def _unacknowledged(view: View, sources: list[Source], now_s: float) -> list[Finding]:
    loop = view.loop
    if loop is None or loop.plan is None or loop.plan_since_s is None:
        return []
    if now_s - loop.plan_since_s <= ACK_AFTER_S:
        return []
    late = [
        source
        for source in sources
        if source.kind == "router"
        and source.failing_since_s is None
        and now_s - source.received_s <= view.stale_s
        and (source.plan is None or source.plan < loop.plan)
    ]
    return [
        Finding(
            f"ack:{source.path}",
            said(
                "Gate %(name)s has not acknowledged plan %(plan)s",
                name=_short(source.path),
                plan=_version(loop.plan),
            ),
            loop.plan_since_s,
            said("it routes by plan %(plan)s", plan=_version(source.plan))
            if source.plan
            else said("it has no plan and sends everything local"),
        )
        for source in sorted(late, key=lambda source: source.path)
    ]


def _gates_words(view: View) -> str:
    if view.loop is None or view.loop.plan is None:
        return said("gates have no plan yet and send everything local")
    return said("gates keep routing by plan %(plan)s", plan=_version(view.loop.plan))


def _loop_words(view: View, now_s: float) -> str:
    loop = view.loop
    if loop is None:
        return said("the loop has not run yet")
    if loop.at_s - now_s > CLOCK_AHEAD_S:
        return said("the clock was set back")
    if now_s - loop.at_s > view.loop_stale_s:
        return said("the loop stands still")
    if loop.mode == "paused":
        return said("the loop is paused")
    if loop.action == "hold":
        return said("the loop keeps t (%(reason)s)", reason=reason_lazily(loop.reason))
    return said("the loop goes on")


def _version(plan: Plan) -> str:
    return f"{plan[0]}.{plan[1]}"


def _short(path: str) -> str:
    return path.split("/", 1)[1]


def _arrow(link: str) -> str:
    return link.replace("->", " → ")


def _list(names: list[str]) -> str:
    return listed(names, _NAMED)
