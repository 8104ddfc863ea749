"""A scenario's file, and the files it names, read from beside it."""

from __future__ import annotations

import gzip
import tomllib
import zlib
from pathlib import Path
from typing import Any

from routing.core.scenario.inline import inlined
from routing.core.scenario.profile_files import FileError


def read_document(path: Path) -> dict[str, Any]:
    """The document in a TOML file, with what its files say in their place.

    Raises FileError where it cannot be read, ScenarioError where a file that it names cannot.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise FileError(exc.strerror or str(exc)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise FileError(f"is not TOML: {exc}") from None
    return inline_files(document, beside=path.parent)


def inline_files(document: dict[str, Any], *, beside: Path) -> dict[str, Any]:
    """`document` with what its files say in their place; their paths are relative to `beside`.

    Raises ScenarioError. Only for documents of whoever may read files here: never for one that
    came over the network.
    """
    return inlined(document, lambda name: _text(beside / name))


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, EOFError, zlib.error) as exc:
        raise FileError(f"cannot be read: {getattr(exc, 'strerror', None) or exc}") from None
    except UnicodeDecodeError as exc:
        raise FileError(f"is not text: {exc}") from None
