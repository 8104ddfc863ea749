"""One schema for both ends of `POST /api/v1/ingest`: what an agent ships and the console accepts.

Units are in the names (`_s`, `_bytes`, `_tokens`, `_gbps`, `_ratio` in 0..1, `_per_s`); times are
epoch seconds as floats; Gbps is 10^9 bit/s. An unknown field is refused, NaN and Infinity never
pass, and a signal that is absent was *not measured*: absent and zero are different facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

WIRE_VERSION = 1
MAX_ITEMS_PER_BATCH = 4096
"""Entries (instances + links + routers) one batch may carry; more answers 413."""
MAX_EDGES = 1024
"""Bounds of one histogram. The widest real ones have about a hundred."""
MAX_KEYS = 1024
"""Entries of one labelled signal, keys of at most `MAX_KEY_CHARS`."""
MAX_KEY_CHARS = 200
MAX_NUMBER = 1e300
"""Beyond it sums of readings would not stay finite."""

_LONGEST = {
    "agent": 200,
    "id": 300,
    "role": 10,
    "engine": 60,
    "engine_version": 60,
    "group": 200,
    "kind": 60,
    "measured_layer": 60,
}
_LONGEST_ERROR = 2000


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
    """Canonical signals of one engine instance (docs/contracts.md, Telemetry batch)."""

    requests_running: float | None = None
    requests_waiting: float | None = None
    requests_waiting_by_stage: dict[str, float] | None = None
    requests_swapped: float | None = None
    kv_cache_usage_ratio: float | None = None
    kv_capacity_tokens: float | None = None
    host_cache_usage_ratio: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    requests_finished_total: float | None = None
    requests_failed_total: float | None = None
    prefix_cache_hits_total: float | None = None
    prefix_cache_queries_total: float | None = None
    prefix_cache_hit_ratio: float | None = None
    external_cache_hit_ratio: float | None = None
    kv_transfer_bytes_total: float | None = None
    kv_transfer_failures_total: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_by_source_total: dict[str, float] | None = None
    gpu_utilization_ratio: float | None = None
    gpu_memory_usage_ratio: float | None = None
    gpu_power_w: float | None = None
    gpu_temperature_celsius: float | None = None
    ttft_seconds: Histogram | None = None
    e2e_seconds: Histogram | None = None
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
    source `tokenised`, `usage` or `estimated`; the optimiser reads the first two only. As side
    `judged` it holds what the rule compared with t. `movable_tokens_total` are prompt tokens that
    only a remote side's cache held.
    """

    requests_total: dict[str, float] | None = None
    requests_per_s: float | None = None
    refused_total: float | None = None
    errors_total: dict[str, float] | None = None
    uncached_tokens: dict[str, Histogram] | None = None
    prompt_tokens_total: float | None = None
    cached_tokens_total: dict[str, float] | None = None
    movable_tokens_total: float | None = None
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


class SourceReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """What an agent found at one source at its last reading.

    `found` are the signals with a value, `missing` the others with the reason. `unmatched` are
    names of series that no map knows, the first of `n_unmatched`; `n_bad_lines` could not be read.
    """

    kind: str
    id: str
    engine: str = ""
    engine_version: str = ""
    state: str = "ok"
    error: str | None = None
    read_s: float | None = None
    n_series: int = 0
    found: list[str] = msgspec.field(default_factory=list)
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    unmatched: list[str] = msgspec.field(default_factory=list)
    n_unmatched: int = 0
    n_bad_lines: int = 0
    warnings: list[str] = msgspec.field(default_factory=list)


class AgentReport(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """What an agent says of itself, now and then: for people, never for decisions.

    `n_dropped_batches` left the spool unsent since the agent started, `n_dropped_series` were over
    its limits. `skew_s` is its clock less the console's, by the Date of the answers.
    """

    version: str = ""
    started_s: float | None = None
    interval_s: float | None = None
    skew_s: float | None = None
    cpu_s: float | None = None
    rss_bytes: float | None = None
    n_spooled_batches: int = 0
    spooled_bytes: int = 0
    n_dropped_batches: int = 0
    n_dropped_series: int = 0
    warnings: list[str] = msgspec.field(default_factory=list)
    sources: list[SourceReport] = msgspec.field(default_factory=list)


class Batch(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, kw_only=True
):
    """What one POST carries. Unique by (agent, boot, seq); `boot` only ever rises for an agent.

    `report` comes with some batches only: at the start, when it changed, and every half minute.
    """

    v: int
    agent: str
    boot: int
    seq: int
    sent_at_s: float
    instances: list[InstanceSample] = msgspec.field(default_factory=list)
    links: list[LinkSample] = msgspec.field(default_factory=list)
    routers: list[RouterSample] = msgspec.field(default_factory=list)
    report: AgentReport | None = None


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
    is_json = "json" in content_type.lower()
    try:
        batch = (_json_decoder if is_json else _msgpack_decoder).decode(body)
    except msgspec.ValidationError as exc:
        message, _, path = str(exc).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        if named := _NAMED_FIELD.search(message):
            field = f"{field}.{named[1]}".lstrip(".")
        raise WireError(message, field=field, value=_stood_at(field, body, is_json)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"the body is not valid: {exc}", field="") from None
    check(batch)
    return batch


_NAMED_FIELD = re.compile(r"(?:unknown|required) field `(.*)`", re.DOTALL)
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def _stood_at(field: str, body: bytes, is_json: bool) -> Any:
    """What a refused body has at `field`; None where it cannot be told."""
    try:
        found = msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)
        for index, name in _STEP.findall(field):
            found = found[int(index)] if index else found[name]
    except (msgspec.MsgspecError, UnicodeError, RecursionError, LookupError, TypeError):
        return None
    if found is None or isinstance(found, str | bool | int | float):
        return found
    return "{…}" if isinstance(found, dict) else "[…]" if isinstance(found, list) else None


