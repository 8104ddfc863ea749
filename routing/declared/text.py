"""One document as TOML, YAML or JSON: read strictly, written so that the same state has one text.

What a format would read otherwise than it looks is refused: a key twice, anchors and tags of YAML,
not a number. Of YAML only `true`, `false`, `null` and decimal numbers are more than texts, so `no`,
`on` and `08:00` are the texts they look like.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NoReturn

import tomli_w
import yaml

from routing.declared.lines import line_of, lines_of

Format = Literal["toml", "yaml", "json"]
FORMATS: Final[tuple[Format, ...]] = ("toml", "yaml", "json")
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 40
_LARGEST_WHOLE: Final = 2**53
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")
_TOML_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)$")
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final[dict[str, Any]] = {
    **{word: True for word in ("true", "True", "TRUE")},
    **{word: False for word in ("false", "False", "FALSE")},
    **{word: None for word in ("null", "Null", "NULL", "~", "")},
}


class Unreadable(ValueError):
    """A document that cannot be read: where, as a path or `line N`, and why. `line` is None where
    only the path is known."""

    def __init__(self, where: str, value: Any, message: str, line: int | None = None) -> None:
        super().__init__(f"{where}: {message}")
        self.where, self.value, self.message, self.line = where, value, message, line


def read(raw: bytes, format_: Format) -> dict[str, Any]:
    """The tables of a document. Raises Unreadable."""
    if len(raw) > MAX_BYTES:
        raise Unreadable("document", len(raw), f"has more than {MAX_BYTES // 2**20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise Unreadable("document", None, f"is not UTF-8: {exc.reason}") from None
    readers: dict[Format, Callable[[str], Any]] = {
        "toml": _read_toml,
        "yaml": _read_yaml,
        "json": _read_json,
    }
    try:
        found = readers[format_](text)
    except RecursionError:
        raise Unreadable("document", None, "is nested too deeply") from None
    if not isinstance(found, dict):
        raise Unreadable("document", None, "must be a table")
    try:
        _check(found)
    except Unreadable as exc:
        line = line_of(exc.where, lines_of(text, format_))
        raise Unreadable(exc.where, exc.value, exc.message, line) from None
    return found


def write(tables: dict[str, Any], format_: Format) -> bytes:
    """The one text of these tables, which are `plain`, with keys in order."""
    if format_ == "toml":
        return tomli_w.dumps(_in_order(tables)).encode()
    if format_ == "json":
        return (
            json.dumps(tables, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()
    text: str = yaml.dump(
        tables, Dumper=_Dumper, sort_keys=True, allow_unicode=True, default_flow_style=False
    )
    return text.encode()


def plain(value: Any) -> Any:
    """A value as all formats and the database say it alike: without nulls in tables, and with whole
    numbers that a float may not hold exactly as floats."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, int) and abs(value) > _LARGEST_WHOLE:
        return float(value)
    return value


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(inner) for inner in value] if isinstance(value, list) else value


def _check(root: dict[str, Any]) -> None:
    """Raises Unreadable for what cannot be kept or said in the other formats."""
    waiting: list[tuple[str, int, Any]] = [("", 0, root)]
    while waiting:
        path, depth, value = waiting.pop()
        if isinstance(value, dict | list):
            if depth >= MAX_DEPTH:
                raise Unreadable(path or "document", None, "is nested too deeply")
            waiting += [(at, depth + 1, inner) for at, inner in _inside(path, value)]
            continue
        wrong = _why_not(value)
        if wrong:
            raise Unreadable(path, value, wrong)


def _inside(path: str, value: dict[Any, Any] | list[Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        yield from ((f"{path}[{i}]", inner) for i, inner in enumerate(value))
        return
    for key, inner in value.items():
        at = f"{path}.{key}" if path else key
        wrong = _why_not(key)
        if wrong:
            raise Unreadable(at, key, f"its name {wrong}")
        yield at, inner


def _why_not(value: Any) -> str:
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            return "holds a character that cannot be kept"
        return ""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, int | float):
        finite = math.isfinite(value) if isinstance(value, float) else abs(value) < 10**300
        return "" if finite else "must be a finite number"
    return "is a date or a time of TOML: write it as a text, in quotes"


def _read_toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except ValueError as exc:
        at = _TOML_LINE.search(str(exc))
        line = int(at[1]) if at else text.count("\n") + 1  # it is "at end of document"
        raise Unreadable("document", None, f"is not TOML: {exc}", line) from None


def _read_json(text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise Unreadable("document", twice, f"has the key {twice!r} twice in one table")
        return found

    def no_number(word: str) -> NoReturn:
        raise Unreadable("document", word, f"{word} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=no_number)
    except Unreadable:
        raise
    except ValueError as exc:
        line = exc.lineno if isinstance(exc, json.JSONDecodeError) else None
        raise Unreadable("document", None, f"is not JSON: {exc}", line) from None


def _read_yaml(text: str) -> Any:
    try:
        return _Yaml(text).document()
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = mark.line + 1 if mark else None
        where = "document" if line is None else f"line {line}"
        why = getattr(exc, "problem", None) or "holds what may not be in it"
        raise Unreadable(where, None, f"is not YAML: {why}", line) from None
    except ValueError as exc:
        if isinstance(exc, Unreadable):
            raise
        raise Unreadable("document", None, f"is not YAML: {exc}") from None


class _Yaml:
    """Builds tables out of the events of one YAML document."""

    def __init__(self, text: str) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._events = iter(yaml.parse(text, Loader=loader))

    def document(self) -> Any:
        found: Any = {}
        n_documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                n_documents += 1
                if n_documents > 1:
                    raise self._wrong(event, "holds more than one document")
                found = self._node(next(self._events), 0)
        return found

    def _node(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise self._wrong(event, "anchors and aliases are not read: write it out")
        if getattr(event, "tag", None) not in (None, "!"):
            raise self._wrong(event, f"the tag {event.tag} is not read")
        if depth > MAX_DEPTH:
            raise self._wrong(event, "is nested too deeply")
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style else _scalar(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(depth)
        return self._table(depth)

    def _list(self, depth: int) -> list[Any]:
        found = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self._node(event, depth + 1))
        return found

    def _table(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
                raise self._wrong(event, "a key must be a text, without anchor and tag")
            if event.value in found:
                raise self._wrong(event, f"has the key {event.value!r} twice in one table")
            found[event.value] = self._node(next(self._events), depth + 1)
        return found

    def _wrong(self, event: Any, message: str) -> Unreadable:
        line = event.start_mark.line + 1
        return Unreadable(f"line {line}", None, message, line)


def _scalar(text: str) -> Any:
    """What a text without quotes stands for."""
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text)
    return float(text) if _FRACTION.fullmatch(text) else text


class _Dumper(yaml.SafeDumper):
    """Quotes whatever any reader of YAML, ours among them, would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.Node:
    """Whatever breaks lines, or is not seen, is escaped."""
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FRACTION, list("-+.0123456789"))
