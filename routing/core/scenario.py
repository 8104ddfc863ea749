"""A fleet's description (docs/contracts.md, Scenario): parsed TOML or JSON in, values out.

Every key is checked and every unknown key is an error that names it, so a misspelt limit is never
a limit that silently does not hold. The tables `arrivals`, `cache`, `faults` and `delays` belong to
the simulation and are not looked into here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from routing.core.kvcache import KvModel
from routing.core.lengths import BucketLengths, Lengths, LogNormalLengths
from routing.core.profiles import DecodeProfile, PrefillProfile, Profile, ProfileError

_ROOT = (
    *("fleet", "model", "profiles", "clusters", "links", "workload", "workloads", "baselines"),
    *("arrivals", "cache", "faults", "delays"),
)
_PROFILE_FACTS = (
    *("gpu", "gpus_per_instance", "model", "engine", "engine_version", "parallelism"),
    *("measured_on", "kv_capacity_tokens", "cost_per_hour"),
)


_PROFILE = ("prefill", "decode", *_PROFILE_FACTS)
_CLUSTER = (
    *("name", "kind", "profile", "instances", "start"),
    *("min_prefill", "min_decode", "pinned", "drained", "control_urls"),
)
_LINK = (
    *("from", "to", "gbps", "rtt_ms", "cap_gbps", "p95_cap_gbps", "connections"),
    *("per_connection_gbps", "loss", "background_gbps", "schedule"),
)
_WORKLOAD = ("cluster", "rate_rps", "output_tokens", "lengths")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_LENGTHS = {
    "lognormal": ("kind", "mu", "sigma", "min", "max"),
    "empirical": ("kind", "file", "buckets"),
}


class ScenarioError(ValueError):
    """A description that cannot be meant. `field` is a dotted path, `value` what stood there."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Slo:
    tokens_per_s: float
    ttft_s: float


@dataclass(frozen=True)
class Start:
    """What the cluster runs before the loop ever spoke; no threshold = everything local."""

    n_prefill: int
    threshold_tokens: int | None


@dataclass(frozen=True)
class Cluster:
    """Machines of one site. `kind` `prefill` is a PrfaaS cluster: its instances only prefill.

    `control_urls` are the stacks that list the instances (docs/contracts.md, A stack's workers).
    """

    name: str
    kind: Literal["pd", "prefill"]
    profile: str
    instances: int
    start: Start | None = None
    min_prefill: int = 1
    min_decode: int = 1
    pinned: bool = False
    drained: bool = False
    control_urls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Link:
    """A directed path; `facts` are the optional keys only a simulation reads."""

    source: str
    target: str
    gbps: float
    rtt_s: float | None
    facts: dict[str, Any]

    @property
    def id(self) -> str:
        return f"{self.source}->{self.target}"

    @property
    def usable_gbps(self) -> float:
        """What plans may use: `gbps`, capped by `cap_gbps`, less `background_gbps`."""
        capped = min(self.gbps, float(self.facts.get("cap_gbps", self.gbps)))
        return max(0.0, capped - float(self.facts.get("background_gbps", 0.0)))


@dataclass(frozen=True)
class Workload:
    """The traffic a plan is made for, per PD cluster."""

    cluster: str
    rate_rps: float
    output_tokens: float
    lengths: Lengths


@dataclass(frozen=True)
class Baseline:
    """Identical instances of one profile that serve all the traffic without a PrfaaS cluster."""

    profile: str
    instances: int


@dataclass(frozen=True)
class Scenario:
    """One fleet: its name, what its hardware does, what links it, what it is meant to carry."""

    fleet: str
    slo: Slo
    model: KvModel
    profiles: dict[str, Profile]
    clusters: tuple[Cluster, ...]
    links: tuple[Link, ...]
    workloads: tuple[Workload, ...]
    homogeneous: Baseline | None

    def cluster(self, name: str) -> Cluster | None:
        return next((c for c in self.clusters if c.name == name), None)

    def workload(self, cluster: str) -> Workload | None:
        return next((w for w in self.workloads if w.cluster == cluster), None)


