"""What a larger prefix cache would be worth to a fleet, by the prefixes of an uploaded trace."""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Sequence
from typing import Any

from django.db.models.functions import Substr

from routing.backtest_workloads import settings_of
from routing.commands import Refused
from routing.core.model import fleetmodel
from routing.core.scenario.document import Cluster, Scenario
from routing.core.scenario.tables import ScenarioError
from routing.core.what_if.shorter import headroom_by_length
from routing.models import Fleet, TraceFile
from routing.trace_files import trace_of
from routing.twin.cache_budget import BudgetCurve, BudgetPoint, budget_curve, geometric_capacities
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace

_MOST_TEXT_BYTES = 64 << 20
"""Read while a page waits; a backtest, which nobody waits for, takes more."""
_ENOUGH_RATIO = 0.9
"""Of what an unbounded cache serves: beyond, each further percent costs ever more memory."""
_MOST_OFFERED = 50
_HEAD_BYTES = 1 << 16
_KEYS = ('"hash_ids"', '"requests"')
"""Of a first line that names blocks: Mooncake's, and agentic sessions'."""


def traces_with_prefixes(fleet: Fleet) -> list[TraceFile]:
    """The fleet's newest uploads that name blocks, newest first, as far as their beginning tells;
    their data stay in the database."""
    rows = TraceFile.objects.filter(fleet=fleet).defer("data").order_by("-created_at", "-pk")
    headed = rows.annotate(head=Substr("data", 1, _HEAD_BYTES))[:_MOST_OFFERED]
    return [row for row in headed if _names_blocks(bytes(row.head))]


def _names_blocks(packed: bytes) -> bool:
    """`packed` is the beginning of a gzipped file."""
    head = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed, _HEAD_BYTES)
    first = head.lstrip().partition(b"\n")[0].decode("utf-8-sig", "replace")
    return any(key in first for key in _KEYS)


def answer(fleet: Fleet, *, trace: int, cluster: str | None = None) -> dict[str, Any]:
    """The curve of the trace with that id, what the fleet's clusters hold, and the headroom of the
    best plan at each size, seen from one PD `cluster` (the first, if None).

    Raises Refused naming the field and the value that cannot be meant.
    """
    found = TraceFile.objects.filter(fleet=fleet, pk=trace).defer("data").first()
    if found is None:
        raise Refused("trace", trace, f"there is no trace {trace} of this fleet")
    try:
        scenario, settings = settings_of(fleet.scenario)
        place = _cluster(scenario, cluster)
        exact = scenario.model.state_bytes > 0
        if settings.cache is not None:
            exact = settings.cache.linear_state == "exact"
        holders = [each for each in scenario.clusters if not each.drained]
        sizes = {each.name: _held_tokens(scenario, each) for each in holders}
        known = tuple(dict.fromkeys(tokens for tokens in sizes.values() if tokens is not None))
        n_even, curve = _curve(found.pk, exact, known)
        return {
            "fleet": fleet.name,
            "cluster": place,
            "exact_state": exact,
            "trace": {
                "id": found.pk,
                "name": found.name,
                "n_requests": curve.n_requests,
                "n_used": curve.n_used,
                "n_counted": curve.n_counted,
                "mean_prompt_tokens": curve.mean_prompt_tokens,
            },
            **_worth(scenario, place, curve, sizes, n_even),
        }
    except ScenarioError as exc:
        raise Refused(exc.field, exc.value, exc.message) from None
    except TraceError as exc:
        raise Refused("trace", found.pk, str(exc)) from None


def _cluster(scenario: Scenario, asked: str | None) -> str:
    names = [site.name for site in fleetmodel.of_scenario(scenario, "exact").sites]
    if asked is None:
        return names[0]
    if asked not in names:
        raise Refused("cluster", asked, f"must be a PD cluster in service: {', '.join(names)}")
    return asked


def _held_tokens(scenario: Scenario, cluster: Cluster) -> float | None:
    """What all instances of a cluster hold, None where its profile does not say."""
    tokens = scenario.profiles[cluster.profile].facts.get("kv_capacity_tokens")
    return None if tokens is None else float(tokens) * cluster.instances


@functools.lru_cache(maxsize=32)
def _curve(
    trace_id: int, exact_state: bool, known_tokens: tuple[float, ...]
) -> tuple[int, BudgetCurve]:
    """How many even sizes there are, and the curve at these and then at the known ones.

    A stored trace never changes, and reading one takes seconds.
    """
    stored = TraceFile.objects.get(pk=trace_id)
    trace = trace_of(bytes(stored.data), source=stored.name, most_bytes=_MOST_TEXT_BYTES)
    if not isinstance(trace, Trace):
        raise TraceError("holds rates, not requests with prefixes", source=stored.name)
    sizes = geometric_capacities(trace)
    return len(sizes), budget_curve(trace, sizes + known_tokens, exact_state=exact_state)


def _worth(
    scenario: Scenario,
    place: str,
    curve: BudgetCurve,
    sizes: dict[str, float | None],
    n_even: int,
) -> dict[str, Any]:
    """Hit ratios with the headroom they would bring.

    The scenario's lengths are what is left uncached today: at the size that `place` has. Where
    nobody knows that, they are taken for whole prompts. Other sizes scale them by what they leave
    of the trace's prompts, at least one token of each.
    """
    held = {point.capacity_tokens: point for point in curve.points[n_even:]}
    present = held.get(sizes[place] or 0.0)

    def left_tokens(hit_ratio: float) -> float:
        return max(curve.mean_prompt_tokens * (1.0 - hit_ratio), 1.0)

    basis_tokens = left_tokens(present.hit_ratio) if present else curve.mean_prompt_tokens
    ratios = {point.hit_ratio for point in curve.points} | {curve.unbounded_ratio}
    factors = {ratio: left_tokens(ratio) / basis_tokens for ratio in ratios}
    headroom = headroom_by_length(scenario, place, [1.0, *factors.values()])

    def served(point: BudgetPoint | None) -> dict[str, Any]:
        if point is None:
            return dict.fromkeys(
                ("capacity_tokens", "hit_ratio", "mean_uncached_tokens", "headroom")
            )
        return dataclasses.asdict(point) | {
            "mean_uncached_tokens": left_tokens(point.hit_ratio),
            "headroom": headroom[factors[point.hit_ratio]],
        }

    even = curve.points[:n_even]
    unbounded = BudgetPoint(float(curve.working_set_tokens), curve.unbounded_ratio)
    return {
        "lengths_basis": "present" if present else "whole_prompts",
        "headroom": headroom[1.0],
        "points": [served(point) for point in even],
        "unbounded": served(unbounded),
        "enough": served(_enough(even, curve.unbounded_ratio)),
        "holds": [
            {
                "cluster": each.name,
                "profile": each.profile.partition("@")[0],
                "instances": each.instances,
                "kv_capacity_tokens": scenario.profiles[each.profile].facts.get(
                    "kv_capacity_tokens"
                ),
                **served(held.get(sizes[each.name] or 0.0)),
            }
            for each in scenario.clusters
            if each.name in sizes
        ],
    }


def _enough(even: Sequence[BudgetPoint], unbounded_ratio: float) -> BudgetPoint | None:
    """The smallest of the even sizes that serves nearly what an unbounded cache does."""
    if not unbounded_ratio:
        return None
    return next(each for each in even if each.hit_ratio >= _ENOUGH_RATIO * unbounded_ratio)
