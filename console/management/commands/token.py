"""`manage.py token issue NAME --scope S`, `manage.py token revoke PREFIX`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing import audit, commands
from telemetry.models import ApiToken
from telemetry.tokens import SCOPES


class Command(BaseCommand):
    help = "Issue and revoke the keys of agents, gates and scripts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        issue = what.add_parser("issue", help="make a token; its secret is printed once")
        issue.add_argument("name", help="who will hold it")
        issue.add_argument(
            "--scope", action="append", required=True, choices=SCOPES, help="may be repeated"
        )
        issue.add_argument("--fleet", default="", help="only this fleet (default: every one)")
        revoke = what.add_parser("revoke", help="end a token at once")
        revoke.add_argument("prefix", help="the part after pf_, as pages and lists show it")
        for parser_ in (issue, revoke):
            parser_.add_argument("--reason", default="", help="kept in the audit")
            parser_.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        who = {
            "actor": audit.shell_user(),
            "via": "command",
            "reason": options["reason"],
            "now": timezone.now(),
        }
        run = self._issue if options["what"] == "issue" else self._revoke
        try:
            run(options, who)
        except commands.Refused as exc:
            line = f"{exc.field}={exc.value!r}: {exc.message}".replace("\n", " ")
            raise CommandError(line, returncode=2) from None

    def _issue(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        token, secret = commands.issue_token(
            name=options["name"],
            scopes=options["scope"],
            fleet=options["fleet"],
            expires_at=None,
            **who,
        )
        values = {"name": token.name, "prefix": token.prefix, "scopes": token.scopes,
                  "fleet": token.fleet, "secret": secret}  # fmt: skip
        self.stdout.write(json.dumps(values) if options["json"] else secret)

    def _revoke(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        token = ApiToken.objects.filter(prefix=options["prefix"]).first()
        if token is None:
            raise commands.Refused("prefix", options["prefix"], "no such token")
        commands.revoke_token(token_id=token.pk, **who)
        values = {"name": token.name, "prefix": token.prefix, "revoked": True}
        text = f"{token.name} ({token.prefix}) is revoked"
        self.stdout.write(json.dumps(values) if options["json"] else text)
