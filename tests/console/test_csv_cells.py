"""CSV cells: whatever a stranger called a thing, a spreadsheet must not run it."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.utils.translation import gettext_lazy

from console.csv_cells import file_name, neutral, stream


@pytest.mark.parametrize(
    "text",
    [
        *("=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\nx", "\tx"),
        *("  =1", "\u00a0=1", "\u200b=1", "\ufeff=1", '"=1', "'=1", "\u201c=1", " ' =1", "`=1"),
        *("＝1", "＋1", "－1", "＠x", "﹦1", "\N{MINUS SIGN}5"),
        *("-5 req/s", "-", "=", "--5", "-5-5"),
        *("=HYPERLINK(\"http://x\")", "-٣"),
    ],
)  # fmt: skip
def test_a_text_that_could_run_is_inert(text: str) -> None:
    assert neutral(text) == f"'{text}"


@pytest.mark.parametrize(
    "text",
    ["pd/h20-1", "prfaas->pd", "a=b", "", "2026-11-30", "한국어", "-5", "-0.5", "1e-3"],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert neutral(text) == text


@pytest.mark.parametrize("number", [-5, -5.25, 0, 1e300, Decimal("-1.50")])
def test_true_numbers_stay_numbers(number: Any) -> None:
    assert neutral(number) == number
    assert not isinstance(neutral(number), str)


def test_what_was_not_measured_is_empty_and_never_zero() -> None:
    assert [neutral(v) for v in (None, float("nan"), float("inf"))] == ["", "", ""]


def test_moments_flags_and_words_are_text() -> None:
    assert neutral(datetime(2026, 1, 31, 14, 5, tzinfo=UTC)) == "2026-01-31T14:05:00+00:00"
    assert neutral(True) == "true"
    assert neutral(gettext_lazy("=words")) == "'=words"


def read(body: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(body.decode(), newline="")))


def test_a_table_survives_hostile_names() -> None:
    rows = [("=1+1", -5, 'a "quoted", name\n=2'), ("@note", None, "x" * 300)]
    answer = stream(rows, ("name", "value", "@note"), "f1 signals")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == 'attachment; filename="f1-signals.csv"'
    assert read(b"".join(answer)) == [
        ["name", "value", "'@note"],
        ["'=1+1", "-5", 'a "quoted", name\n=2'],
        ["'@note", "", "x" * 300],
    ]


def test_a_large_table_is_sent_while_it_is_read() -> None:
    taken = 0

    def rows() -> Iterator[tuple[int]]:
        nonlocal taken
        for i in range(5000):
            taken += 1
            yield (i,)

    parts = iter(stream(rows(), ("n",), "n"))
    next(parts)
    next(parts)
    assert taken == 500
    assert len(read(b"".join(parts))) == 4500


def test_an_async_server_gets_it_part_by_part() -> None:
    async def parts() -> list[bytes]:
        return [part async for part in stream(((i,) for i in range(1200)), ("n",), "n")]

    found = asyncio.run(parts())
    assert len(found) == 4
    assert len(read(b"".join(found))) == 1201


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("instances-f1", "instances-f1.csv"),
        ("f1.csv", "f1.csv"),
        ('../../etc/"x"\r\nSet-Cookie: a', "etc-x-Set-Cookie-a.csv"),
        ("한국어", "export.csv"),
        ("x" * 300, "x" * 100 + ".csv"),
    ],
)
def test_a_file_name_is_plain(name: str, safe: str) -> None:
    assert file_name(name) == safe
