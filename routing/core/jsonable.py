"""Core values as plain JSON and back."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

from routing.core.types import Memory

T = TypeVar("T")


def to_jsonable(value: Any) -> Any:
    """Plain dicts and lists of a core value.

    A memory is for the core alone: what is at its default in it is left out, or the memories of
    some hundred links that never had trouble would be most of a tick's row.
    """
    if isinstance(value, Memory):
        return _without_defaults(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {k: to_jsonable(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_jsonable(v) for v in value]
    return value


def _without_defaults(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _without_defaults(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if getattr(value, f.name) != _default(f)
        }
    if isinstance(value, dict):
        return {k: _without_defaults(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_without_defaults(v) for v in value]
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def from_jsonable(cls: type[T], value: Any) -> T:
    """The core value `to_jsonable` came from. Raises TypeError on an unknown or missing field."""
    built: T = _build(cls, value)
    return built


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    # Evaluating the annotations costs more than reading the values.
    return typing.get_type_hints(kind)


@functools.cache
def _shape(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


_PLAIN = frozenset({float, int, str, bool})
"""Read as they are: most of what is stored are long rows of such."""


def _build(kind: Any, value: Any) -> Any:
    if kind in _PLAIN:
        return value
    origin, args = _shape(kind)
    if origin is typing.Union or origin is types.UnionType:
        if value is None:
            return None
        return _build(next(a for a in args if a is not type(None)), value)
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(Any, kind))
        unknown = value.keys() - hints.keys()
        if unknown:
            raise TypeError(f"{kind!r} has no field {sorted(unknown)[0]!r}")
        return kind(**{k: _build(hints[k], v) for k, v in value.items()})  # type: ignore[operator]
    if origin is dict:
        if args[1] in _PLAIN:
            return dict(value)
        return {k: _build(args[1], v) for k, v in value.items()}
    if origin is tuple:
        if args[-1:] == (Ellipsis,) and args[0] in _PLAIN:
            return tuple(value)
        items = args[:1] * len(value) if args[-1:] == (Ellipsis,) else args
        return tuple(_build(a, v) for a, v in zip(items, value, strict=True))
    return value
