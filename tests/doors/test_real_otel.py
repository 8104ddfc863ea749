"""A real OpenTelemetry SDK exports to a live console."""

from __future__ import annotations

import time

import pytest

from telemetry import store
from tests import servers
from tests.doors.programs import until
from tests.telemetry.batches import unique

sdk_metrics = pytest.importorskip(
    "opentelemetry.sdk.metrics", reason="the OpenTelemetry SDK is not installed"
)
exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
otlp_http = pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
readers = pytest.importorskip("opentelemetry.sdk.metrics.export")
resources = pytest.importorskip("opentelemetry.sdk.resources")

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("delta", [False, True], ids=["cumulative", "delta"])
def test_a_real_sdk_exports_to_us(
    console: servers.Server, token: str, monkeypatch: pytest.MonkeyPatch, delta: bool
) -> None:
    fleet = unique("otel")
    monkeypatch.delenv("OTEL_RESOURCE_ATTRIBUTES", raising=False)
    temporality = (
        readers.AggregationTemporality.DELTA if delta else readers.AggregationTemporality.CUMULATIVE
    )
    exporter = exporters.OTLPMetricExporter(
        endpoint=f"http://{console.host}/v1/metrics",
        headers={"Authorization": f"Bearer {token}"},
        compression=otlp_http.Compression.Gzip,
        preferred_temporality={
            sdk_metrics.Counter: temporality,
            sdk_metrics.Histogram: temporality,
        },
    )
    provider = sdk_metrics.MeterProvider(
        [readers.PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)],
        resource=resources.Resource.create(
            {
                "service.name": "engines",
                "service.instance.id": "e0",
                "deployment.environment": fleet,
                "cluster": "p",
            }
        ),
    )
    try:
        meter = provider.get_meter("engine")
        running = meter.create_up_down_counter("vllm.num_requests_running")
        prompt = meter.create_counter("vllm.prompt_tokens", unit="{token}")
        ttft = meter.create_histogram("vllm.time_to_first_token", unit="s")
        running.add(3, {"engine": "0"})
        prompt.add(100)
        ttft.record(0.3)
        assert provider.force_flush()
        first = newest(fleet)
        assert first is not None, "the export was acknowledged, so it is stored"
        time.sleep(0.6)  # two exports nearer than that are one scrape
        running.add(1, {"engine": "1"})
        prompt.add(60)
        ttft.record(0.3)
        assert provider.force_flush()
        reading = until(lambda: (r := newest(fleet)) and r.at_s > first.at_s and r)
        assert (reading.path, reading.role) == (f"{fleet}/p/e0", "prefill")
        assert reading.signals.requests_running == 4.0
        assert reading.signals.prompt_tokens_total == 160.0
        assert reading.signals.prompt_tokens_per_s == pytest.approx(
            60.0 / (reading.at_s - first.at_s)
        )
        assert reading.signals.ttft_seconds.count == 2.0
        assert reading.signals.ttft_seconds.sum == pytest.approx(0.6)
    finally:
        provider.shutdown()


def newest(fleet: str) -> store.Reading | None:
    return next(iter(store.latest("instance", prefix=f"{fleet}/", now_s=time.time())), None)
