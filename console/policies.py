"""Policy, audit and tokens as rows: the loop's numbers in words, what a change changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from console import figures
from console.context import GOOD, OFF, Mark
from console.knob_words import KNOBS, value_words
from telemetry.models import ApiToken


def action_changes(before: Any, after: Any) -> list[dict[str, str]]:
    """What an audited change changed, field by field; long values only by name."""
    if not isinstance(before, dict | None) or not isinstance(after, dict | None):
        return [{"name": "", "before": _short(before), "after": _short(after)}]
    was, now = _flat(before or {}), _flat(after or {})
    return [
        {
            "name": name,
            "before": _short(was.get(name)) if name in was else "",
            "after": _short(now[name]) if name in now else "none",
        }
        for name in [*was, *(name for name in now if name not in was)]
        if was.get(name) != now.get(name) or after is None
    ]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name == "knobs" and isinstance(value, dict):
            flat |= value
        elif name == "expires_at_s":
            flat["expires"] = figures.stamp(value)
        elif name == "at_s":
            flat["at"] = figures.stamp(value)
        elif name == "expires_at":
            flat["expires"] = value and figures.stamp(datetime.fromisoformat(value))
        elif value is not None:
            flat[name] = value
    return flat


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return _("document of %(n)s parts") % {"n": len(value)}
    return "" if value is None else str(value)


def knob_rows(knobs: dict[str, Any], chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """The loop's numbers in words, those that differ from the default marked."""
    return [
        {
            "name": name,
            "label": KNOBS[name].label if name in KNOBS else name,
            "words": value_words(name, value),
            "value": value,
            "set": name in chosen,
        }
        for name, value in knobs.items()
    ]


def token_mark(token: ApiToken, now: datetime) -> Mark:
    if token.revoked_at is not None:
        return Mark(*OFF, _("revoked"))
    if token.expires_at is not None and token.expires_at <= now:
        return Mark(*OFF, _("expired"))
    return Mark(*GOOD, _("valid"))
