"""What to do next, for each thing that telemetry lacks. Pure: judged rows in, commands out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console.missing import Finding
from console.onboarding_agents import CLOCK_OFF_S, AgentRow, RefusedRow, clock_words
from console.onboarding_refused import refused_help
from console.onboarding_rows import (
    READ_WELL,
    Inventory,
    RowsAt,
    SourceRow,
    rows_at,
)
from console.onboarding_signals import SignalRow
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
from console.phrases import counted

MAX_GAPS: Final = 12
_APART: Final = 3
"""So many gaps of one kind stand one by one; more become one."""


@dataclass(frozen=True)
class Gap:
    """Something that is missing: what to do, why, and how, step by step.

    `several` is the title of many such gaps as one, with {n}; empty: it always stands alone.
    """

    key: str
    tone: str
    title: str
    why: str
    steps: tuple[Step, ...] = ()
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
    has_begun: bool,
) -> tuple[list[Gap], int]:
    """What has a next command, what is worst first, and how much that is: of what was never read
    only as much is put into words as is ever shown, as a site may have hundreds of clusters.

    Before anything reported (`has_begun`) the path to the first figures says what to read.
    """
    there = rows_at(rows)
    unread = list(_unread(inventories, there)) if has_begun else []
    found = [
        *_refused(refused),
        *_clocks(agents),
        *_silent(findings, now_s),
        *(in_words() for in_words in unread[:MAX_GAPS]),
        *_failing(rows),
        *_signals(signals),
        *_strangers(rows, inventories),
        *_dropped(agents),
        *_bad_lines(rows),
        *(gap for inventory in inventories.values() for gap in _too_many(inventory, there)),
    ]
    ordered = sorted(_merged(found), key=lambda gap: gap.tone != "bad")
    return ordered, len(ordered) + len(unread[MAX_GAPS:])


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
            more = _("The same holds for %(n)s more.") % {"n": f"{n - 1:,}"}
            yield replace(first, title=title, why=f"{first.why} {more}")


def _refused(refused: Sequence[RefusedRow]) -> Iterable[Gap]:
    for row in refused:
        if not row.is_recent or row.is_clock:
            continue
        title, text, command = refused_help(row.status)
        found = {
            "whose": row.whose or _("An agent without a valid token"),
            "status": row.status,
            "field": row.field,
            "times": _("once") if row.count == 1 else _("%(n)s times") % {"n": f"{row.count:,}"},
            "error": row.error,
        }
        if row.field:
            why = _(
                "%(whose)s: batches are refused with %(status)s at %(field)s, %(times)s: %(error)s."
            )
        else:
            why = _("%(whose)s: batches are refused with %(status)s, %(times)s: %(error)s.")
        why %= found
        key = f"refused:{row.whose}:{row.status}:{row.field}"
        steps = (Step(text, command),) if text else ()
        several = _("%(title)s: {n} agents and tokens") % {"title": title}
        yield Gap(key, "bad", title, why, steps, several=several)


def _clocks(agents: Sequence[AgentRow]) -> Iterable[Gap]:
    for row in agents:
        if row.state != "clock":
            continue
        is_refused = any(one.is_clock and one.is_recent for one in row.refused)
        by = _("The clock of %(name)s is ahead")
        if row.skew_s is not None and abs(row.skew_s) > CLOCK_OFF_S:
            by = _("The clock of %(name)s is %(skew)s")
        by %= {"name": row.name, "skew": clock_words(row.skew_s or 0.0)}
        effect = (
            _("readings of the future are refused, nothing of it is stored")
            if is_refused
            else _(
                "its readings stand at the wrong time in charts; how fresh "
                "they are is not judged by its clock"
            )
        )
        steps = (Step(_("On its host, see whether time is kept in step."), "timedatectl status"),)
        yield Gap(
            f"clock:{row.name}",
            "bad" if is_refused else "warn",
            _("Set the clock of %(name)s") % {"name": row.name},
            f"{by}: {effect}.",
            steps,
            several=_("Set the clocks of {n} agents' hosts"),
        )


def _silent(findings: Iterable[Finding], now_s: float) -> Iterable[Gap]:
    for finding in findings:
        kind, _colon, rest = finding.key.partition(":")
        why = finding.sentence(now_s)
        if kind in ("agent", "agents"):
            back = (
                Step(_("On its host, see how it is, where systemd runs it."), STATUS),
                Step(_("See whether it still reads its sources."), TRY),
                Step(_("Start it again, where nothing else does."), AGENT),
            )
            title = (
                _("Bring agent %(rest)s back") % {"rest": rest}
                if rest
                else _("Bring %(n)s agents back") % {"n": finding.n}
            )
            several = "Bring {n} agents back"
            yield Gap(finding.key, finding.tone, title, why, back, several=several)
        elif kind == "silent":
            what, _colon, cluster = rest.partition(":")
            title = _("Read the instances of %(cluster)s again") % {"cluster": cluster}
            if what == "router":
                title = _("Read the gates of %(cluster)s again") % {"cluster": cluster}
            steps = (Step(_("Their agent is heard, and reads others: see what it reads."), TRY),)
            yield Gap(finding.key, finding.tone, title, why, steps)


def _unread(inventories: Mapping[str, Inventory], there: RowsAt) -> Iterable[Callable[[], Gap]]:
    """Expected, and never heard of, fleet by fleet; each is put into words when it is called."""
    never: dict[str, list[SourceRow]] = {}
    for (fleet, kind, _cluster), rows in there.items():
        if kind != "instance":
            never.setdefault(fleet, []).extend(row for row in rows if row.state == "never")
    for fleet, inventory in inventories.items():
        for cluster, site in inventory.sites.items():
            here = there.get((fleet, "instance", cluster), ())
            n_left = site.instances - sum(row.state != "gone" for row in here)
            if n_left > 0:
                yield partial(_unread_instances, inventory, cluster, here, n_left)
            routers = there.get((fleet, "router", cluster), ())
            if site.kind == "pd" and not any(row.is_gate for row in routers):
                yield partial(_no_gate, fleet, cluster)
        yield from (partial(_unread_one, inventory, row) for row in never.get(fleet, ()))


def _unread_instances(
    inventory: Inventory, cluster: str, here: Sequence[SourceRow], n_left: int
) -> Gap:
    site, taken = inventory.sites[cluster], {row.path for row in here}
    numbers = [
        n
        for n in range(1, 2 * site.instances + 1)
        if f"{inventory.fleet}/{cluster}/{site.profile}-{n}" not in taken
    ][:n_left]
    return Gap(
        f"unread:{inventory.fleet}/{cluster}",
        "warn",
        ngettext(
            "Have an agent read %(n)s instance of %(cluster)s",
            "Have an agent read %(n)s instances of %(cluster)s",
            n_left,
        )
        % {"n": n_left, "cluster": cluster},
        _("The scenario has %(instances)s, %(n)s ever reported: the loop counts what reports.")
        % {"instances": site.instances, "n": len(here)},
        (
            Step(
                _("Add them to agent.toml of an agent that reaches them."),
                instances_toml(inventory.fleet, cluster, site, numbers),
                file="agent.toml",
            ),
            Step(_("See what is found."), TRY),
            Step(
                _("Or, if the cluster has fewer, correct the scenario."),
                f"{MANAGE} fleet apply scenario.toml",
            ),
        ),
    )


def _no_gate(fleet: str, cluster: str) -> Gap:
    path = f"{fleet}/{cluster}/gw-1"
    return Gap(
        f"no-gate:{fleet}/{cluster}",
        "warn",
        _("Put a gate in front of %(cluster)s") % {"cluster": cluster},
        _("Nothing tells its demand and the lengths of its prompts: no t is computed."),
        (
            Step(_("Issue its token."), token_command("gw-1", fleet, "router")),
            Step(_("Start it."), "python -m routing.gate --config gate.toml"),
            Step(_("Have an agent read it."), gate_toml(path), file="agent.toml"),
        ),
    )


def _unread_one(inventory: Inventory, row: SourceRow) -> Gap:
    if row.kind == "link":
        source, _arrow, target = row.path.partition("->")
        title = _("Have an agent of %(source)s read link %(source)s → %(target)s") % {
            "source": source,
            "target": target,
        }
        why = _("Its use and loss are unknown. A link is read where it sends.")
        content = link_toml(row.path, inventory.links[row.path])
    else:
        title = _("Have an agent read gate %(name)s") % {"name": row.name}
        why = _("It asks for plans, but what it counts reaches nobody: its demand is not in t.")
        content = gate_toml(row.path)
    steps = (
        Step(_("Add this to its agent.toml."), content, file="agent.toml"),
        Step(_("See what is found."), TRY),
    )
    return Gap(f"unread:{row.path}", "warn", title, why, steps)


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
        busy = ""
        if state == "slow":
            busy = " " + _("A busy engine answers late: this never counts as idle.")
        url = next((u for u in _URL.findall(error) if _PLAIN_URL.fullmatch(u)), "")
        if n == 1:
            title = _("Look at %(name)s: it cannot be read")
            if state == "slow":
                title = _("Look at %(name)s: it answers late")
        else:
            title = _("Look at %(n)s sources that cannot be read")
            if state == "slow":
                title = _("Look at %(n)s sources that answer late")
        yield Gap(
            f"{state}:{kind}",
            "warn",
            title % {"name": found[0].name, "n": n},
            f"{names}{ends}{busy}",
            (
                Step(
                    _("From the agent's host, see what it answers."),
                    f"curl -sS -i -m 10 {url or 'http://HOST:8000/metrics'} | head -n 20",
                ),
                Step(_("See what the agent makes of it."), TRY),
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
        who = counted(row.want.kind, row.n_lacking)
        yield Gap(
            f"signal:{row.want.name}",
            "bad" if row.n_found == 0 else "warn",
            _("Have %(who)s tell %(name)s") % {"who": who, "name": row.want.name},
            _("Without it %(without)s. %(example)s: %(why)s.")
            % {"without": row.want.without, "example": row.example, "why": row.why},
            (
                Step(_("See what one of them exposes, and what it means to us."), READ_ENGINE)
                if row.want.kind != "link"
                else Step(_("See what its agent reads."), TRY),
            ),
        )


def _strangers(rows: Sequence[SourceRow], inventories: Mapping[str, Inventory]) -> Iterable[Gap]:
    by_why: dict[str, list[SourceRow]] = {}
    for row in rows:
        if row.state == "unmatched":
            by_why.setdefault(row.mark.text, []).append(row)
    known = listed(sorted(inventories)) or _("none")
    for why, found in sorted(by_why.items()):
        n = len(found)
        yield Gap(
            f"unmatched:{why}",
            "warn",
            ngettext("Give %(n)s source a place", "Give %(n)s sources a place", n) % {"n": n},
            ngettext(
                "%(names)s: %(why)s. What it tells is stored and counts for no decision. "
                "Fleets: %(known)s.",
                "%(names)s: %(why)s. What they tell is stored and counts for no decision. "
                "Fleets: %(known)s.",
                n,
            )
            % {"names": listed([row.path for row in found]), "why": why, "known": known},
            (
                Step(
                    _("Correct the id in agent.toml, FLEET/CLUSTER/NAME, of %(listed)s.")
                    % {"listed": listed(sorted({row.agent for row in found}))},
                    'grep -n "^id" agent.toml',
                ),
                Step(
                    _("Or register what it belongs to."),
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
            batches = ngettext(
                "%(n)s batch left its full spool unsent",
                "%(n)s batches left its full spool unsent",
                n,
            )
            parts.append(batches % {"n": f"{n:,}"})
        if report.n_dropped_series:
            parts.append(
                _("%(n_dropped_series)s series were over its limits")
                % {"n_dropped_series": f"{report.n_dropped_series:,}"}
            )
        yield Gap(
            f"dropped:{row.name}",
            "warn",
            _("Give %(name)s more room") % {"name": row.name},
            _("Since %(name)s started, %(parts)s: charts have holes there.")
            % {"name": row.name, "parts": _(" and ").join(parts)},
            (
                Step(
                    _("Raise the limit in its agent.toml."),
                    "spool_max_bytes = 1073741824",
                    file="agent.toml",
                ),
            )
            if report.n_dropped_batches
            else (Step(_("See which source has so many."), TRY),),
            several=_("Give {n} agents more room"),
        )


def _bad_lines(rows: Sequence[SourceRow]) -> Iterable[Gap]:
    bad = [row for row in rows if row.report is not None and row.report.n_bad_lines]
    if not bad:
        return
    n = sum(row.report.n_bad_lines for row in bad if row.report is not None)
    yield Gap(
        "bad-lines",
        "warn",
        ngettext(
            "Look at %(n)s line that could not be read",
            "Look at %(n)s lines that could not be read",
            n,
        )
        % {"n": f"{n:,}"},
        _("%(listed)s: the rest of the text is used.")
        % {"listed": listed([row.name for row in bad])},
        (Step(_("From the agent's host, see which."), READ_ENGINE),),
    )


def _too_many(inventory: Inventory, there: RowsAt) -> Iterable[Gap]:
    for cluster, site in inventory.sites.items():
        here = [
            row
            for row in there.get((inventory.fleet, "instance", cluster), ())
            if row.state in (*READ_WELL, "slow", "failed", "down")
        ]
        if len(here) > site.instances:
            yield Gap(
                f"too-many:{inventory.fleet}/{cluster}",
                "warn",
                _("Say in the scenario that %(cluster)s has %(n)s instances")
                % {"cluster": cluster, "n": len(here)},
                _("It says %(instances)s; plans are made for what it says.")
                % {"instances": site.instances},
                (Step(_("Correct it, and apply it."), f"{MANAGE} fleet apply scenario.toml"),),
            )


def headline(expected: Iterable[tuple[str, int, int]], n_gaps: int) -> str:
    """The page in one sentence. `expected` is (what, how many should report, how many do)."""
    short = [
        _("%(fresh)s of %(wanted)s %(what)s") % {"fresh": fresh, "wanted": wanted, "what": what}
        for what, wanted, fresh in expected
        if fresh < wanted
    ]
    if not short and not n_gaps:
        return _("Everything that is expected reports, with every signal that decisions need.")
    if not short:
        return _("Everything that is expected reports; some of it needs a hand.")
    return _("Read well: %(short)s.") % {"short": listed(short)}
