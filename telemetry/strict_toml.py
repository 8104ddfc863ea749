"""A TOML file as a msgspec struct, or an error that names the file, the key and the value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class TomlError(ValueError):
    """A file that cannot be used. `key` is a dotted path, `value` what stood there."""

    def __init__(self, file: Path, key: str, value: Any, why: str) -> None:
        super().__init__(f"{file}: {key}={value!r}: {why}" if key else f"{file}: {why}")
        self.file, self.key, self.value = file, key, value


def read(path: Path, kind: type[T]) -> T:
    """The file at `path` as `kind`. Raises TomlError."""
    return convert(path, document(path), kind)


def document(path: Path) -> dict[str, Any]:
    """The file at `path` as plain values. Raises TomlError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise TomlError(path, "", None, exc.strerror or str(exc)) from None
    except ValueError as exc:
        raise TomlError(path, "", None, f"not valid TOML: {exc}") from None


def convert(path: Path, document: dict[str, Any], kind: type[T], *, at: str = "") -> T:
    """`document`, found in the file under the key `at`, as `kind`. Raises TomlError."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as exc:
        why, _, steps = str(exc).partition(" - at `$")
        steps = steps.rstrip("`")
        unknown = _UNKNOWN.search(why)
        if unknown is not None:
            steps += f".{unknown[1]}"
            why = "unknown key"
        key = ".".join(part for part in (at, steps.lstrip(".")) if part)
        raise TomlError(path, key, _value_at(document, steps), why) from None


def _value_at(document: Any, steps: str) -> Any:
    for step in _STEP.finditer(steps):
        name, index = step.groups()
        try:
            document = document[name] if name is not None else document[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return document
