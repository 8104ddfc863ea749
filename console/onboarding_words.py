"""What to do next, for each thing that telemetry lacks. Pure: judged rows in, commands out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from console.missing import Finding
from console.onboarding_agents import CLOCK_OFF_S, AgentRow, RefusedRow, clock_words
from console.onboarding_rows import READ_WELL, Inventory, SignalRow, Site, SourceRow
from console.onboarding_steps import (
    AGENT,
    MANAGE,
    READ_ENGINE,
    STATUS,
    TRY,
    Step,
    gate_toml,
    instances_toml,
    link_toml,
    listed,
    token_command,
)

MAX_GAPS: Final = 12
_APART: Final = 3
"""So many gaps of one kind stand one by one; more become one."""


@dataclass(frozen=True)
class Gap:
    """Something that is missing: what to do, why, and how, step by step.

    `in_path`: the path to the first figures says it already. `several` is the title of many such
    gaps as one, with {n}; empty: it always stands alone.
    """

    key: str
    tone: str
    title: str
    why: str
    steps: tuple[Step, ...] = ()
    in_path: bool = False
    several: str = ""


def gaps(
    inventories: Mapping[str, Inventory],
    rows: Sequence[SourceRow],
    agents: Sequence[AgentRow],
    refused: Sequence[RefusedRow],
    signals: Sequence[SignalRow],
    findings: Iterable[Finding],
    *,
    now_s: float,
) -> list[Gap]:
    """Everything that has a next command, what is worst first."""
    found = [
        *_refused(refused),
        *_clocks(agents),
        *_silent(findings, now_s),
        *(gap for inventory in inventories.values() for gap in _unread(inventory, rows)),
        *_failing(rows),
        *_signals(signals),
        *_strangers(rows, inventories),
        *_dropped(agents),
        *_bad_lines(rows),
        *(gap for inventory in inventories.values() for gap in _too_many(inventory, rows)),
    ]
    return sorted(_merged(found), key=lambda gap: gap.tone != "bad")


def _merged(found: Iterable[Gap]) -> Iterable[Gap]:
    """Many of one kind as one, which has the words of its first: the others must not hide."""
    alike: dict[tuple[str, str], list[Gap]] = {}
    for gap in found:
        alike.setdefault((gap.several or gap.key, gap.tone), []).append(gap)
    for gaps_ in alike.values():
        first, n = gaps_[0], len(gaps_)
        if n <= _APART or not first.several:
            yield from gaps_
        else:
            title = first.several.format(n=f"{n:,}")
            yield replace(first, title=title, why=f"{first.why} The same holds for {n - 1:,} more.")


_REFUSED_HELP: Final[dict[int, tuple[str, str, str]]] = {
    400: ("Something between the agent and here spoils its requests", "", ""),
    401: (
        "Give the agent a token that is valid",
        "Issue a new one and put it into the agent's token_file: it is read again by itself.",
        f"{MANAGE} token issue agent-NAME --scope ingest > agent.token",
    ),
    403: (
        "Give the agent a token that may send this",
        "It needs scope ingest, and no fleet or the fleet of the ids it sends.",
        f"{MANAGE} token issue agent-NAME --scope ingest > agent.token",
    ),
    408: ("The agent's path to the console is too slow for its batches", "", ""),
    409: (
        "Give each running agent a name of its own",
        "Two agents run under this name: the older one is refused. Find both, and rename one.",
        'grep "^agent" agent.toml',
    ),
    413: (
        "Send less at once",
        "Divide the sources between several agents, or allow more bytes in a body and restart "
        "the web process.",
        "CONSOLE_INGEST_MAX_BYTES=16777216",
    ),
    415: ("Send msgpack or JSON, plain or compressed as the console offers", "", ""),
    422: (
        "See what the agent sends",
        "Read everything once and look at the field that is named.",
        TRY,
    ),
}


def refused_words(row: RefusedRow) -> str:
    """What to do about one kind of refusal, in one line."""
    if row.is_clock:
        return "Set the clock of the agent's host"
    return _REFUSED_HELP.get(row.status, ("Look at what the console answers it", "", ""))[0]


def _refused(refused: Sequence[RefusedRow]) -> Iterable[Gap]:
    for row in refused:
        if not row.is_recent or row.is_clock:
            continue
        title, text, command = _REFUSED_HELP.get(
            row.status, ("Look at what the console answers", "", "")
        )
        whose = row.whose or "An agent without a valid token"
        field = f" at {row.field}" if row.field else ""
        times = "once" if row.count == 1 else f"{row.count:,} times"
        why = f"{whose}: batches are refused with {row.status}{field}, {times}: {row.error}."
        key = f"refused:{row.whose}:{row.status}:{row.field}"
        steps = (Step(text, command),) if text else ()
        several = f"{title}: {{n}} agents and tokens"
        yield Gap(key, "bad", title, why, steps, several=several)


def _clocks(agents: Sequence[AgentRow]) -> Iterable[Gap]:
    for row in agents:
        if row.state != "clock":
            continue
        is_refused = any(one.is_clock and one.is_recent for one in row.refused)
        by = (
            f" is {clock_words(row.skew_s)}"
            if row.skew_s is not None and abs(row.skew_s) > CLOCK_OFF_S
            else " is ahead"
        )
        effect = (
            "readings of the future are refused, nothing of it is stored"
            if is_refused
            else "its readings stand at the wrong time in charts; how fresh they are is not "
            "judged by its clock"
        )
        steps = (Step("On its host, see whether time is kept in step.", "timedatectl status"),)
        yield Gap(
            f"clock:{row.name}",
            "bad" if is_refused else "warn",
            f"Set the clock of {row.name}",
            f"The clock of {row.name}{by}: {effect}.",
            steps,
            several="Set the clocks of {n} agents' hosts",
        )


def _silent(findings: Iterable[Finding], now_s: float) -> Iterable[Gap]:
    for finding in findings:
        kind, _, rest = finding.key.partition(":")
        why = finding.sentence(now_s)
        if kind in ("agent", "agents"):
            back = (
                Step("On its host, see how it is, where systemd runs it.", STATUS),
                Step("See whether it still reads its sources.", TRY),
                Step("Start it again, where nothing else does.", AGENT),
            )
            # Many are one finding, which begins with their number.
            n_agents = finding.what.partition(" ")[0]
            title = f"Bring agent {rest} back" if rest else f"Bring {n_agents} agents back"
            several = "Bring {n} agents back"
            yield Gap(finding.key, finding.tone, title, why, back, several=several)
        elif kind == "silent":
            what, _, cluster = rest.partition(":")
            title = f"Read the {'gates' if what == 'router' else 'instances'} of {cluster} again"
            steps = (Step("Their agent is heard, and reads others: see what it reads.", TRY),)
            yield Gap(finding.key, finding.tone, title, why, steps)


def _unread(inventory: Inventory, rows: Sequence[SourceRow]) -> Iterable[Gap]:
    """Expected, and never heard of."""
    for cluster, site in inventory.sites.items():
        here = [row for row in _of(rows, inventory.fleet, "instance") if row.cluster == cluster]
        yield from _unread_instances(inventory, cluster, site, here)
        gates = [
            row
            for row in _of(rows, inventory.fleet, "router")
            if row.cluster == cluster and row.is_gate
        ]
        if site.kind == "pd" and not gates:
            yield _no_gate(inventory.fleet, cluster)
    for row in (*_of(rows, inventory.fleet, "link"), *_of(rows, inventory.fleet, "router")):
        if row.state == "never":
            yield _unread_one(inventory, row)


def _unread_instances(
    inventory: Inventory, cluster: str, site: Site, here: Sequence[SourceRow]
) -> Iterable[Gap]:
    n_left = site.instances - sum(row.state != "gone" for row in here)
    if n_left <= 0:
        return
    taken = {row.path for row in here}
    numbers = [
        n
        for n in range(1, 2 * site.instances + 1)
        if f"{inventory.fleet}/{cluster}/{site.profile}-{n}" not in taken
    ][:n_left]
    many = "instance" if n_left == 1 else "instances"
    yield Gap(
        f"unread:{inventory.fleet}/{cluster}",
        "warn",
        f"Have an agent read {n_left} {many} of {cluster}",
        f"The scenario has {site.instances}, {len(here)} ever reported: the loop counts what "
        "reports.",
        (
            Step(
                "Add them to agent.toml of an agent that reaches them.",
                instances_toml(inventory.fleet, cluster, site, numbers),
                file="agent.toml",
            ),
            Step("See what is found.", TRY),
            Step(
                "Or, if the cluster has fewer, correct the scenario.",
                f"{MANAGE} fleet apply scenario.toml",
            ),
        ),
        in_path=True,
    )


def _no_gate(fleet: str, cluster: str) -> Gap:
    path = f"{fleet}/{cluster}/gw-1"
    return Gap(
        f"no-gate:{fleet}/{cluster}",
        "warn",
        f"Put a gate in front of {cluster}",
        "Nothing tells its demand and the lengths of its prompts: no t is computed.",
        (
            Step("Issue its token.", token_command("gw-1", fleet, "router")),
            Step("Start it.", "python -m routing.gate --config gate.toml"),
            Step("Have an agent read it.", gate_toml(path), file="agent.toml"),
        ),
        in_path=True,
    )


def _unread_one(inventory: Inventory, row: SourceRow) -> Gap:
    if row.kind == "link":
        source, _, target = row.path.partition("->")
        title = f"Have an agent of {source} read link {source} → {target}"
        why = "Its use and loss are unknown. A link is read where it sends."
        content = link_toml(row.path, inventory.links[row.path])
    else:
        title = f"Have an agent read gate {row.name}"
        why = "It asks for plans, but what it counts reaches nobody: its demand is not in t."
        content = gate_toml(row.path)
    steps = (
        Step("Add this to its agent.toml.", content, file="agent.toml"),
        Step("See what is found.", TRY),
    )
    return Gap(f"unread:{row.path}", "warn", title, why, steps, in_path=True)


def _of(rows: Sequence[SourceRow], fleet: str, kind: str) -> list[SourceRow]:
    return [row for row in rows if row.fleet == fleet and row.kind == kind]


_URL: Final = re.compile(r"https?://[^\s()]+")
_PLAIN_URL: Final = re.compile(r"https?://[A-Za-z0-9._:\[\]/-]+")
"""Nothing in it means anything to a shell: an error is text of others, a command is typed."""


def _failing(rows: Sequence[SourceRow]) -> Iterable[Gap]:
    by_error: dict[tuple[str, str], list[SourceRow]] = {}
    for row in rows:
        if row.state in ("failed", "down", "slow") and row.read is not None:
            by_error.setdefault((row.state, _kind(row.read.error)), []).append(row)
    for (state, kind), found in sorted(by_error.items()):
        n, error = len(found), found[0].read.error if found[0].read else ""
        names = listed([row.name for row in found])
        such = f". {found[0].name}: " if n > 1 else ": "
        ends = f"{such}{error}." if error else "."
        busy = " A busy engine answers late: this never counts as idle." if state == "slow" else ""
        url = next((u for u in _URL.findall(error) if _PLAIN_URL.fullmatch(u)), "")
        what = f"{found[0].name}: it" if n == 1 else f"{n} sources that"
        fate = "cannot be read" if state != "slow" else "answers late" if n == 1 else "answer late"
        yield Gap(
            f"{state}:{kind}",
            "warn",
            f"Look at {what} {fate}",
            f"{names}{ends}{busy}",
            (
                Step(
                    "From the agent's host, see what it answers.",
                    f"curl -sS -i -m 10 {url or 'http://HOST:8000/metrics'} | head -n 20",
                ),
                Step("See what the agent makes of it.", TRY),
            ),
        )


def _kind(error: str) -> str:
    """An error without addresses and numbers: one fault at many addresses is one fault."""
    for url in _URL.findall(error):
        host = url.split("/")[2].rpartition(":")[0] or url.split("/")[2]
        error = error.replace(url, "").replace(host, "")
    return re.sub(r"\d+", "", error)


def _signals(signals: Sequence[SignalRow]) -> Iterable[Gap]:
    for row in signals:
        if not row.want.decides or row.n_found == row.n_wanted:
            continue
        of = {"instance": "instance", "router": "gate", "link": "link"}[row.want.kind]
        yield Gap(
            f"signal:{row.want.name}",
            "bad" if row.n_found == 0 else "warn",
            f"Have {row.n_lacking} {_many(of, row.n_lacking)} tell {row.want.name}",
            f"Without it {row.want.without}. {row.example}: {row.why}.",
            (
                Step("See what one of them exposes, and what it means to us.", READ_ENGINE)
                if row.want.kind != "link"
                else Step("See what its agent reads.", TRY),
            ),
        )


def _strangers(rows: Sequence[SourceRow], inventories: Mapping[str, Inventory]) -> Iterable[Gap]:
    by_why: dict[str, list[SourceRow]] = {}
    for row in rows:
        if row.state == "unmatched":
            by_why.setdefault(row.mark.text, []).append(row)
    known = listed(sorted(inventories)) or "none"
    for why, found in sorted(by_why.items()):
        n = len(found)
        yield Gap(
            f"unmatched:{why}",
            "warn",
            f"Give {n} {_many('source', n)} a place",
            f"{listed([row.path for row in found])}: {why}. What "
            f"{'it tells' if n == 1 else 'they tell'} is stored and counts for no decision. "
            f"Fleets: {known}.",
            (
                Step(
                    "Correct the id in agent.toml, FLEET/CLUSTER/NAME, of "
                    f"{listed(sorted({row.agent for row in found}))}.",
                    'grep -n "^id" agent.toml',
                ),
                Step(
                    "Or register what it belongs to.",
                    f"{MANAGE} fleet apply scenario.toml",
                ),
            ),
        )


def _dropped(agents: Sequence[AgentRow]) -> Iterable[Gap]:
    for row in agents:
        report = row.report
        if report is None or not (report.n_dropped_batches or report.n_dropped_series):
            continue
        parts = []
        if report.n_dropped_batches:
            n = report.n_dropped_batches
            parts.append(f"{n:,} {_many('batch', n, 'batches')} left its full spool unsent")
        if report.n_dropped_series:
            parts.append(f"{report.n_dropped_series:,} series were over its limits")
        yield Gap(
            f"dropped:{row.name}",
            "warn",
            f"Give {row.name} more room",
            f"Since {row.name} started, {' and '.join(parts)}: charts have holes there.",
            (
                Step(
                    "Raise the limit in its agent.toml.",
                    "spool_max_bytes = 1073741824",
                    file="agent.toml",
                ),
            )
            if report.n_dropped_batches
            else (Step("See which source has so many.", TRY),),
            several="Give {n} agents more room",
        )


def _bad_lines(rows: Sequence[SourceRow]) -> Iterable[Gap]:
    bad = [row for row in rows if row.report is not None and row.report.n_bad_lines]
    if not bad:
        return
    n = sum(row.report.n_bad_lines for row in bad if row.report is not None)
    yield Gap(
        "bad-lines",
        "warn",
        f"Look at {n:,} {_many('line', n)} that could not be read",
        f"{listed([row.name for row in bad])}: the rest of the text is used.",
        (Step("From the agent's host, see which.", READ_ENGINE),),
    )


def _too_many(inventory: Inventory, rows: Sequence[SourceRow]) -> Iterable[Gap]:
    for cluster, site in inventory.sites.items():
        here = [
            row
            for row in _of(rows, inventory.fleet, "instance")
            if row.cluster == cluster and row.state in (*READ_WELL, "slow", "failed", "down")
        ]
        if len(here) > site.instances:
            yield Gap(
                f"too-many:{inventory.fleet}/{cluster}",
                "warn",
                f"Say in the scenario that {cluster} has {len(here)} instances",
                f"It says {site.instances}; plans are made for what it says.",
                (Step("Correct it, and apply it.", f"{MANAGE} fleet apply scenario.toml"),),
            )


def headline(expected: Iterable[tuple[str, int, int]], n_gaps: int) -> str:
    """The page in one sentence. `expected` is (what, how many should report, how many do)."""
    short = [f"{fresh} of {wanted} {what}" for what, wanted, fresh in expected if fresh < wanted]
    if not short and not n_gaps:
        return "Everything that is expected reports, with every signal that decisions need."
    if not short:
        return "Everything that is expected reports; some of it needs a hand."
    return f"Read well: {listed(short)}."


def _many(one: str, n: int, several: str = "") -> str:
    return one if n == 1 else several or f"{one}s"
