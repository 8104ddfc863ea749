"""`manage.py openapi`: keep docs/openapi.json, the promise that the API is compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer

from console import openapi_changes

PLACE: Path = settings.BASE_DIR / "docs" / "openapi.json"


def generated() -> str:
    """The schema of what runs here, as text."""
    schema = SchemaGenerator().get_schema(request=None, public=True)
    text: bytes = OpenApiJsonRenderer().render(schema, renderer_context={})
    return json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"


class Command(BaseCommand):
    help = "Write docs/openapi.json, unless that would break clients without notice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--check", action="store_true", help="Write nothing, say what differs.")

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        text = generated()
        kept = PLACE.read_text() if PLACE.exists() else ""
        if text == kept:
            self.stdout.write("docs/openapi.json is what the API is.")
            return
        new = json.loads(text)
        old = json.loads(kept) if kept else new
        broken = openapi_changes.unannounced(
            openapi_changes.breaking(old, new), timezone.now().date()
        )
        if broken:
            listed = "\n".join(f"  {each}" for each in broken)
            raise CommandError(
                f"clients would break without notice:\n{listed}\n"
                "Keep it and name it in console/deprecated.py, until it may go."
            )
        if check:
            raise CommandError("docs/openapi.json is old: run manage.py openapi")
        PLACE.write_text(text)
        self.stdout.write("docs/openapi.json was written.")