def parse_scenario(document: dict[str, Any]) -> Scenario:
    """The scenario a document describes. Raises ScenarioError naming the field and the value."""
    root = _Table(document, "", known=_ROOT)
    fleet = root.table("fleet", ("name", "slo"))
    slo = fleet.table("slo", ("tokens_per_s", "ttft_s"))
    model = root.table("model", ("bytes_per_token", "state_bytes", "config"))
    if "config" in model.data:
        raise model.error("config", "is not read here: give bytes_per_token and state_bytes")
    profiles = root.table("profiles", None)
    baselines = root.table("baselines", ("homogeneous",), optional=True)
    homogeneous = None
    if "homogeneous" in baselines.data:
        homogeneous = baselines.table("homogeneous", ("profile", "instances"))
    scenario = Scenario(
        fleet=fleet.text("name"),
        slo=Slo(slo.number("tokens_per_s", low=0), slo.number("ttft_s", low=0)),
        model=KvModel(
            bytes_per_token=model.number("bytes_per_token", low=0),
            state_bytes=model.number("state_bytes", low=0, inclusive=True),
        ),
        profiles={
            name: _profile(name, profiles.table(name, _PROFILE)) for name in list(profiles.data)
        },
        clusters=tuple(_cluster(t) for t in root.tables("clusters", _CLUSTER)),
        links=tuple(_link(t) for t in root.tables("links", _LINK, optional=True)),
        workloads=_workloads(root),
        homogeneous=None
        if homogeneous is None
        else Baseline(homogeneous.text("profile"), homogeneous.count("instances", low=2)),
    )
    _check(scenario)
    return scenario


