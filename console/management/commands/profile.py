"""`manage.py profile --fleet F --from T --to T`: prefill times measured, beside the scenario's."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from console.management import moments
from routing import fleets, profiling
from routing.core.model.profile_fit import Fit
from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import ScenarioError
from routing.models import Fleet
from routing.pools import WARM_UP_S
from routing.profiling import Measured

_COMPARED_TOKENS = (1024, 4096, 16_384, 65_536)


class Command(BaseCommand):
    help = "Fit prefill profiles from stored telemetry and show them beside the scenario's."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--fleet", required=True)
        parser.add_argument("--cluster", help="default: every cluster of the fleet")
        for name, what in (("--from", "beginning"), ("--to", "end")):
            parser.add_argument(
                name,
                required=True,
                metavar="T",
                help=f"{what} of the span: {moments.HELP}",
            )
        parser.add_argument(
            "--warm-up",
            default=WARM_UP_S,
            type=float,
            metavar="S",
            help="seconds after an instance's start that are left out (default: %(default)g)",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        since_s, until_s = (_time(f"--{key}", options[key]) for key in ("from", "to"))
        if until_s <= since_s:
            raise _refused("--to", options["to"], "must be after --from")
        warmup_s = options["warm_up"]
        if not 0.0 <= warmup_s < math.inf:
            raise _refused("--warm-up", warmup_s, "must be at least 0")
        fleet = Fleet.objects.filter(pk=options["fleet"]).first()
        if fleet is None:
            raise _refused("--fleet", options["fleet"], "is no fleet")
        try:
            scenario = fleets.scenario_of(fleet)
        except ScenarioError as exc:
            raise CommandError(f"{fleet.pk}: {exc}", returncode=2) from None
        cluster = options["cluster"]
        if cluster is not None and scenario.cluster(cluster) is None:
            raise _refused("--cluster", cluster, f"is no cluster of {fleet.pk}")
        found = profiling.measure(
            fleet, cluster=cluster, since_s=since_s, until_s=until_s, warmup_s=warmup_s
        )
        if options["json"]:
            answer = {
                "fleet": fleet.pk,
                "from_s": since_s,
                "to_s": until_s,
                "clusters": {each.cluster.name: _values(scenario, each) for each in found},
            }
            self.stdout.write(json.dumps(answer, allow_nan=False))
        else:
            self.stdout.write("\n".join(line for each in found for line in _lines(scenario, each)))


def _refused(field: str, value: Any, message: str) -> CommandError:
    return CommandError(f"{field}={value!r}: {message}", returncode=2)


def _time(field: str, text: str) -> float:
    try:
        return moments.parse(text, now_s=timezone.now().timestamp())
    except ValueError as exc:
        raise _refused(field, text, str(exc)) from None


def _values(scenario: Scenario, measured: Measured) -> dict[str, Any]:
    values: dict[str, Any] = {
        "profile": measured.cluster.profile,
        "engines": list(measured.engines),
        "fit": None,
        "refused": None,
        "compared": [],
    }
    fit = measured.outcome
    if not isinstance(fit, Fit):
        return values | {"refused": {"reason": fit.reason, "message": fit.message}}
    return values | {
        "fit": {
            "fit": [fit.constant_s, fit.linear_s, fit.square_s],
            "range_tokens": list(fit.range_tokens),
            "n_requests": fit.n_requests,
            "n_rows": fit.n_rows,
            "n_wild": fit.n_wild,
            "n_warm_up": fit.n_warm_up,
            "n_unusable": fit.n_unusable,
            "spread_ratio": fit.spread_ratio,
            "measured_from_s": fit.measured_from_s,
            "measured_until_s": fit.measured_until_s,
        },
        "compared": [
            dict(zip(("tokens", "scenario_s", "fit_s"), row, strict=True))
            for row in _compared(scenario, measured, fit)
        ],
    }


def _compared(scenario: Scenario, measured: Measured, fit: Fit) -> list[tuple[int, float, float]]:
    """Tokens, the scenario's seconds, the fit's, at lengths that both were measured at."""
    told, seen = scenario.profiles[measured.cluster.profile].prefill, fit.profile()
    return [
        (tokens, float(told.prefill_s(tokens)), float(seen.prefill_s(tokens)))
        for tokens in _COMPARED_TOKENS
        if not told.extrapolated(tokens) and not seen.extrapolated(tokens)
    ]


def _lines(scenario: Scenario, measured: Measured) -> list[str]:
    """A table that can be copied into the scenario, with the facts as comments."""
    fit, head = measured.outcome, f"# {measured.cluster.name}, profile {measured.cluster.profile}"
    if not isinstance(fit, Fit):
        return [f"{head}: no fit, {fit.reason}: {fit.message}"]
    lines = [
        f"{head}: {fit.n_requests:.0f} requests in {fit.n_rows} rows, times spread by "
        f"{fit.spread_ratio:.0%}; left out {fit.n_wild} wild rows, {fit.n_warm_up} of a warm-up, "
        f"{fit.n_unusable} that no prefill can leave",
    ]
    lines += [
        f"#   {tokens:>9,} tokens: scenario {told_s:.3f} s, measured {seen_s:.3f} s "
        f"({seen_s / told_s - 1:+.0%})"
        for tokens, told_s, seen_s in _compared(scenario, measured, fit)
    ]
    engine, _, version = measured.engines[0].partition(" ")
    low, high = fit.range_tokens
    day = datetime.fromtimestamp(fit.measured_until_s, UTC).date()
    lines += [
        f"[profiles.{json.dumps(measured.cluster.profile.split('@')[0])}]",
        f"prefill = {{ fit = [{fit.constant_s:.6g}, {fit.linear_s:.6g}, {fit.square_s:.6g}], "
        f"range_tokens = [{low:.0f}, {high:.0f}] }}",
        f"engine = {json.dumps(engine)}",
        f"engine_version = {json.dumps(version)}",
        f'measured_on = "{day}"',
    ]
    return lines
