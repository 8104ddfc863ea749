"""The strict reader of a scenario's tables: every key is known, every value is checked.

A misspelt limit would be a limit that silently does not hold, so an unknown key is an error. What
reads stops at the first error; under `every_error` it notes it and reads on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
_noted: ContextVar[list[ScenarioError] | None] = ContextVar("noted", default=None)
_LARGEST = 1e30
"""Beyond it no number of a scenario means anything, and products of several would not be finite."""
_UNKNOWN = "is not a known key"


class ScenarioError(ValueError):
    """A description that cannot be meant. `field` is a dotted path, `value` what stood there."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


def every_error(read: Callable[[], T]) -> tuple[T | None, list[ScenarioError]]:
    """What `read` reads, None where anything is wrong; and all that is wrong, not only the first.

    Where a value cannot be meant a stand-in is read on with, and what depends on it is not said.
    """
    noted: list[ScenarioError] = []
    token = _noted.set(noted)
    found = None
    try:
        found = read()
    except ScenarioError as exc:
        _note(noted, exc, depends=True)
    except Exception:  # what a stand-in leads to
        if not noted:
            raise
    finally:
        _noted.reset(token)
    return (None if noted else found), noted


def refuse(error: ScenarioError, *, depends: bool = False) -> None:
    """Raises it; where every error is asked for it is noted and reading goes on. `depends`: on
    other values of its table."""
    noted = _noted.get()
    if noted is None:
        raise error
    _note(noted, error, depends=depends)


def tried(read: Callable[[], T]) -> T | None:
    """What `read` reads. None where it is refused and every error is asked for; else it raises."""
    try:
        return read()
    except ScenarioError as exc:
        noted = _noted.get()
        if noted is None:
            raise
        _note(noted, exc, depends=True)
    return None


def settled() -> None:
    """Raises what was noted first, if anything was: what follows would look at stand-ins."""
    noted = _noted.get()
    if noted:
        raise noted[0]


def _note(noted: list[ScenarioError], error: ScenarioError, *, depends: bool) -> None:
    """Keeps an error but for one of a place that is known to be wrong. One that `depends` on other
    values is left out where one of the same table is wrong."""
    table = _table_of(error)
    for known in noted:
        within = error.field.startswith((f"{known.field}.", f"{known.field}["))
        near = _table_of(known) in (table, table.rpartition(".")[0] or table)
        if error.field == known.field or within:
            return
        if depends and near and not known.message.startswith(_UNKNOWN):
            return
    noted.append(error)


def _table_of(error: ScenarioError) -> str:
    return error.field.rpartition(".")[0]


class Table:
    """One table of the document. A key that is not `known` is refused; None: any name goes."""

    def __init__(self, data: Any, path: str, *, known: Sequence[str] | None) -> None:
        if not isinstance(data, dict):
            refuse(ScenarioError(path or "scenario", data, "must be a table"))
            data = {}
        self.data, self.path = data, path
        for key in data:
            if known is not None and key not in known:
                error = self.error(key, f"{_UNKNOWN} (known: {', '.join(known)})")
                refuse(error, depends=True)  # on the kind of table, where one says it

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
        refuse(ScenarioError(self.at(key), None, "is missing"))
        return None

    def table(self, key: str, known: Sequence[str] | None, *, optional: bool = False) -> Table:
        return Table(self.take(key, *([{}] if optional else [])), self.at(key), known=known)

    def tables(self, key: str, known: Sequence[str], *, optional: bool = False) -> list[Table]:
        items = self.take(key, *([[]] if optional else []))
        if not isinstance(items, list):
            refuse(self.error(key, "must be a list of tables"))
            return []
        return [Table(item, f"{self.at(key)}[{i}]", known=known) for i, item in enumerate(items)]

    def text(self, key: str) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not value:
            refuse(self.error(key, "must be a text that is not empty"))
            return ""
        return value

    def number(self, key: str, *default: float, low: float, inclusive: bool = False) -> float:
        value = self.take(key, *default)
        if not is_number(value):
            is_large = isinstance(value, int | float) and abs(value) < math.inf
            size = f" below {_LARGEST:g}" if is_large and not isinstance(value, bool) else ""
            refuse(self.error(key, f"must be a finite number{size}"))
            return low + 1.0
        if value < low or (value == low and not inclusive):
            refuse(self.error(key, f"must be {'at least' if inclusive else 'above'} {low:g}"))
            return low + 1.0
        return float(value)

    def count(self, key: str, *default: int, low: int) -> int:
        value = self.take(key, *default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            refuse(self.error(key, f"must be a whole number, at least {low}"))
            return low
        return value

    def ratio(self, key: str) -> float:
        value = self.number(key, low=0)
        if value > 1.0:
            refuse(self.error(key, "must be at most 1"))
        return value

    def one_of(self, key: str, words: Sequence[str]) -> str:
        value = self.take(key)
        if value not in words:
            refuse(self.error(key, f"must be {' or '.join(words)}"))
            return words[0]
        return str(value)

    def flag(self, key: str) -> bool:
        value = self.take(key, False)
        if not isinstance(value, bool):
            refuse(self.error(key, "must be true or false"))
            return False
        return value

    def pairs(self, key: str) -> list[tuple[float, float]]:
        return [(a, b) for a, b in self.rows(key, 2)]

    def rows(self, key: str, width: int) -> list[tuple[float, ...]]:
        """A list of rows of `width` numbers each."""
        form = f"[{', '.join(['number'] * width)}]"
        rows = self.take(key)
        if not isinstance(rows, list):
            raise self.error(key, f"must be a list of {form}")
        wrong = [i for i, row in enumerate(rows) if not _are_numbers(row, width)]
        for i in wrong:
            refuse(ScenarioError(f"{self.at(key)}[{i}]", rows[i], f"must be {form}"))
        if wrong:
            raise self.error(key, f"must be a list of {form}")
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
