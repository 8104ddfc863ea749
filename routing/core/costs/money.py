"""Prices and what they make of quantities: decimal numbers, one rounding rule, no guessed price.

Each line is quantity times price, rounded half to even to the currency's `decimals`; a sum is the
sum of its rounded lines, so what is printed adds up. A line without a price, or without a quantity,
has no money, and a sum says how many such lines it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal

ANY = "*"
Per = Literal["gpu_hour", "instance_hour"]


@dataclass(frozen=True)
class HourPrice:
    """What an hour costs on instances of a `cluster`, of a kind of `gpu`, or of any of them."""

    price: Decimal
    per: Per = "gpu_hour"
    cluster: str = ANY
    gpu: str = ANY


@dataclass(frozen=True)
class LinkPrice:
    """What a link costs: a GB (10^9 bytes) sent, and the month's 95th percentile in Gbps.

    `committed_gbps` is paid in any case at `gbps_month`; what is billed above it at
    `burst_gbps_month`. Without a commitment all of it is at `gbps_month`.
    """

    link: str = ANY
    gb: Decimal | None = None
    gbps_month: Decimal | None = None
    burst_gbps_month: Decimal | None = None
    committed_gbps: Decimal = Decimal(0)


@dataclass(frozen=True)
class Prices:
    currency: str
    decimals: int
    hours: tuple[HourPrice, ...] = ()
    links: tuple[LinkPrice, ...] = ()

    def of_hours(self, cluster: str, gpu: str) -> HourPrice | None:
        """The price of the cluster, else of its kind of GPU, else of any."""
        fits = [p for p in self.hours if p.cluster in (cluster, ANY) and p.gpu in (gpu, ANY)]
        return max(fits, key=lambda p: (p.cluster != ANY, p.gpu != ANY), default=None)

    def of_link(self, link: str) -> LinkPrice | None:
        fits = [p for p in self.links if p.link in (link, ANY)]
        return max(fits, key=lambda p: p.link != ANY, default=None)

    def rounded(self, amount: Decimal) -> Decimal:
        return amount.quantize(Decimal(1).scaleb(-self.decimals), rounding=ROUND_HALF_EVEN)


@dataclass(frozen=True)
class Total:
    """The sum of the lines that have money, None where none has; `n_without` have none."""

    money: Decimal | None
    n_without: int


def of_hours(
    prices: Prices, price: HourPrice | None, *, instance_hours: Decimal, gpus: Decimal | None
) -> Decimal | None:
    """What instance-hours cost; None without a price, or by GPU where nobody says how many."""
    if price is None or (price.per == "gpu_hour" and gpus is None):
        return None
    hours = instance_hours * gpus if price.per == "gpu_hour" and gpus else instance_hours
    return prices.rounded(hours * price.price)


def of_bytes(prices: Prices, price: LinkPrice | None, n_bytes: Decimal | None) -> Decimal | None:
    """What egress costs by the GB."""
    if price is None or price.gb is None or n_bytes is None:
        return None
    return prices.rounded(n_bytes / Decimal(10**9) * price.gb)


def of_percentile(
    prices: Prices, price: LinkPrice | None, billed_gbps: Decimal | None
) -> Decimal | None:
    """What a link's month costs by its 95th percentile, the commitment included."""
    if price is None or price.gbps_month is None or billed_gbps is None:
        return None
    above = max(billed_gbps - price.committed_gbps, Decimal(0))
    burst = price.gbps_month if price.burst_gbps_month is None else price.burst_gbps_month
    return prices.rounded(price.committed_gbps * price.gbps_month + above * burst)


def total(lines: Iterable[Decimal | None]) -> Total:
    found = list(lines)
    known = [line for line in found if line is not None]
    return Total(sum(known, Decimal(0)) if known else None, len(found) - len(known))
