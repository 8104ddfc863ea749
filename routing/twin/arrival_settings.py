"""The `[arrivals]` of a scenario, one table for all PD clusters or `[[arrivals]]` with `cluster`.

    kind = "poisson"      the default
    kind = "gamma"        cv of the gaps: 1 is Poisson, 0 evenly spaced
    kind = "mmpp"         burst_factor or rates_rps = [on, off]; mean_on_s, mean_off_s
    kind = "rate_curve"   rates_rps or factors = [[at_s, value], ...], linear between, two at one
                          time a step; period_s repeats it; cv
    kind = "sessions"     turns, growth_tokens, think_s; first_tokens, shared_tokens, max_tokens
    kind = "trace"        the requests come from a file

The rate is the workload's `rate_rps`, of which `factors` are multiples and `burst_factor` the ratio
between the two states; `rates_rps` take its place. `drift = [[at_s, mu], ...]` moves log-normal
prompts, linear between (two at one time: a step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from routing.core.model.lengths import Lengths, LogNormalLengths
from routing.core.scenario.document import Scenario, Workload
from routing.core.scenario.lengths import read_lengths
from routing.core.scenario.tables import ScenarioError, Table, is_number
from routing.twin.arrivals import Curve, Pattern, Steady, Switching
from routing.twin.lengths import DrawnTokens, DriftingTokens, FixedTokens, TokensAt
from routing.twin.sites import Sessions, Site

_KINDS = {
    "poisson": ("drift",),
    "gamma": ("cv", "drift"),
    "mmpp": ("burst_factor", "rates_rps", "mean_on_s", "mean_off_s", "drift"),
    "rate_curve": ("rates_rps", "factors", "period_s", "cv", "drift"),
    "sessions": (
        *("turns", "first_tokens", "growth_tokens", "think_s"),
        *("shared_tokens", "max_tokens"),
    ),
    "trace": (),
}
_MOST_CV = 20.0
"""Gaps of a larger one are mostly 0 to within what a float holds."""
_MAX_TOKENS = 131_072
_LEAD_SESSIONS = 4.0
"""Mean sessions that one may have begun before the run: all but e^-4 of the turns then exist."""


@dataclass(frozen=True)
class _Drawn:
    """What one PD cluster's workload says of a request. `mean_output` in tokens."""

    workload: Workload
    prompt: TokensAt
    output: TokensAt
    mean_output: float


def read_sites(
    root: Table, scenario: Scenario, *, block_tokens: int
) -> dict[str, Site | Sessions | None]:
    """By PD cluster, in the scenario's order; None where the arrivals are a trace's.

    Raises ScenarioError naming field and value.
    """
    names = [cluster.name for cluster in scenario.clusters if cluster.kind == "pd"]
    tables = _tables(root, names)
    outputs = _outputs(root.data, scenario)
    sites: dict[str, Site | Sessions | None] = {}
    for name in names:
        workload = scenario.workload(name)
        assert workload is not None, "the scenario's own check"
        drawn = _Drawn(
            workload, DrawnTokens(workload.lengths), outputs[name], workload.output_tokens
        )
        sites[name] = _site(tables[name], drawn, scenario, block_tokens)
    if None in sites.values() and any(site is not None for site in sites.values()):
        raise ScenarioError(
            "arrivals.kind", "trace", "must be the kind of every PD cluster if of one"
        )
    return sites


def _tables(root: Table, names: Sequence[str]) -> dict[str, Table]:
    """Each PD cluster's table; an empty one, hence Poisson, where there is none."""
    given = root.take("arrivals", {})
    keys = ("cluster", "kind", *sorted({key for known in _KINDS.values() for key in known}))
    if isinstance(given, list):
        found: dict[str, Table] = {}
        for table in root.tables("arrivals", keys):
            name = table.text("cluster")
            if name in found:
                raise table.error("cluster", "has arrivals already")
            found[name] = table
    else:
        table = root.table("arrivals", keys, optional=True)
        named = [table.text("cluster")] if "cluster" in table.data else names
        found = dict.fromkeys(named, table)
    for name, table in found.items():
        if name not in names:
            raise table.error("cluster", "is not a cluster of kind pd")
    return {name: found.get(name, Table({}, "arrivals", known=keys)) for name in names}


def _site(
    anything: Table, drawn: _Drawn, scenario: Scenario, block_tokens: int
) -> Site | Sessions | None:
    kind = anything.one_of("kind", tuple(_KINDS)) if "kind" in anything.data else "poisson"
    table = Table(anything.data, anything.path, known=("cluster", "kind", *_KINDS[kind]))
    if kind == "trace":
        return None
    if kind == "sessions":
        return _sessions(table, drawn, scenario, block_tokens)
    prompt = _drifting(table, drawn) if "drift" in table.data else drawn.prompt
    return Site(_PATTERNS[kind](table, drawn.workload.rate_rps), prompt, drawn.output)


def _gamma(table: Table, rate_rps: float) -> Pattern:
    table.take("cv")
    return Steady(rate_rps, _cv(table))


