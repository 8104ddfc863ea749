"""`console.cost_words` as template filters."""

from __future__ import annotations

from typing import Any

from django import template

from console import cost_words

register = template.Library()

register.filter(cost_words.money)
register.filter(cost_words.role_words)


@register.filter
def gigabytes(n_bytes: Any) -> str:
    return cost_words.gigabytes(None if n_bytes == "" else n_bytes)


@register.filter
def hours(value: Any) -> str:
    return cost_words.hours(None if value == "" else value)


@register.filter
def unmeasured(day: dict[str, Any]) -> float:
    """Hours of a day that were not measured."""
    return float(day["hours"] - day["measured_hours"])
