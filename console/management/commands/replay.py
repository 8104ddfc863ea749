"""`manage.py replay --fleet F --from T --to T [--set knob=value]`: stored ticks decided again."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from console import figures
from console.management import moments
from routing import knobs
from routing.models import Fleet
from routing.recorded import NothingStored, Span
from routing.replay import Difference, Divergence, Replayed, Verified, replay, verify
from routing.replay_lines import Change, Line

AS_RECORDED = (
    "Observations are as recorded: traffic, queues and engines followed the plan that was lived. "
    "What would have followed from the other plan is the twin's question (manage.py simulate)."
)
_MOST_LINES = 20
_DIFFERENT = 1
"""Exit code when verdicts differ; 2 is bad input."""


class Command(BaseCommand):
    help = (
        "Decide stored ticks again. Without --set every verdict must be the stored one; with it "
        "the changed knobs are carried forward beside what was lived."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fleet", required=True)
        for name, what in (("--from", "beginning"), ("--to", "end, not included")):
            parser.add_argument(
                name, required=True, metavar="T", help=f"{what} of the span: {moments.HELP}"
            )
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="KNOB=VALUE",
            help="a policy knob to replay with; may be given several times",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        now_s = timezone.now().timestamp()
        since, until = (_moment(f"--{key}", options[key], now_s) for key in ("from", "to"))
        if until <= since:
            raise _refused("--to", options["to"], "must be after --from")
        changed = _knobs(options["set"])
        fleet = Fleet.objects.select_related("policy").filter(pk=options["fleet"]).first()
        if fleet is None:
            raise _refused("--fleet", options["fleet"], "is no fleet")
        try:
            found = replay(fleet, since, until, changed) if changed else verify(fleet, since, until)
        except NothingStored as exc:
            span = f"{options['from']} to {options['to']}"
            raise _refused("--from, --to", span, str(exc)) from None
        except knobs.KnobError as exc:
            raise _refused("--set", f"{exc.name}={exc.value}", exc.message) from None
        if options["json"]:
            self.stdout.write(json.dumps(_values(fleet, found), allow_nan=False))
        else:
            lines = _replayed(found) if isinstance(found, Replayed) else _verified(found)
            self.stdout.write("\n".join([*_span(fleet, found.span), *lines]))
        if isinstance(found, Verified) and found.n_different:
            n = found.n_different
            raise CommandError(f"{n} of {n + found.n_equal} verdicts differ", returncode=_DIFFERENT)


def _refused(field: str, value: Any, message: str) -> CommandError:
    return CommandError(f"{field}={value!r}: {message}", returncode=2)


def _moment(field: str, text: str, now_s: float) -> datetime:
    try:
        return datetime.fromtimestamp(moments.parse(text, now_s=now_s), UTC)
    except ValueError as exc:
        raise _refused(field, text, str(exc)) from None


def _knobs(given: list[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise _refused("--set", each, "must be knob=value")
        wanted[name] = _value(text)
    try:
        return knobs.checked(wanted)
    except knobs.KnobError as exc:
        raise _refused("--set", f"{exc.name}={exc.value}", exc.message) from None


def _value(text: str) -> Any:
    """A number where it is one, else the word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _values(fleet: Fleet, found: Verified | Replayed) -> dict[str, Any]:
    values = {"fleet": fleet.pk, **dataclasses.asdict(found)}
    return values | ({"note": AS_RECORDED} if isinstance(found, Replayed) else {})


def _span(fleet: Fleet, span: Span) -> list[str]:
    lines = [
        f"{fleet.pk}: {span.n_ticks:,} ticks, {figures.stamp(span.first_s)} to "
        f"{figures.stamp(span.last_s)}, formula {span.formula}"
    ]
    if span.n_issued:
        lines.append(f"{span.n_issued:,} issued a plan without asking the core: taken as they are")
    lines += [f"{n:,} cannot be decided again: {why}" for why, n in span.unreadable.items()]
    lines += [
        f"{n:,} stored verdicts are of formula {formula}, not {span.formula}: not compared"
        for formula, n in span.other_formulas.items()
    ]
    return lines


