"""How numbers are written for people: three significant digits, a unit on each, a dash for none.

`static/console/format.js` holds the same rules for live values; tests/console/figures.json is one
table of cases that both must pass. Missing (None) is never written as zero.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any

from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext as _

NONE = "–"
LEAST_CHANGE = 0.0005
"""Less than half a tenth of a per cent is none."""
_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "K"))
_BINARY = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def significant(value: float | None) -> str:
    """Three significant digits; a whole number below 1,000 as it is; K, M, G from 1,000."""
    if value is None:
        return NONE
    if value == 0:
        return "0"
    size, sign = abs(value), "−" if value < 0 else ""
    if size < 0.001:
        return "<0.001" if value > 0 else ">−0.001"
    for scale, suffix in _SUFFIXES:
        # 999.5 already rounds to 1,000: it belongs to the next suffix.
        if size >= scale * 0.9995:
            return sign + _digits(size / scale) + suffix
    return sign + _digits(size)


def _digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    exact = Decimal(value)
    places = 2 - exact.adjusted()
    rounded = exact.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP)
    if rounded.adjusted() > exact.adjusted() and places > 0:  # 9.999 -> 10.0
        rounded = rounded.quantize(Decimal(1).scaleb(1 - places))
    return f"{rounded:f}"


def exact(value: float | None) -> str:
    """The number itself with separators, for the hover text."""
    if value is None:
        return _("not measured")
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.6f}".rstrip("0").rstrip(".")


def with_unit(value: float | None, unit: str) -> str:
    return NONE if value is None else f"{significant(value)} {unit}"


def tokens(value: float | None) -> str:
    return with_unit(value, "tok")


def rate(value: float | None) -> str:
    return with_unit(value, "req/s")


def gbps(value: float | None) -> str:
    return with_unit(value, "Gbps")


def percent(ratio: float | None) -> str:
    return NONE if ratio is None else f"{significant(_hundredths(ratio))} %"


def signed_percent(ratio: float | None) -> str:
    """A change: always with its sign."""
    if ratio is None:
        return NONE
    sign = "+" if ratio > 0 else "−" if ratio < 0 else "±"
    return f"{sign}{significant(_hundredths(abs(ratio)))} %"


def change(ratio: float | None) -> str:
    """A change, or that there is none: `+3.10 %`, `no change`."""
    if ratio is not None and abs(ratio) < LEAST_CHANGE:
        return _("no change")
    return signed_percent(ratio)


def _hundredths(ratio: float) -> float:
    # 0.07 * 100 is 7.000000000000001; people wrote 7 %.
    return round(ratio * 100, 9)


def size(n_bytes: float | None) -> str:
    """Binary prefixes, for memory and stored bytes."""
    if n_bytes is None:
        return NONE
    for scale, unit in _BINARY:
        if abs(n_bytes) >= scale:
            return f"{significant(n_bytes / scale)} {unit}"
    return f"{significant(n_bytes)} B"


def duration(seconds: float | None) -> str:
    """A span: `640 ms`, `1.63 s`, `2 min 5 s`, `3 h 12 min`, `4 d 1 h`."""
    if seconds is None:
        return NONE
    if seconds == 0:
        return "0 s"
    if abs(seconds) < 0.9995:
        return f"{significant(seconds * 1000)} ms"
    if abs(seconds) < 59.95:
        return f"{significant(seconds)} s"
    return _long(round(seconds))


def age(seconds: float | None) -> str:
    """How long ago, in whole units: `now`, `4 s ago`, `3 min ago`, `2 h ago`, `5 d ago`."""
    if seconds is None:
        return _("never")
    whole = int(max(seconds, 0.0))
    if whole == 0:
        return _("now")
    if whole < 60:
        return _("%(n)s s ago") % {"n": whole}
    if whole < 3600:
        return _("%(n)s min ago") % {"n": whole // 60}
    if whole < 86_400:
        return _("%(n)s h ago") % {"n": whole // 3600}
    return _("%(n)s d ago") % {"n": whole // 86_400}


def clock(at: datetime | float | None) -> str:
    """Wall clock of a moment, in the reader's zone (`console.zones`; UTC outside of pages)."""
    local = _local(at)
    return NONE if local is None else f"{local:%H:%M:%S}"


def moment(at: datetime | float | None) -> str:
    """Wall clock of a moment with its zone: `14:05:07 UTC`."""
    local = _local(at)
    return NONE if local is None else f"{local:%H:%M:%S} {zone_name(local)}"


def stamp(at: datetime | float | None) -> str:
    """Full date and time of a moment with its zone."""
    local = _local(at)
    return NONE if local is None else f"{local:%Y-%m-%d %H:%M:%S} {zone_name(local)}"


def zone_name(local: datetime) -> str:
    """How far its zone is from UTC then: `UTC`, `UTC+9`, `UTC-3:30`. Names like CST are several."""
    minutes = round((local.utcoffset() or timedelta()).total_seconds() / 60)
    if minutes == 0:
        return "UTC"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'-' if minutes < 0 else '+'}{hours}" + (f":{rest:02}" if rest else "")


def _local(at: Any) -> datetime | None:
    if at is None:
        return None
    found = at if isinstance(at, datetime) else datetime.fromtimestamp(float(at), UTC)
    return found.astimezone(get_current_timezone())


def _long(seconds: int) -> str:
    units = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (scale, unit), (smaller, smaller_unit) in pairwise(units):
        if seconds >= scale:
            rest = seconds % scale // smaller
            return f"{seconds // scale} {unit}" + (f" {rest} {smaller_unit}" if rest else "")
    return f"{seconds} s"
