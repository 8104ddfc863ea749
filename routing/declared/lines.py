"""On which line of a document's text something stands, so that what is wrong is found at once.

Pure, and only of a text that a strict reader has read: what these cannot follow has no line.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

import yaml

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_BETWEEN: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'",
    re.DOTALL,
)
_WORD: Final = re.compile(r"[^,\]}\n#]+")


def lines_of(text: str, format_: str) -> dict[str, int]:
    """The line of each path in a text of one of `text.FORMATS`, counted from 1."""
    found: dict[str, int] = {}
    readers: dict[str, Callable[[str], Iterator[tuple[str, int]]]] = {
        "toml": lambda text: _Toml(text).paths(),
        "json": lambda text: _Json(text).value(""),
        "yaml": _yaml,
    }
    try:
        for path, line in readers[format_](text.replace("\r\n", "\n")):
            found.setdefault(path, line)
    except (LookupError, ValueError, RecursionError, StopIteration, yaml.YAMLError):
        pass  # what was found so far is right
    return found


def line_of(path: str, lines: dict[str, int]) -> int | None:
    """The line of a path, or of the table that it is missing in."""
    while path:
        if path in lines:
            return lines[path]
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return None


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _yaml(text: str) -> Iterator[tuple[str, int]]:
    events = iter(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield from _node(next(events), events, "")


def _node(event: Any, events: Iterator[Any], path: str) -> Iterator[tuple[str, int]]:
    if isinstance(event, yaml.MappingStartEvent):
        while not isinstance(key := next(events), yaml.MappingEndEvent):
            at = _below(path, key.value)
            yield at, key.start_mark.line + 1
            yield from _node(next(events), events, at)
    elif isinstance(event, yaml.SequenceStartEvent):
        i = 0
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            at = f"{path}[{i}]"
            yield at, item.start_mark.line + 1
            yield from _node(item, events, at)
            i += 1


class _Text:
    """A text that is known to be right, and how far it is read."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._ends = [match.start() for match in re.finditer("\n", text)]

    def _line(self) -> int:
        return bisect_right(self._ends, self._at - 1) + 1

    def _next(self) -> str:
        """The next character that means something; empty at the end."""
        self._skip(_BETWEEN)
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise ValueError(f"nothing known at {self._at}")
        self._at = match.end()
        return match.group()

    def _comma(self) -> None:
        if self._next() == ",":
            self._at += 1


class _Json(_Text):
    def value(self, path: str) -> Iterator[tuple[str, int]]:
        first = self._next()
        if first in ("{", "["):
            self._at += 1
            i = 0
            while self._next() not in ("}", "]"):
                line = self._line()
                at = f"{path}[{i}]" if first == "[" else _below(path, self._key())
                yield at, line
                yield from self.value(at)
                self._comma()
                i += 1
            self._at += 1
        elif first == '"':
            self._skip(_STRING)
        else:
            self._skip(_WORD)

    def _key(self) -> str:
        key: str = json.loads(self._skip(_STRING))
        self._next()
        self._at += 1  # the colon
        return key


class _Toml(_Text):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._n_of: dict[str, int] = {}

    def paths(self) -> Iterator[tuple[str, int]]:
        table = ""
        while self._next():
            if self._text.startswith("[", self._at):
                line = self._line()
                names = list(self._header(self._text.startswith("[[", self._at)))
                yield from ((name, line) for name in names)
                table = names[-1]
            else:
                yield from self._pair(table)

    def _keys(self) -> Iterator[str]:
        while True:
            if self._next() in ('"', "'"):
                yield str(tomllib.loads(f"key = {self._skip(_STRING)}")["key"])
            else:
                yield self._skip(_BARE)
            if self._next() != ".":
                return
            self._at += 1

    def _header(self, is_list: bool) -> Iterator[str]:
        """The paths of a table's name, from the outermost; of a list of tables its newest one."""
        self._at += 1 + is_list
        path = ""
        keys = list(self._keys())
        for i, key in enumerate(keys):
            path = _below(path, key)
            if is_list and i == len(keys) - 1:
                self._n_of[path] = self._n_of.get(path, 0) + 1
                yield path
            if path in self._n_of:
                path += f"[{self._n_of[path] - 1}]"
            yield path
        self._at += 1 + is_list

    def _pair(self, table: str) -> Iterator[tuple[str, int]]:
        line, path = self._line(), table
        for key in self._keys():
            path = _below(path, key)
            yield path, line
        self._at += 1  # the sign of equality
        yield from self._value(path)

    def _value(self, path: str) -> Iterator[tuple[str, int]]:
        first = self._next()
        if first in ('"', "'"):
            self._skip(_STRING)
        elif first == "[":
            self._at += 1
            i = 0
            while self._next() != "]":
                at = f"{path}[{i}]"
                yield at, self._line()
                yield from self._value(at)
                self._comma()
                i += 1
            self._at += 1
        elif first == "{":
            self._at += 1
            while self._next() != "}":
                yield from self._pair(path)
                self._comma()
            self._at += 1
        else:
            self._skip(_WORD)
