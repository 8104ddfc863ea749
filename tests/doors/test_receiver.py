"""The doors as HTTP: what is answered, and that nothing is acknowledged before its commit."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import cramjam
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from telemetry.doors import door as door_module
from telemetry.doors import receiver
from telemetry.doors.protobuf import put_bytes
from telemetry.doors.receiver import OTLP_PATH, WRITE_PATH, Receiver
from telemetry.flusher import Unavailable
from tests.doors import bodies
from tests.doors.calling import TOKEN, Answer, Grants, Site, call, site
from tests.doors.sending import PATH, T0_S, TARGET
from tests.doors.test_otlp import point, request

T_MS = round(T0_S * 1000)
SNAPPY = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V2 = {**SNAPPY, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}
OTEL_RULES = """
[[rules]]
match = { job = "prod/engine" }
id = "f/{cluster}/{instance}"
role = "both"
engine = "vllm"
"""


@pytest.fixture
async def here() -> AsyncIterator[Site]:
    made = site(now_s=T0_S)
    made.door.start()
    yield made
    await made.door.stop()


@pytest.fixture
async def otel() -> AsyncIterator[Site]:
    made = site(now_s=T0_S + 10.0, rules=OTEL_RULES)
    made.door.start()
    yield made
    await made.door.stop()


def running(value: float, at_ms: int = T_MS, **labels: str) -> bytes:
    return bodies.v1(("vllm:num_requests_running", {**TARGET, **labels}, value, at_ms))


async def write(made: Site, body: bytes, headers: dict[str, str] = SNAPPY, **more: str) -> Answer:
    return await call(made.app, WRITE_PATH, body, headers, **more)  # type: ignore[arg-type]


async def test_a_write_is_answered_when_its_sample_is_committed(here: Site) -> None:
    here.queue.gate = asyncio.Event()
    asking = asyncio.create_task(write(here, running(3.0)))
    while not here.queue.offers:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert not asking.done(), "the commit is under way, not over"
    here.queue.gate.set()
    answer = await asking
    assert (answer.status, answer.body) == (204, b"")
    [sample] = here.queue.samples()
    assert (sample.id, sample.at_s, sample.signals.requests_running) == (PATH, T0_S, 3.0)


async def test_2_0_is_negotiated_by_its_content_type_and_told_what_was_written(here: Site) -> None:
    labels = {"__name__": "vllm:num_requests_running", **TARGET}
    unknown = {"__name__": "x", "job": "nobody"}
    body = cramjam.snappy.compress_raw(
        bodies.v2([(labels, [(1.0, T_MS - 5000), (2.0, T_MS)]), (unknown, [(1.0, T_MS)])])
    )
    answer = await write(here, bytes(body), V2)
    assert answer.status == 204
    assert answer.headers == {
        "x-prometheus-remote-write-samples-written": "3",
        "x-prometheus-remote-write-histograms-written": "0",
        "x-prometheus-remote-write-exemplars-written": "0",
    }
    assert [s.signals.requests_running for s in here.queue.samples()] == [1.0, 2.0]


async def test_samples_that_can_never_be_taken_are_400_and_the_others_are_stored(
    here: Site,
) -> None:
    body = bodies.v1(
        ("vllm:num_requests_running", TARGET, 3.0, T_MS),
        ("vllm:num_requests_waiting", TARGET, 1.0, T_MS // 1000),
        ("vllm:num_requests_waiting", TARGET, 1.0, T_MS + 3_600_000),
    )
    answer = await write(here, body)
    assert answer.status == 400
    assert "1 samples: the timestamp is in the future" in answer.text
    assert "1 samples: the timestamp is not in milliseconds" in answer.text
    assert answer.headers["x-prometheus-remote-write-samples-written"] == "1"
    assert here.queue.samples()[0].signals.requests_running == 3.0


async def test_native_histograms_are_refused_by_name(here: Site) -> None:
    name = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))
    body = cramjam.snappy.compress_raw(put_bytes(1, name + put_bytes(4, b"")))
    answer = await write(here, bytes(body))
    assert answer.status == 400
    assert "native histograms are not supported" in answer.text


async def test_the_same_write_again_is_success_and_no_second_sample(here: Site) -> None:
    """S-16."""
    for _ in range(2):
        assert (await write(here, running(3.0))).status == 204
    assert len(here.queue.samples()) == 1


async def test_while_the_console_cannot_store_senders_are_told_to_come_back(here: Site) -> None:
    here.queue.away = True
    answers = await asyncio.gather(write(here, running(3.0)), write(here, running(4.0, engine="1")))
    assert [answer.status for answer in answers] == [503, 503]
    assert answers[0].headers["retry-after"] == "1"
    refused = await write(here, running(5.0, T_MS + 5000))
    assert (refused.status, refused.text) == (503, "the database is away\n")
    here.queue.away = False
    while (await write(here, running(3.0))).status == 503:
        await asyncio.sleep(0.05)
    assert (await write(here, running(4.0, engine="1"))).status == 204
    assert (await write(here, running(5.0, T_MS + 5000))).status == 204
    first, second = here.queue.samples()
    assert (first.at_s, first.signals.requests_running) == (T0_S, 7.0)
    assert second.at_s == T0_S + 5.0
    # Offered again under its own key, so that a commit that did happen is not stored twice.
    assert len({offer.seq for offer in here.queue.offers}) == len(here.queue.batches)


async def test_one_bad_sample_does_not_take_the_others_down(here: Site) -> None:
    here.queue.refuses = "f/pd/e1"
    answers = await asyncio.gather(
        write(here, running(3.0)), write(here, running(4.0, instance="e1"))
    )
    assert [answer.status for answer in answers] == [204, 400]
    assert "cannot be stored" in answers[1].text
    assert [sample.id for sample in here.queue.samples()] == [PATH]


async def test_a_door_that_was_superseded_takes_a_newer_boot(here: Site) -> None:
    here.queue.older = 1
    assert (await write(here, running(3.0))).status == 204
    first, second = here.queue.offers
    assert second.boot > first.boot


async def test_a_door_that_stops_ships_what_it_has(here: Site) -> None:
    asking = asyncio.create_task(write(here, running(3.0)))
    await asyncio.sleep(0.02)
    await here.door.stop()
    assert (await asking).status == 204
    assert len(here.queue.samples()) == 1
    assert (await write(here, running(3.0, T_MS + 5000))).status == 503


async def test_an_answer_that_takes_too_long_says_come_back(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door_module, "ANSWER_TIMEOUT_S", 0.5)
    here.queue.gate = asyncio.Event()
    answer = await write(here, running(3.0))
    assert (answer.status, answer.text) == (503, "its commit takes too long\n")
    here.queue.gate.set()
    assert (await write(here, running(3.0))).status == 204


async def test_a_full_intake_takes_nothing(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("telemetry.doors.intake.MAX_PENDING", 0)
    assert (await write(here, running(3.0))).status == 503
    monkeypatch.setattr("telemetry.doors.intake.MAX_PENDING", 10)
    monkeypatch.setattr(receiver, "MAX_HELD_BYTES", 10)
    assert (await write(here, running(3.0))).status == 503


@pytest.mark.parametrize(
    ("body", "headers", "more", "status", "words"),
    [
        (running(1.0), SNAPPY, {"method": "GET"}, 405, "only POST"),
        (running(1.0), SNAPPY, {"token": None}, 401, "Bearer"),
        (running(1.0), SNAPPY, {"token": "pf_other"}, 401, "unknown"),
        (running(1.0), {**SNAPPY, "Content-Encoding": "gzip"}, {}, 415, "snappy"),
        (running(1.0), {**SNAPPY, "Content-Type": "text/plain"}, {}, 415, "x-protobuf"),
        (
            running(1.0),
            {**SNAPPY, "Content-Type": "application/x-protobuf;proto=x.y"},
            {},
            415,
            "x.y",
        ),
        (b"", SNAPPY, {}, 400, "cut short"),
        (b"\x05hello", SNAPPY, {}, 400, "snappy"),
        (b"\0" * 1_000_001, SNAPPY, {}, 413, "larger than 1000000"),
        (bytes(cramjam.snappy.compress_raw(b"\0" * 9_000_000)), SNAPPY, {}, 413, "decompressed"),
        (
            bytes(cramjam.snappy.compress_raw(put_bytes(1, b"\x0a\x00" * 400_000))),
            SNAPPY,
            {},
            400,
            "128 labels",
        ),
        (bodies.v1(("", {}, 1.0, T_MS)), SNAPPY, {}, 400, "without a name"),
    ],
)
async def test_what_is_refused_says_why(
    here: Site, body: bytes, headers: dict[str, str], more: dict[str, str], status: int, words: str
) -> None:
    answer = await write(here, body, headers, **more)
    assert answer.status == status
    assert words in answer.text
    assert here.queue.offers == []


async def test_a_body_in_parts_is_counted_as_it_comes(here: Site) -> None:
    answer = await call(here.app, WRITE_PATH, [b"\0" * 600_000] * 3, SNAPPY)
    assert answer.status == 413
    cut = await call(here.app, WRITE_PATH, [b"1", b"2"], {**SNAPPY, "Content-Length": "x"})
    assert cut.status == 400


async def test_a_token_of_one_fleet_reports_for_no_other() -> None:
    made = site(now_s=T0_S, fleet="other")
    made.door.start()
    answer = await write(made, running(3.0))
    assert (answer.status, made.queue.offers) == (403, [])
    assert answer.text == "this token is for fleet other only, not for f/pd/e0\n"
    await made.door.stop()


async def test_a_token_without_the_scope_is_403(here: Site) -> None:
    app = Receiver(here.door, grants=Grants(scopes=("read",)), max_bytes=1000, clock=here.clock)
    answer = await call(app, WRITE_PATH, running(1.0), SNAPPY)
    assert (answer.status, answer.text) == (403, "this token has no scope ingest\n")


async def test_doors_without_rules_say_what_to_set(here: Site) -> None:
    for status, words in ((404, "set CONSOLE_DOORS_RULES"), (503, "rules[0].id")):
        app = Receiver((status, words), grants=Grants(), max_bytes=1000, clock=here.clock)
        answer = await call(app, WRITE_PATH, running(1.0), SNAPPY)
        assert (answer.status, answer.text) == (status, f"{words}\n")
        assert ("retry-after" in answer.headers) == (status == 503)


async def test_tokens_that_cannot_be_checked_are_503(here: Site) -> None:
    class Away:
        async def grant(self, secret: str, *, now_s: float) -> None:
            raise Unavailable("the database is away", retry_s=2.0)

    app = Receiver(here.door, grants=Away(), max_bytes=1000, clock=here.clock)
    answer = await call(app, WRITE_PATH, running(1.0), SNAPPY)
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")


RUNNING = {"name": "vllm.num_requests_running", "gauge": {"dataPoints": [point(asInt="3")]}}


@pytest.mark.parametrize("encoding", ["protobuf", "gzip", "json", "json gzip"])
async def test_an_export_is_answered_in_its_own_encoding(otel: Site, encoding: str) -> None:
    sent = request(RUNNING)
    body, headers = sent.SerializeToString(), dict(PROTOBUF)
    if "json" in encoding:
        body, headers = JSON_BODY, dict(JSON)
    if "gzip" in encoding:
        body = gzip.compress(body)
        headers["Content-Encoding"] = "gzip"
    answer = await call(otel.app, OTLP_PATH, body, headers)
    assert (answer.status, answer.headers["content-type"]) == (200, headers["Content-Type"])
    assert answer.body == (b"{}" if "json" in encoding else b"")
    [sample] = otel.queue.samples()
    assert (sample.id, sample.signals.requests_running) == ("f/pd/e0", 3.0)


JSON_BODY = json.dumps(
    {
        "resourceMetrics": [
            {
                "resource": {
                    "attributes": [
                        {"key": key, "value": {"stringValue": value}}
                        for key, value in {
                            "service.name": "engine",
                            "service.namespace": "prod",
                            "service.instance.id": "e0",
                            "cluster": "pd",
                        }.items()
                    ]
                },
                "scopeMetrics": [{"metrics": [RUNNING]}],
            }
        ]
    }
).encode()


async def test_an_export_that_is_taken_in_part_says_so(otel: Site) -> None:
    bad = {"name": "bad", "sum": {"dataPoints": [point(asInt="1")]}}
    answer = await call(otel.app, OTLP_PATH, request(RUNNING, bad).SerializeToString(), PROTOBUF)
    assert answer.status == 200
    partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
    assert partial.rejected_data_points == 1
    assert "unspecified temporality" in partial.error_message
    assert len(otel.queue.samples()) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"\xff", PROTOBUF, 400, "cut short"),
        (b"{", JSON, 400, "not OTLP JSON"),
        (b"{}", {"Content-Type": "text/plain"}, 415, "text/plain"),
        (b"{}", {**JSON, "Content-Encoding": "zstd"}, 415, "zstd"),
        (b"no gzip", {**JSON, "Content-Encoding": "gzip"}, 400, "not gzip"),
        (
            gzip.compress(b"{}", mtime=0)[:-2],
            {**JSON, "Content-Encoding": "gzip"},
            400,
            "whole gzip stream",
        ),
        (
            gzip.compress(b" " * 50_000_000),
            {**PROTOBUF, "Content-Encoding": "gzip"},
            413,
            "decompressed body is larger than 1000000",
        ),
    ],
)
async def test_an_export_that_is_refused_is_told_in_a_status(
    otel: Site, body: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = await call(otel.app, OTLP_PATH, body, headers)
    assert answer.status == status
    assert words in answer.text
    if headers["Content-Type"] == "application/json":
        assert words in json.loads(answer.body)["message"]
    assert otel.queue.offers == []


async def test_a_report_goes_out_with_the_first_batch_and_not_with_every_one(here: Site) -> None:
    await write(here, running(3.0))
    await write(here, running(3.0, T_MS + 1000))
    first, second = here.queue.batches
    assert first.report is not None
    assert [source.id for source in first.report.sources] == [PATH]
    assert second.report is None
    assert (first.agent, TOKEN not in str(first)) == ("remote-write/test", True)


async def test_where_no_rule_matches_the_report_says_so(here: Site) -> None:
    """S-19."""
    body = bodies.v1(("x_total", {"job": "mystery"}, 1.0, T_MS))
    assert (await write(here, body)).status == 204
    while not here.queue.batches:
        await asyncio.sleep(0.01)
    [batch] = here.queue.batches
    assert (here.queue.samples(), batch.report is not None) == ([], True)
    assert batch.report is not None
    [source] = batch.report.sources
    assert (source.kind, source.unmatched, source.n_unmatched) == ("unmatched", ["x_total"], 1)
