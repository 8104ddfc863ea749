"""What applying a document would change: pure, by kind and name, with before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

OF_FLEETS: Final = ("fleets", "policies", "prices", "approval_limits")
"""Kinds whose objects have their fleet's name."""
Tables = Mapping[str, Mapping[str, dict[str, Any]]]
"""What is declared, or is so: by kind, by name."""
MAX_DIFFERENCES: Final = 200
"""Of one object; `n_differences` counts them all."""
_MISSING: Final = object()


@dataclass(frozen=True)
class Difference:
    """One value; None where there is none."""

    path: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Change:
    """One object that is made, changed or deleted. `because`: why, where the document says not."""

    action: Literal["create", "change", "delete"]
    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    because: str = ""

    @property
    def differences(self) -> list[Difference]:
        """What differs of an object that is changed, at most `MAX_DIFFERENCES`."""
        if self.before is None or self.after is None:
            return []
        found: list[Difference] = []
        for difference in differences(self.before, self.after):
            if len(found) == MAX_DIFFERENCES:
                break
            found.append(difference)
        return found


def changes(wanted: Tables, present: Tables, *, prune: bool) -> list[Change]:
    """What is made or changed, in the order of kinds and names; then what is deleted, in the other
    order. Deleted is, with `prune`, what a kind that is declared does not name, and what belongs to
    a fleet that goes."""
    found: list[Change] = []
    gone: list[Change] = []
    for kind, named in wanted.items():
        there = present.get(kind, {})
        for name in sorted(named):
            before, after = there.get(name), named[name]
            if before is None:
                found.append(Change("create", kind, name, None, after))
            elif before != after:
                found.append(Change("change", kind, name, before, after))
        if prune and kind != "policies":  # a policy goes with its fleet, and only then
            gone += [
                Change("delete", kind, name, there[name], None)
                for name in sorted(there.keys() - named.keys())
            ]
    gone += _orphans(gone, wanted, present)
    order = list(present)
    return found + sorted(gone, key=lambda change: -order.index(change.kind))


def n_same(wanted: Tables, present: Tables) -> int:
    """How many of the declared objects are as declared."""
    return sum(
        present.get(kind, {}).get(name) == values
        for kind, named in wanted.items()
        for name, values in named.items()
    )


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Every value that differs, by its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            at = f"{path}.{key}" if path else key
            yield from _between(before.get(key, _MISSING), after.get(key, _MISSING), at)
    elif isinstance(before, list) and isinstance(after, list):
        for i in range(max(len(before), len(after))):
            yield from _between(
                before[i] if i < len(before) else _MISSING,
                after[i] if i < len(after) else _MISSING,
                f"{path}[{i}]",
            )
    elif before != after:
        yield Difference(path, before, after)


def _between(before: Any, after: Any, path: str) -> Iterator[Difference]:
    if before is _MISSING or after is _MISSING:
        yield Difference(
            path, None if before is _MISSING else before, None if after is _MISSING else after
        )
    else:
        yield from differences(before, after, path)


def _orphans(gone: list[Change], wanted: Tables, present: Tables) -> Iterator[Change]:
    """What is of a fleet that is deleted, of kinds that are not declared."""
    fleets = {change.name for change in gone if change.kind == "fleets"}
    for kind in present.keys() - wanted.keys() - {"fleets", "policies"}:
        for name in sorted(present[kind]):
            fleet = fleet_of(kind, name, present[kind][name])
            if fleet not in fleets:
                continue
            because = f"it is of the fleet {fleet}, which is deleted"
            yield Change("delete", kind, name, present[kind][name], None, because)


def fleet_of(kind: str, name: str, values: Mapping[str, Any]) -> str:
    """The fleet that an object is, or is of; empty where it is of none."""
    if kind in OF_FLEETS:
        return name
    fleet = values.get("fleet", "")
    return fleet if isinstance(fleet, str) else ""
