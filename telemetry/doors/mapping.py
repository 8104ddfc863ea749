"""`doors.toml`: which series belong to which instance, router or link. Read strictly.

    name = "site-a"

    [[rules]]
    match = { job = "vllm", cluster = "pd|prefill" }
    id = "prod/{cluster}/{instance}"
    role = "{role}"

The first rule whose every label matches decides. A value of `match` is a regular expression over
the whole label, as in Prometheus; a label that is absent is the empty text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from telemetry import strict_toml
from telemetry.engine_maps import MAPS
from telemetry.strict_toml import TomlError
from telemetry.wire import Role

ROLES: tuple[Role, ...] = get_args(Role)
MAX_RULES = 200
_PLACE = re.compile(r"\{([a-zA-Z_][a-zA-Z0-9_]*)\}")
Kind = Literal["instance", "router", "link", "drop"]


class RuleEntry(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One `[[rules]]` table; texts with `{label}` take the value of that label.

    `engine` is a family of `telemetry/engines` or `auto`. A link is an `interface` of a host as its
    node_exporter shows it, `host_tcp` adds the host's segments; `measured_layer` says where that
    is. `drop` leaves series out without calling them unmatched.
    """

    match: dict[str, str]
    kind: Kind = "instance"
    id: str = ""
    role: str = "both"
    engine: str = "auto"
    engine_version: str = ""
    group: str = ""
    measured_layer: str = ""
    capacity_gbps: float | None = None
    interface: str = ""
    host_tcp: bool = False


class RulesFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The whole file. `ignore_labels` are no part of a series: those that tell the replicas of a
    doubled Prometheus apart, which would count everything twice."""

    name: str = "default"
    ignore_labels: tuple[str, ...] = ()
    rules: tuple[RuleEntry, ...]


@dataclass(frozen=True)
class Place:
    """Where a series belongs: one instance, router or link, as a rule describes it."""

    kind: Kind
    id: str
    role: Role
    group: str
    engine_version: str
    interface: str
    entry: RuleEntry


class Unmatched(Exception):
    """No rule takes a series; the text says why."""


@dataclass(frozen=True)
class Rules:
    """A checked file."""

    name: str
    ignore_labels: frozenset[str]
    entries: tuple[tuple[RuleEntry, tuple[tuple[str, re.Pattern[str]], ...]], ...]

    def place(self, labels: Mapping[str, str]) -> Place | None:
        """The place of a series; None where a rule drops it. Raises Unmatched."""
        for number, (entry, patterns) in enumerate(self.entries):
            if all(pattern.fullmatch(labels.get(name, "")) for name, pattern in patterns):
                return None if entry.kind == "drop" else _place(entry, labels, number)
        raise Unmatched("no rule matches")


def load(path: Path) -> Rules:
    """The rules at `path`. Raises TomlError naming file, key and value."""
    return of(path, strict_toml.read(path, RulesFile))


def of(path: Path, file: RulesFile) -> Rules:
    """The rules of a file's content. Raises TomlError."""
    for key, value, why in _problems(file):
        raise TomlError(path, key, value, why)
    return Rules(
        name=file.name,
        ignore_labels=frozenset(file.ignore_labels),
        entries=tuple(
            (entry, tuple((name, re.compile(text)) for name, text in entry.match.items()))
            for entry in file.rules
        ),
    )


def _place(entry: RuleEntry, labels: Mapping[str, str], number: int) -> Place:
    where = f"rules[{number}]"
    said = _filled(entry.role, labels, f"{where}.role")
    role = next((role for role in ROLES if role == said), None)
    if role is None:
        raise Unmatched(f"{where}.role={said[:80]!r} is not one of {', '.join(ROLES)}")
    return Place(
        kind=entry.kind,
        id=_filled(entry.id, labels, f"{where}.id"),
        role=role,
        group=_filled(entry.group, labels, f"{where}.group"),
        engine_version=_filled(entry.engine_version, labels, f"{where}.engine_version")[:60],
        interface=_filled(entry.interface, labels, f"{where}.interface"),
        entry=entry,
    )


def _filled(template: str, labels: Mapping[str, str], where: str) -> str:
    """The template with its labels' values, in which `/` and `->` would read as part of an id."""

    def value(match: re.Match[str]) -> str:
        text = labels.get(match[1], "")
        if not text or not text.isprintable():
            raise Unmatched(f"{where}: label {match[1]!r} is absent")
        return text.replace("/", "_").replace("->", "__")

    return _PLACE.sub(value, template)


def _problems(file: RulesFile) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of whatever the types cannot say."""
    if not re.fullmatch(r"[\w.-]{1,60}", file.name):
        yield "name", file.name, "must be 1..60 letters, digits, dots, dashes"
    if not 1 <= len(file.rules) <= MAX_RULES:
        yield "rules", len(file.rules), f"must be 1..{MAX_RULES} rules"
    for i, entry in enumerate(file.rules):
        yield from _entry_problems(f"rules[{i}]", entry)


def _entry_problems(key: str, entry: RuleEntry) -> Iterator[tuple[str, Any, str]]:
    if not entry.match:
        yield f"{key}.match", {}, "must name at least one label"
    for name, text in entry.match.items():
        try:
            re.compile(text)
        except re.error as exc:
            yield f"{key}.match.{name}", text, f"is not a regular expression: {exc}"
    for name in ("id", "role", "group", "engine_version", "interface"):
        text = getattr(entry, name)
        if set("{}") & set(_PLACE.sub("", text)):
            yield f"{key}.{name}", text, "only {label} may stand in braces"
    if entry.kind == "drop":
        return
    bare = _PLACE.sub("x", entry.id)
    if entry.kind == "link":
        yield from _link_problems(key, entry, bare)
        return
    if bare.count("/") != 2 or not all(bare.split("/")):
        yield f"{key}.id", entry.id, "an id is FLEET/CLUSTER/NAME"
    if not _PLACE.search(entry.role) and entry.role not in ROLES:
        yield f"{key}.role", entry.role, f"must be one of {', '.join(ROLES)}, or a {{label}}"
    families = [name for name, engine_map in MAPS.items() if engine_map.kind == entry.kind]
    if entry.engine not in ("auto", *families):
        yield f"{key}.engine", entry.engine, f"must be one of {', '.join(('auto', *families))}"


def _link_problems(key: str, entry: RuleEntry, bare: str) -> Iterator[tuple[str, Any, str]]:
    ends = bare.split("->")
    if len(ends) != 2 or not all(ends):
        yield f"{key}.id", entry.id, 'a link id is "A->B"'
    if not entry.measured_layer:
        yield f"{key}.measured_layer", "", "say at which layer this is measured"
    if not entry.interface:
        yield f"{key}.interface", "", "say which interface of the host the link leaves by"
    if entry.capacity_gbps is not None and not 0.0 < entry.capacity_gbps < 1e6:
        yield f"{key}.capacity_gbps", entry.capacity_gbps, "must be a positive number of Gbps"
