"""One document in three formats: read as it looks or refused, and written in one way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.declared.diff import changes, differences
from routing.declared.text import FORMATS, MAX_DEPTH, Format, Unreadable, plain, read, write

TEXTS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20
) | st.sampled_from(
    ["no", "on", "08:00", "1e5", "0x1F", "012", "1_000", "null", "~", "", "true", "2026-12-01", "=",
     "<<", "&a", "*a", "!x", "- a", "a: b", "'", '"', "# no", " lead", "190:20:30", ".inf", "+1."],
)  # fmt: skip
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(
    allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300
)
VALUES = st.recursive(
    TEXTS | NUMBERS | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
TABLES = st.dictionaries(TEXTS, VALUES, max_size=5)


@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables=TABLES)
def test_what_is_written_reads_as_it_was_and_is_written_the_same(
    format_: Format, tables: dict[str, Any]
) -> None:
    raw = write(tables, format_)
    back = read(raw, format_)
    assert back == tables
    assert write(back, format_) == raw
    assert list(differences(tables, back)) == []


@settings(max_examples=40, deadline=None)
@given(
    before=st.dictionaries(TEXTS, TABLES, max_size=3),
    after=st.dictionaries(TEXTS, TABLES, max_size=3),
)
def test_a_difference_is_told_exactly_where_there_is_one(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = changes({"jobs": after}, {"jobs": before}, prune=True)
    assert (found == []) == (before == after)
    for change in found:
        if change.action == "change":
            assert change.differences


YAML_AS_IT_LOOKS = [
    ("a: no", "no"),
    ("a: on", "on"),
    ("a: 08:00", "08:00"),
    ("a: 190:20:30", "190:20:30"),
    ("a: 2026-12-01", "2026-12-01"),
    ("a: 012", "012"),
    ("a: 0x1F", "0x1F"),
    ("a: 1_000", "1_000"),
    ("a: true", True),
    ("a: 1e3", 1000.0),
    ("a: -7", -7),
    ("a: 'true'", "true"),
    ("a:", None),
    ("a: ~", None),
    ("a: |\n  two\n  lines\n", "two\nlines\n"),
]


@pytest.mark.parametrize(("text", "value"), YAML_AS_IT_LOOKS, ids=lambda v: str(v)[:20])
def test_yaml_is_read_as_it_looks(text: str, value: Any) -> None:
    found = read(text.encode(), "yaml")["a"]
    assert (found, type(found)) == (value, type(value))


def test_the_keys_of_yaml_are_texts() -> None:
    assert read(b"on: {no: 1}\n8: 2", "yaml") == {"on": {"no": 1}, "8": 2}


BAD: list[tuple[Format, bytes, str]] = [
    ("yaml", b"a: 1\na: 2", "line 2"),
    ("yaml", b"a: &x 1\nb: *x", "line 1"),
    ("yaml", b"*x : 1", "line 1"),
    ("yaml", b"a: !!python/object/apply:os.system ['true']", "line 1"),
    ("yaml", b"a: !!int '3'", "line 1"),
    ("yaml", b"? [1, 2]\n: 3", "line 1"),
    ("yaml", b"a: [1, 2", "line"),
    ("yaml", b"a: 1\n---\nb: 2", "line 2"),
    ("yaml", b"- 1", "document"),
    ("yaml", b"a: 1e999", "a"),
    ("yaml", b"a: " + b"[" * 100_000, "line"),
    ("yaml", b"a: \x01", "document"),
    ("yaml", b"a: \xff", "document"),
    ("json", b'{"a": 1, "a": 2}', "document"),
    ("json", b'{"a": NaN}', "document"),
    ("json", b'{"a": 1e999}', "a"),
    ("json", b'{"a": "\\u0000"}', "a"),
    ("json", b'{"a": {"\\ud800": 1}}', "a.\ud800"),
    ("json", b"[" * 100_000, "document"),
    ("json", b'{"a": ' + b"9" * 5000 + b"}", "document"),
    ("json", b"[]", "document"),
    ("json", b"", "document"),
    ("toml", b"a = 1\na = 2", "document"),
    ("toml", b"a = 2026-12-01", "a"),
    ("toml", b"a = [{b = 08:00:00}]", "a[0].b"),
    ("toml", b"a = inf", "a"),
    ("toml", b"a = " + b"[" * 100_000, "document"),
    ("toml", b".".join([b"a"] * 60) + b" = 1", "a." * (MAX_DEPTH - 1) + "a"),
    ("toml", b"\x00", "document"),
]


@pytest.mark.parametrize(("format_", "raw", "where"), BAD, ids=lambda v: str(v)[:40])
def test_what_would_be_misread_is_refused(format_: Format, raw: bytes, where: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read(raw, format_)
    assert refused.value.where.startswith(where)


def test_a_document_that_is_too_large_is_refused() -> None:
    with pytest.raises(Unreadable, match="4 MiB"):
        read(b"# " + b"x" * 5_000_000, "toml")


def test_aliases_that_would_grow_without_end_are_not_followed() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(Unreadable, match="anchors"):
        read(bomb.encode(), "yaml")


def test_plain_values_fit_all_three_formats() -> None:
    assert plain({"a": None, "b": [None, {"c": None}], "d": 10**20, "e": 0}) == {
        "b": [None, {}],
        "d": 1e20,
        "e": 0,
    }
