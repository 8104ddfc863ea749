"""A month's report out of its days: hours by pool, egress by link, and money where prices are.

Money is written as text: JSON's numbers are binary fractions, and 0.1 of a cent is none of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from routing.core.costs import money
from routing.core.costs.money import LinkPrice, Prices
from routing.core.links.billing import Bill
from routing.core.scenario.document import Scenario

ROLES = ("prefill", "decode")
PARTS = ("remote_prefill", "local_prefill", "decode")
"""Prefill of PrfaaS clusters, prefill of PD clusters, decode."""


@dataclass(frozen=True)
class Part:
    """A local day of the month: slots `first` to `last` (not included) of each stored UTC day that
    it touches, as (usage, first, last); usage None: nothing was stored of that day."""

    name: str
    pieces: tuple[tuple[Mapping[str, Any] | None, int, int], ...]

    @property
    def n_slots(self) -> int:
        return sum(last - first for _, first, last in self.pieces)

    def sum(self, *path: str) -> int | float | None:
        """Over its slots of one column; None where no usage has it, or all of it is None."""
        found = []
        for usage, first, last in self.pieces:
            column = _at(usage, path)
            found += [] if column is None else [v for v in column[first:last] if v is not None]
        return sum(found) if found else None

    def names(self, *path: str) -> set[str]:
        return {name for usage, _, _ in self.pieces for name in (_at(usage, path) or {})}


@dataclass(frozen=True)
class Billed:
    """A link's bill of the month by its 95th percentile, and how it was counted."""

    bill: Bill
    counts: str
    cap_gbps: float | None


def lines(
    scenario: Scenario, days: Sequence[Part], bills: Mapping[str, Billed], prices: Prices | None
) -> dict[str, Any]:
    """{coverage, pools, links, days, totals} of a month's days so far."""
    n_minutes = 30 * sum(day.n_slots for day in days)
    pools = _pools(scenario, days, n_minutes, prices)
    links = _links(scenario, days, n_minutes, bills, prices)
    measured = _sum(day.sum("minutes") for day in days) or 0
    return {
        "coverage": {
            "hours": n_minutes / 60,
            "measured_hours": measured / 60,
            "ratio": measured / n_minutes if n_minutes else None,
        },
        "pools": pools,
        "links": links,
        "days": [_day(scenario, day) for day in days],
        "totals": _totals(pools, links, prices),
    }


def _pools(
    scenario: Scenario, days: Sequence[Part], n_minutes: int, prices: Prices | None
) -> list[dict[str, Any]]:
    known = [cluster.name for cluster in scenario.clusters]
    seen = set().union(*(day.names("clusters") for day in days)) if days else set()
    rows = []
    for cluster in [*known, *sorted(seen - set(known))]:
        gpu, gpus = _hardware(scenario, cluster)
        price = None if prices is None else prices.of_hours(cluster, gpu)
        read = _sum(day.sum("clusters", cluster, "minutes") for day in days)
        silent = _sum(day.sum("clusters", cluster, "silent") for day in days)
        described = scenario.cluster(cluster)
        roles = ("prefill",) if described is not None and described.kind == "prefill" else ROLES
        for role in roles:
            worked = _sum(day.sum("clusters", cluster, role) for day in days) if read else None
            hours = None if worked is None else Decimal(int(worked)) / 60
            paid = None
            if prices is not None and hours is not None:
                paid = money.of_hours(prices, price, instance_hours=hours, gpus=gpus)
            rows.append(
                {
                    "cluster": cluster,
                    "role": role,
                    "gpu": gpu,
                    "gpus_per_instance": None if gpus is None else float(gpus),
                    "instance_hours": _number(hours),
                    "gpu_hours": None if gpus is None else _number(hours, gpus),
                    "price": None if price is None else str(price.price),
                    "per": None if price is None else price.per,
                    "money": _text(paid),
                    "measured_hours": (read or 0) / 60,
                    "missing_hours": (n_minutes - (read or 0)) / 60,
                    "silent_instance_hours": (silent or 0) / 60,
                }
            )
    return rows


def _links(
    scenario: Scenario,
    days: Sequence[Part],
    n_minutes: int,
    bills: Mapping[str, Billed],
    prices: Prices | None,
) -> list[dict[str, Any]]:
    rows = []
    known = [link.id for link in scenario.links]
    seen = set().union(*(day.names("links") for day in days)) if days else set()
    for name in [*known, *sorted(seen - set(known))]:
        price = None if prices is None else prices.of_link(name)
        sent = _sum(day.sum("links", name, "bytes") for day in days)
        read = _sum(day.sum("links", name, "minutes") for day in days) or 0
        by_gb = by_rate = None
        billed = bills.get(name)
        if prices is not None:
            by_gb = money.of_bytes(prices, price, None if sent is None else Decimal(int(sent)))
            rate = None if billed is None else billed.bill.billed_gbps
            by_rate = money.of_percentile(
                prices, price, None if rate is None else Decimal(str(rate))
            )
        rows.append(
            {
                "id": name,
                "bytes": None if sent is None else int(sent),
                "measured_hours": read / 60,
                "missing_hours": max(n_minutes - read, 0) / 60,
                "price_gb": _text(None if price is None else price.gb),
                "money_gb": _text(by_gb),
                "p95": _p95(billed, price),
                "money_p95": _text(by_rate),
                "money": _text(money.total([m for m in (by_gb, by_rate) if m is not None]).money),
            }
        )
    return rows


