"""One schema for both ends of `POST /api/v1/ingest`: what an agent ships and the console accepts.

Units are in the names (`_s`, `_bytes`, `_tokens`, `_gbps`, `_ratio` in 0..1, `_per_s`); times are
epoch seconds as floats; Gbps is 10^9 bit/s. An unknown field is refused, NaN and Infinity never
pass, and a signal that is absent was *not measured*: absent and zero are different facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, lt
from typing import Annotated, Any, Literal, get_args

import msgspec

from telemetry import refusals
from telemetry.refusals import WireError as WireError

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
GATE_KIND = "gate"
"""The kind of router that runs plans and counts for the loop; others are watched only."""


Number = Annotated[float, msgspec.Meta(ge=0.0, le=MAX_NUMBER)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
# 2001-09-09 .. 2286: outside it the sender used another unit (milliseconds, most often).
EpochSeconds = Annotated[float, msgspec.Meta(ge=1e9, lt=1e10)]
Start = Annotated[float, msgspec.Meta(ge=0.0, lt=1e10)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Key = Annotated[str, msgspec.Meta(max_length=MAX_KEY_CHARS)]
Labelled = Annotated[dict[Key, Number], msgspec.Meta(max_length=MAX_KEYS)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Name = Annotated[str, msgspec.Meta(max_length=60)]
Group = Annotated[str, msgspec.Meta(max_length=200)]
ErrorText = Annotated[str, msgspec.Meta(max_length=2000, pattern=r"\A[^\x00]*\Z")]
Role = Literal["prefill", "decode", "both"]
State = Literal["ok", "failed", "down", "slow"]
InstanceState = Literal["ok", "failed", "down", "slow", "gone"]
"""Only instances leave: a link or a router that is read no more is silent."""


class _Told(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True, gc=False):
    """What all of it has in common. None of it can hold itself, so nobody need look for cycles:
    with the hundred thousands of readings a compaction has at once, looking cost more than reading.
    """


class Histogram(msgspec.Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A cumulative-counter histogram with per-bucket (not cumulative) counts.

    `edges` are the finite upper bounds, ascending, shape (n,); `counts` has shape (n + 1,), the
    last entry counting observations above the last edge. `sum` is in the signal's unit.
    """

    edges: Annotated[list[Number], msgspec.Meta(max_length=MAX_EDGES)]
    counts: list[Number]
    sum: Number

    @property
    def count(self) -> float:
        return sum(self.counts)


Histograms = Annotated[dict[Key, Histogram], msgspec.Meta(max_length=MAX_KEYS)]


class InstanceSignals(_Told, frozen=True, kw_only=True):
    """Canonical signals of one engine instance (docs/contracts.md, Telemetry batch)."""

    requests_running: Number | None = None
    requests_waiting: Number | None = None
    requests_waiting_by_stage: Labelled | None = None
    requests_swapped: Number | None = None
    kv_cache_usage_ratio: Ratio | None = None
    kv_capacity_tokens: Number | None = None
    host_cache_usage_ratio: Ratio | None = None
    prompt_tokens_total: Number | None = None
    generation_tokens_total: Number | None = None
    prompt_tokens_per_s: Number | None = None
    generation_tokens_per_s: Number | None = None
    requests_finished_total: Number | None = None
    requests_failed_total: Number | None = None
    prefix_cache_hits_total: Number | None = None
    prefix_cache_queries_total: Number | None = None
    prefix_cache_hit_ratio: Ratio | None = None
    external_cache_hit_ratio: Ratio | None = None
    kv_transfer_bytes_total: Number | None = None
    kv_transfer_failures_total: Number | None = None
    kv_expired_total: Number | None = None
    preemptions_total: Number | None = None
    prompt_tokens_by_source_total: Labelled | None = None
    gpu_utilization_ratio: Ratio | None = None
    gpu_memory_usage_ratio: Ratio | None = None
    gpu_power_w: Number | None = None
    gpu_temperature_celsius: Number | None = None
    ttft_seconds: Histogram | None = None
    e2e_seconds: Histogram | None = None
    inter_token_seconds: Histogram | None = None
    prefill_seconds: Histogram | None = None
    queue_seconds: Histogram | None = None
    uncached_prompt_tokens: Histogram | None = None
    kv_transfer_seconds: Histogram | None = None


