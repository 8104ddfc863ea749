"""The strict reader of a scenario's tables: every key is known, every value is checked.

A misspelt limit would be a limit that silently does not hold, so an unknown key is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_LARGEST = 1e300
"""Beyond it products of two values of a scenario would not be finite."""


class ScenarioError(ValueError):
    """A description that cannot be meant. `field` is a dotted path, `value` what stood there."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


class Table:
    """One table of the document. A key that is not `known` is refused; None: any name goes."""

    def __init__(self, data: Any, path: str, *, known: Sequence[str] | None) -> None:
        if not isinstance(data, dict):
            raise ScenarioError(path or "scenario", data, "must be a table")
        self.data, self.path = data, path
        for key in data:
            if known is not None and key not in known:
                raise self.error(key, f"is not a known key (known: {', '.join(known)})")

    @property
    def names(self) -> list[str]:
        return list(self.data)

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, message: str) -> ScenarioError:
        return ScenarioError(self.at(key), self.data.get(key), message)

    def take(self, key: str, *default: Any) -> Any:
        if key in self.data:
            return self.data[key]
        if default:
            return default[0]
        raise ScenarioError(self.at(key), None, "is missing")

    def table(self, key: str, known: Sequence[str] | None, *, optional: bool = False) -> Table:
        return Table(self.take(key, *([{}] if optional else [])), self.at(key), known=known)

    def tables(self, key: str, known: Sequence[str], *, optional: bool = False) -> list[Table]:
        items = self.take(key, *([[]] if optional else []))
        if not isinstance(items, list):
            raise self.error(key, "must be a list of tables")
        return [Table(item, f"{self.at(key)}[{i}]", known=known) for i, item in enumerate(items)]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, "must be a text that is not empty")
        return value

    def number(self, key: str, *default: float, low: float, inclusive: bool = False) -> float:
        value = self.take(key, *default)
        if not is_number(value):
            raise self.error(key, "must be a finite number")
        if value < low or (value == low and not inclusive):
            raise self.error(key, f"must be {'at least' if inclusive else 'above'} {low:g}")
        return float(value)

    def count(self, key: str, *default: int, low: int) -> int:
        value = self.take(key, *default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.error(key, f"must be a whole number, at least {low}")
        return value

    def ratio(self, key: str) -> float:
        value = self.number(key, low=0)
        if value > 1.0:
            raise self.error(key, "must be at most 1")
        return value

    def one_of(self, key: str, words: Sequence[str]) -> str:
        value = self.take(key)
        if value not in words:
            raise self.error(key, f"must be {' or '.join(words)}")
        return str(value)

    def flag(self, key: str) -> bool:
        value = self.take(key, False)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def pairs(self, key: str) -> list[tuple[float, float]]:
        return [(a, b) for a, b in self.rows(key, 2)]

    def rows(self, key: str, width: int) -> list[tuple[float, ...]]:
        """A list of rows of `width` numbers each."""
        form = f"[{', '.join(['number'] * width)}]"
        rows = self.take(key)
        if not isinstance(rows, list):
            raise self.error(key, f"must be a list of {form}")
        for i, row in enumerate(rows):
            if not _are_numbers(row, width):
                raise ScenarioError(f"{self.at(key)}[{i}]", row, f"must be {form}")
        return [tuple(map(float, row)) for row in rows]

    def numbers(self, key: str, width: int) -> tuple[float, ...]:
        row = self.take(key)
        if not _are_numbers(row, width):
            raise self.error(key, f"must be a list of {width} finite numbers")
        return tuple(map(float, row))


def is_number(value: Any) -> bool:
    # Compared before it is made a float: a whole number may be larger than any.
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -_LARGEST < value < _LARGEST


def _are_numbers(row: Any, width: int) -> bool:
    return isinstance(row, list) and len(row) == width and all(map(is_number, row))
