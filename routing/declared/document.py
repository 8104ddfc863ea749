"""What a document declares, read strictly: every error at once, with its path and its value."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from routing import knobs, router_settings
from routing.alerts.messages import KINDS as RECEIVER_KINDS
from routing.approvals.limits import read_limits
from routing.core.alerts.rule import read_rule, written
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError, Table, every_error, refuse
from routing.costs.document import read_table
from routing.declared.diff import OF_FLEETS, Change
from routing.declared.text import plain
from routing.jobs.document import MODES, read_job
from routing.refusals import Refused
from routing.windows.document import read_window

VERSION: Final = 1
"""Of the document's form."""
KINDS: Final = (
    *("fleets", "policies", "receivers", "jobs", "alert_rules"),
    *("prices", "approval_limits", "windows"),
)
"""In the order in which they are written: what is named before what names it, and what forbids
changes last, so that a freeze is judged by what was so, not by what the document makes of it."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_FLEET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


@dataclass(frozen=True)
class Wrong:
    """One thing that cannot be meant, or that a freeze forbids now (`frozen`)."""

    path: str
    value: Any
    message: str
    frozen: bool = False


class NotMeant(Refused):
    """A document that changes nothing, and all that is wrong with it. `changes` are what it would
    change otherwise, as far as that could be read."""

    def __init__(self, wrong: list[Wrong], changes: Sequence[Change] = ()) -> None:
        first = wrong[0]
        super().__init__(first.path, first.value, first.message)
        self.wrong, self.changes = wrong, changes

    @property
    def is_only_frozen(self) -> bool:
        """Whether it can be applied as it is once the freezes are over."""
        return all(each.frozen for each in self.wrong)


@dataclass(frozen=True)
class Declared:
    """Objects by kind and name, only of kinds that the document has; and what is wrong with the
    others. `broken` are the kinds and names of those."""

    tables: dict[str, dict[str, dict[str, Any]]]
    wrong: list[Wrong]
    broken: frozenset[tuple[str, str]] = frozenset()


def read_declared(document: dict[str, Any], *, units: Mapping[str, str]) -> Declared:
    """`units` are all signals that alert rules may watch, with their units."""
    wrong: list[Wrong] = []
    version = document.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        wrong.append(Wrong("version", version, f"must be {VERSION}"))
    known = ("version", *KINDS)
    wrong += [
        Wrong(key, document[key], f"is not a known key (known: {', '.join(known)})")
        for key in document
        if key not in known
    ]
    readers: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
        "fleets": _fleet,
        "policies": _policy,
        "receivers": _receiver,
        "jobs": _job,
        "alert_rules": lambda name, values: _rule(name, values, units),
        "prices": _prices,
        "approval_limits": _limits,
        "windows": _window,
    }
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    broken = set()
    for kind in KINDS:
        if kind not in document:
            continue
        named = document[kind]
        tables[kind] = {}
        if not isinstance(named, dict):
            wrong.append(Wrong(kind, named, "must be a table of tables, by name"))
            continue
        for name, values in named.items():
            read, path = readers[kind], f"{kind}.{name}"
            if not isinstance(values, dict):
                found, errors = None, [ScenarioError("", values, "must be a table")]
            else:
                found, errors = every_error(_reading(read, kind, name, plain(values)))
            if found is None:
                broken.add((kind, name))
                wrong += [Wrong(_below(path, e.field), e.value, e.message) for e in errors]
            else:
                tables[kind][name] = found
    return Declared(tables, wrong, frozenset(broken))


def _reading(
    read: Callable[[str, dict[str, Any]], dict[str, Any]],
    kind: str,
    name: str,
    values: dict[str, Any],
) -> Callable[[], dict[str, Any]]:
    def reading() -> dict[str, Any]:
        pattern = _FLEET if kind in OF_FLEETS else _NAME
        if not pattern.fullmatch(name):
            letters = "letters" if pattern is _FLEET else "small letters"
            refuse(ScenarioError("", name, f"its name may hold {letters}, digits, - and _ only"))
        return read(name, values)

    return reading


def _below(path: str, field: str) -> str:
    return f"{path}.{field}" if field else path


def _fleet(name: str, values: dict[str, Any]) -> dict[str, Any]:
    fleet = values.get("fleet", {})
    if isinstance(fleet, dict):
        if fleet.get("name", name) != name:
            refuse(ScenarioError("fleet.name", fleet["name"], f"stands below {name}"))
        values = {**values, "fleet": {**fleet, "name": name}}
    router_settings.checked(parse_scenario(values))
    return values


def _policy(name: str, values: dict[str, Any]) -> dict[str, Any]:
    table = Table(values, "", known=("mode", "knobs"))
    mode = table.one_of("mode", MODES)
    given = table.table("knobs", None, optional=True)
    found: dict[str, Any] = {}
    for knob, value in given.data.items():
        try:
            found |= knobs.checked({knob: value}) if knob not in _ORDERED else {knob: value}
        except knobs.KnobError as exc:
            refuse(given.error(exc.name, exc.message))
    try:
        found = knobs.checked(found)
    except knobs.KnobError as exc:
        refuse(ScenarioError(f"knobs.{exc.name}", exc.value, exc.message), depends=True)
    return {"mode": mode} | ({"knobs": found} if found else {})


_ORDERED: Final = ("t_min_tokens", "t_max_tokens", "abundant_below_ratio", "scarce_above_ratio")
"""Knobs that are checked with each other."""


def _receiver(name: str, values: dict[str, Any]) -> dict[str, Any]:
    table = Table(values, "", known=("kind", "target", "secret_file"))
    found = {"kind": table.one_of("kind", RECEIVER_KINDS), "target": table.text("target")}
    if table.take("secret_file", ""):
        found["secret_file"] = table.text("secret_file")
    return found


def _job(name: str, values: dict[str, Any]) -> dict[str, Any]:
    document, enabled = _switched(name, values)
    read_job(document)
    return _named(document, enabled=enabled)


def _rule(name: str, values: dict[str, Any], units: Mapping[str, str]) -> dict[str, Any]:
    document, enabled = _switched(name, values)
    return _named(written(read_rule(document, units=units)), enabled=enabled)


def _prices(_name: str, values: dict[str, Any]) -> dict[str, Any]:
    read_table(values)
    return values


def _limits(_name: str, values: dict[str, Any]) -> dict[str, Any]:
    read_limits(values, "")
    return values


def _window(name: str, values: dict[str, Any]) -> dict[str, Any]:
    document, enabled = _switched(name, values)
    read_window(document)
    return _named(document, enabled=enabled)


def _switched(name: str, values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The document below a name, and whether it is in force."""
    enabled = Table(values, "", known=None).flag("enabled") if "enabled" in values else True
    if values.get("name", name) != name:
        refuse(ScenarioError("name", values["name"], f"stands below {name}"))
    rest = {key: value for key, value in values.items() if key != "enabled"}
    return rest | {"name": name}, enabled


def _named(document: dict[str, Any], *, enabled: bool) -> dict[str, Any]:
    """A kept document as one of these has it below its name."""
    rest = {key: plain(value) for key, value in document.items() if key != "name"}
    return rest if enabled else rest | {"enabled": False}


def shown(document: dict[str, Any], *, enabled: bool) -> dict[str, Any]:
    """What is kept of a job, a rule or a window, as a document declares it."""
    return _named(plain(document), enabled=enabled)


def kept(name: str, values: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What of a job, a rule or a window is to be kept, and whether it is in force: of what was
    read."""
    return _switched(name, values)