class LinkSignals(_Told, frozen=True, kw_only=True):
    """Counters of one directed link, read at one layer on its sending side (docs/links.md).

    `rtt_s` and what follows `congestion_control` are of the connections of one peer, where the
    source sees those. `path_state` is `whole`, `degraded` (a member of the path is down or of
    unknown speed) or `down`.
    """

    tx_bytes_total: Number | None = None
    rx_bytes_total: Number | None = None
    tx_gbps: Number | None = None
    rx_gbps: Number | None = None
    segments_sent_total: Number | None = None
    segments_retransmitted_total: Number | None = None
    retransmit_ratio: Ratio | None = None
    rtt_s: Number | None = None
    connections: Number | None = None
    capacity_gbps: Number | None = None
    congestion_control: Name | None = None
    min_rtt_s: Number | None = None
    congestion_window_bytes: Number | None = None
    delivery_gbps: Number | None = None
    tx_acked_bytes_total: Number | None = None
    tx_retransmitted_bytes_total: Number | None = None
    retransmit_timeouts_total: Number | None = None
    path_state: Name | None = None
    n_members: Number | None = None
    n_members_up: Number | None = None


class RouterSignals(_Told, frozen=True, kw_only=True):
    """What a gate counts. Keys of the maps: `side` is `local` or `remote`.

    `requests_total` is counted at arrival, keyed `"side|reason"`. `uncached_tokens` holds one
    histogram of `l_total - l_side` for *both* sides of every request, keyed `"side|source"` with
    source `tokenised`, `usage` or `estimated`; the optimiser reads the first two only. As side
    `judged` it holds what the rule compared with t. `movable_tokens_total` are prompt tokens that
    only a remote side's cache held. `engine_prompt_tokens_total` are those of answers that also
    told cached ones, which `engine_cached_tokens_total` holds. `kv_events_total` is keyed
    `"place|event"`; `read_timeout_s` is the longest silence of an upstream that is waited for. A
    router of another make knows no sides: its keys begin with `all`, and `prompt_tokens` holds the
    lengths of its prompts, not what was left to compute.
    """

    requests_total: Labelled | None = None
    requests_per_s: Number | None = None
    refused_total: Number | None = None
    errors_total: Labelled | None = None
    uncached_tokens: Histograms | None = None
    prompt_tokens_total: Number | None = None
    cached_tokens_total: Labelled | None = None
    movable_tokens_total: Number | None = None
    engine_prompt_tokens_total: Labelled | None = None
    engine_cached_tokens_total: Labelled | None = None
    kv_events_total: Labelled | None = None
    read_timeout_s: Number | None = None
    ttft_seconds: Histograms | None = None
    in_flight: Labelled | None = None
    upstream_up: Labelled | None = None
    requests_waiting: Number | None = None
    e2e_seconds: Histograms | None = None
    prompt_tokens: Histograms | None = None


class InstanceSample(_Told, frozen=True, kw_only=True):
    """One reading of one engine; without state `ok` the reading itself went wrong (R-01).

    `failed`: an HTTP error, or a text that cannot be read. `down`: nobody answers there. `slow`: no
    answer in time, which is weak evidence of *busy* and none of idle. `gone`: the last sample of an
    instance that left the agent's configuration or discovery; its history stays.
    """

    id: Id
    role: Role
    engine: Name
    engine_version: Name = ""
    epoch_s: Start = 0.0
    at_s: EpochSeconds
    group: Group | None = None
    state: InstanceState = "ok"
    error: ErrorText | None = None
    signals: InstanceSignals = msgspec.field(default_factory=InstanceSignals)


class LinkSample(_Told, frozen=True, kw_only=True):
    """One reading of one directed link, id `"A->B"` by cluster names."""

    id: Id
    at_s: EpochSeconds
    measured_layer: Name
    state: State = "ok"
    error: ErrorText | None = None
    signals: LinkSignals = msgspec.field(default_factory=LinkSignals)


class RouterSample(_Told, frozen=True, kw_only=True):
    """One reading of one router. Plan fields are null until it ever ran a plan."""

    id: Id
    kind: Name
    at_s: EpochSeconds
    epoch_s: Start = 0.0
    plan_epoch: Count | None = None
    plan_version: Count | None = None
    state: State = "ok"
    error: ErrorText | None = None
    signals: RouterSignals = msgspec.field(default_factory=RouterSignals)


class SourceReport(_Told, frozen=True, kw_only=True):
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


class AgentReport(_Told, frozen=True, kw_only=True):
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


class Batch(_Told, frozen=True, kw_only=True):
    """What one POST carries. Unique by (agent, boot, seq); `boot` only ever rises for an agent.

    `report` comes with some batches only: at the start, when it changed, and every half minute.
    """

    v: int
    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    boot: Count
    seq: Count
    sent_at_s: EpochSeconds
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
Sample = InstanceSample | LinkSample | RouterSample
_sample_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (InstanceSample, LinkSample, RouterSample)
}
_CHOICES = {
    "role": get_args(Role),
    "state": get_args(State),
}


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
        raise refusals.of(exc, _document(body, is_json), choices=_CHOICES) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireError(f"the body is not valid: {exc}", field="") from None
    check(batch)
    return batch


