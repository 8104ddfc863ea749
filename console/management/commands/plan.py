"""`manage.py plan SCENARIO`: the best plan of a described fleet, before anything runs."""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from routing.core.model.planner import plan_scenario
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.profile_files import FileError
from routing.core.scenario.tables import ScenarioError
from routing.scenario_files import read_document

_WORTH_SAYING = 0.001


class Command(BaseCommand):
    help = "Best threshold and roles of a scenario file (TOML), and what they carry."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("scenario", metavar="SCENARIO", help="a TOML file")
        parser.add_argument(
            "--method",
            choices=("exact", "paper"),
            default="exact",
            help="exact: E[T(L)|.] (default); paper: T(E[L|.])",
        )
        parser.add_argument(
            "--headroom",
            type=factor,
            metavar="FACTOR",
            help="the least remote traffic that carries FACTOR times the demand, not the most",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        path = Path(options["scenario"])
        try:
            scenario = parse_scenario(read_document(path))
            answer = plan_scenario(scenario, options["method"], headroom_target=options["headroom"])
        except (ScenarioError, FileError) as exc:
            raise CommandError(f"{options['scenario']}: {exc}", returncode=2) from None
        self.stdout.write(json.dumps(answer) if options["json"] else "\n".join(_lines(answer)))


def factor(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise ValueError(text)
    return value


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = [
        f"{answer['fleet']}: carries {answer['lambda_max_rps']:.3f} requests/s, "
        f"x{answer['headroom']:.2f} of the demand, limited by {' and '.join(answer['binding'])} "
        f"(method {answer['method']})"
    ]
    for name, plan in answer["clusters"].items():
        threshold = plan["threshold_tokens"]
        rule = plan["mode"] if threshold is None else f"t = {threshold:,} tokens"
        lines.append(
            f"  {name}: {rule}, {plan['n_prefill']} prefill / {plan['n_decode']} decode, "
            f"{plan['remote_fraction']:.1%} remote; remote prefill "
            f"{plan['theta_remote_rps']:.2f}, local prefill {plan['theta_prefill_rps']:.2f}, "
            f"decode {plan['theta_decode_rps']:.2f} requests/s"
        )
        for side, share in plan["extrapolated"].items():
            if share >= _WORTH_SAYING:
                lines.append(
                    f"    {share:.1%} of requests have lengths that the profile of "
                    f"{name if side == 'local' else side} was not measured at"
                )
    for name, link in answer["links"].items():
        planned = f"{link['planned_gbps']:.3g} Gbps that plans may use"
        lines.append(
            f"  {name}: {link['egress_gbps']:.1f} Gbps, {link['utilisation']:.1%} of {planned}"
        )
    for name, rate_rps in answer["left_out"].items():
        lines.append(f"  {name} is drained: its {rate_rps:g} requests/s are not counted")
    for name, baseline in answer["baselines"].items():
        lines.append(
            f"  {name}: {baseline['lambda_max_rps']:.3f} requests/s with "
            f"{baseline['n_prefill']} prefill / {baseline['n_decode']} decode"
        )
    return lines
