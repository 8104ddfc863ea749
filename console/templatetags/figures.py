"""`console.figures` as template filters; ages as `<time>` elements that the page keeps fresh."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from console import core_words, figures, knob_words, phrases, plans

register = template.Library()


def _filter(write: Callable[[Any], str]) -> Callable[[Any], str]:
    # An attribute that is not there reaches a filter as the empty string: it is no measurement.
    return lambda value: write(None if value == "" else value)


for _write in (
    figures.significant,
    figures.exact,
    figures.tokens,
    figures.rate,
    figures.gbps,
    figures.percent,
    figures.signed_percent,
    figures.size,
    figures.duration,
    figures.clock,
    figures.stamp,
):
    register.filter(_write.__name__, _filter(_write))


@register.filter
def plan_words(plan: Any) -> str:
    """`t 19.6K tok` of a cluster's plan (a mapping) or of a hold (a row)."""
    if isinstance(plan, dict):
        return plans.cluster_words(plan)
    return plans.hold_words(plan)


register.filter("plan_extras", plans.extras)


@register.filter
def reason(name: str) -> SafeString:
    """A reason in words; on hover its name, which the API knows, and what it means."""
    title = ": ".join(filter(None, (name, core_words.reason_help(name))))
    text = core_words.reason_words(name)
    return format_html('<span class="reason" title="{}">{}</span>', title, text)


register.filter(core_words.reason_words)


@register.filter
def knobs(text: str) -> SafeString:
    """A sentence of the machine's: settings in it by their labels, with their names on hover."""
    return knob_words.in_sentence(text)


@register.filter
def words(name: str) -> str:
    """A name of the machine's as people read it."""
    return name.replace("_", " ")


register.filter(phrases.kind_word)
register.filter(phrases.kinds_word)
register.filter(phrases.counted)


@register.filter
def arrow(link: str) -> str:
    """A link's id, `A->B`, as people read it."""
    return link.replace("->", " → ")


register.filter("per_s", _filter(lambda value: figures.with_unit(value, "tok/s")))


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """`4 s ago` with the absolute time on hover; `time.js` recounts it every second."""
    if not at:
        return _("never")
    age_s = (timezone.now() - at).total_seconds()
    return format_html(
        '<time datetime="{}" data-ago="{}" title="{}">{}</time>',
        at.isoformat(),
        at.timestamp(),
        figures.stamp(at),
        figures.age(age_s),
    )


@register.filter
def lasting(since: datetime | float | None) -> SafeString | str:
    """`42 s`: how long something has gone on; `time.js` counts it on."""
    if not since:
        return figures.NONE
    since_s = since.timestamp() if isinstance(since, datetime) else since
    lasts_s = max(timezone.now().timestamp() - since_s, 0.0)
    return format_html(
        '<time data-since="{}" title="{}">{}</time>',
        since_s,
        _("since %(at)s") % {"at": figures.stamp(since)},
        figures.duration(int(lasts_s)),
    )


@register.filter
def left(until: datetime) -> SafeString:
    """`4 min 2 s` until a moment, counted down by `time.js`; 0 s when it has passed."""
    left_s = max((until - timezone.now()).total_seconds(), 0.0)
    return format_html(
        '<time data-until="{}">{}</time>', until.timestamp(), figures.duration(int(left_s))
    )


@register.filter
def when(at: datetime | float | None) -> SafeString | str:
    """The clock time with the date on hover."""
    if not at:
        return figures.NONE
    return _time(at, figures.clock(at))


@register.filter("moment")
def moment_of(at: datetime | float | None) -> SafeString | str:
    """The clock time with its zone, where no other figure says which zone that is."""
    if not at:
        return figures.NONE
    return _time(at, figures.moment(at))


def _time(at: datetime | float, text: str) -> SafeString:
    at_s = at.timestamp() if isinstance(at, datetime) else at
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}",
        figures.stamp(at),
        text,
    )


@register.filter
def get(mapping: dict[str, Any] | None, key: str) -> Any:
    """A value of a mapping by a key known only to the template."""
    return (mapping or {}).get(key)


@register.simple_tag(takes_context=True)
def link_with(context: dict[str, Any], **changes: Any) -> str:
    """This page's address with some query fields replaced (None drops one)."""
    query = context["request"].GET.copy()
    for key, value in changes.items():
        if value in (None, ""):
            query.pop(key, None)
        else:
            query[key] = str(value)
    return f"?{query.urlencode()}"