class _Table:
    """One table of the document. A key that is not `known` is refused; None: any name goes."""

    def __init__(self, data: Any, path: str, *, known: Sequence[str] | None) -> None:
        if not isinstance(data, dict):
            raise ScenarioError(path or "scenario", data, "must be a table")
        self.data, self.path = data, path
        for key in data:
            if known is not None and key not in known:
                raise self.error(key, f"is not a known key (known: {', '.join(known)})")

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, message: str) -> ScenarioError:
        return ScenarioError(self.at(key), self.data.get(key), message)

    def take(self, key: str, *default: Any) -> Any:
        if key in self.data:
            return self.data[key]
        if default:
            return default[0]
        raise ScenarioError(self.at(key), None, "is missing")

    def table(self, key: str, known: Sequence[str] | None, *, optional: bool = False) -> _Table:
        return _Table(self.take(key, *([{}] if optional else [])), self.at(key), known=known)

    def tables(self, key: str, known: Sequence[str], *, optional: bool = False) -> list[_Table]:
        items = self.take(key, *([[]] if optional else []))
        if not isinstance(items, list):
            raise self.error(key, "must be a list of tables")
        return [_Table(item, f"{self.at(key)}[{i}]", known=known) for i, item in enumerate(items)]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "must be a text that is not empty")
        return value

    def number(self, key: str, *default: float, low: float, inclusive: bool = False) -> float:
        value = self.take(key, *default)
        if not _is_number(value):
            raise self.error(key, "must be a finite number")
        if value < low or (value == low and not inclusive):
            raise self.error(key, f"must be {'at least' if inclusive else 'above'} {low:g}")
        return float(value)

    def count(self, key: str, *default: int, low: int) -> int:
        value = self.take(key, *default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(key, f"must be a whole number, at least {low}")
        return value

    def flag(self, key: str) -> bool:
        value = self.take(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def pairs(self, key: str) -> list[tuple[float, float]]:
        rows = self.take(key)
        if not isinstance(rows, list):
            raise self.error(key, "must be a list of [number, number]; other forms are not read")
        for i, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != 2 or not all(map(_is_number, row)):
                raise ScenarioError(f"{self.at(key)}[{i}]", row, "must be [number, number]")
        return [(float(a), float(b)) for a, b in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _profile(name: str, table: _Table) -> Profile:
    knots = table.pairs("prefill")
    try:
        prefill = PrefillProfile(tuple(k[0] for k in knots), tuple(k[1] for k in knots))
    except ProfileError as exc:
        raise table.error("prefill", str(exc)) from None
    decode = table.table("decode", ("batch", "step_s", "table"))
    if "table" in decode.data:
        raise decode.error("table", "is not read here: give batch and step_s")
    facts = {key: table.take(key) for key in _PROFILE_FACTS if key in table.data}
    for key, value in facts.items():
        if not _is_number(value) and not isinstance(value, str):
            raise table.error(key, "must be a text or a finite number")
    profile = Profile(
        name=name,
        prefill=prefill,
        decode=DecodeProfile(decode.number("batch", low=0), decode.number("step_s", low=0)),
        facts=facts,
    )
    return profile


def _cluster(table: _Table) -> Cluster:
    kind = table.take("kind")
    if kind not in ("pd", "prefill"):
        raise table.error("kind", "must be pd or prefill")
    instances = table.count("instances", low=2 if kind == "pd" else 1)
    start = None
    if "start" in table.data:
        if kind != "pd":
            raise table.error("start", "only a cluster of kind pd has roles and a threshold")
        first = table.table("start", ("n_prefill", "threshold_tokens"))
        start = Start(
            n_prefill=first.count("n_prefill", low=1),
            threshold_tokens=None
            if first.take("threshold_tokens", None) is None
            else first.count("threshold_tokens", low=0),
        )
        if start.n_prefill >= instances:
            raise first.error("n_prefill", f"leaves no decode instance of {instances}")
    cluster = Cluster(
        name=table.text("name"),
        kind=kind,
        profile=table.text("profile"),
        instances=instances,
        start=start,
        min_prefill=table.count("min_prefill", 1, low=1),
        min_decode=table.count("min_decode", 1, low=1),
        pinned=table.flag("pinned"),
        drained=table.flag("drained"),
        control_urls=_control_urls(table),
    )
    if kind == "pd" and cluster.min_prefill + cluster.min_decode > instances:
        raise table.error("instances", "is less than min_prefill + min_decode")
    return cluster


def _control_urls(table: _Table) -> tuple[str, ...]:
    urls = table.take("control_urls", [])
    if not isinstance(urls, list):
        raise table.error("control_urls", "must be a list of URLs")
    for i, url in enumerate(urls):
        field = f"{table.at('control_urls')}[{i}]"
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise ScenarioError(field, url, "must be http://HOST... or https://HOST...")
        if url in urls[:i]:
            raise ScenarioError(field, url, "is listed twice")
    return tuple(url.rstrip("/") for url in urls)


_LINK_FACTS: dict[str, Callable[[_Table, str], Any]] = {
    "cap_gbps": lambda t, key: t.number(key, low=0),
    "p95_cap_gbps": lambda t, key: t.number(key, low=0),
    "connections": lambda t, key: t.count(key, low=1),
    "per_connection_gbps": lambda t, key: t.number(key, low=0),
    "loss": lambda t, key: t.number(key, low=0, inclusive=True),
    "background_gbps": lambda t, key: t.number(key, low=0, inclusive=True),
    "schedule": lambda t, key: t.pairs(key),
}


def _link(table: _Table) -> Link:
    link = Link(
        source=table.text("from"),
        target=table.text("to"),
        gbps=table.number("gbps", low=0),
        rtt_s=table.number("rtt_ms", low=0, inclusive=True) / 1e3
        if "rtt_ms" in table.data
        else None,
        facts={key: read(table, key) for key, read in _LINK_FACTS.items() if key in table.data},
    )
    return link


def _workloads(root: _Table) -> tuple[Workload, ...]:
    """`[workload]`, or `[[workload]]` / `[[workloads]]` with one entry per PD cluster."""
    key = "workloads" if "workloads" in root.data else "workload"
    if isinstance(root.take(key), list):
        return tuple(_workload(t, t.text("cluster")) for t in root.tables(key, _WORKLOAD))
    table = root.table(key, _WORKLOAD)
    pd = [c.get("name") for c in root.data.get("clusters", []) if c.get("kind") == "pd"]
    if "cluster" not in table.data and len(pd) != 1:
        raise table.error("cluster", "is needed where there is not exactly one PD cluster")
    return (_workload(table, table.text("cluster") if "cluster" in table.data else str(pd[0])),)


def _workload(table: _Table, cluster: str) -> Workload:
    if isinstance(table.take("output_tokens"), dict):
        output = float(_lengths(table.table("output_tokens", None)).tokens_below([math.inf])[0])
    else:
        output = table.number("output_tokens", low=0)
    workload = Workload(
        cluster=cluster,
        rate_rps=table.number("rate_rps", low=0),
        output_tokens=output,
        lengths=_lengths(table.table("lengths", None)),
    )
    return workload


def _lengths(anything: _Table) -> Lengths:
    kind = anything.take("kind")
    if kind not in _LENGTHS:
        raise anything.error("kind", f"must be one of {', '.join(_LENGTHS)}")
    table = _Table(anything.data, anything.path, known=_LENGTHS[kind])
    if kind == "empirical":
        if "file" in table.data:
            raise table.error("file", "is not read here: give buckets = [[upper_tokens, weight]]")
        return _buckets(table)
    low, high = table.number("min", low=0), table.number("max", low=0)
    if high <= low:
        raise table.error("max", "must be above min")
    mu, sigma = table.number("mu", low=-math.inf), table.number("sigma", low=0)
    lengths = LogNormalLengths(mu, sigma, low, high)
    if not 0 < lengths.mass < math.inf:
        raise table.error("mu", "puts no prompt between min and max")
    return lengths


def _buckets(table: _Table) -> BucketLengths:
    rows = table.pairs("buckets")
    edges = np.array([1.0, *(edge for edge, _ in rows)])
    weights = np.array([weight for _, weight in rows])
    if not rows or np.any(np.diff(edges) <= 0):
        raise table.error("buckets", "upper edges must rise from above 1 token")
    if np.any(weights < 0) or weights.sum() <= 0:
        raise table.error("buckets", "weights must not be negative and must not all be 0")
    return BucketLengths(edges, weights / weights.sum())


def _check(scenario: Scenario) -> None:
    """Everything that one table alone cannot say."""
    kinds = _check_clusters(scenario)
    _check_links(scenario, kinds)
    _check_workloads(scenario, kinds)
    baseline = scenario.homogeneous
    if baseline is not None and baseline.profile not in scenario.profiles:
        raise ScenarioError("baselines.homogeneous.profile", baseline.profile, "is not in profiles")


def _check_clusters(scenario: Scenario) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for i, cluster in enumerate(scenario.clusters):
        field = f"clusters[{i}]"
        if cluster.name in kinds:
            raise ScenarioError(f"{field}.name", cluster.name, "is the name of another cluster")
        if cluster.profile not in scenario.profiles:
            raise ScenarioError(f"{field}.profile", cluster.profile, "is not in profiles")
        kinds[cluster.name] = cluster.kind
        if cluster.kind == "pd":
            _check_slo(scenario, cluster)
    if "pd" not in kinds.values():
        raise ScenarioError("clusters", sorted(kinds), "needs at least one of kind pd")
    return kinds


def _check_slo(scenario: Scenario, cluster: Cluster) -> None:
    # 2 % is the slack goodput is counted with: 25.5 ms a token still is 40 tokens/s.
    speed = 1.0 / scenario.profiles[cluster.profile].decode.step_s
    if 1.02 * speed < scenario.slo.tokens_per_s:
        raise ScenarioError(
            "fleet.slo.tokens_per_s",
            scenario.slo.tokens_per_s,
            f"profile {cluster.profile} of {cluster.name} decodes {speed:g} tokens/s at its cap",
        )


def _check_links(scenario: Scenario, kinds: dict[str, str]) -> None:
    seen: set[str] = set()
    for i, link in enumerate(scenario.links):
        for key, name in (("from", link.source), ("to", link.target)):
            if name not in kinds:
                raise ScenarioError(f"links[{i}].{key}", name, "is not a cluster")
        if kinds[link.source] == kinds[link.target]:
            message = "must join a cluster of kind prefill with one of kind pd"
            raise ScenarioError(f"links[{i}].to", link.target, message)
        if link.id in seen:
            raise ScenarioError(f"links[{i}]", link.id, "is described twice")
        seen.add(link.id)


def _check_workloads(scenario: Scenario, kinds: dict[str, str]) -> None:
    served = [workload.cluster for workload in scenario.workloads]
    for name in served:
        if kinds.get(name) != "pd":
            raise ScenarioError("workload.cluster", name, "is not a cluster of kind pd")
    for name, kind in kinds.items():
        if kind == "pd" and served.count(name) != 1:
            raise ScenarioError("workload", name, "every PD cluster needs exactly one workload")
