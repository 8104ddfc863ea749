"""`manage.py export`: everything that is kept by name, as the document that would make it so."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from routing.declared.state import read_state
from routing.declared.text import FORMATS


class Command(BaseCommand):
    help = "Write all that is kept by name as one document (docs/declared.md)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--format", choices=FORMATS, default="toml")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(read_state().text(options["format"]).decode(), ending="")
