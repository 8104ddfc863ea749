"""`manage.py apply FILE`: make a document of all that is kept by name so."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from console.cli.applied import applied_lines
from routing import audit
from routing.approvals.asking import Proposed
from routing.commands import Refused
from routing.core.scenario.tables import ScenarioError
from routing.declared.api import shown
from routing.declared.apply import apply, dry_run
from routing.declared.document import NotMeant
from routing.declared.text import FORMATS, Format, Unreadable, read
from routing.scenario_files import inline_files


class Command(BaseCommand):
    help = "Make a document so, all of it or nothing (docs/declared.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="FILE.toml, .yaml or .json")
        parser.add_argument("--dry-run", action="store_true", help="only say what would change")
        parser.add_argument(
            "--prune", action="store_true", help="delete what its kinds do not name"
        )
        parser.add_argument(
            "--confirm", action="append", default=[], metavar="FLEET",
            help="may be deleted with its history",
        )  # fmt: skip
        parser.add_argument("--reason", default="", help="kept in the audit")
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        file: Path = options["file"]
        asked = {
            "document": _document(file),
            "prune": options["prune"],
            "confirmed": options["confirm"],
            "actor": audit.shell_user(),
            "via": "command",
            "now": timezone.now(),
        }
        try:
            if options["dry_run"]:
                done = shown(dry_run(**asked))
            else:
                done = shown(apply(**asked, reason=options["reason"] or f"applied {file.name}"))
        except Proposed as exc:
            raise CommandError(str(exc), returncode=3) from None
        except NotMeant as exc:
            lines = [f"{file}: {each.path}: {each.message}" for each in exc.wrong]
            raise CommandError("\n".join(lines), returncode=2) from None
        except (Refused, Unreadable) as exc:
            raise CommandError(f"{file}: {exc}", returncode=2) from None
        self.stdout.write(json.dumps(done) if options["json"] else "\n".join(applied_lines(done)))


def _document(file: Path) -> dict[str, Any]:
    """With what the scenarios' own files say in their place, which lie beside it."""
    suffix = file.suffix.removeprefix(".").replace("yml", "yaml")
    if suffix not in FORMATS:
        raise CommandError(f"{file}: must be named .toml, .yaml or .json", returncode=2)
    format_: Format = suffix  # type: ignore[assignment]
    try:
        document = read(file.read_bytes(), format_)
        fleets = document.get("fleets")
        if isinstance(fleets, dict):
            for name, scenario in fleets.items():
                if isinstance(scenario, dict):
                    fleets[name] = inline_files(scenario, beside=file.parent)
    except OSError as exc:
        raise CommandError(f"{file}: {exc.strerror or exc}", returncode=2) from None
    except ScenarioError as exc:
        raise CommandError(f"{file}: fleets.{name}.{exc}", returncode=2) from None
    return document