def _p95(billed: Billed | None, price: LinkPrice | None) -> dict[str, Any] | None:
    if billed is None:
        return None
    bill = billed.bill
    return {
        "billed_gbps": bill.billed_gbps,
        "counts": billed.counts,
        "cap_gbps": billed.cap_gbps,
        "n_measured": bill.n_measured,
        "n_missing": bill.n_missing,
        "n_dropped": bill.dropped,
        "over_cap": bill.over_cap,
        "burst_left_s": bill.burst_left_s,
        "price_gbps_month": _text(None if price is None else price.gbps_month),
        "burst_gbps_month": _text(None if price is None else price.burst_gbps_month),
        "committed_gbps": None if price is None else float(price.committed_gbps),
    }


def _day(scenario: Scenario, day: Part) -> dict[str, Any]:
    """Instance-hours by part of the fleet, GPU-hours where each profile says how many GPUs an
    instance has; None where nothing was measured."""
    parts: dict[str, Decimal | None] = dict.fromkeys(PARTS)
    gpu_hours: list[Decimal | None] = []
    for cluster in sorted(day.names("clusters")):
        if not day.sum("clusters", cluster, "minutes"):
            continue
        _, gpus = _hardware(scenario, cluster)
        for role in ROLES:
            worked = Decimal(int(day.sum("clusters", cluster, role) or 0)) / 60
            name = _part(scenario, cluster, role)
            parts[name] = (parts[name] or Decimal(0)) + worked
            gpu_hours.append(None if gpus is None else worked * gpus)
    known = [each for each in gpu_hours if each is not None]
    sent = _sum(day.sum("links", name, "bytes") for name in day.names("links"))
    return {
        "day": day.name,
        "hours": day.n_slots / 2,
        "measured_hours": (day.sum("minutes") or 0) / 60,
        "instance_hours": {name: _number(hours) for name, hours in parts.items()},
        "gpu_hours": _number(sum(known, Decimal(0)))
        if known and len(known) == len(gpu_hours)
        else None,
        "bytes": None if sent is None else int(sent),
    }


def _part(scenario: Scenario, cluster: str, role: str) -> str:
    described = scenario.cluster(cluster)
    if role == "decode":
        return "decode"
    return "remote_prefill" if described and described.kind == "prefill" else "local_prefill"


def _totals(
    pools: Sequence[Mapping[str, Any]], links: Sequence[Mapping[str, Any]], prices: Prices | None
) -> dict[str, Any]:
    counted = [row for row in pools if row["instance_hours"] is not None]
    gpu_hours = [row["gpu_hours"] for row in counted]
    hours = money.total(_decimal(row["money"]) for row in counted)
    sent = [row["bytes"] for row in links if row["bytes"] is not None]
    egress = money.total(_decimal(row["money"]) for row in links)
    both = money.total([m for m in (hours.money, egress.money) if m is not None])
    return {
        "instance_hours": sum(row["instance_hours"] for row in counted) if counted else None,
        "gpu_hours": None if None in gpu_hours or not counted else sum(gpu_hours),
        "by_role": {
            role: _by_role([row for row in counted if row["role"] == role]) for role in ROLES
        },
        "bytes": sum(sent) if sent else None,
        "money_hours": _text(hours.money),
        "money_links": _text(egress.money),
        "money": _text(both.money),
        "n_pools_without_money": hours.n_without if prices is not None else len(counted),
        "n_links_without_money": egress.n_without if prices is not None else len(links),
    }


def _by_role(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    gpus = [row["gpu_hours"] for row in rows]
    return {
        "instance_hours": sum(row["instance_hours"] for row in rows) if rows else None,
        "gpu_hours": None if None in gpus or not rows else sum(gpus),
    }


def _hardware(scenario: Scenario, name: str) -> tuple[str, Decimal | None]:
    cluster = scenario.cluster(name)
    facts = {} if cluster is None else scenario.profiles[cluster.profile].facts
    gpus = facts.get("gpus_per_instance")
    return str(facts.get("gpu", "")), None if gpus is None else Decimal(str(gpus))


def _at(usage: Mapping[str, Any] | None, path: Sequence[str]) -> Any:
    found: Any = usage
    for key in path:
        if not found or key not in found:
            return None
        found = found[key]
    return found


def _sum(values: Any) -> int | float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(hours: Decimal | None, times: Decimal = Decimal(1)) -> float | None:
    return None if hours is None else float(hours * times)


def _text(amount: Decimal | None) -> str | None:
    return None if amount is None else f"{amount:f}"


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
