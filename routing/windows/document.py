"""A freeze or a change window as people write it, read strictly."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from routing.core.scenario.tables import Table, refuse, tried
from routing.jobs.when import DAYS
from routing.windows.spans import Once, Weekly, When

Of = Literal["plans", "roles", "people"]
ALL: Final[tuple[Of, ...]] = ("plans", "roles", "people")
"""What can be frozen: plans of the loop, moves of roles by whomever, and what people ask for."""
KINDS: Final = ("freeze", "changes")
LONGEST: Final = datetime.timedelta(days=366)
_KEYS = ("name", "fleet", "kind", "of", "when", "reason")
_WHEN = ("zone", "days", "from", "to")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_MOMENT = re.compile(r"2[0-9]{3}-[0-9]{2}-[0-9]{2}[ T]([01][0-9]|2[0-3]):[0-5][0-9]")
_MAX_REASON = 300
_NEVER: Final = Weekly(zoneinfo.ZoneInfo("UTC"), frozenset(), datetime.time(), datetime.time())
"""What is read on with where the times are refused and every error is asked for."""


@dataclass(frozen=True)
class WindowDocument:
    """`freeze`: nothing of `of` changes within `when`; `changes`: it changes only within. An empty
    fleet is every fleet."""

    name: str
    fleet: str
    kind: Literal["freeze", "changes"]
    of: tuple[Of, ...]
    when: When
    reason: str


def read_window(document: Any) -> WindowDocument:
    """Raises ScenarioError, which names field and value."""
    table = Table(document, "", known=_KEYS)
    name = table.text("name")
    if not _NAME.fullmatch(name):
        refuse(table.error("name", "must be small letters, digits, - and _, 80 at most"))
    reason = table.text("reason")
    if len(reason) > _MAX_REASON or not reason.isprintable():
        refuse(table.error("reason", f"must be a line of at most {_MAX_REASON} characters"))
    kind = table.one_of("kind", KINDS)
    return WindowDocument(
        name=name,
        fleet=table.text("fleet") if table.take("fleet", "") else "",
        kind="freeze" if kind == "freeze" else "changes",
        of=_of(table),
        when=tried(partial(_when, table.table("when", _WHEN))) or _NEVER,
        reason=reason,
    )


def _of(table: Table) -> tuple[Of, ...]:
    asked = table.take("of", list(ALL))
    if not isinstance(asked, list) or not asked or not set(map(str, asked)) <= set(ALL):
        refuse(table.error("of", f"must be some of {', '.join(ALL)}"))
        return ALL
    return tuple(of for of in ALL if of in asked)


def _when(table: Table) -> When:
    try:
        zone = zoneinfo.ZoneInfo(table.text("zone"))
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        refuse(table.error("zone", "is no IANA time zone, such as Europe/Paris"))
        zone = _NEVER.zone
    if "days" not in table.data:
        begin, end = _moment(table, "from"), _moment(table, "to")
        if begin is None or end is None:
            return _NEVER
        if not begin < end or end - begin > LONGEST:
            refuse(table.error("to", "must come after `from`, a year at most"))
        return Once(zone, begin, end)
    days = table.take("days")
    if not isinstance(days, list) or not days or not set(map(str, days)) <= set(DAYS):
        refuse(table.error("days", f"must be some of {', '.join(DAYS)}"))
        days = []
    return Weekly(
        zone,
        frozenset(DAYS.index(day) for day in days),
        _time(table, "from"),
        _time(table, "to"),
    )


def _time(table: Table, key: str) -> datetime.time:
    text = table.text(key)
    if not _TIME.fullmatch(text):
        refuse(table.error(key, "must be HH:MM by the wall clock of the zone"))
        return datetime.time()
    return datetime.time.fromisoformat(text)


def _moment(table: Table, key: str) -> datetime.datetime | None:
    """None where it is refused and every error is asked for."""
    text = table.text(key)
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        return datetime.datetime.fromisoformat(text)
    except ValueError:
        message = "must be 2026-12-24 18:00 by the wall clock of the zone; HH:MM goes with `days`"
        refuse(table.error(key, message))
    return None
