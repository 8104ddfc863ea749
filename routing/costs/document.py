"""A price table as people write it, read strictly: what hours and links cost, in which currency."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from routing.core.costs.money import ANY, HourPrice, LinkPrice, Prices
from routing.core.scenario.tables import Table, refuse
from routing.costs.months import NoMonth, month_of

UTC_ZONE: Final = zoneinfo.ZoneInfo("UTC")
_ROOT = ("currency", "decimals", "zone", "hours", "links")
_HOURS = ("cluster", "gpu", "per", "price")
_LINKS = ("link", "gb", "gbps_month", "burst_gbps_month", "committed_gbps")
_CURRENCY = re.compile(r"[A-Z]{3}")
_PRICE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,8})?")
_MOST_DECIMALS = 4
_MOST_LINES = 1_000
_BOTH_SEASONS = ("2026-01", "2026-07")


@dataclass(frozen=True)
class Read:
    """A table as it is meant: prices, and the zone whose months are reported."""

    prices: Prices
    zone: zoneinfo.ZoneInfo


def read_table(document: Any) -> Read:
    """Raises ScenarioError, which names field and value."""
    table = Table(document, "", known=_ROOT)
    currency = table.text("currency")
    if not _CURRENCY.fullmatch(currency):
        refuse(table.error("currency", "must be three capitals of ISO 4217, such as EUR"))
    decimals = table.count("decimals", 2, low=0)
    if decimals > _MOST_DECIMALS:
        refuse(table.error("decimals", f"must be at most {_MOST_DECIMALS}"))
    hours = tuple(_hours(each) for each in _lines(table, "hours", _HOURS))
    links = tuple(_link(each) for each in _lines(table, "links", _LINKS))
    _once(table, "hours", [(p.cluster, p.gpu) for p in hours])
    _once(table, "links", [p.link for p in links])
    return Read(Prices(currency, decimals, hours, links), _zone(table))


def _lines(table: Table, key: str, known: tuple[str, ...]) -> list[Table]:
    found = table.tables(key, known, optional=True)
    if len(found) > _MOST_LINES:
        refuse(table.error(key, f"must have at most {_MOST_LINES} lines"))
        return []
    return found


def _hours(line: Table) -> HourPrice:
    per = line.one_of("per", ("gpu_hour", "instance_hour")) if "per" in line.data else "gpu_hour"
    return HourPrice(
        price=_price(line, "price"),
        per=per,  # type: ignore[arg-type]
        cluster=line.text("cluster") if "cluster" in line.data else ANY,
        gpu=line.text("gpu") if "gpu" in line.data else ANY,
    )


def _link(line: Table) -> LinkPrice:
    given = {key: _price(line, key) for key in _LINKS[1:] if key in line.data}
    if not given.keys() & {"gb", "gbps_month"}:
        refuse(line.error("gb", "give `gb`, `gbps_month` or both"), depends=True)
    for key in ("burst_gbps_month", "committed_gbps"):
        if key in given and "gbps_month" not in given:
            refuse(line.error(key, "belongs to `gbps_month`, which is not there"))
    return LinkPrice(link=line.text("link") if "link" in line.data else ANY, **given)


def _price(line: Table, key: str) -> Decimal:
    """Text is exact; a number is taken as it is written."""
    value = line.take(key)
    text = value if isinstance(value, str) else repr(value)
    if isinstance(value, bool) or not _PRICE.fullmatch(text):
        refuse(line.error(key, 'must be a decimal number of at least 0, best as text: "2.40"'))
        return Decimal(0)
    return Decimal(text)


def _once(table: Table, key: str, names: list[Any]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        refuse(table.error(key, f"has two lines for {twice}"), depends=True)


def _zone(table: Table) -> zoneinfo.ZoneInfo:
    name = table.text("zone") if "zone" in table.data else "UTC"
    try:
        zone = zoneinfo.ZoneInfo(name)
        for month in _BOTH_SEASONS:
            month_of(month, zone)
    except NoMonth as exc:
        refuse(table.error("zone", f"cannot be reported: {exc}"))
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        refuse(table.error("zone", "is no IANA time zone, such as Europe/Paris"))
    else:
        return zone
    return UTC_ZONE
