"""Windows for tests. `tests.routing.cases.NOW` is Sunday, 2026-11-29, 12:00 UTC: 13:00 in Paris."""

from __future__ import annotations

from typing import Any

from routing.windows import windows
from routing.windows.models import Window
from tests.routing.cases import NOW, after

BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "because"}
FREEZE: dict[str, Any] = {
    "name": "black-friday",
    "fleet": "f1",
    "kind": "freeze",
    "when": {"zone": "Europe/Paris", "from": "2026-11-29 13:01", "to": "2026-11-29 13:03"},
    "reason": "peak trading",
}
"""From second 60 of the tests' clock to second 180."""
CHANGES: dict[str, Any] = {
    "name": "working-hours",
    "kind": "changes",
    "when": {
        "zone": "Europe/Paris",
        "days": ["mon", "tue", "wed", "thu", "fri"],
        "from": "08:00",
        "to": "18:00",
    },
    "reason": "only while people look",
}


def put(document: dict[str, Any], **options: Any) -> Window:
    options = {"if_version": None, "now": NOW} | BY | options
    return windows.put(document=document, **options)


def now_on(fleet: str = "f1", of: list[str] | None = None) -> Window:
    """A freeze of seconds 0 to 600, of everything unless `of` says less."""
    document = FREEZE | {
        "fleet": fleet,
        "when": {"zone": "UTC", "from": "2026-11-29 12:00", "to": "2026-11-29 12:10"},
    }
    return put(document | ({"of": of} if of else {}), now=after(-1.0))