def check(batch: Batch) -> None:
    """Everything the types cannot say. Raises WireError."""
    if batch.v != WIRE_VERSION:
        raise WireError(
            f"unknown version, this console speaks {WIRE_VERSION}", field="v", value=batch.v
        )
    if not batch.agent:
        raise WireError("must not be empty", field="agent", value=batch.agent)
    _check_text(batch, "agent")
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
            check_sample(sample, f"{kind}[{i}]")


_ROLES = ("prefill", "decode", "both")
_STATES = ("ok", "failed")


def check_sample(sample: Any, path: str) -> None:
    """One entry of a batch; `path` is what errors call it. Raises WireError."""
    _check_text(sample, path)
    _check_id(sample, path)
    if isinstance(sample, InstanceSample) and sample.role not in _ROLES:
        raise WireError(
            f"must be one of {', '.join(_ROLES)}", field=f"{path}.role", value=sample.role
        )
    if sample.state not in _STATES:
        raise WireError(
            f"must be one of {', '.join(_STATES)}", field=f"{path}.state", value=sample.state
        )
    _check_process(sample, path)
    for field, value in _numbers(sample.signals, f"{path}.signals"):
        if not abs(value) <= MAX_NUMBER:
            raise WireError("must be finite", field=field, value=_plain(value))
        if field.endswith("_ratio") and not 0.0 <= value <= 1.0:
            raise WireError("a ratio is in 0..1", field=field, value=value)
        if value < 0.0:
            raise WireError("must not be negative", field=field, value=value)


def _check_id(sample: Any, path: str) -> None:
    if not sample.id:
        raise WireError("must not be empty", field=f"{path}.id", value=sample.id)
    if isinstance(sample, LinkSample):
        ends = sample.id.split("->")
        if len(ends) != 2 or not all(ends):
            raise WireError('a link id is "A->B"', field=f"{path}.id", value=sample.id)
    elif sample.id.count("/") != 2 or not all(sample.id.split("/")):
        raise WireError("an id is FLEET/CLUSTER/NAME", field=f"{path}.id", value=sample.id)


def _check_process(sample: Any, path: str) -> None:
    """When it was read, since when its process lives, what plan it says it runs."""
    _check_time(sample.at_s, f"{path}.at_s")
    if not isinstance(sample, LinkSample) and not 0.0 <= sample.epoch_s < 1e10:
        raise WireError(
            "must be epoch seconds, or 0", field=f"{path}.epoch_s", value=_plain(sample.epoch_s)
        )
    if isinstance(sample, RouterSample):
        for name in ("plan_epoch", "plan_version"):
            number = getattr(sample, name)
            if number is not None and not 0 <= number < 2**63:
                raise WireError("must be in 0..2^63-1", field=f"{path}.{name}", value=number)


def _check_text(owner: Any, path: str) -> None:
    for name, longest in _LONGEST.items():
        text = getattr(owner, name, None)
        if not text:
            continue
        field = path if name == path else f"{path}.{name}"
        if len(text) > longest:
            raise WireError(f"at most {longest} characters", field=field, value=text)
        if not text.isprintable():
            # They stand in log lines, pages and tables, where these would pass for something else.
            raise WireError("must not contain control characters", field=field, value=text)
    error = getattr(owner, "error", None)
    if error is not None and (len(error) > _LONGEST_ERROR or "\0" in error):
        raise WireError(
            f"at most {_LONGEST_ERROR} characters, none of them zero",
            field=f"{path}.error",
            value=error,
        )


def _plain(number: float) -> float | str:
    # JSON has no word for the others.
    return number if math.isfinite(number) else str(number)


def _check_time(at_s: float, field: str) -> None:
    # 2001-09-09 .. 2286: outside it the sender used another unit (milliseconds, most often).
    if not 1e9 <= at_s < 1e10:
        raise WireError("must be epoch seconds", field=field, value=str(at_s))


def _numbers(signals: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a signals struct with its dotted path; checks histogram shapes on the way."""
    for name in signals.__struct_fields__:
        value = getattr(signals, name)
        if value is None:
            continue
        if isinstance(value, str):
            if len(value) > _LONGEST["kind"] or not value.isprintable():
                raise WireError(
                    f"at most {_LONGEST['kind']} characters", field=f"{path}.{name}", value=value
                )
        elif isinstance(value, dict):
            if len(value) > MAX_KEYS:
                raise WireError(
                    f"at most {MAX_KEYS} entries", field=f"{path}.{name}", value=len(value)
                )
            longest = max(value, key=len, default="")
            if len(longest) > MAX_KEY_CHARS:
                raise WireError(
                    f"a key has at most {MAX_KEY_CHARS} characters",
                    field=f"{path}.{name}",
                    value=longest,
                )
            for key, inner in value.items():
                yield from _number(inner, f"{path}.{name}.{key}")
        else:
            yield from _number(value, f"{path}.{name}")


def _number(value: float | Histogram, path: str) -> Iterator[tuple[str, float]]:
    if not isinstance(value, Histogram):
        yield path, value
        return
    if len(value.edges) > MAX_EDGES:
        raise WireError(f"at most {MAX_EDGES} edges", field=f"{path}.edges", value=len(value.edges))
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
