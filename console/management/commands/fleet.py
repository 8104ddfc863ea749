"""`manage.py fleet apply FILE.toml`, `manage.py fleet list`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing import audit, fleets
from routing.approvals.asking import Proposed
from routing.commands import MODES, Refused
from routing.models import Fleet


class Command(BaseCommand):
    help = "Make or update a fleet from its scenario file, or list the fleets there are."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        apply = what.add_parser("apply", help="make the fleet, or bring it up to date")
        apply.add_argument("file", type=Path, help="scenario (docs/contracts.md, Scenario)")
        apply.add_argument("--mode", choices=MODES, help="a new fleet is advisory by default")
        listing = what.add_parser("list", help="fleets with their mode and plan")
        for parser_ in (apply, listing):
            parser_.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "list":
            self._list(as_json=options["json"])
            return
        try:
            fleet = fleets.apply_file(
                options["file"],
                mode=options["mode"],
                actor=audit.shell_user(),
                via="command",
                now=timezone.now(),
            )
        except Refused as exc:
            raise CommandError(_one_line(options["file"], exc), returncode=2) from None
        except Proposed as exc:
            raise CommandError(f"nothing has changed yet: {exc}", returncode=3) from None
        self._write(_values(fleet), as_json=options["json"])

    def _list(self, *, as_json: bool) -> None:
        rows = [_values(f) for f in Fleet.objects.select_related("policy").order_by("name")]
        if as_json:
            self.stdout.write(json.dumps({"fleets": rows}))
            return
        for row in rows:
            self._write(row, as_json=False)
        if not rows:
            self.stdout.write("no fleet yet: manage.py fleet apply SCENARIO.toml")

    def _write(self, row: dict[str, Any], *, as_json: bool) -> None:
        line = "{fleet}: {mode}, plan {plan}".format(**{**row, "plan": row["plan"] or "none"})
        self.stdout.write(json.dumps(row) if as_json else line)


def _values(fleet: Fleet) -> dict[str, Any]:
    newest = fleets.newest_adopted(fleet)
    return {
        "fleet": fleet.pk,
        "mode": fleet.policy.mode,
        "epoch": fleet.epoch,
        "plan": newest and f"{newest.epoch}.{newest.version}",
    }


def _one_line(file: Path, exc: Refused) -> str:
    place = exc.field if exc.field == str(file) else f"{file}: {exc.field}={exc.value!r}"
    return f"{place}: {exc.message}".replace("\n", " ")
