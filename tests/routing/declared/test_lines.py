"""Where something stands in a document's text: exactly there, in every format."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.declared.lines import line_of, lines_of
from routing.declared.text import FORMATS, Format, Unreadable, read, write
from tests.routing.declared.test_text import TEXTS

# YAML writes longer ones, each sign of them as ten, over several lines.
KEYS = TEXTS.filter(lambda key: len(key) <= 10)
SHAPES = st.recursive(
    st.none(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=15,
)
HAND_WRITTEN = '''
# [not.a.table]
version = 1 # = 2
"quoted [key]" . 'and # this' = """
[neither.this]
x = 1 \\""" [a]
"""
[fleets.f1.fleet] # comment
slo.ttft_s = 1.0
many = [ # [x]
  1, "]",
  { a = 1, b = [2,
    3] },
]
[[fleets.f1.clusters]]
name = \'\'\'
[a]\'\'\'
[fleets.f1.clusters.start]
n_prefill = 3
[[fleets.f1.clusters]]
name = "two"
[[fleets.f1.clusters.deep]]
x = -inf
[fleets.f1.clusters.deep.er]
y = 2026-12-01 08:00:00
'''


def filled(shape: Any, numbers: Iterator[int]) -> Any:
    """The shape with a text of its own for each value."""
    if isinstance(shape, dict):
        return {key: filled(inner, numbers) for key, inner in shape.items()}
    if isinstance(shape, list):
        return [filled(inner, numbers) for inner in shape]
    return f"value-{next(numbers)}-"


def paths(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each path and what is there, tables and lists among them."""
    yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from paths(inner, f"{path}[{i}]")


@pytest.mark.parametrize("format_", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=st.dictionaries(KEYS, SHAPES, max_size=4))
def test_each_value_is_on_its_line(format_: Format, shape: dict[str, Any]) -> None:
    tables = filled(shape, count())
    text = write(tables, format_).decode()
    found, rows = lines_of(text, format_), text.split("\n")
    known = list(paths(tables))
    for path, value in known:
        # Two paths may read alike where keys hold dots or brackets: then the first counts.
        is_only = [other for other, _ in known].count(path) == 1
        if is_only and path and isinstance(value, str):
            line = line_of(path, found) or 0
            # An empty key of YAML has a line of its own.
            assert value in "".join(rows[line - 1 : line + (format_ == "yaml")])


def test_what_people_write_by_hand_is_followed() -> None:
    assert len(tomllib.loads(HAND_WRITTEN)) == 3
    found = lines_of(HAND_WRITTEN, "toml")
    assert {path: found[path] for path in (
        *("version", "quoted [key].and # this", "fleets.f1", "fleets.f1.fleet.slo.ttft_s"),
        *("fleets.f1.fleet.many", "fleets.f1.fleet.many[1]", "fleets.f1.fleet.many[2].b[1]"),
        *("fleets.f1.clusters[0].name", "fleets.f1.clusters[0].start.n_prefill"),
        *("fleets.f1.clusters[1].name", "fleets.f1.clusters[1].deep[0].x"),
        "fleets.f1.clusters[1].deep[0].er.y",
    )} == {
        "version": 3, "quoted [key].and # this": 4, "fleets.f1": 8,
        "fleets.f1.fleet.slo.ttft_s": 9, "fleets.f1.fleet.many": 10,
        "fleets.f1.fleet.many[1]": 11, "fleets.f1.fleet.many[2].b[1]": 13,
        "fleets.f1.clusters[0].name": 16, "fleets.f1.clusters[0].start.n_prefill": 19,
        "fleets.f1.clusters[1].name": 21, "fleets.f1.clusters[1].deep[0].x": 23,
        "fleets.f1.clusters[1].deep[0].er.y": 25,
    }  # fmt: skip
    assert lines_of(HAND_WRITTEN.replace("\n", "\r\n"), "toml") == found
    assert lines_of(HAND_WRITTEN + "\n= nothing that was read", "toml") == found


def test_what_is_missing_is_of_the_table_it_is_missing_in() -> None:
    found = lines_of("jobs:\n  a:\n    do: {kind: mode}\n", "yaml")
    assert [line_of(path, found) for path in ("jobs.a.do.mode", "jobs.a.when.at", "x")] == [
        *(3, 2, None),
    ]


@pytest.mark.parametrize(
    ("text", "format_", "line"),
    [
        ("a = 1\nb = ", "toml", 2),
        ("a = 1\na = 2\n", "toml", 2),
        ("a = 1\nb = [\n", "toml", 3),
        ('{\n"a": 1,\n}', "json", 3),
        ("a: 1\nb: [\n", "yaml", 3),
        ("a: 1\na: 2\n", "yaml", 2),
        ("a: 1\nb:\n  c: .inf\nd: &x 1\n", "yaml", 4),
        ("version: 1\njobs:\n  a: 1.0e999\n", "yaml", 3),
        ("[jobs]\nat = 2026-12-01\n", "toml", 2),
        ('{"a":\n {"b":\n "\\u0000"}}', "json", 2),
    ],
    ids=str,
)
def test_what_cannot_be_read_says_its_line(text: str, format_: Format, line: int | None) -> None:
    with pytest.raises(Unreadable) as refused:
        read(text.encode(), format_)
    assert refused.value.line == line
