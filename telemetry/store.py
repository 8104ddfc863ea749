"""Reading samples back: newest, windows and chart series, as plain values.

Every query is bounded by time, so that only the partitions it needs are touched, and by the
index (source_id, at). Readings come from `detail`, the sample exactly as it was shipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from django.db import connection

from telemetry import wire

Signals = wire.InstanceSignals | wire.LinkSignals | wire.RouterSignals
Sample = wire.InstanceSample | wire.LinkSample | wire.RouterSample

FUTURE_S: Final = 300.0
"""How far ahead of our clock a reading may be stamped; ingest refuses what is beyond."""

MIN_BIN_S: Final = 2.0
"""Finest bin of a series: at one reading a second a finer one would show holes that are not."""

_TABLES: Final = {
    "instance": "telemetry_instance_sample",
    "link": "telemetry_link_sample",
    "router": "telemetry_router_sample",
}
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "instance": (
        "running",
        "waiting",
        "kv_ratio",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prompt_tokens_per_s",
        "generation_tokens_per_s",
        "kv_transfer_bytes_total",
        "preemptions_total",
    ),
    "link": (
        "tx_bytes_total",
        "rx_bytes_total",
        "tx_gbps",
        "rx_gbps",
        "segments_sent_total",
        "segments_retransmitted_total",
        "retransmit_ratio",
        "rtt_s",
        "connections",
        "capacity_gbps",
    ),
    "router": (
        "plan_epoch",
        "plan_version",
        "requests_per_s",
        "requests_local_total",
        "requests_remote_total",
        "in_flight_local",
        "in_flight_remote",
    ),
}
"""Scalars that `series` can read, by kind: the typed columns of the sample tables."""

_DECODERS: Final = {
    "instance": msgspec.msgpack.Decoder(wire.InstanceSample),
    "link": msgspec.msgpack.Decoder(wire.LinkSample),
    "router": msgspec.msgpack.Decoder(wire.RouterSample),
}


class QueryError(ValueError):
    """A question the store cannot answer; names the field and the value."""

    def __init__(self, error: str, *, field: str, value: object) -> None:
        super().__init__(f"{field}={value!r}: {error}")
        self.error, self.field, self.value = error, field, value


@dataclass(frozen=True)
class Reading:
    """One stored sample. `kind` is instance, link or router; a router's own kind is `engine`."""

    kind: str
    path: str
    at_s: float
    received_s: float
    state: str
    error: str | None
    role: str
    engine: str
    engine_version: str
    epoch_s: float
    plan_epoch: int | None
    plan_version: int | None
    group: str | None
    measured_layer: str
    signals: Signals


def from_sample(sample: Sample, *, received_s: float) -> Reading:
    """The reading that a sample becomes once it is stored."""
    instance = sample if isinstance(sample, wire.InstanceSample) else None
    router = sample if isinstance(sample, wire.RouterSample) else None
    return Reading(
        kind="instance" if instance else "router" if router else "link",
        path=sample.id,
        at_s=sample.at_s,
        received_s=received_s,
        state=sample.state,
        error=sample.error,
        role=instance.role if instance else "",
        engine=instance.engine if instance else router.kind if router else "",
        engine_version=instance.engine_version if instance else "",
        epoch_s=0.0 if isinstance(sample, wire.LinkSample) else sample.epoch_s,
        plan_epoch=router.plan_epoch if router else None,
        plan_version=router.plan_version if router else None,
        group=instance.group if instance else None,
        measured_layer=sample.measured_layer if isinstance(sample, wire.LinkSample) else "",
        signals=sample.signals,
    )


def latest(kind: str, *, prefix: str = "", now_s: float, within_s: float = 3600.0) -> list[Reading]:
    """The newest reading of each source read in the last `within_s`, ascending by path."""
    rows = _rows(
        f"""
        SELECT newest.received_at, newest.detail
        FROM telemetry_source source
        CROSS JOIN LATERAL (
            SELECT received_at, detail FROM {_table(kind)}
            WHERE source_id = source.id AND at > %(since)s AND at <= %(until)s
            ORDER BY at DESC LIMIT 1
        ) newest
        WHERE source.kind = %(kind)s AND starts_with(source.path, %(prefix)s)
        ORDER BY source.path
        """,
        kind=kind,
        prefix=prefix,
        since=_utc(now_s - within_s),
        until=_utc(now_s + FUTURE_S),
    )
    return [_reading(kind, received_at, detail) for received_at, detail in rows]


def window(
    kind: str, *, prefix: str = "", since_s: float, until_s: float, bin_s: float
) -> dict[str, list[Reading]]:
    """By path, the last reading of each bin of `bin_s` in (since_s, until_s], ascending in time."""
    if bin_s <= 0:
        raise QueryError("must be positive", field="bin_s", value=bin_s)
    # One index probe per source and bin reads only what is returned; DISTINCT ON would read and
    # sort every row of the window.
    rows = _rows(
        f"""
        SELECT source.path, newest.received_at, newest.detail
        FROM telemetry_source source
        CROSS JOIN generate_series(0, %(n_bins)s - 1) AS bin
        CROSS JOIN LATERAL (
            SELECT received_at, detail FROM {_table(kind)}
            WHERE source_id = source.id
              AND at > %(since)s + bin * %(width)s AND at <= %(since)s + (bin + 1) * %(width)s
              AND at > %(since)s AND at <= %(until)s
            ORDER BY at DESC LIMIT 1
        ) newest
        WHERE source.kind = %(kind)s AND starts_with(source.path, %(prefix)s)
        ORDER BY source.path, bin
        """,
        kind=kind,
        prefix=prefix,
        since=_utc(since_s),
        until=_utc(until_s),
        width=timedelta(seconds=bin_s),
        n_bins=math.ceil((until_s - since_s) / bin_s),
    )
    readings: dict[str, list[Reading]] = {}
    for path, received_at, detail in rows:
        readings.setdefault(path, []).append(_reading(kind, received_at, detail))
    return readings


