"""OTLP metrics, protobuf or JSON, as the classic series that Prometheus would have made of them.

A histogram becomes `_bucket`, `_sum` and `_count`; an exponential one is laid over fixed bounds, so
that two of its readings can be subtracted whatever scale each had. Delta points are gains, which
the intake adds up. Protocol: https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.message import DecodeError as ProtobufError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2

from telemetry.doors import protobuf
from telemetry.doors.otlp_names import label_name, metric_name
from telemetry.doors.points import Labels, Point
from telemetry.doors.protobuf import BYTES, DecodeError
from telemetry.doors.remote_write import MAX_LABEL_CHARS, MAX_LABELS, MAX_SERIES_CHARS, TooLarge

MAX_JSON_BYTES = 1024 * 1024
"""JSON costs some twenty times its size to read."""
MAX_METRIC_BYTES = 1024 * 1024
MAX_SERIES = 100_000
MAX_BOUNDS = 1024
_DELTA = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
_CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
_NO_VALUE = metrics_pb2.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

GRID_SCALE = 2
"""Fixed bounds for exponential histograms: 2^(k / 4), ratio 1.19, from a thousandth to 2^20."""
GRID = tuple(2.0 ** (k / 2**GRID_SCALE) for k in range(-10 * 4, 20 * 4 + 1))


class Series(NamedTuple):
    """One series with one point; `delta`: the point is a gain since the last."""

    labels: Labels
    point: Point
    delta: bool


@dataclass
class Decoded:
    """An export request. `rejected` counts data points that cannot be taken, by reason."""

    series: list[Series] = field(default_factory=list)
    n_points: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def reject(self, why: str, n: int = 1) -> None:
        """Count data points that were not taken."""
        self.rejected[why] = self.rejected.get(why, 0) + n


def decode(body: bytes) -> Decoded:
    """An ExportMetricsServiceRequest. Raises DecodeError, TooLarge.

    Messages are walked by hand down to single metrics, each of which is then parsed as a whole:
    that bounds what a hostile body may cost.
    """
    out = Decoded()
    for number, kind, start, end in protobuf.fields(body, 0, len(body)):
        if number != 1 or kind != BYTES:
            continue
        base: dict[str, str] = {}
        scopes: list[tuple[int, int]] = []
        for inner, inner_kind, a, b in protobuf.fields(body, start, end):
            if inner_kind == BYTES and inner == 1:
                _bound(b - a)
                base = _resource_labels(_parsed(resource_pb2.Resource, body[a:b]))
            elif inner_kind == BYTES and inner == 2:
                if len(scopes) >= MAX_SERIES:
                    raise TooLarge(f"more than {MAX_SERIES} scopes in one request")
                scopes.append((a, b))
        for a, b in scopes:
            for inner, inner_kind, c, d in protobuf.fields(body, a, b):
                if inner_kind == BYTES and inner == 2:
                    _bound(d - c)
                    _metric(_parsed(metrics_pb2.Metric, body[c:d]), base, out)
    return out


def decode_json(body: bytes) -> Decoded:
    """The same in OTLP's JSON. Raises DecodeError, TooLarge."""
    if len(body) > MAX_JSON_BYTES:
        raise TooLarge(f"a JSON body has at most {MAX_JSON_BYTES} bytes, protobuf may have more")
    request = ExportMetricsServiceRequest()
    try:
        json_format.Parse(body, request, ignore_unknown_fields=True)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError(f"the body is not OTLP JSON: {exc}"[:300]) from None
    return decode(request.SerializeToString())


def _bound(n_bytes: int) -> None:
    if n_bytes > MAX_METRIC_BYTES:
        raise TooLarge(f"one metric or resource has more than {MAX_METRIC_BYTES} bytes")


def _parsed(message: Any, content: bytes) -> Any:
    try:
        return message.FromString(content)
    except (ProtobufError, RecursionError) as exc:
        raise DecodeError(f"the body is not an OTLP metrics request: {exc}"[:300]) from None


def _resource_labels(resource: Any) -> dict[str, str]:
    """Every attribute as a label, and `job` and `instance` as Prometheus derives them."""
    labels = _attributes(resource.attributes)
    service, namespace = labels.get("service_name", ""), labels.get("service_namespace", "")
    if service:
        labels.setdefault("job", f"{namespace}/{service}" if namespace else service)
    if instance := labels.get("service_instance_id", ""):
        labels.setdefault("instance", instance)
    return labels


def _attributes(attributes: Any) -> dict[str, str]:
    if len(attributes) > MAX_LABELS:
        raise DecodeError(f"{len(attributes)} attributes, at most {MAX_LABELS}")
    labels: dict[str, str] = {}
    for entry in attributes:
        name, value = label_name(entry.key[:MAX_LABEL_CHARS]), _text(entry.value)
        if len(value) > MAX_LABEL_CHARS:
            raise DecodeError(f"attribute {name[:60]!r} is longer than {MAX_LABEL_CHARS}")
        labels[name] = f"{labels[name]};{value}" if name in labels else value
    if sum(len(name) + len(value) for name, value in labels.items()) > MAX_SERIES_CHARS:
        raise DecodeError(f"attributes are longer than {MAX_SERIES_CHARS} characters")
    return labels


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    if kind in ("int_value", "double_value"):
        return str(getattr(value, kind))
    # Lists, maps and bytes are no labels; their presence is.
    return "" if kind is None else f"({kind})"


