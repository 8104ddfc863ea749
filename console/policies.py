"""Policy, audit and tokens as rows: the loop's numbers in words, what a change changed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from console import figures
from console.context import GOOD, OFF, Mark
from telemetry.models import ApiToken

_KNOB_LABELS = {
    "objective": "Objective",
    "headroom_target": "Headroom target",
    "t_min_tokens": "Least t",
    "t_max_tokens": "Most t",
    "min_requests": "Requests before the first change",
    "t_min_gain_ratio": "Least gain to change t",
    "t_gain_hold_s": "Gain must last",
    "t_dwell_s": "Rest after a change",
    "t_max_step_factor": "Largest step of t",
    "congestion_utilisation_ratio": "Congested from link use",
    "congestion_retransmit_ratio": "Congested from retransmits",
    "congestion_clear_s": "Clear before lowering t",
    "stale_after_s": "Telemetry stale after",
    "quorum_ratio": "Read at least, to judge by",
    "max_changes_per_hour": "Changes an hour at most",
    "push_min_interval_s": "Between pushes at least",
    "roles_mode": "Roles",
    "roles_min_gain_ratio": "Least gain to move roles",
    "roles_gain_hold_s": "That gain must last",
    "roles_dwell_s": "Rest after moving roles",
    "roles_max_step_ratio": "Most instances in one change",
    "rebalance_deadline_s": "Moving roles may take",
    "drain_timeout_s": "An instance may drain for",
    "cache_mode": "Caches",
    "abundant_below_ratio": "Prefixes move below link use",
    "scarce_above_ratio": "Prefixes stay above link use",
    "cache_dwell_s": "Rest after a change of caches",
    "band_ratio": "Band around t",
    "max_remote_in_flight": "Remote in flight, a gate",
}


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
        return f"document of {len(value)} parts"
    return "" if value is None else str(value)


def knob_rows(knobs: dict[str, Any], chosen: dict[str, Any]) -> list[dict[str, Any]]:
    """The loop's numbers in words, those that differ from the default marked."""
    return [
        {
            "name": name,
            "label": _KNOB_LABELS.get(name, name),
            "words": _knob_words(name, value),
            "value": value,
            "set": name in chosen,
        }
        for name, value in knobs.items()
    ]


def _knob_words(name: str, value: Any) -> str:
    if value is None:
        return "no limit"
    if isinstance(value, str):
        return value.replace("_", " ")
    if name.endswith("_s"):
        return figures.duration(value)
    if name.endswith("_ratio"):
        return figures.percent(value)
    if name.endswith("_tokens"):
        return figures.tokens(value)
    if name.endswith("_factor") or name.startswith("headroom"):
        return f"×{figures.significant(value)}"
    return figures.exact(value)


def token_mark(token: ApiToken, now: datetime) -> Mark:
    if token.revoked_at is not None:
        return Mark(*OFF, "revoked")
    if token.expires_at is not None and token.expires_at <= now:
        return Mark(*OFF, "expired")
    return Mark(*GOOD, "valid")
