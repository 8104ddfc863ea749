"""One schema for both ends of `POST /api/v1/ingest`: what an agent ships and the console accepts.

Units are in the names (`_s`, `_bytes`, `_tokens`, `_gbps`, `_ratio` in 0..1, `_per_s`); times are
epoch seconds as floats; Gbps is 10^9 bit/s. An unknown field is refused, NaN and Infinity never
pass, and a signal that is absent was *not measured*: absent and zero are different facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

WIRE_VERSION = 1
MAX_ITEMS_PER_BATCH = 4096
"""Entries (instances + links + routers) one batch may carry; more answers 413."""


class WireError(ValueError):
    """A batch that cannot be accepted. `field` is a dotted path, `value` what stood there."""

    def __init__(self, error: str, *, field: str, value: Any = None) -> None:
        super().__init__(f"{error} (at {field or 'batch'})")
        self.error, self.field, self.value = error, field, value


class Histogram(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A cumulative-counter histogram with per-bucket (not cumulative) counts.

    `edges` are the finite upper bounds, ascending, shape (n,); `counts` has shape (n + 1,), the
    last entry counting observations above the last edge. `sum` is in the signal's unit.
    """

    edges: list[float]
    counts: list[float]
    sum: float

    @property
    def count(self) -> float:
        return sum(self.counts)


