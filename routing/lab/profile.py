"""What the lab reads of a scenario: how long prefill and decode steps take, how large KV is.

T_prefill(l)  piecewise linear through the knots (tokens, s), end slopes beyond them
S_kv(l)       state_bytes + bytes_per_token * l                                  [bytes]
decode        one token per `step_s` for each of at most `batch` sequences
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from routing.lab.errors import LabError, read_toml

DEFAULT_KV_CAPACITY_TOKENS = 4_194_304
"""KV tokens an instance holds when its profile does not say: 32 contexts of 131,072 tokens."""
DEFAULT_CONNECTIONS = 8
"""TCP connections per transfer when the link does not say."""


@dataclass(frozen=True)
class Profile:
    """One instance's speed. `knots` shape (n >= 2): (tokens, seconds), both ascending."""

    name: str
    knots: tuple[tuple[float, float], ...]
    batch: int
    step_s: float
    kv_capacity_tokens: int = DEFAULT_KV_CAPACITY_TOKENS

    def prefill_s(self, uncached_tokens: float) -> float:
        """Seconds to prefill that many uncached tokens; never negative."""
        right = bisect_right(self.knots, uncached_tokens, key=lambda knot: knot[0])
        right = min(max(right, 1), len(self.knots) - 1)
        (x0, y0), (x1, y1) = self.knots[right - 1], self.knots[right]
        return max(0.0, y0 + (uncached_tokens - x0) * (y1 - y0) / (x1 - x0))


@dataclass(frozen=True)
class KvSize:
    """Bytes of a prompt's KV: a fixed state per request and a part that grows with its tokens."""

    bytes_per_token: int
    state_bytes: int

    def bytes_of(self, tokens: int) -> int:
        return self.state_bytes + self.bytes_per_token * tokens


@dataclass(frozen=True)
class Cluster:
    """`kind` is `pd` or `prefill`; in a `prefill` cluster `n_prefill` equals `instances`."""

    name: str
    kind: str
    profile: str
    instances: int
    n_prefill: int


@dataclass(frozen=True)
class LinkSpec:
    """A directed link. `per_connection_gbps` None: one connection may fill the link."""

    source: str
    target: str
    gbps: float
    rtt_s: float
    connections: int
    per_connection_gbps: float | None
    loss_ratio: float
    background_gbps: float
    schedule: tuple[tuple[float, float], ...]

    @property
    def id(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True)
class Workload:
    """Offered load of a PD cluster, the only one where none is named. `output_tokens` and `lengths`
    are read by `routing.lab.lengths`."""

    cluster: str | None
    rate_rps: float
    output_tokens: Any
    lengths: Any


@dataclass(frozen=True)
class Scenario:
    fleet: str
    kv: KvSize
    profiles: dict[str, Profile]
    clusters: dict[str, Cluster]
    links: tuple[LinkSpec, ...]
    workloads: tuple[Workload, ...]
    source: str


