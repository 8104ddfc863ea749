"""What a change of the API would break for those who use it: two schemas, compared. Pure.

Breaking is what a client that worked with the old one could trip over: an operation, a parameter or
a property that is gone, another type, something that is needed now and was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from console.deprecated import TABLE, Deprecated

METHODS: Final = ("get", "post", "put", "patch", "delete")
Schema = dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """One of them. `what` names a parameter or a property, empty for the whole operation."""

    method: str
    path: str
    what: str
    why: str

    def __str__(self) -> str:
        name = f" {self.what}" if self.what else ""
        return f"{self.method.upper()} {self.path}{name}: {self.why}"


def breaking(old: Schema, new: Schema) -> list[Broken]:
    """Every change from `old` to `new` that breaks a client."""
    return list(dict.fromkeys(_of_paths(old, new)))


def unannounced(
    broken: list[Broken], today: date, table: tuple[Deprecated, ...] = TABLE
) -> list[Broken]:
    """Those that no entry of the table allows by now."""
    return [each for each in broken if not any(_allows(entry, each, today) for entry in table)]


def _allows(entry: Deprecated, broken: Broken, today: date) -> bool:
    return (
        entry.sunset <= today
        and entry.is_of(broken.method, broken.path)
        and entry.parameter in ("", broken.what)
    )


def _of_paths(old: Schema, new: Schema) -> Iterator[Broken]:
    for path, operations in old["paths"].items():
        for method in METHODS:
            if method not in operations:
                continue
            now = new["paths"].get(path, {}).get(method)
            if now is None:
                yield Broken(method, path, "", "is gone")
                continue
            look = _Look(method, path, old, new)
            yield from look.parameters(operations[method], now)
            yield from look.body(operations[method], now)
            yield from look.answers(operations[method], now)


class _Look:
    """One operation in both. References are followed once a name, for schemas that hold
    themselves."""

    def __init__(self, method: str, path: str, old: Schema, new: Schema) -> None:
        self._method, self._path = method, path
        self._old, self._new = old, new
        self._seen: set[tuple[str, str]] = set()

    def parameters(self, old: Schema, new: Schema) -> Iterator[Broken]:
        before, after = _parameters(old), _parameters(new)
        for (name, place), parameter in before.items():
            now = after.get((name, place))
            if now is None:
                yield self._broken(name, f"is no parameter of the {place} any more")
            else:
                yield from self._sent(name, parameter["schema"], now["schema"])
        for (name, place), parameter in after.items():
            was_needed = before.get((name, place), {}).get("required", False)
            if parameter.get("required", False) and not was_needed:
                yield self._broken(name, f"is a parameter of the {place} that is needed now")

    def body(self, old: Schema, new: Schema) -> Iterator[Broken]:
        before, after = old.get("requestBody"), new.get("requestBody")
        if before is None:
            if after is not None and after.get("required"):
                yield self._broken("body", "is needed now")
            return
        if after is None:
            yield self._broken("body", "is not read any more")
            return
        if after.get("required") and not before.get("required"):
            yield self._broken("body", "is needed now")
        for kind, content in before["content"].items():
            if kind not in after["content"]:
                yield self._broken("body", f"is not read as {kind} any more")
            else:
                now = after["content"][kind]
                yield from self._sent("", content.get("schema", {}), now.get("schema", {}))

    def answers(self, old: Schema, new: Schema) -> Iterator[Broken]:
        for status, answer in old["responses"].items():
            now = new["responses"].get(status)
            if now is None:
                if status.startswith("2"):
                    yield self._broken(status, "is not answered any more")
                continue
            for kind, content in answer.get("content", {}).items():
                after = now.get("content", {}).get(kind)
                if after is None:
                    yield self._broken(status, f"is not answered as {kind} any more")
                else:
                    yield from self._told("", content.get("schema", {}), after.get("schema", {}))

    def _sent(self, name: str, old: Any, new: Any) -> Iterator[Broken]:
        """What a client sends: it may send as much as before, and need not send more."""
        for place, before, after in self._pairs("sent", name, old, new):
            if gone := _types(before) - _types(after):
                yield self._broken(place, f"may not be {', '.join(sorted(gone))} any more")
            if fewer := _choices(before, after):
                yield self._broken(place, f"may not be {fewer} any more")
            for needed in sorted(_needed(after) - _needed(before)):
                yield self._broken(_under(place, needed), "is needed now")
            for lost in sorted(_properties(before).keys() - _properties(after).keys()):
                yield self._broken(_under(place, lost), "is not read any more")

    def _told(self, name: str, old: Any, new: Any) -> Iterator[Broken]:
        """What a client is told: everything that it was, and nothing of another type."""
        for place, before, after in self._pairs("told", name, old, new):
            if more := _types(after) - _types(before) if _types(before) else set():
                yield self._broken(place, f"may be {', '.join(sorted(more))} now")
            for lost in sorted(_properties(before).keys() - _properties(after).keys()):
                yield self._broken(_under(place, lost), "is not told any more")
            for unsure in sorted(_needed(before) - _needed(after)):
                if unsure in _properties(after):
                    yield self._broken(_under(place, unsure), "may be missing now")

    def _pairs(self, way: str, place: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
        """The same place in both, and every place within it."""
        for reference in (old.get("$ref"),) if isinstance(old, dict) else ():
            if reference is not None:
                if (way, reference) in self._seen:
                    return
                self._seen.add((way, reference))
        before, after = _resolved(old, self._old), _resolved(new, self._new)
        yield place, before, after
        for name, inner in _properties(before).items():
            if name in _properties(after):
                yield from self._pairs(way, _under(place, name), inner, _properties(after)[name])
        for key in ("items", "additionalProperties"):
            if isinstance(before.get(key), dict) and isinstance(after.get(key), dict):
                yield from self._pairs(way, f"{place}[]", before[key], after[key])

    def _broken(self, what: str, why: str) -> Broken:
        return Broken(self._method, self._path, what, why)


def _parameters(operation: Schema) -> dict[tuple[str, str], Schema]:
    return {(each["name"], each["in"]): each for each in operation.get("parameters", ())}


def _resolved(node: Any, document: Schema) -> Schema:
    while isinstance(node, dict) and "$ref" in node:
        node = document["components"]["schemas"][node["$ref"].rpartition("/")[2]]
    return node if isinstance(node, dict) else {}


def _types(node: Schema) -> set[str]:
    found = node.get("type", [])
    return {found} if isinstance(found, str) else set(found)


def _choices(before: Schema, after: Schema) -> str:
    if "enum" not in after:
        return ""
    gone = [each for each in before.get("enum", ()) if each not in after["enum"]]
    if "enum" not in before:
        return "anything else than " + ", ".join(map(repr, after["enum"]))
    return ", ".join(map(repr, gone))


def _needed(node: Schema) -> set[str]:
    return set(node.get("required", ()))


def _properties(node: Schema) -> dict[str, Any]:
    found: dict[str, Any] = node.get("properties", {})
    return found


def _under(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
