"""The one error a person's input can cause in the lab: which file, which field, which value."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class LabError(ValueError):
    """Bad input. `source` is a file (with a line, for traces), `field` a dotted path."""

    def __init__(
        self, message: str, *, source: str = "", field: str = "", value: Any = None
    ) -> None:
        where = ": ".join(part for part in (source, field) if part)
        shown = "" if value is None else f" (got {value!r})"
        super().__init__(f"{where}: {message}{shown}" if where else f"{message}{shown}")
        self.message, self.source, self.field, self.value = message, source, field, value


def read_toml(path: Path, kind: type[T]) -> T:
    """The TOML file as a checked `kind`. Raises LabError; an unknown key is named."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise LabError(f"cannot be read: {exc.strerror}", source=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise LabError(f"is not valid TOML: {exc}", source=str(path)) from None
    return convert(document, kind, source=str(path))


def convert(document: Any, kind: type[T], *, source: str) -> T:
    """A checked `kind` out of plain values. Raises LabError naming the field."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as exc:
        message, _, path = str(exc).partition(" - at `$")
        raise LabError(message, source=source, field=path.rstrip("`").lstrip(".")) from None