class _Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sections of the file as they stand; every documented key, so that a typo is named."""


class _Slo(_Strict):
    tokens_per_s: float
    ttft_s: float


class _Fleet(_Strict):
    name: str
    slo: _Slo | None = None


class _Model(_Strict):
    bytes_per_token: int | None = None
    state_bytes: int = 0
    config: str | None = None


class _Profile(_Strict):
    prefill: Any
    decode: dict[str, Any]
    gpu: str = ""
    gpus_per_instance: int = 0
    model: str = ""
    engine: str = ""
    engine_version: str = ""
    parallelism: str = ""
    measured_on: str = ""
    kv_capacity_tokens: int = DEFAULT_KV_CAPACITY_TOKENS
    cost_per_hour: float = 0.0


class _Start(_Strict):
    n_prefill: int | None = None
    threshold_tokens: int | None = None


class _Cluster(_Strict):
    name: str
    kind: str
    profile: str
    instances: int
    start: _Start = msgspec.field(default_factory=_Start)
    min_prefill: int = 1
    min_decode: int = 1
    pinned: Any = None
    drained: Any = None
    control_urls: Any = None
    routers: Any = None
    engines: Any = None
    role_switch: Any = None
    groups: Any = None
    engine_token_file: Any = None
    decode_cuda_graph_memory_gb: Any = None


class _Link(_Strict):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    gbps: float
    rtt_ms: float = 0.0
    cap_gbps: float | None = None
    p95_cap_gbps: float | None = None
    connections: int = DEFAULT_CONNECTIONS
    per_connection_gbps: float | None = None
    loss: float = 0.0
    background_gbps: float = 0.0
    schedule: list[tuple[float, float]] = []
    utilisation_limit_ratio: Any = None
    retransmit_limit_ratio: Any = None
    rtt_limit_ms: Any = None
    failure_limit_ratio: Any = None
    window_bytes: Any = None
    p95_counts: Any = None
    cost_per_gbps_month: Any = None


class _Workload(_Strict):
    rate_rps: float
    output_tokens: Any
    lengths: Any
    cluster: str | None = None


class _File(_Strict):
    fleet: _Fleet
    model: _Model
    profiles: dict[str, _Profile]
    clusters: list[_Cluster]
    links: list[_Link] = []
    workload: _Workload | list[_Workload] | None = None
    workloads: list[_Workload] = []
    # Read by the console and the twin; the lab knows the names so that it need not guess.
    baselines: Any = None
    arrivals: Any = None
    cache: Any = None
    faults: Any = None
    delays: Any = None


def load_scenario(path: Path) -> Scenario:
    """The scenario of a TOML file. Raises LabError naming file, field and value."""
    document, source = read_toml(path, _File), str(path)
    clusters: dict[str, Cluster] = {}
    for i, cluster in enumerate(document.clusters):
        if cluster.name in clusters:
            raise LabError(
                "names must differ", source=source, field=f"clusters[{i}].name", value=cluster.name
            )
        if cluster.profile not in document.profiles:
            raise LabError(
                "no such profile",
                source=source,
                field=f"clusters[{i}].profile",
                value=cluster.profile,
            )
        clusters[cluster.name] = _cluster(cluster, f"clusters[{i}]", source)
    workload = document.workload or []
    workloads = (workload if isinstance(workload, list) else [workload]) + document.workloads
    served = [cluster.name for cluster in clusters.values() if cluster.kind == "pd"]
    only = served[0] if len(served) == 1 else None
    return Scenario(
        fleet=document.fleet.name,
        kv=_kv(document.model, source),
        profiles={name: _profile(name, p, source) for name, p in document.profiles.items()},
        clusters=clusters,
        links=tuple(
            _link(link, clusters, f"links[{i}]", source) for i, link in enumerate(document.links)
        ),
        workloads=tuple(
            Workload(
                cluster=w.cluster or only,
                rate_rps=_number(w.rate_rps, f"workload[{i}].rate_rps", source, low=0.0),
                output_tokens=w.output_tokens,
                lengths=w.lengths,
            )
            for i, w in enumerate(workloads)
        ),
        source=source,
    )


def _kv(model: _Model, source: str) -> KvSize:
    if model.bytes_per_token is None:
        raise LabError(
            "the lab needs the bytes themselves", source=source, field="model.bytes_per_token"
        )
    return KvSize(
        bytes_per_token=int(_number(model.bytes_per_token, "model.bytes_per_token", source, low=0)),
        state_bytes=int(_number(model.state_bytes, "model.state_bytes", source, low=0)),
    )


def _profile(name: str, profile: _Profile, source: str) -> Profile:
    field = f"profiles.{name}"
    batch, step_s = profile.decode.get("batch"), profile.decode.get("step_s")
    if set(profile.decode) != {"batch", "step_s"} or not isinstance(batch, int) or batch < 1:
        raise LabError(
            "the lab decodes with a constant step: { batch = N, step_s = S }",
            source=source,
            field=f"{field}.decode",
            value=profile.decode,
        )
    capacity = _number(profile.kv_capacity_tokens, f"{field}.kv_capacity_tokens", source, low=1)
    return Profile(
        name=name,
        knots=_knots(profile.prefill, f"{field}.prefill", source),
        batch=batch,
        step_s=_number(step_s, f"{field}.decode.step_s", source, low=0.0),
        kv_capacity_tokens=int(capacity),
    )


def _knots(prefill: Any, field: str, source: str) -> tuple[tuple[float, float], ...]:
    if not isinstance(prefill, list) or len(prefill) < 2:
        raise LabError(
            "the lab needs knots [[tokens, seconds], ...], two or more",
            source=source,
            field=field,
            value=prefill,
        )
    knots: list[tuple[float, float]] = []
    for i, knot in enumerate(prefill):
        if not isinstance(knot, list) or len(knot) != 2:
            raise LabError(
                "a knot is [tokens, seconds]", source=source, field=f"{field}[{i}]", value=knot
            )
        x, y = (_number(part, f"{field}[{i}]", source, low=0.0) for part in knot)
        if knots and x <= knots[-1][0]:
            raise LabError("tokens must ascend", source=source, field=f"{field}[{i}]", value=knot)
        knots.append((x, y))
    return tuple(knots)


def _cluster(cluster: _Cluster, field: str, source: str) -> Cluster:
    if cluster.kind not in ("pd", "prefill"):
        raise LabError(
            "must be pd or prefill", source=source, field=f"{field}.kind", value=cluster.kind
        )
    if cluster.instances < 1:
        raise LabError(
            "must be at least 1", source=source, field=f"{field}.instances", value=cluster.instances
        )
    n_prefill = cluster.instances
    if cluster.kind == "pd":
        wanted = cluster.start.n_prefill
        n_prefill = max(1, cluster.instances // 2) if wanted is None else wanted
        check_n_prefill(
            n_prefill, cluster.instances, field=f"{field}.start.n_prefill", source=source
        )
    return Cluster(
        name=cluster.name,
        kind=cluster.kind,
        profile=cluster.profile,
        instances=cluster.instances,
        n_prefill=n_prefill,
    )


def check_n_prefill(n_prefill: int, instances: int, *, field: str, source: str) -> None:
    """A PD cluster keeps one instance of each role at the least. Raises LabError."""
    if not 1 <= n_prefill < instances:
        raise LabError(
            f"must leave one prefill and one decode instance of {instances}",
            source=source,
            field=field,
            value=n_prefill,
        )


def _link(link: _Link, clusters: dict[str, Cluster], field: str, source: str) -> LinkSpec:
    for end, name in (("from", link.source), ("to", link.target)):
        if name not in clusters:
            raise LabError("no such cluster", source=source, field=f"{field}.{end}", value=name)
    if link.connections < 1:
        raise LabError(
            "must be at least 1",
            source=source,
            field=f"{field}.connections",
            value=link.connections,
        )
    per_connection = link.per_connection_gbps
    if per_connection is not None and not per_connection > 0.0:
        raise LabError(
            "must be positive",
            source=source,
            field=f"{field}.per_connection_gbps",
            value=per_connection,
        )
    return LinkSpec(
        source=link.source,
        target=link.target,
        gbps=_number(link.gbps, f"{field}.gbps", source, low=0.0),
        rtt_s=_number(link.rtt_ms, f"{field}.rtt_ms", source, low=0.0) / 1000.0,
        connections=link.connections,
        per_connection_gbps=per_connection,
        loss_ratio=_number(link.loss, f"{field}.loss", source, low=0.0),
        background_gbps=_number(link.background_gbps, f"{field}.background_gbps", source, low=0.0),
        schedule=tuple(sorted(link.schedule)),
    )


def _number(value: Any, field: str, source: str, *, low: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise LabError("must be a finite number", source=source, field=field, value=value)
    if value < low:
        raise LabError(f"must be at least {low:g}", source=source, field=field, value=value)
    return float(value)