def _document(body: bytes, is_json: bool) -> Any:
    """A refused body as plain values; None where it breaks off further on."""
    try:
        return msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def check(batch: Batch) -> None:
    """Everything the types cannot say of a batch that was decoded. Raises WireError."""
    if batch.v != WIRE_VERSION:
        raise WireError(
            f"unknown version, this console speaks {WIRE_VERSION}", field="v", value=batch.v
        )
    _check_printable(batch.agent, "agent")
    kinds: tuple[tuple[str, Sequence[Sample]], ...] = (
        ("instances", batch.instances),
        ("links", batch.links),
        ("routers", batch.routers),
    )
    for kind, samples in kinds:
        for i, sample in enumerate(samples):
            facts = _facts[type(sample)](sample)
            # An agent sends the same names every second, and a path costs more to write than a
            # reading to check.
            if facts not in _known:
                _check_names(sample, f"{kind}[{i}]")
                if len(_known) >= _MAX_KNOWN:
                    _known.clear()
                _known.add(facts)
            shaped = _shaped[type(sample)](sample.signals)
            if shaped.count(None) == len(shaped):
                continue
            for value in shaped:
                if value is not None and not _is_shaped(value):
                    _check_shapes(sample.signals, f"{kind}[{i}].signals")


def check_sample(sample: Sample, path: str) -> None:
    """One entry that was made here, by all the rules; `path` is what errors call it.

    Raises WireError.
    """
    if isinstance(sample, RouterSample):
        for name in ("plan_epoch", "plan_version"):
            number = getattr(sample, name)
            # msgpack has no word for larger ones, so they would not even be encoded.
            if number is not None and not 0 <= number < 2**63:
                raise WireError("must be in 0..2^63-1", field=f"{path}.{name}", value=number)
    encoded = _encoder.encode(sample)
    try:
        _sample_decoders[type(sample)].decode(encoded)
    except msgspec.ValidationError as exc:
        found = refusals.of(exc, msgspec.msgpack.decode(encoded), choices=_CHOICES)
        field = f"{path}.{found.field}".strip(".")
        raise WireError(found.error, field=field, value=found.value) from None
    _check_names(sample, path)
    _check_shapes(sample.signals, f"{path}.signals")


_FACTS: dict[type, tuple[str, ...]] = {
    InstanceSample: ("id", "role", "engine", "engine_version", "group"),
    LinkSample: ("id", "measured_layer"),
    RouterSample: ("id", "kind"),
}
_facts = {kind: attrgetter(*names) for kind, names in _FACTS.items()}
_MAX_KNOWN = 100_000
_known: set[tuple[Any, ...]] = set()
"""Names that passed."""


def _check_names(sample: Sample, path: str) -> None:
    for name in _FACTS[type(sample)]:
        _check_printable(getattr(sample, name) or "", f"{path}.{name}")
    if isinstance(sample, LinkSample):
        ends = sample.id.split("->")
        if len(ends) != 2 or not all(ends):
            raise WireError('a link id is "A->B"', field=f"{path}.id", value=sample.id)
    elif sample.id.count("/") != 2 or not all(sample.id.split("/")):
        raise WireError("an id is FLEET/CLUSTER/NAME", field=f"{path}.id", value=sample.id)


def _check_printable(text: str, field: str) -> None:
    if not text.isprintable():
        # They stand in log lines, pages and tables, where these would pass for something else.
        raise WireError("must not contain control characters", field=field, value=text)


# Signals with more to check than their numbers: texts and histograms, labelled or not.
_shaped = {
    sample: attrgetter(
        *(
            field.name
            for field in msgspec.structs.fields(signals)
            if "Histogram" in str(field.type) or field.type == Name | None
        )
    )
    for sample, signals in (
        (InstanceSample, InstanceSignals),
        (LinkSample, LinkSignals),
        (RouterSample, RouterSignals),
    )
}


def _is_shaped(value: Any) -> bool:
    """Whether nothing is wrong with it; `_check_shapes` then names what is."""
    if isinstance(value, Histogram):
        edges = value.edges
        return len(value.counts) == len(edges) + 1 and all(map(lt, edges, edges[1:]))
    if isinstance(value, str):
        return value.isprintable()
    return all(map(_is_shaped, value.values()))


def _check_shapes(signals: Any, path: str) -> None:
    for name in signals.__struct_fields__:
        value = getattr(signals, name)
        if isinstance(value, str):
            _check_printable(value, f"{path}.{name}")
        for key, inner in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(inner, Histogram):
                _check_histogram(inner, f"{path}.{name}.{key}".rstrip("."))


def _check_histogram(histogram: Histogram, path: str) -> None:
    edges, counts = histogram.edges, histogram.counts
    if len(counts) != len(edges) + 1:
        raise WireError(
            "counts must be one longer than edges", field=f"{path}.counts", value=len(counts)
        )
    if not all(map(lt, edges, edges[1:])):
        raise WireError("edges must ascend", field=f"{path}.edges", value=edges[:8])