def series(
    kind: str,
    field: str,
    *,
    paths: Sequence[str],
    since_s: float,
    until_s: float,
    max_points: int,
) -> dict[str, Any]:
    """`{"t": [bin start, epoch s], "series": {path: [value | None]}}` of one scalar column.

    A bin holds the mean of its readings (the last value of a `_total` or a plan number); an empty
    bin is None, which a chart must draw as a gap. `bin_s` says how wide the bins came out.
    """
    if field not in COLUMNS.get(kind, ()):
        raise QueryError(
            f"must be one of {', '.join(COLUMNS.get(kind, ()))}", field="field", value=field
        )
    if not until_s > since_s:
        raise QueryError("must be after since", field="until", value=until_s)
    if max_points < 1:
        raise QueryError("must be at least 1", field="points", value=max_points)
    bin_s = nice_bin_s((until_s - since_s) / max_points)
    # Bins lie on multiples of their width, so the next page of a live chart has the same ones.
    start_s = math.floor(since_s / bin_s) * bin_s
    n_bins = max(1, math.ceil((until_s - start_s) / bin_s))
    aggregate = (
        f"(array_agg({field} ORDER BY at DESC) FILTER (WHERE {field} IS NOT NULL))[1]"
        if field.endswith("_total") or field.startswith("plan_")
        else f"avg({field})"
    )
    rows = _rows(
        f"""
        SELECT source.path, floor(extract(epoch FROM sample.at - %(start)s) / %(bin_s)s)::int,
            {aggregate}
        FROM telemetry_source source JOIN {_table(kind)} sample ON sample.source_id = source.id
        WHERE source.kind = %(kind)s AND source.path = ANY(%(paths)s)
          AND sample.at >= %(start)s AND sample.at < %(end)s
        GROUP BY 1, 2
        """,
        kind=kind,
        paths=list(paths),
        start=_utc(start_s),
        end=_utc(start_s + n_bins * bin_s),
        bin_s=bin_s,
    )
    values: dict[str, list[float | None]] = {path: [None] * n_bins for path in paths}
    for path, index, value in rows:
        # No door lets NaN in; if a hand put it there it is a gap, for JSON has no word for it.
        values[path][index] = value if value is not None and math.isfinite(value) else None
    return {
        "t": [start_s + i * bin_s for i in range(n_bins)],
        "bin_s": bin_s,
        "series": values,
    }


def nice_bin_s(least_s: float) -> float:
    """The narrowest round bin of at least `least_s` seconds."""
    for bin_s in (MIN_BIN_S, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600):
        if bin_s >= least_s:
            return float(bin_s)
    return math.ceil(least_s / 86400) * 86400.0


def signal_states(reading: Reading, previous: Reading | None) -> dict[str, str]:
    """What each signal of a reading is: `value`, `idle`, `missing` or `failed`.

    Failed: the read itself failed. Missing: not measured. Idle: a histogram that saw nothing since
    `previous` (or ever), so its quantiles say nothing, and that is known. A zero gauge is a value.
    """
    names = reading.signals.__struct_fields__
    if reading.state == "failed":
        return dict.fromkeys(names, "failed")
    # After a restart the counters began again: what came before is no base for a difference.
    base = previous.signals if previous and previous.epoch_s == reading.epoch_s else None
    return {
        name: _signal_state(getattr(reading.signals, name), getattr(base, name, None))
        for name in names
    }


def _signal_state(value: Any, before: Any) -> str:
    if value is None or value == {}:
        return "missing"
    now = _observations(value)
    if now is None:
        return "value"
    earlier = _observations(before) or 0.0
    return "idle" if now in (earlier, 0.0) else "value"


def _observations(value: Any) -> float | None:
    """How often a histogram, or a map of them, was observed; None for anything else."""
    if isinstance(value, wire.Histogram):
        return value.count
    if isinstance(value, dict):
        counts = [inner.count for inner in value.values() if isinstance(inner, wire.Histogram)]
        return sum(counts) if counts else None
    return None


def requests_of(signals: wire.RouterSignals, side: str) -> float | None:
    """Requests a router sent to `side`, over all reasons; None if it did not report the counter."""
    if signals.requests_total is None:
        return None
    return math.fsum(n for key, n in signals.requests_total.items() if key.split("|")[0] == side)


def _table(kind: str) -> str:
    if kind not in _TABLES:
        raise QueryError(f"must be one of {', '.join(_TABLES)}", field="kind", value=kind)
    return _TABLES[kind]


def _rows(sql: str, **parameters: Any) -> Iterable[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def _reading(kind: str, received_at: datetime, detail: bytes) -> Reading:
    sample = _DECODERS[kind].decode(detail)
    return from_sample(sample, received_s=received_at.timestamp())


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
