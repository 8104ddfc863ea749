"""Every adjustable number of the loop in words: its name, what it does, its unit. Pure.

The numbers themselves, their ranges and defaults are `routing.knobs`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from console import figures
from routing.knobs import RANGES, OneOf, Whole

Text = str | Promise


@dataclass(frozen=True)
class Knob:
    """`unit` is empty for words and plain counts whose label says what is counted."""

    group: str
    label: Text
    meaning: Text
    unit: Text = ""


GROUPS: Final[dict[str, Text]] = {
    "aim": lazy("What is aimed at"),
    "t": lazy("The threshold t"),
    "links": lazy("Links"),
    "evidence": lazy("Evidence"),
    "rate": lazy("How often"),
    "roles": lazy("Roles"),
    "caches": lazy("Caches"),
}
_RATIO = lazy("ratio, 0.04 = 4 %")
_S = lazy("seconds")
KNOBS: Final[dict[str, Knob]] = {
    "objective": Knob(
        "aim",
        lazy("Objective"),
        lazy(
            "max_headroom: as much room to grow as can be had. min_remote: enough headroom, and "
            "then as little remote traffic as possible."
        ),
    ),
    "headroom_target": Knob(
        "aim",
        lazy("Headroom target"),
        lazy("How many times the present demand is enough; counts with min_remote."),
        lazy("times demand"),
    ),
    "t_min_tokens": Knob(
        "t", lazy("Least t"), lazy("Neither the loop nor a hold sets t below it."), lazy("tokens")
    ),
    "t_max_tokens": Knob(
        "t", lazy("Most t"), lazy("Neither the loop nor a hold sets t above it."), lazy("tokens")
    ),
    "t_min_gain_ratio": Knob(
        "t",
        lazy("Least gain to change t"),
        lazy("How much more headroom another t must promise before it is worth a change."),
        _RATIO,
    ),
    "t_gain_hold_s": Knob(
        "t", lazy("Gain must last"), lazy("How long that gain has to be in sight first."), _S
    ),
    "t_dwell_s": Knob(
        "t", lazy("Rest after a change"), lazy("How long t stays after each change of it."), _S
    ),
    "t_max_step_factor": Knob(
        "t",
        lazy("Largest step of t"),
        lazy("t grows or shrinks at most by this factor in one change."),
        lazy("factor"),
    ),
    "band_ratio": Knob(
        "t",
        lazy("Band around t"),
        lazy(
            "Within this part of t above and below, gates choose the side with the shorter wait. "
            "0: t alone decides."
        ),
        _RATIO,
    ),
    "max_remote_in_flight": Knob(
        "t",
        lazy("Remote in flight, a gate"),
        lazy("Requests that one gate may have at PrfaaS at a time. Empty: no limit."),
        lazy("requests"),
    ),
    "congestion_utilisation_ratio": Knob(
        "links",
        lazy("Congested from link use"),
        lazy("A link that is this full counts as congested; the scenario's link may have its own."),
        lazy("ratio, 0.9 = 90 %"),
    ),
    "congestion_retransmit_ratio": Knob(
        "links",
        lazy("Congested from retransmits"),
        lazy("So many segments sent again, while no more gets through, mean congestion."),
        lazy("ratio, 0.01 = 1 %"),
    ),
    "congestion_clear_s": Knob(
        "links",
        lazy("Clear before lowering t"),
        lazy("How long a link has to be clear before more is sent over it again."),
        _S,
    ),
    "min_requests": Knob(
        "evidence",
        lazy("Requests before the first change"),
        lazy("Fewer counted requests say too little of lengths to choose t by."),
        lazy("requests"),
    ),
    "stale_after_s": Knob(
        "evidence",
        lazy("Telemetry stale after"),
        lazy("Readings that are older are no ground for a change."),
        _S,
    ),
    "quorum_ratio": Knob(
        "evidence",
        lazy("Read at least, to judge by"),
        lazy("Where a smaller part of gates or instances was read lately, nothing is changed."),
        lazy("ratio, 0.5 = 50 %"),
    ),
    "max_changes_per_hour": Knob(
        "rate",
        lazy("Changes an hour at most"),
        lazy("Of t and roles together; the last tenth is kept for links that fail."),
        lazy("changes"),
    ),
    "push_min_interval_s": Knob(
        "rate",
        lazy("Between pushes at least"),
        lazy("How far apart plans are that gates are sent, whoever wants them."),
        _S,
    ),
    "roles_mode": Knob(
        "roles",
        lazy("Roles"),
        lazy("auto: the loop moves instances between roles. fixed: only people do."),
    ),
    "roles_min_gain_ratio": Knob(
        "roles",
        lazy("Least gain to move roles"),
        lazy("How much more headroom other roles must promise over the best t at the present."),
        _RATIO,
    ),
    "roles_gain_hold_s": Knob(
        "roles", lazy("That gain must last"), lazy("How long it has to be in sight first."), _S
    ),
    "roles_dwell_s": Knob(
        "roles",
        lazy("Rest after moving roles"),
        lazy("How long roles stay after a move; doubled for each in a row that failed."),
        _S,
    ),
    "roles_max_step_ratio": Knob(
        "roles",
        lazy("Most instances in one change"),
        lazy("Part of a cluster's instances that one plan may move; one can always move."),
        lazy("ratio, 0.25 = 25 %"),
    ),
    "rebalance_deadline_s": Knob(
        "roles",
        lazy("Moving roles may take"),
        lazy("Then a move is given up, and what is under way goes back."),
        _S,
    ),
    "drain_timeout_s": Knob(
        "roles",
        lazy("An instance may drain for"),
        lazy("Then its move is given up; no request is cut off for it."),
        _S,
    ),
    "cache_mode": Knob(
        "caches",
        lazy("Caches"),
        lazy(
            "auto: as the link allows. scarce: each cluster its own. abundant: prefixes move to "
            "where they are needed."
        ),
    ),
    "abundant_below_ratio": Knob(
        "caches",
        lazy("Prefixes move below link use"),
        lazy("Below this use of the link there is room for them, with cache_mode auto."),
        lazy("ratio, 0.4 = 40 %"),
    ),
    "scarce_above_ratio": Knob(
        "caches",
        lazy("Prefixes stay above link use"),
        lazy(
            "Above this use there is none; moved prefixes are taken to get what is left above it."
        ),
        lazy("ratio, 0.7 = 70 %"),
    ),
    "cache_dwell_s": Knob(
        "caches",
        lazy("Rest after a change of caches"),
        lazy("How long the mode of caches stays after it changed."),
        _S,
    ),
}


LIMITS: Final[dict[str, Text]] = {
    "min_prefill": lazy("Least prefill instances"),
    "min_decode": lazy("Least decode instances"),
    "present_roles": lazy("Roles as they are"),
    "decode_kv_usage_ratio": lazy("Room in decode's KV memory"),
    "unknown_demand": lazy("Demand of others is not known"),
    "bottleneck_decode": lazy("Decode limits"),
    "bottleneck_prefill": lazy("Prefill limits"),
    "bottleneck_link": lazy("The link limits"),
    "bottleneck_flow": lazy("Connections limit the link"),
    "bottleneck_burst": lazy("Bursts limit the link"),
    "bottleneck_unknown": lazy("What limits is not known"),
}
"""What limits a plan beside the policy: the scenario's floors, and what was seen."""
_NAMES: Final = re.compile(
    r"\b(" + "|".join(name for name in (*KNOBS, *LIMITS) if "_" in name) + r")\b"
)


def in_sentence(text: str) -> SafeString:
    """The text, each setting and limit that it names by its label, with its name on hover."""
    parts = enumerate(_NAMES.split(text))
    return format_html_join("", "{}", ((_named(part) if i % 2 else part,) for i, part in parts))


def _named(name: str) -> SafeString:
    label = KNOBS[name].label if name in KNOBS else LIMITS[name]
    return format_html('<span title="{}">{}</span>', name, label)


def range_words(name: str) -> str:
    """The values that can be meant: `0 to 0.5`, `auto or fixed`."""
    kind = RANGES[name]
    if isinstance(kind, OneOf):
        return _(" or ").join(kind.words)
    low, high = (figures.exact(float(end)) for end in (kind.low, kind.high))
    whole = _("whole numbers, ") if isinstance(kind, Whole) else ""
    return whole + _("%(low)s to %(high)s") % {"low": low, "high": high}


def value_words(name: str, value: Any) -> str:
    """A value as people read it, with its unit."""
    if value is None:
        return _("no limit")
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


def as_typed(value: Any) -> str:
    """A value as a form holds it; nothing where there is none."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
