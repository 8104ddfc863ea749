"""`manage.py explain FLEET CLUSTER TOKENS`: where a request would run now, and why."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from routing import placing
from routing.commands import Refused
from routing.models import Fleet


class Command(BaseCommand):
    help = "Where a request would run under the plan in force, and why."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("fleet")
        parser.add_argument("cluster", help="the PD cluster it arrives at")
        parser.add_argument("tokens", type=int, help="length of the prompt")
        for side in ("local", "remote"):
            parser.add_argument(
                f"--cached-{side}", type=int, default=0, help=f"of it in the {side} side's cache"
            )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        fleet = Fleet.objects.select_related("policy").filter(pk=options["fleet"]).first()
        if fleet is None:
            raise CommandError(f"fleet {options['fleet']}: there is no such fleet", returncode=2)
        try:
            found = placing.placed(
                fleet,
                cluster=options["cluster"],
                total_tokens=options["tokens"],
                cached_tokens={
                    "local": options["cached_local"],
                    "remote": options["cached_remote"],
                },
                now_s=timezone.now().timestamp(),
            )
        except Refused as exc:
            raise CommandError(f"{exc.field} = {exc.value}: {exc.message}", returncode=2) from None
        if options["json"]:
            self.stdout.write(json.dumps(found))
            return
        self.stdout.write(found["sentence"])
        for shipment in found["shipments"]:
            self.stdout.write(_shipped(shipment))
        if found["longer_prefix"] is not None:
            self.stdout.write(_compared(found["longer_prefix"]))


def _shipped(shipment: dict[str, Any]) -> str:
    size, seconds = shipment["bytes"], shipment["seconds"]
    return (
        f"{shipment['link']}: {shipment['tokens']:,} tokens of {shipment['what']}"
        + (f", {size / 1e6:,.0f} MB" if size is not None else "")
        + (f" in {seconds:.3g} s" if seconds is not None else "")
    )


def _compared(prefix: dict[str, Any]) -> str:
    transfer_s, recompute_s = prefix["transfer_s"], prefix["recompute_s"]
    worth = ""
    if transfer_s is not None and recompute_s is not None:
        worth = f": {transfer_s:.3g} s to move, {recompute_s:.3g} s to compute"
    return f"{prefix['tokens']:,} more tokens over {prefix['link']}{worth}; {prefix['why']}"