class InstanceSignals(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """Canonical signals of one engine instance (docs/contracts.md, section 2)."""

    requests_running: float | None = None
    requests_waiting: float | None = None
    requests_waiting_by_stage: dict[str, float] | None = None
    kv_cache_usage_ratio: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_finished_total: float | None = None
    prefix_cache_hit_ratio: float | None = None
    kv_transfer_bytes_total: float | None = None
    kv_transfer_failures_total: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_by_source_total: dict[str, float] | None = None
    ttft_seconds: Histogram | None = None
    inter_token_seconds: Histogram | None = None
    prefill_seconds: Histogram | None = None
    queue_seconds: Histogram | None = None
    uncached_prompt_tokens: Histogram | None = None
    kv_transfer_seconds: Histogram | None = None


class LinkSignals(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """Counters of one directed link, read at one layer on its sending side."""

    tx_bytes_total: float | None = None
    rx_bytes_total: float | None = None
    tx_gbps: float | None = None
    rx_gbps: float | None = None
    segments_sent_total: float | None = None
    segments_retransmitted_total: float | None = None
    retransmit_ratio: float | None = None
    rtt_s: float | None = None
    connections: float | None = None
    capacity_gbps: float | None = None
    congestion_control: str | None = None


class RouterSignals(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """What a gate counts. Keys of the maps: `side` is `local` or `remote`.

    `requests_total` is counted at arrival, keyed `"side|reason"`. `uncached_tokens` holds one
    histogram of `l_total - l_side` for *both* sides of every request, keyed `"side|source"` with
    source `tokenised`, `usage` or `estimated`; the optimiser reads the first two only.
    """

    requests_total: dict[str, float] | None = None
    requests_per_s: float | None = None
    refused_total: float | None = None
    errors_total: dict[str, float] | None = None
    uncached_tokens: dict[str, Histogram] | None = None
    prompt_tokens_total: float | None = None
    cached_tokens_total: dict[str, float] | None = None
    ttft_seconds: dict[str, Histogram] | None = None
    in_flight: dict[str, float] | None = None
    upstream_up: dict[str, float] | None = None


class InstanceSample(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """One reading of one engine. `state` is `failed` when the scrape itself failed (R-01)."""

    id: str
    role: str
    engine: str
    engine_version: str = ""
    epoch_s: float = 0.0
    at_s: float
    group: str | None = None
    state: str = "ok"
    error: str | None = None
    signals: InstanceSignals = msgspec.field(default_factory=InstanceSignals)


class LinkSample(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """One reading of one directed link, id `"A->B"` by cluster names."""

    id: str
    at_s: float
    measured_layer: str
    state: str = "ok"
    error: str | None = None
    signals: LinkSignals = msgspec.field(default_factory=LinkSignals)


class RouterSample(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """One reading of one router. Plan fields are null until it ever ran a plan."""

    id: str
    kind: str
    at_s: float
    epoch_s: float = 0.0
    plan_epoch: int | None = None
    plan_version: int | None = None
    state: str = "ok"
    error: str | None = None
    signals: RouterSignals = msgspec.field(default_factory=RouterSignals)


class Batch(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """What one POST carries. Unique by (agent, boot, seq); `boot` only ever rises for an agent."""

    v: int
    agent: str
    boot: int
    seq: int
    sent_at_s: float
    instances: list[InstanceSample] = msgspec.field(default_factory=list)
    links: list[LinkSample] = msgspec.field(default_factory=list)
    routers: list[RouterSample] = msgspec.field(default_factory=list)


class Ack(msgspec.Struct, frozen=True):
    """Answer 200: everything up to this batch's own seq is a committed row."""

    acked_seq: int


_msgpack_decoder = msgspec.msgpack.Decoder(Batch)
_json_decoder = msgspec.json.Decoder(Batch)
_encoder = msgspec.msgpack.Encoder()


def encode(batch: Batch) -> bytes:
    """The batch as msgpack."""
    return _encoder.encode(batch)


def decode(body: bytes, content_type: str = "application/msgpack") -> Batch:
    """A checked batch from msgpack, or from JSON with the same names.

    Raises WireError naming the field and the value; nothing of a refused batch may be stored.
    """
    decoder = _json_decoder if "json" in content_type else _msgpack_decoder
    try:
        batch = decoder.decode(body)
    except msgspec.ValidationError as exc:
        message, _, path = str(exc).partition(" - at `$")
        raise WireError(message, field=path.rstrip("`").lstrip(".")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"the body is not valid: {exc}", field="") from None
    check(batch)
    return batch


def check(batch: Batch) -> None:
    """Everything the types cannot say. Raises WireError."""
    if batch.v != WIRE_VERSION:
        raise WireError(
            f"unknown version, this console speaks {WIRE_VERSION}", field="v", value=batch.v
        )
    if not batch.agent:
        raise WireError("must not be empty", field="agent", value=batch.agent)
    for name in ("boot", "seq"):
        number = getattr(batch, name)
        if not 0 <= number < 2**63:
            raise WireError("must be in 0..2^63-1", field=name, value=number)
    _check_time(batch.sent_at_s, "sent_at_s")
    for kind, samples in (
        ("instances", batch.instances),
        ("links", batch.links),
        ("routers", batch.routers),
    ):
        for i, sample in enumerate(samples):
            _check_sample(sample, f"{kind}[{i}]")


_ROLES = ("prefill", "decode", "both")
_STATES = ("ok", "failed")


def _check_sample(sample: Any, path: str) -> None:
    if not sample.id:
        raise WireError("must not be empty", field=f"{path}.id", value=sample.id)
    if isinstance(sample, LinkSample):
        source, arrow, target = sample.id.partition("->")
        if not (source and arrow and target):
            raise WireError('a link id is "A->B"', field=f"{path}.id", value=sample.id)
    elif sample.id.count("/") != 2 or not all(sample.id.split("/")):
        raise WireError("an id is FLEET/CLUSTER/NAME", field=f"{path}.id", value=sample.id)
    if isinstance(sample, InstanceSample) and sample.role not in _ROLES:
        raise WireError(
            f"must be one of {', '.join(_ROLES)}", field=f"{path}.role", value=sample.role
        )
    if sample.state not in _STATES:
        raise WireError(
            f"must be one of {', '.join(_STATES)}", field=f"{path}.state", value=sample.state
        )
    _check_time(sample.at_s, f"{path}.at_s")
    for field, value in _numbers(sample.signals, f"{path}.signals"):
        if not math.isfinite(value):
            raise WireError("must be finite", field=field, value=str(value))
        if field.endswith("_ratio") and not 0.0 <= value <= 1.0:
            raise WireError("a ratio is in 0..1", field=field, value=value)
        if value < 0.0:
            raise WireError("must not be negative", field=field, value=value)


def _check_time(at_s: float, field: str) -> None:
    # 2001-09-09 .. 2286: outside it the sender used another unit (milliseconds, most often).
    if not 1e9 <= at_s < 1e10:
        raise WireError("must be epoch seconds", field=field, value=str(at_s))


def _numbers(signals: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a signals struct with its dotted path; checks histogram shapes on the way."""
    for name in signals.__struct_fields__:
        value = getattr(signals, name)
        if value is None or isinstance(value, str):
            continue
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from _number(inner, f"{path}.{name}.{key}")
        else:
            yield from _number(value, f"{path}.{name}")


def _number(value: float | Histogram, path: str) -> Iterator[tuple[str, float]]:
    if not isinstance(value, Histogram):
        yield path, value
        return
    if len(value.counts) != len(value.edges) + 1:
        raise WireError(
            "counts must be one longer than edges", field=f"{path}.counts", value=len(value.counts)
        )
    if any(b <= a for a, b in zip(value.edges, value.edges[1:], strict=False)):
        raise WireError("edges must ascend", field=f"{path}.edges", value=value.edges[:8])
    for i, edge in enumerate(value.edges):
        yield f"{path}.edges[{i}]", edge
    for i, count in enumerate(value.counts):
        yield f"{path}.counts[{i}]", count
    yield f"{path}.sum", value.sum