def _cv(table: Table) -> float:
    cv = table.number("cv", 1.0, low=0, inclusive=True)
    if cv > _MOST_CV:
        raise table.error("cv", f"must be at most {_MOST_CV:g}")
    return cv


def _mmpp(table: Table, rate_rps: float) -> Pattern:
    on_s, off_s = table.number("mean_on_s", low=0), table.number("mean_off_s", low=0)
    if _either(table, "burst_factor", "rates_rps") == "burst_factor":
        factor = table.number("burst_factor", low=1)
        return Switching.bursts(rate_rps, factor, on_s=on_s, off_s=off_s)
    on, off = table.numbers("rates_rps", 2)
    if min(on, off) < 0 or on <= off:
        raise table.error(
            "rates_rps", "must be [on, off], the first above the second, none below 0"
        )
    return Switching((on, off), (on_s, off_s))


def _rate_curve(table: Table, rate_rps: float) -> Pattern:
    key = _either(table, "rates_rps", "factors")
    rows = table.pairs(key)
    _check_times(table, key, rows)
    for i, (_, value) in enumerate(rows):
        if value < 0:
            raise ScenarioError(f"{table.at(key)}[{i}]", list(rows[i]), "must not be below 0")
    if not any(value > 0 for _, value in rows):
        raise table.error(key, "brings no request at all")
    period_s = table.number("period_s", low=0) if "period_s" in table.data else None
    if period_s is not None and rows[-1][0] > period_s:
        raise table.error("period_s", f"must not be before the last point, {rows[-1][0]:g} s")
    unit = rate_rps if key == "factors" else 1.0
    return Curve(tuple((at_s, unit * value) for at_s, value in rows), period_s, _cv(table))


def _either(table: Table, one: str, other: str) -> str:
    if one in table.data and other in table.data:
        raise table.error(other, f"stands beside {one}: give one of them")
    if other not in table.data:
        table.take(one)
        return one
    return other


def _check_times(table: Table, key: str, rows: Sequence[tuple[float, float]]) -> None:
    if not rows:
        raise table.error(key, "needs at least one point")
    for i, (at_s, _) in enumerate(rows):
        if at_s < 0 or (i and at_s < rows[i - 1][0]):
            message = "times must not be below 0 and must not fall"
            raise ScenarioError(f"{table.at(key)}[{i}]", list(rows[i]), message)


_PATTERNS: dict[str, Callable[[Table, float], Pattern]] = {
    "poisson": lambda table, rate_rps: Steady(rate_rps),
    "gamma": _gamma,
    "mmpp": _mmpp,
    "rate_curve": _rate_curve,
}


def _drifting(table: Table, drawn: _Drawn) -> TokensAt:
    lengths = drawn.workload.lengths
    if not isinstance(lengths, LogNormalLengths):
        raise table.error("drift", "needs lengths of kind lognormal")
    rows = table.pairs("drift")
    _check_times(table, "drift", rows)
    for i, (_, mu) in enumerate(rows):
        if not 0 < replace(lengths, mu=mu).mass < math.inf:
            message = f"puts no prompt between {lengths.min_tokens:g} and {lengths.max_tokens:g}"
            raise ScenarioError(f"{table.at('drift')}[{i}]", list(rows[i]), message)
    return DriftingTokens(lengths, tuple(rows))


def _sessions(table: Table, drawn: _Drawn, scenario: Scenario, block_tokens: int) -> Sessions:
    turns = table.number("turns", low=1, inclusive=True)
    think_s = table.number("think_s", low=0, inclusive=True)
    shared_tokens = table.count("shared_tokens", 0, low=0)
    max_tokens = table.count("max_tokens", _MAX_TOKENS, low=1)
    if shared_tokens >= max_tokens:
        raise table.error("shared_tokens", f"leaves no room below max_tokens, {max_tokens}")
    speed = scenario.slo.tokens_per_s
    return Sessions(
        rate_rps=drawn.workload.rate_rps,
        turns=turns,
        first=_tokens(table, "first_tokens") if "first_tokens" in table.data else drawn.prompt,
        growth=_tokens(table, "growth_tokens"),
        output=drawn.output,
        think_s=think_s,
        answer_tokens_per_s=speed,
        max_tokens=max_tokens,
        block_tokens=block_tokens,
        shared_tokens=shared_tokens,
        lead_s=_LEAD_SESSIONS * turns * (think_s + drawn.mean_output / speed),
    )


def _outputs(document: dict[str, Any], scenario: Scenario) -> dict[str, TokensAt]:
    """Of each PD cluster: the distribution that the core keeps the mean of."""
    key = "workloads" if "workloads" in document else "workload"
    given = document[key] if isinstance(document[key], list) else [document[key]]
    return {
        workload.cluster: _tokens(Table(data, key, known=None), "output_tokens")
        for workload, data in zip(scenario.workloads, given, strict=True)
    }


def _tokens(table: Table, key: str) -> TokensAt:
    """A number of tokens or a distribution of them."""
    value = table.take(key)
    if is_number(value):
        return FixedTokens(table.number(key, low=0))
    lengths: Lengths = read_lengths(table.table(key, None))
    return DrawnTokens(lengths)
