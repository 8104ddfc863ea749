"""What the links of a fleet cost this month, from stored samples (`core.billing`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from routing import fleets
from routing.core.links import billing
from routing.core.scenario.document import Link
from routing.models import Fleet
from telemetry import history


def bills(fleet: Fleet, *, now_s: float, only: str | None = None) -> list[dict[str, Any]]:
    """One row per link of the scenario (or for the link `only`), for the running month; samples not
    stored are missing.

    `cost` is None where the scenario has no `cost_per_gbps_month`, `over_cap` and `burst_left_s`
    where it has no `p95_cap_gbps`.
    """
    rows = []
    for link, counts, found in of_cycle(fleet, billing.cycle_at(now_s), until_s=now_s, only=only):
        price = link.facts.get("cost_per_gbps_month")
        rows.append(
            {
                "id": link.id,
                "month": billing.cycle_at(now_s).month,
                "counts": counts,
                "cap_gbps": link.facts.get("p95_cap_gbps"),
                "billed_gbps": found.billed_gbps,
                "n_measured": found.n_measured,
                "n_missing": found.n_missing,
                "over_cap": found.over_cap,
                "burst_left_s": found.burst_left_s,
                "cost": None if price is None else found.cost(price),
            }
        )
    return rows


def of_cycle(
    fleet: Fleet, cycle: billing.Cycle, *, until_s: float, only: str | None = None
) -> Iterator[tuple[Link, str, billing.Bill]]:
    """(link, what counts, bill) of each link of the scenario, or of `only`, for a cycle as far as
    `until_s`."""
    n_due = int((until_s - cycle.begins_s) // billing.SAMPLE_S)
    links = [x for x in fleets.scenario_of(fleet).links if only in (None, x.id)]
    paths = [link.id for link in links]
    out = _samples("tx_gbps", paths, cycle.begins_s, n_due)
    both = [link.id for link in links if link.facts.get("p95_counts") == "max"]
    back = _samples("rx_gbps", both, cycle.begins_s, n_due) if both else {}
    for link in links:
        greater = link.facts.get("p95_counts") == "max"
        found = billing.bill(
            out[link.id],
            back[link.id] if greater else None,
            cap_gbps=link.facts.get("p95_cap_gbps"),
            n_cycle=cycle.n_samples,
        )
        yield link, "max" if greater else "out", found


def _samples(
    field: str, paths: list[str], since_s: float, n_due: int
) -> dict[str, list[float | None]]:
    """Five-minute means by path, those that are complete."""
    if n_due < 1:
        return {path: [] for path in paths}
    found = history.series(
        "link",
        field,
        paths=paths,
        since_s=since_s,
        until_s=since_s + n_due * billing.SAMPLE_S,
        max_points=n_due,
    )
    # A counter gone wrong is no rate: a gap.
    return {
        path: [rate if rate is not None and rate >= 0.0 else None for rate in rates]
        for path, rates in found["series"].items()
    }
