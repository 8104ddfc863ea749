"""A scenario with a few of its numbers changed, by names that a form or an address can carry.

A name is PLACE.NUMBER: `pd.rate_rps`, `prfaas->pd.gbps`, `slo.ttft_s`. The changed document goes
through the one strict reader of scenarios, so what it refuses is refused here, under that name.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from routing.core.model import lengths as distributions
from routing.core.model.lengths import Lengths, LogNormalLengths
from routing.core.scenario.document import Scenario, parse_scenario
from routing.core.scenario.tables import ScenarioError, is_number
from routing.core.types import LengthHistogram

SCENARIO, LOGNORMAL, RECORDED = "scenario", "lognormal", "recorded"
LENGTHS = (SCENARIO, LOGNORMAL, RECORDED)

RANGES: dict[str, tuple[float, float]] = {
    "rate_rps": (0.001, 1e6),
    "mu": (3.0, 14.0),
    "sigma": (0.01, 4.0),
    "output_tokens": (1.0, 1e7),
    "instances": (1.0, 4096.0),
    "gbps": (0.001, 1e6),
    "tokens_per_s": (0.001, 1e6),
    "ttft_s": (0.001, 1e6),
}
"""What can be asked. The scenario's own reader refuses less: it also has to take what nobody would
plan for, where here a slip of the finger must not become a search over a million instances."""

_OF_WORKLOAD = ("rate_rps", "output_tokens", "lengths", "mu", "sigma")
_OF_SLO = ("tokens_per_s", "ttft_s")
_SHORTEST, _LONGEST = 128.0, 131_072.0
"""Where a log-normal is cut whose fleet has counted lengths: the range plans are made in."""
_LEAST_MASS = 1e-6
_OPEN_BUCKET_RATIO = 1.1
"""As `lengths.bucket_edges` takes the last bucket, which has no upper edge."""


@dataclass(frozen=True)
class Number:
    """One number of a scenario that can be changed: its name, value now, and the place it is of."""

    name: str
    place: str
    kind: str
    value: float


def numbers_of(scenario: Scenario) -> tuple[Number, ...]:
    """Every number there is, in the order a form asks for them."""
    found = []
    for workload in scenario.workloads:
        mu, sigma = lognormal_like(workload.lengths)
        for kind, value in (
            ("rate_rps", workload.rate_rps),
            ("mu", mu),
            ("sigma", sigma),
            ("output_tokens", workload.output_tokens),
        ):
            found.append((workload.cluster, kind, value))
    found += [(c.name, "instances", float(c.instances)) for c in scenario.clusters]
    found += [(link.id, "gbps", link.gbps) for link in scenario.links]
    found += [("slo", kind, getattr(scenario.slo, kind)) for kind in _OF_SLO]
    return tuple(Number(f"{place}.{kind}", place, kind, value) for place, kind, value in found)


def names_of(scenario: Scenario) -> tuple[str, ...]:
    """Every name that `changed` knows for this scenario."""
    texts = tuple(f"{workload.cluster}.lengths" for workload in scenario.workloads)
    return tuple(number.name for number in numbers_of(scenario)) + texts


def lognormal_like(lengths: Lengths) -> tuple[float, float]:
    """mu and sigma of the log-normal with the same mean and variance; its own for a log-normal."""
    if isinstance(lengths, LogNormalLengths):
        return lengths.mu, lengths.sigma
    mass, tokens, squares = lengths.at(math.inf)
    mean, square = tokens / mass, squares / mass
    variance_ln = math.log(max(square / (mean * mean), 1.0))
    low, high = RANGES["sigma"]
    sigma = min(max(math.sqrt(variance_ln), low), high)
    return math.log(mean) - sigma * sigma / 2.0, sigma


def changed(
    document: Mapping[str, Any],
    numbers: Mapping[str, Any],
    recorded: Mapping[str, LengthHistogram | None],
) -> Scenario:
    """The scenario of `document` with `numbers` in their places.

    `recorded`: per PD cluster the lengths that were counted, for `CLUSTER.lengths = "recorded"`.
    Raises ScenarioError with the name as its field, or with the document's own path where the
    document itself is at fault.
    """
    return changed_document(document, numbers, recorded)[1]


def changed_document(
    document: Mapping[str, Any],
    numbers: Mapping[str, Any],
    recorded: Mapping[str, LengthHistogram | None],
) -> tuple[dict[str, Any], Scenario]:
    """The changed document itself, for who also reads its other parts, and its scenario."""
    root = copy.deepcopy(dict(document))
    before = parse_scenario(root)
    known = names_of(before)
    paths: dict[str, str] = {}
    for name, value in numbers.items():
        if name not in known:
            raise ScenarioError(
                name, value, f"is no number of this fleet, which has {', '.join(known)}"
            )
        place, _, kind = name.rpartition(".")
        if kind != "lengths":
            _check_range(name, kind, value)
        if kind in _OF_SLO and place == "slo":
            root["fleet"]["slo"][kind] = value
            paths[f"fleet.slo.{kind}"] = name
        elif kind == "gbps":
            path, link = _entry(root, "links", lambda row: f"{row['from']}->{row['to']}", place)
            link["gbps"] = value
            paths[f"{path}.gbps"] = name
        elif kind == "instances":
            path, cluster = _entry(root, "clusters", lambda row: row["name"], place)
            _resize(cluster, value)
            paths[path] = name
        elif kind in ("rate_rps", "output_tokens"):
            path, workload = _workload(root, place)
            workload[kind] = value
            paths[f"{path}.{kind}"] = name
    for each in before.workloads:
        _change_lengths(root, before, each.cluster, numbers, recorded, paths)
    try:
        after = parse_scenario(root)
    except ScenarioError as exc:
        raise ScenarioError(_name_of(exc.field, paths), exc.value, exc.message) from None
    _check_mass(after, numbers)
    return root, after


def _check_range(name: str, kind: str, value: Any) -> None:
    if not is_number(value):
        raise ScenarioError(name, value, "must be a number")
    low, high = RANGES[kind]
    if not low <= value <= high:
        raise ScenarioError(name, value, f"must be in {low:g}..{high:g}")


def _entry(root: dict[str, Any], key: str, name_of: Any, name: str) -> tuple[str, dict[str, Any]]:
    """Path and table of the one entry of a list that has this name."""
    for i, row in enumerate(root[key]):
        if name_of(row) == name:
            return f"{key}[{i}]", row
    raise AssertionError(f"{name} was found in the parsed scenario")


def _workload(root: dict[str, Any], cluster: str) -> tuple[str, dict[str, Any]]:
    key = "workloads" if "workloads" in root else "workload"
    if isinstance(root[key], dict):
        return key, root[key]
    return _entry(root, key, lambda row: row["cluster"], cluster)


def _resize(cluster: dict[str, Any], instances: Any) -> None:
    cluster["instances"] = instances
    # Where roles may move, `start` only says what ran before the loop spoke: no plan asks for it.
    if not cluster.get("pinned"):
        cluster.pop("start", None)


def _change_lengths(
    root: dict[str, Any],
    before: Scenario,
    cluster: str,
    numbers: Mapping[str, Any],
    recorded: Mapping[str, LengthHistogram | None],
    paths: dict[str, str],
) -> None:
    shape = {
        key: numbers[f"{cluster}.{key}"] for key in ("mu", "sigma") if _given(cluster, key, numbers)
    }
    name = f"{cluster}.lengths"
    kind = numbers.get(name, LOGNORMAL if shape else SCENARIO)
    if kind not in LENGTHS:
        raise ScenarioError(name, kind, f"must be {', '.join(LENGTHS[:-1])} or {LENGTHS[-1]}")
    if shape and kind != LOGNORMAL:
        key = next(iter(shape))
        raise ScenarioError(f"{cluster}.{key}", shape[key], f"stands beside lengths = {kind}")
    path, workload = _workload(root, cluster)
    if kind == RECORDED:
        workload["lengths"] = {
            "kind": "empirical",
            "buckets": _buckets(name, recorded.get(cluster)),
        }
        paths[f"{path}.lengths"] = name
    elif kind == LOGNORMAL:
        described = before.workload(cluster)
        assert described is not None, "asked for the clusters that have a workload"
        was = described.lengths
        mu, sigma = lognormal_like(was)
        low, high = (
            (was.min_tokens, was.max_tokens)
            if isinstance(was, LogNormalLengths)
            else (_SHORTEST, _LONGEST)
        )
        table = {"kind": "lognormal", "mu": mu, "sigma": sigma, "min": low, "max": high}
        workload["lengths"] = table | shape
        paths[f"{path}.lengths.sigma"] = f"{cluster}.sigma"
        paths[f"{path}.lengths"] = f"{cluster}.mu"


def _given(cluster: str, key: str, numbers: Mapping[str, Any]) -> bool:
    return f"{cluster}.{key}" in numbers


def _buckets(name: str, histogram: LengthHistogram | None) -> list[list[float]]:
    if histogram is None or not distributions.usable(histogram):
        message = "no lengths were counted in the newest tick: a gate has to report first"
        raise ScenarioError(name, RECORDED, message)
    edges = (*histogram.edges, histogram.edges[-1] * _OPEN_BUCKET_RATIO)
    return [[edge, count] for edge, count in zip(edges, histogram.counts, strict=True)]


def _name_of(field: str, paths: Mapping[str, str]) -> str:
    """The name under which the value at `field` was given: the longest path that leads there."""
    known = [p for p in paths if field == p or field.startswith((f"{p}.", f"{p}["))]
    return paths[max(known, key=len)] if known else field


def _check_mass(scenario: Scenario, numbers: Mapping[str, Any]) -> None:
    """A log-normal cut down to next to nothing has no moments worth a number."""
    for workload in scenario.workloads:
        lengths = workload.lengths
        if isinstance(lengths, LogNormalLengths) and lengths.mass < _LEAST_MASS:
            name = f"{workload.cluster}.mu"
            raise ScenarioError(
                name,
                numbers.get(name, lengths.mu),
                f"puts next to no prompt between {lengths.min_tokens:,.0f} and "
                f"{lengths.max_tokens:,.0f} tokens",
            )
