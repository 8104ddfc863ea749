"""What a command is made of: its words, what it takes, and the function that does it."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console.cli.shown import Out
from console.client.client import Client
from console.client.errors import ClientError
from console.client.http import Answer

DONE, FAILED, MISUSED, PROPOSED, NOT_ALLOWED, NOT_FOUND, OUTDATED, NOT_SO = range(8)
"""Exit codes (docs/cli.md)."""
_SPAN = re.compile(r"([0-9]+)([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Misused(Exception):
    """What was typed cannot be meant, for people."""


@dataclass(frozen=True)
class Argument:
    """One of `argparse.add_argument`."""

    names: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Doing:
    """What a command works with."""

    client: Client
    given: argparse.Namespace
    out: Out
    now: datetime.datetime


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    help: str
    run: Callable[[Doing], int]
    arguments: tuple[Argument, ...] = ()


def arg(*names: str, **options: Any) -> Argument:
    return Argument(names, options)


FLEET = arg("fleet", help="its name")
REASON = arg("--reason", default="", help="why; kept in the audit")
NEEDED_REASON = arg("--reason", required=True, help="why; kept in the audit")
LIMIT = arg("--limit", type=int, default=20, metavar="N", help="rows at most (20)")
FOR = arg("--for", dest="span", required=True, metavar="SPAN", help="30m, 2h, 1d")


def until(now: datetime.datetime, span: str) -> str:
    """The moment after a span such as 90m, as the API is told it. Raises Misused."""
    found = _SPAN.fullmatch(span)
    if found is None or len(found[1]) > 6:
        raise Misused(f"--for {span}: must be a number with s, m, h or d, as 2h")
    length = datetime.timedelta(seconds=int(found[1]) * _UNIT_S[found[2]])
    return (now + length).isoformat()


def named_values(given: list[str], what: str) -> dict[str, Any]:
    """NAME=VALUE words; a number is one, `default` is None. Raises Misused."""
    found: dict[str, Any] = {}
    for each in given:
        name, has_value, text = each.partition("=")
        if not name or not has_value:
            raise Misused(f"{what} {each}: must be NAME=VALUE")
        found[name] = value_of(text)
    return found


def value_of(text: str) -> Any:
    """A number where it is one, None for `default`, else the text."""
    if text == "default":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def file_bytes(path: Path) -> bytes:
    """The bytes of a file, of standard input for `-`. Raises Misused."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as exc:
        raise Misused(f"{path}: {exc.strerror or exc}") from None


def said(doing: Doing, answer: Answer, line: str) -> int:
    """Tell what an act did; that a second person is needed, where one is."""
    if answer.is_proposal:
        proposal = answer.data
        needs = "; ".join(proposal.get("needs", []))
        doing.out.said(
            proposal,
            f"proposal {proposal['id']} waits for a second person: {needs}",
            f"they approve it with: approvals approve {proposal['id']}",
        )
        return PROPOSED
    doing.out.said(answer.data, line)
    return DONE


def first(rows: Any, what: str) -> dict[str, Any]:
    """The first row of a list. Raises ClientError where there is none."""
    for row in rows:
        found: dict[str, Any] = row
        return found
    raise ClientError(f"there is no {what} yet")