def _verified(found: Verified) -> list[str]:
    n = found.n_equal + found.n_different
    if n == 0:
        return ["No verdict could be compared"]
    if not found.n_different:
        return [f"All {n:,} verdicts are the same"]
    lines = [f"{found.n_equal:,} of {n:,} verdicts are the same, {found.n_different:,} differ:"]
    lines += [_differs(each) for each in found.differences]
    more = found.n_different - len(found.differences)
    return [*lines, f"  and {more:,} more"] if more else lines


def _differs(each: Difference) -> str:
    gap = "" if each.follows else " (the tick before it is not stored)"
    was, now = (_short(value) for value in (each.stored, each.replayed))
    return f"  tick {each.seq}, {figures.clock(each.at_s)}: {each.field} was {was}, is {now}{gap}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _replayed(found: Replayed) -> list[str]:
    changed = ", ".join(f"{name} = {value}" for name, value in found.knobs.items())
    were = ", ".join(f"{found.were[name]}" for name in found.knobs)
    lines = [f"Replayed with {changed} (was {were})", ""]
    rows = [("", "lived", "replayed"), *_rows(found.lived, found.replayed)]
    width = max(len(row[0]) for row in rows)
    middle = max(len(row[1]) for row in rows)
    lines += [f"{name:<{width}}  {was:<{middle}}  {now}".rstrip() for name, was, now in rows]
    lines += ["", *_diverged(found.first_divergence, found)]
    lines += ["", "Changes lived:", *_changes(found.lived)]
    lines += ["", "Changes replayed:", *_changes(found.replayed)]
    return [*lines, "", AS_RECORDED]


def _rows(lived: Line, other: Line) -> list[tuple[str, str, str]]:
    both = (lived, other)
    rows: list[tuple[str, ...]] = [("plans pushed", *(f"{line.n_changes:,}" for line in both))]
    if lived.n_advised or other.n_advised:
        rows.append(("advice given", *(f"{line.n_advised:,}" for line in both)))
    rows.append(("headroom, mean", *(_factor(line.headroom_mean) for line in both)))
    rows.append(("headroom, lowest", *(_factor(line.headroom_lowest) for line in both)))
    for name in lived.end:
        rows.append((f"{name} at first", *(_plan(line.start.get(name)) for line in both)))
        rows.append((f"{name} at last", *(_plan(line.end.get(name)) for line in both)))
        means = (line.threshold_mean_tokens.get(name) for line in both)
        rows.append((f"{name} t, mean", *(figures.tokens(mean) for mean in means)))
    return [(name, was, now) for name, was, now in rows]


def _factor(value: float | None) -> str:
    return figures.NONE if value is None else f"x{figures.significant(value)}"


def _plan(cluster: dict[str, Any] | None) -> str:
    if cluster is None:
        return figures.NONE
    t = cluster["threshold_tokens"]
    words = cluster["mode"].replace("_", " ") if t is None else f"t = {t:,}"
    caches = ", caches abundant" if cluster["cache_mode"] == "abundant" else ""
    return f"{words}, {cluster['n_prefill']}/{cluster['n_decode']}{caches}"


def _diverged(first: Divergence | None, found: Replayed) -> list[str]:
    if first is None:
        return ["The plans never differ"]
    return [
        f"The plans differ after {found.n_other_plan:,} of {found.span.n_ticks:,} ticks, first "
        f"after tick {first.seq}, {figures.clock(first.at_s)}:",
        f"  lived     {_plans(first.lived)}  {first.lived_reason}: {first.lived_message}",
        f"  replayed  {_plans(first.replayed)}  {first.replayed_reason}: {first.replayed_message}",
    ]


def _plans(clusters: dict[str, dict[str, Any]]) -> str:
    return "; ".join(f"{name} {_plan(plan)}" for name, plan in clusters.items())


def _changes(line: Line) -> list[str]:
    if not line.changes:
        return ["  none"]
    lines = [_change(each) for each in line.changes[:_MOST_LINES]]
    more = line.n_changes + line.n_advised - len(lines)
    return [*lines, f"  and {more:,} more (--json lists them)"] if more else lines


def _change(each: Change) -> str:
    advised = "" if each.pushed else " advised"
    return f"  {figures.clock(each.at_s)}  {_plans(each.clusters)}  {each.reason}{advised}"
