"""`manage.py prepare`: migrate, make sample partitions, the first admin, the demo's fleet.

Safe to run again: it changes only what is missing.
"""

from __future__ import annotations

import json
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.utils import timezone

from routing import commands, fleets, scheduler, token_commands
from routing.approvals.asking import Proposed
from routing.models import Fleet
from routing.rights import ROLES
from telemetry import partitions, tokens

_DEMO_TOKENS = {"agent": "ingest", "gate": "router"}


class Command(BaseCommand):
    help = "Bring the database up to date and create the first admin."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
        parser.add_argument("--demo-scenario", type=Path, help="scenario of the demo's fleet")
        parser.add_argument("--demo-mode", default="active", help="policy mode of the demo's fleet")
        parser.add_argument(
            "--demo-knobs", type=json.loads, default={}, help="policy knobs of the fleet, as JSON"
        )
        parser.add_argument("--demo-tokens", type=Path, help="folder that keeps the demo's tokens")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0, interactive=False)
        partitions.ensure(timezone.now())
        for name in ROLES:
            Group.objects.get_or_create(name=name)
        prepared: dict[str, Any] = {"admin": _first_admin(), "tokens": {}}
        if options["demo_scenario"]:
            _demo_fleet(options["demo_scenario"], options["demo_mode"], options["demo_knobs"])
            # The first plan is there before the first gate asks, so no request goes without one.
            for fleet in Fleet.objects.all():
                scheduler.run_tick(
                    fleet.pk, now=timezone.now(), tick_s=settings.ENV["CONSOLE_TICK_S"]
                )
            prepared["tokens"] = _demo_tokens(options["demo_tokens"])
        if options["json"]:
            self.stdout.write(json.dumps(prepared))
        elif prepared["admin"]:
            self.stdout.write("created {username}, password {password}".format(**prepared["admin"]))


def _first_admin() -> dict[str, str] | None:
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(12)
    User.objects.create_superuser("admin", password=password)
    return {"username": "admin", "password": password}


def _demo_fleet(scenario: Path, mode: str, knobs: dict[str, Any]) -> None:
    """The demo's fleet; its knobs only when it is new, later they are the operator's."""
    known = set(Fleet.objects.values_list("pk", flat=True))
    now = timezone.now()
    try:
        fleet = fleets.apply_file(scenario, mode=mode, actor="system", via="command", now=now)
    except Proposed:
        return  # it starts as it was; what the options change waits for a second person
    if fleet.pk not in known:
        commands.set_policy(
            fleet=fleet.pk,
            changes={"knobs": knobs},
            if_version=fleet.policy.version,
            actor="system",
            via="command",
            reason="the demo's options",
            now=now,
        )


def _demo_tokens(folder: Path) -> dict[str, str]:
    """The lab's keys, kept beside its data so that a second start needs no new ones."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "tokens.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    now = timezone.now()
    for name, scope in _DEMO_TOKENS.items():
        if name not in known or tokens.verify(known[name], scope, None, now) is None:
            _, known[name] = token_commands.issue_token(
                name=f"demo {name}",
                scopes=[scope],
                fleet="",
                expires_at=None,
                actor="system",
                via="command",
                reason="the demo's lab",
                now=now,
            )
    kept.touch(mode=0o600)
    kept.write_text(json.dumps(known))
    return known
