"""`manage.py audit verify`, `manage.py audit export`."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console import json_rows
from console.audit import exported
from routing import audit
from routing.models import Action


class Command(BaseCommand):
    help = "Check that the audit is as it was written; write it out."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        verify = what.add_parser("verify", help="exit status 1 if anything was tampered with")
        verify.add_argument("--head", type=_seal, default="", help="a seal that was noted before")
        export = what.add_parser("export", help="every change as a line of JSON, oldest first")
        export.add_argument("--fleet", default="", help="only of this fleet")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["what"] == "export":
            rows = Action.objects.order_by("id")
            rows = rows.filter(fleet=options["fleet"]) if options["fleet"] else rows
            for row in exported(rows):
                self.stdout.write(json_rows.text(row))
            return
        found = audit.verify(options["head"])
        if found.wrong:
            named = ", ".join(map(str, found.wrong))
            raise CommandError(f"the audit was tampered with, at actions {named}", returncode=1)
        if not found.knows:
            raise CommandError(f"no action has the seal {options['head']}: rows are gone")
        self.stdout.write(f"{found.n} actions are as they were written, head {found.head}")


def _seal(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ArgumentTypeError("must be 64 hexadecimal digits")
    return text