def _metric(metric: Any, base: dict[str, str], out: Decoded) -> None:
    kind = metric.WhichOneof("data")
    if kind is None:
        return
    data = getattr(metric, kind)
    points = data.data_points
    out.n_points += len(points)
    if kind in ("sum", "histogram", "exponential_histogram") and (
        data.aggregation_temporality not in (_CUMULATIVE, _DELTA)
    ):
        out.reject("a sum or histogram of unspecified temporality", len(points))
        return
    delta = kind != "gauge" and kind != "summary" and data.aggregation_temporality == _DELTA
    if kind == "sum" and delta and not data.is_monotonic:
        out.reject("a delta sum that may fall", len(points))
        return
    name = metric_name(
        metric.name[:MAX_LABEL_CHARS],
        metric.unit,
        monotonic=kind == "sum" and data.is_monotonic,
        gauge=kind == "gauge",
    )
    for point in points:
        labels = {**base, **_attributes(point.attributes)}
        made = list(_READERS[kind](name, point, out))
        at_ms, start_ms = point.time_unix_nano // 10**6, point.start_time_unix_nano // 10**6
        # Of a gain this is when the last one ended, not when the process began.
        start_ms = 0 if delta or kind == "gauge" else start_ms
        gone = bool(point.flags & _NO_VALUE)
        if len(out.series) + len(made) > MAX_SERIES:
            raise TooLarge(f"more than {MAX_SERIES} series in one request")
        for series_name, extra, value in made:
            pairs = tuple({"__name__": series_name, **labels, **extra}.items())
            out.series.append(Series(pairs, Point(None if gone else value, at_ms, start_ms), delta))


Made = Iterator[tuple[str, dict[str, str], float]]
"""Name, further labels and value of each series of a point."""


def _number(name: str, point: Any, _: Decoded) -> Made:
    is_int = point.WhichOneof("value") == "as_int"
    yield name, {}, float(point.as_int) if is_int else point.as_double


def _summary(name: str, point: Any, _: Decoded) -> Made:
    for entry in point.quantile_values:
        yield name, {"quantile": repr(entry.quantile)}, entry.value
    yield f"{name}_sum", {}, point.sum
    yield f"{name}_count", {}, float(point.count)


def _histogram(name: str, point: Any, out: Decoded) -> Made:
    bounds, counts = list(point.explicit_bounds), list(point.bucket_counts)
    if not counts and not bounds:
        counts = [point.count]
    if len(counts) != len(bounds) + 1 or len(bounds) > MAX_BOUNDS:
        out.reject(f"{len(counts)} buckets for {len(bounds)} bounds")
        return
    if any(b <= a for a, b in itertools.pairwise(bounds)):
        out.reject("the bounds of a histogram do not ascend")
        return
    yield from _classic(name, bounds, counts, point)


def _exponential(name: str, point: Any, out: Decoded) -> Made:
    """Buckets (base^(i), base^(i+1)] with base = 2^(2^-scale), each counted at its upper bound.

    At `GRID_SCALE` and above that is exact, for bounds of a coarser scale are bounds of a finer.
    """
    if any(point.negative.bucket_counts):
        out.reject("an exponential histogram of negative values")
        return
    if not -10 <= point.scale <= 20:
        out.reject(f"an exponential histogram of scale {point.scale}")
        return
    if len(point.positive.bucket_counts) > MAX_BOUNDS * 8:
        out.reject("an exponential histogram of too many buckets")
        return
    counts = [0.0] * (len(GRID) + 1)
    counts[0] += point.zero_count
    for i, n in enumerate(point.positive.bucket_counts):
        if n:
            # The bound's place on the grid, a whole number where the scales agree.
            place = (point.positive.offset + i + 1) * 2.0 ** (GRID_SCALE - point.scale)
            counts[min(max(math.ceil(place - 1e-9) + 40, 0), len(GRID))] += n
    yield from _classic(name, list(GRID), counts, point)


def _classic(name: str, bounds: list[float], counts: list[Any], point: Any) -> Made:
    below = 0.0
    for bound, n in zip([*bounds, math.inf], counts, strict=True):
        below += n
        yield f"{name}_bucket", {"le": "+Inf" if bound == math.inf else repr(bound)}, below
    if point.HasField("sum"):
        yield f"{name}_sum", {}, point.sum
    yield f"{name}_count", {}, float(point.count)


_READERS = {
    "gauge": _number,
    "sum": _number,
    "summary": _summary,
    "histogram": _histogram,
    "exponential_histogram": _exponential,
}
