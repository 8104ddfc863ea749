"""What the links of a fleet cost this month, from stored samples (`core.billing`)."""

from __future__ import annotations

from typing import Any

from routing import fleets
from routing.core.links import billing
from routing.models import Fleet
from telemetry import history


def bills(fleet: Fleet, *, now_s: float) -> list[dict[str, Any]]:
    """One row per link of the scenario, for the running month; samples not stored are missing.

    `cost` is None where the scenario has no `cost_per_gbps_month`, `over_cap` and `burst_left_s`
    where it has no `p95_cap_gbps`.
    """
    cycle = billing.cycle_at(now_s)
    n_due = int((now_s - cycle.begins_s) // billing.SAMPLE_S)
    links = fleets.scenario_of(fleet).links
    paths = [link.id for link in links]
    out, back = (_samples(field, paths, cycle.begins_s, n_due) for field in ("tx_gbps", "rx_gbps"))
    rows = []
    for link in links:
        greater = link.facts.get("p95_counts") == "max"
        cap_gbps = link.facts.get("p95_cap_gbps")
        found = billing.bill(
            out[link.id],
            back[link.id] if greater else None,
            cap_gbps=cap_gbps,
            n_cycle=cycle.n_samples,
        )
        price = link.facts.get("cost_per_gbps_month")
        rows.append(
            {
                "id": link.id,
                "month": cycle.month,
                "counts": "max" if greater else "out",
                "cap_gbps": cap_gbps,
                "billed_gbps": found.billed_gbps,
                "n_measured": found.n_measured,
                "n_missing": found.n_missing,
                "over_cap": found.over_cap,
                "burst_left_s": found.burst_left_s,
                "cost": None if price is None else found.cost(price),
            }
        )
    return rows


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
