"""`manage.py person create NAME --group G`, `person join NAME G`, `person list` and so on."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth.models import User
from django.core.management.base import BaseCommand, CommandError

from console import people, sso
from console.people import Who
from routing import audit
from routing.commands import Refused

_CHANGES = {
    "join": "put into a group",
    "leave": "take out of a group",
    "activate": "let sign in again",
    "deactivate": "let not sign in any more",
    "password": "make a new password; it is printed once",
    "unlock": "forget failed attempts to sign in",
    "link": "let whoever the identity provider calls SUBJECT be this person",
}


class Command(BaseCommand):
    help = "Make and change accounts of people, and their groups."

    def add_arguments(self, parser: ArgumentParser) -> None:
        what = parser.add_subparsers(dest="what", required=True)
        what.add_parser("list", help="everybody: name, whether they may sign in, groups")
        create = what.add_parser("create", help="make an account; its password is printed once")
        create.add_argument("name")
        create.add_argument("--email", default="")
        create.add_argument("--group", action="append", default=[], help="may be repeated")
        for name, text in _CHANGES.items():
            change = what.add_parser(name, help=text)
            change.add_argument("name")
            if name in ("join", "leave"):
                change.add_argument("group", help="viewer and so on, or role:FLEET")
            elif name == "link":
                change.add_argument("subject", help="its `sub` there")
        for one in what.choices.values():
            one.add_argument("--reason", default="", help="kept in the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        who = Who(audit.shell_user(), "command", options["reason"])
        try:
            self._do(options, who)
        except Refused as exc:
            raise CommandError(f"{exc.field}={exc.value!r}: {exc.message}", returncode=2) from None

    def _do(self, options: dict[str, Any], who: Who) -> None:
        what = options["what"]
        if what == "list":
            for user in people.listed():
                groups = people.groups_of(user) + (["superuser"] if user.is_superuser else [])
                row = {"name": user.username, "is_active": user.is_active, "groups": groups}
                self.stdout.write(json.dumps(row, ensure_ascii=False))
            return
        if what == "create":
            _user, password = people.create(
                name=options["name"], email=options["email"], groups=options["group"], who=who
            )
            self.stdout.write(password or f"{options['name']} has an account")
            return
        user = User.objects.filter(username=options["name"]).first()
        if user is None:
            raise Refused("name", options["name"], "nobody has this name")
        if what in ("join", "leave"):
            (people.join if what == "join" else people.leave)(user, options["group"], who=who)
        elif what in ("activate", "deactivate"):
            people.activate(user, is_active=what == "activate", who=who)
        elif what == "password":
            self.stdout.write(people.reset_password(user, who=who))
            return
        elif what == "unlock":
            people.unlock(user, who=who)
        else:
            sso.link(user, options["subject"], who=who)
        self.stdout.write(f"{user.username}: done")
