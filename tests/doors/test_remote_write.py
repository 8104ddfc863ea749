"""Remote-write bodies: what they say, and what is refused before it costs anything."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.doors import remote_write as rw
from telemetry.doors import remote_write_encode as rwe
from telemetry.doors.points import Point
from telemetry.doors.protobuf import DecodeError, put_bytes, put_varint, signed, varint
from tests.doors import bodies

AT_MS = 1_795_955_263_000
LABELS = {"job": "vllm", "instance": "e:8000"}


def test_a_request_of_1_0_is_read_as_it_was_written() -> None:
    message = rwe.write_request(
        [rwe.Value("up", LABELS, 1.0, AT_MS), rwe.Value("x", {"v": 'ä\n"', "": "a"}, 0.0, -5)]
    )
    body = rw.unsnap(rwe.compressed(message), 10_000)
    first, second = rw.decode_v1(body).series
    assert rw.labels_v1(bytes(first.labels)) == (
        ("__name__", "up"), ("instance", "e:8000"), ("job", "vllm"),
    )  # fmt: skip
    assert first.points == [Point(1.0, AT_MS)]
    assert dict(rw.labels_v1(bytes(second.labels)))["v"] == 'ä\n"'
    assert second.points == [Point(0.0, -5)]


def test_defaults_that_are_left_out_are_zero() -> None:
    """Protocol buffers do not write a zero."""
    label = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))
    sample = put_bytes(2, b"\x10" + put_varint(AT_MS))
    [series] = rw.decode_v1(put_bytes(1, label + sample)).series
    assert series.points == [Point(0.0, AT_MS)]


def test_the_stale_marker_is_an_end_and_another_nan_is_a_value() -> None:
    message = rwe.write_request(
        [rwe.Value("x", {}, bodies.STALE, AT_MS), rwe.Value("x", {}, float("nan"), AT_MS)]
    )
    ended, nan = rw.decode_v1(message).series
    assert ended.points[0].value is None
    assert nan.points[0].value != nan.points[0].value


def test_labels_behind_samples_belong_to_the_series_too() -> None:
    name = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))
    job = put_bytes(1, put_bytes(1, b"job") + put_bytes(2, b"j"))
    body = put_bytes(1, name + put_bytes(2, bodies.sample(1.0, AT_MS)) + job)
    [series] = rw.decode_v1(body).series
    assert rw.labels_v1(bytes(series.labels)) == (("__name__", "x"), ("job", "j"))


def test_a_request_of_2_0_is_read_through_its_symbols() -> None:
    labels = {"__name__": "x_total", **LABELS}
    body = bodies.v2([(labels, [(1.0, AT_MS), (2.0, AT_MS + 1)]), (LABELS | {"__name__": "y"}, [])])
    first, second = rw.decode_v2(body).series
    assert first.labels == tuple(labels.items())
    assert first.points == [Point(1.0, AT_MS), Point(2.0, AT_MS + 1)]
    assert dict(second.labels)["__name__"] == "y"


@pytest.mark.parametrize("where", ["created_ms", "start_ms"])
def test_the_start_of_a_counter_is_read_where_either_release_puts_it(where: str) -> None:
    body = bodies.v2([({"__name__": "x"}, [(1.0, AT_MS)])], **{where: AT_MS - 7})
    [series] = rw.decode_v2(body).series
    assert series.points == [Point(1.0, AT_MS, AT_MS - 7)]


def test_native_histograms_and_exemplars_are_counted() -> None:
    name = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))
    body = put_bytes(1, name + put_bytes(3, b"") + put_bytes(4, b"") * 2)
    decoded = rw.decode_v1(body)
    assert (decoded.n_histograms, decoded.n_exemplars, decoded.n_samples) == (2, 1, 0)


NAMED = put_bytes(1, put_bytes(1, b"__name__") + put_bytes(2, b"x"))


@pytest.mark.parametrize(
    ("decode", "body", "error", "words"),
    [
        (rw.decode_v1, b"\x0a\x00" * 4_000_000, rw.TooLarge, "50000 series"),
        (rw.decode_v1, put_bytes(1, b"\x12\x00" * 4_000_000), rw.TooLarge, "100000 samples"),
        (rw.decode_v1, put_bytes(1, b"\x0a\x00" * 1_000_000), DecodeError, "128 labels"),
        (
            rw.decode_v1,
            put_bytes(1, b"\x12\x00" + b"\x0a\x00" * 1_000_000),
            DecodeError,
            "128 labels",
        ),
        (rw.decode_v2, b"\x22\x00" * 4_000_000, rw.TooLarge, "200000 symbols"),
        (rw.decode_v2, b"\x22\x00" + b"\x2a\x00" * 4_000_000, rw.TooLarge, "50000 series"),
        (
            rw.decode_v2,
            b"\x22\x00" + put_bytes(5, put_bytes(1, b"\0" * 2_000_000)),
            DecodeError,
            "128 labels",
        ),
        (
            rw.decode_v2,
            b"\x22\x00" + put_bytes(5, b"\x08\x00" * 2_000_000),
            DecodeError,
            "128 labels",
        ),
    ],
    ids=["series", "samples", "labels", "labels behind", "symbols", "series 2", "refs", "refs 2"],
)
def test_a_bomb_is_refused_with_flat_memory(
    decode: Callable[[bytes], rw.Decoded], body: bytes, error: type[Exception], words: str
) -> None:
    tracemalloc.start()
    with pytest.raises(error, match=words):
        decode(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000_000


def test_a_snappy_bomb_is_refused_by_the_size_it_states() -> None:
    bomb = bytes(cramjam.snappy.compress_raw(b"\0" * 50_000_000))
    with pytest.raises(rw.TooLarge, match="larger than 1000000 bytes"):
        rw.unsnap(bomb, 1_000_000)
    lie = put_varint(10) + bomb[4:]
    with pytest.raises(DecodeError, match="not a snappy block"):
        rw.unsnap(lie, 1_000_000)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([], "without a name"),
        ([("__name__", "x"), ("a", "1"), ("a", "2")], "given twice"),
        ([("__name__", "x"), ("a", "v" * 3000)], "'a' is longer"),
    ],
)
def test_labels_that_cannot_be_meant_are_refused(labels: list[tuple[str, str]], words: str) -> None:
    block = b"".join(
        put_bytes(1, put_bytes(1, k.encode()) + put_bytes(2, v.encode())) for k, v in labels
    )
    with pytest.raises(DecodeError, match=words):
        rw.labels_v1(block)


def test_references_that_lead_nowhere_are_refused() -> None:
    series = put_bytes(5, put_bytes(1, b"\x01\x07"))
    with pytest.raises(DecodeError, match="beyond the 2 symbols"):
        rw.decode_v2(b"\x22\x00" + put_bytes(4, b"a") + series)
    with pytest.raises(DecodeError, match="in pairs"):
        rw.decode_v2(b"\x22\x00" + put_bytes(5, put_bytes(1, b"\x00")))
    with pytest.raises(DecodeError, match="must be the empty text"):
        rw.decode_v2(put_bytes(4, b"a") + put_bytes(5, put_bytes(1, b"\x00\x00")))


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back_from_varints(number: int) -> None:
    encoded = put_varint(number)
    assert (signed(varint(encoded, 0)[0]), varint(encoded, 0)[1]) == (number, len(encoded))


@given(st.binary(max_size=300), st.sampled_from([rw.decode_v1, rw.decode_v2]))
def test_any_bytes_are_read_or_refused(body: bytes, decode: Callable[[bytes], rw.Decoded]) -> None:
    try:
        for series in decode(body).series:
            if isinstance(series.labels, bytes):
                rw.labels_v1(series.labels)
    except (DecodeError, rw.TooLarge):
        pass


@given(st.data())
def test_a_damaged_request_is_read_or_refused(data: st.DataObject) -> None:
    body = bytearray(bodies.v2([({"__name__": "x", **LABELS}, [(1.0, AT_MS)])] * 3))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError, rw.TooLarge):
        rw.decode_v2(bytes(body))
