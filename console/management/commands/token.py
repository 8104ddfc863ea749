"""`manage.py token issue NAME --scope S`, `token rotate`, `token revoke`, `token list`."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from console import json_rows
from routing import audit, commands, token_commands
from telemetry.models import ApiToken
from telemetry.tokens import SCOPES

_LISTED = (
    *("name", "prefix", "scopes", "fleet", "created_by", "owner"),
    *("created_at", "expires_at", "revoked_at", "last_used_at"),
)


class Command(BaseCommand):
    help = "Issue, rotate, revoke and list the keys of agents, gates and scripts."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        issue = what.add_parser("issue", help="make a token; its secret is printed once")
        issue.add_argument("name", help="who will hold it")
        issue.add_argument(
            "--scope", action="append", required=True, choices=SCOPES, help="may be repeated"
        )
        issue.add_argument("--fleet", default="", help="only this fleet (default: every one)")
        issue.add_argument("--days", type=float, help="it expires after so many (default: never)")
        rotate = what.add_parser("rotate", help="another secret; the old one is good for a while")
        rotate.add_argument(
            "--grace-h", type=float, default=24.0, help="so many hours (default: 24)"
        )
        revoke = what.add_parser("revoke", help="end a token at once")
        for parser_ in (rotate, revoke):
            parser_.add_argument("prefix", help="the part after pf_, as pages and lists show it")
        listed = what.add_parser("list", help="every token that is good, never their secrets")
        for parser_ in (issue, rotate, revoke):
            parser_.add_argument("--reason", default="", help="kept in the audit")
        for parser_ in (issue, rotate, revoke, listed):
            parser_.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        who = {
            "actor": audit.shell_user(),
            "via": "command",
            "reason": options.get("reason", ""),
            "now": timezone.now(),
        }
        run = {
            "issue": self._issue,
            "rotate": self._rotate,
            "revoke": self._revoke,
            "list": self._list,
        }[options["what"]]
        try:
            run(options, who)
        except commands.Refused as exc:
            line = f"{exc.field}={exc.value!r}: {exc.message}".replace("\n", " ")
            raise CommandError(line, returncode=2) from None

    def _issue(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        days = options["days"]
        token, secret = token_commands.issue_token(
            name=options["name"],
            scopes=options["scope"],
            fleet=options["fleet"],
            expires_at=None if days is None else who["now"] + timedelta(days=days),
            **who,
        )
        self._told(token, secret, options)

    def _rotate(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        token, secret = token_commands.rotate_token(
            token_id=_named(options["prefix"]).pk,
            grace=timedelta(hours=options["grace_h"]),
            owner=who["actor"],
            **who,
        )
        self._told(token, secret, options)

    def _told(self, token: ApiToken, secret: str, options: dict[str, Any]) -> None:
        values = {"name": token.name, "prefix": token.prefix, "scopes": token.scopes,
                  "fleet": token.fleet, "secret": secret}  # fmt: skip
        self.stdout.write(json.dumps(values) if options["json"] else secret)

    def _revoke(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        token = _named(options["prefix"])
        token_commands.revoke_token(token_id=token.pk, **who)
        values = {"name": token.name, "prefix": token.prefix, "revoked": True}
        text = f"{token.name} ({token.prefix}) is revoked"
        self.stdout.write(json.dumps(values) if options["json"] else text)

    def _list(self, options: dict[str, Any], who: dict[str, Any]) -> None:
        for row in ApiToken.objects.filter(revoked_at=None).order_by("name", "pk").values(*_LISTED):
            if options["json"]:
                self.stdout.write(json_rows.text(row))
                continue
            ends, used = (row[name] for name in ("expires_at", "last_used_at"))
            self.stdout.write(
                f"{row['prefix']}  {row['name']}  {','.join(row['scopes'])}"
                f"  fleet {row['fleet'] or 'every'}"
                f"  until {f'{ends:%F %T}' if ends else 'revoked'}"
                f"  last used {f'{used:%F %T}' if used else 'never'}"
            )


def _named(prefix: str) -> ApiToken:
    token = ApiToken.objects.filter(prefix=prefix).first()
    if token is None:
        raise commands.Refused("prefix", prefix, "no such token")
    return token
