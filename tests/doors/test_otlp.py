"""OTLP metrics as the series Prometheus would have made of them."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

from telemetry.doors import otlp
from telemetry.doors.otlp_names import label_name, metric_name
from telemetry.doors.protobuf import DecodeError, put_bytes
from telemetry.doors.remote_write import TooLarge

T_NS = 1_795_955_263_000_000_000
T_MS = T_NS // 10**6


@pytest.mark.parametrize(
    ("name", "unit", "monotonic", "gauge", "expected"),
    [
        ("vllm:num_requests_running", "", False, True, "vllm:num_requests_running"),
        ("vllm:prompt_tokens_total", "", True, False, "vllm:prompt_tokens_total"),
        ("vllm.prompt_tokens", "{token}", True, False, "vllm_prompt_tokens_total"),
        ("http.server.duration", "ms", False, False, "http_server_duration_milliseconds"),
        ("ttft", "s", False, False, "ttft_seconds"),
        ("time_to_first_token_seconds", "s", False, False, "time_to_first_token_seconds"),
        ("sent", "By", True, False, "sent_bytes_total"),
        ("sent_bytes_total", "By", True, False, "sent_bytes_total"),
        ("used", "1", False, True, "used_ratio"),
        ("used", "1", False, False, "used"),
        ("rate", "By/s", False, True, "rate_bytes_per_second"),
        ("rate", "{req}/s", False, True, "rate_per_second"),
        ("9lives", "", False, True, "_9lives"),
        ("a..b--c", "", False, True, "a_b_c"),
    ],
)
def test_names_follow_the_compatibility_rules(
    name: str, unit: str, monotonic: bool, gauge: bool, expected: str
) -> None:
    assert metric_name(name, unit, monotonic=monotonic, gauge=gauge) == expected


def test_attribute_keys_become_label_names() -> None:
    assert [label_name(key) for key in ("service.name", "k8s-pod", "1st")] == [
        "service_name", "k8s_pod", "key_1st",
    ]  # fmt: skip


RESOURCE = {
    "service.name": "engine",
    "service.namespace": "prod",
    "service.instance.id": "e0",
    "cluster": "pd",
}


def attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


def request(*metrics: dict[str, Any]) -> ExportMetricsServiceRequest:
    document = {
        "resourceMetrics": [
            {
                "resource": {"attributes": attributes(RESOURCE)},
                "scopeMetrics": [{"metrics": list(metrics)}],
            }
        ]
    }
    return json_format.ParseDict(document, ExportMetricsServiceRequest())


def decoded(*metrics: dict[str, Any]) -> otlp.Decoded:
    return otlp.decode(request(*metrics).SerializeToString())


def point(**more: Any) -> dict[str, Any]:
    return {"timeUnixNano": str(T_NS), "startTimeUnixNano": str(T_NS - 5 * 10**9), **more}


def values(found: otlp.Decoded) -> dict[tuple[str, str], float | None]:
    """Values by name and `le`."""
    return {
        (dict(s.labels)["__name__"], dict(s.labels).get("le", "")): s.point.value
        for s in found.series
    }


def test_a_gauge_carries_its_resource_as_labels() -> None:
    gauge = {"dataPoints": [point(asInt="3", attributes=attributes({"engine": "0"}))]}
    [series] = decoded({"name": "running", "gauge": gauge}).series
    assert dict(series.labels) == {
        "__name__": "running",
        "service_name": "engine",
        "service_namespace": "prod",
        "service_instance_id": "e0",
        "cluster": "pd",
        "job": "prod/engine",
        "instance": "e0",
        "engine": "0",
    }
    assert series.point == (3.0, T_MS, 0)
    assert not series.delta


def test_a_cumulative_sum_says_when_it_began_and_a_delta_is_a_gain() -> None:
    for temporality, delta, start_ms in ((2, False, T_MS - 5000), (1, True, 0)):
        total = {
            "isMonotonic": True,
            "aggregationTemporality": temporality,
            "dataPoints": [point(asDouble=2.5)],
        }
        [series] = decoded({"name": "tokens", "sum": total}).series
        assert dict(series.labels)["__name__"] == "tokens_total"
        assert (series.point.value, series.point.start_ms, series.delta) == (2.5, start_ms, delta)


def test_a_histogram_becomes_classic_buckets() -> None:
    histogram = {
        "aggregationTemporality": 2,
        "dataPoints": [
            point(explicitBounds=[0.1, 1.0], bucketCounts=["1", "3", "1"], count="5", sum=3.5)
        ],
    }
    assert values(decoded({"name": "ttft", "unit": "s", "histogram": histogram})) == {
        ("ttft_seconds_bucket", "0.1"): 1.0,
        ("ttft_seconds_bucket", "1.0"): 4.0,
        ("ttft_seconds_bucket", "+Inf"): 5.0,
        ("ttft_seconds_sum", ""): 3.5,
        ("ttft_seconds_count", ""): 5.0,
    }


@pytest.mark.parametrize("scale", [0, 2, 5])
def test_an_exponential_histogram_keeps_what_its_scale_knows(scale: int) -> None:
    """Ten values of 0.3, which lie in (0.25, 0.3536] at scale 1 and finer."""
    base = 2.0 ** (2.0**-scale)
    index = math.ceil(math.log(0.3, base)) - 1
    exponential = {
        "aggregationTemporality": 2,
        "dataPoints": [
            point(
                scale=scale,
                zeroCount="2",
                count="12",
                sum=3.0,
                positive={"offset": index - 1, "bucketCounts": ["0", "10"]},
            )
        ],
    }
    found = values(decoded({"name": "x", "exponentialHistogram": exponential}))
    buckets = [(le, n) for (name, le), n in found.items() if name == "x_bucket"]
    assert len(buckets) == len(otlp.GRID) + 1
    assert buckets[-1] == ("+Inf", 12.0)
    first = next(float(le) for le, n in buckets if n == 12.0)
    upper = base ** (index + 1)
    assert upper / 1.0001 <= first <= max(upper, 0.3 * 2 ** (1 / 4)) * 1.0001
    assert buckets[0][1] == 2.0


def test_values_beyond_the_grid_are_in_its_last_buckets() -> None:
    exponential = {
        "aggregationTemporality": 2,
        "dataPoints": [
            point(scale=0, count="2", sum=1.0, positive={"offset": 300, "bucketCounts": ["1"]}),
            point(scale=0, count="1", sum=1.0, positive={"offset": -300, "bucketCounts": ["1"]}),
        ],
    }
    found = decoded({"name": "x", "exponentialHistogram": exponential}).series
    buckets = [s.point.value for s in found if dict(s.labels)["__name__"] == "x_bucket"]
    half = len(otlp.GRID) + 1
    assert buckets[:half] == [0.0] * (half - 1) + [1.0]
    assert buckets[half:] == [1.0] * half


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ({"sum": {"dataPoints": [point(asInt="1")]}}, "unspecified temporality"),
        (
            {"sum": {"aggregationTemporality": 1, "dataPoints": [point(asInt="1")]}},
            "delta sum that may fall",
        ),
        (
            {
                "histogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [point(explicitBounds=[1.0], bucketCounts=["1"])],
                }
            },
            "1 buckets for 1 bounds",
        ),
        (
            {
                "histogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [point(explicitBounds=[2.0, 1.0], bucketCounts=["1", "0", "0"])],
                }
            },
            "do not ascend",
        ),
        (
            {
                "exponentialHistogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [point(negative={"bucketCounts": ["1"]})],
                }
            },
            "negative values",
        ),
        (
            {
                "exponentialHistogram": {
                    "aggregationTemporality": 2,
                    "dataPoints": [point(scale=40)],
                }
            },
            "scale 40",
        ),
    ],
)
def test_what_cannot_be_taken_is_rejected_point_by_point(
    metric: dict[str, Any], words: str
) -> None:
    good = {"name": "ok", "gauge": {"dataPoints": [point(asInt="1")]}}
    found = decoded({"name": "bad", **metric}, good)
    assert list(found.rejected.values()) == [1]
    assert words in next(iter(found.rejected))
    assert [dict(s.labels)["__name__"] for s in found.series] == ["ok"]


def test_a_point_without_a_value_ends_its_series() -> None:
    gauge = {"dataPoints": [point(flags=1)]}
    [series] = decoded({"name": "running", "gauge": gauge}).series
    assert series.point.value is None


def test_json_says_the_same_and_unknown_fields_do_not_matter() -> None:
    sent = request({"name": "running", "gauge": {"dataPoints": [point(asInt="3")]}})
    text = json_format.MessageToJson(sent).replace('"name"', '"newer": [1], "name"', 1)
    assert otlp.decode_json(text.encode()) == otlp.decode(sent.SerializeToString())


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        (put_bytes(1, b"\x12\x00" * 4_000_000), TooLarge, "scopes"),
        (put_bytes(1, put_bytes(2, put_bytes(2, b"\0" * 2_000_000))), TooLarge, "bytes"),
        (put_bytes(1, put_bytes(1, b"\x0a\x00" * 1_000_000)), TooLarge, "bytes"),
        (put_bytes(1, put_bytes(1, b"\x0a\x00" * 400)), DecodeError, "400 attributes"),
        (put_bytes(1, put_bytes(1, b"\xff")), DecodeError, "not an OTLP"),
        (b"\x0a\xff", DecodeError, "cut short"),
    ],
)
def test_a_hostile_body_is_refused(body: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        otlp.decode(body)


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"resourceMetrics": 1}'])
def test_json_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(DecodeError, match="not OTLP JSON"):
        otlp.decode_json(text)
    with pytest.raises(TooLarge):
        otlp.decode_json(text * (otlp.MAX_JSON_BYTES // len(text) + 1))


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(DecodeError, TooLarge):
        otlp.decode(body)


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    histogram = {
        "aggregationTemporality": 2,
        "dataPoints": [point(explicitBounds=[0.1], bucketCounts=["1", "3"], count="4", sum=3.5)],
    }
    body = bytearray(request({"name": "x", "histogram": histogram}).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError, TooLarge):
        otlp.decode(bytes(body))
