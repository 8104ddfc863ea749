"""A job as people write it, read strictly: what to do, where, when, and what if it is late."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from routing.core.scenario.tables import Table, refuse, tried
from routing.jobs.when import DAYS, When

KINDS = ("roles", "at_least_prefill", "plan", "mode", "forecast", "refit_profiles")
_KEYS = ("name", "fleet", "do", "when", "grace_s", "dry_run", "reason")
_DO = {
    "roles": ("kind", "cluster", "n_prefill", "n_decode", "for_s"),
    "at_least_prefill": ("kind", "cluster", "n_prefill", "for_s"),
    "plan": ("kind", "cluster", "mode", "threshold_tokens", "for_s"),
    "mode": ("kind", "mode"),
    "forecast": ("kind", "cluster", "for_s"),
    "refit_profiles": ("kind", "span_s"),
}
_WHEN = ("zone", "at", "on", "days")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,79}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_LONGEST_S = 7 * 86400.0
_NEVER = When(zoneinfo.ZoneInfo("UTC"), datetime.time())
_MAX_REASON = 300
PLAN_MODES = ("always_local", "always_remote", "threshold")
MODES = ("active", "advisory", "paused")


@dataclass(frozen=True)
class Do:
    """One thing to do. What does not belong to its kind is None or empty.

    `roles`: move `cluster` to `n_prefill` and `n_decode` and hold them for `for_s`;
    `at_least_prefill`: the same where fewer prefill. `plan`: hold `mode` and `threshold_tokens` of
    `cluster`, of every PD cluster where it is empty. `mode`: set the fleet's mode. `forecast`: as
    `roles`, with those that the forecast of the hour to come advises. `refit_profiles`: propose
    profiles fitted to the last `span_s`.
    """

    kind: Literal["roles", "at_least_prefill", "plan", "mode", "forecast", "refit_profiles"]
    cluster: str = ""
    n_prefill: int | None = None
    n_decode: int | None = None
    mode: str = ""
    threshold_tokens: int | None = None
    for_s: float = 0.0
    span_s: float = 0.0


@dataclass(frozen=True)
class JobDocument:
    """`grace_s`: so late it is still done, afterwards it is skipped. `dry_run`: only said."""

    name: str
    fleet: str
    do: Do
    when: When
    grace_s: float
    dry_run: bool
    reason: str


def read_job(document: Any) -> JobDocument:
    """Raises ScenarioError, which names field and value."""
    table = Table(document, "", known=_KEYS)
    name = table.text("name")
    if not _NAME.fullmatch(name):
        refuse(table.error("name", "must be small letters, digits, - and _, 80 at most"))
    reason = table.text("reason")
    if len(reason) > _MAX_REASON or not reason.isprintable():
        refuse(table.error("reason", f"must be a line of at most {_MAX_REASON} characters"))
    return JobDocument(
        name=name,
        fleet=table.text("fleet"),
        do=tried(partial(_do, table)) or Do("mode"),
        when=tried(partial(_when, table.table("when", _WHEN))) or _NEVER,
        grace_s=_span(table, "grace_s", 600.0),
        dry_run=table.flag("dry_run"),
        reason=reason,
    )


def _do(table: Table) -> Do:
    kind = table.table("do", None).one_of("kind", KINDS)
    do = table.table("do", _DO[kind])
    if kind == "mode":
        return Do("mode", mode=do.one_of("mode", MODES))
    if kind == "refit_profiles":
        return Do("refit_profiles", span_s=_span(do, "span_s"))
    for_s = _span(do, "for_s")
    if for_s == 0.0:
        refuse(do.error("for_s", "must be above 0"))
    if kind == "plan":
        mode = do.one_of("mode", PLAN_MODES)
        threshold = do.take("threshold_tokens", None)
        if (threshold is None) == (mode == "threshold"):
            message = "must be given with mode threshold, and only then"
            refuse(do.error("threshold_tokens", message), depends=True)
        if threshold is not None:
            threshold = do.count("threshold_tokens", low=0)
        cluster = do.text("cluster") if do.take("cluster", "") else ""
        return Do("plan", cluster, mode=mode, threshold_tokens=threshold, for_s=for_s)
    if kind == "forecast":
        return Do("forecast", do.text("cluster"), for_s=for_s)
    cluster, n_prefill = do.text("cluster"), do.count("n_prefill", low=1)
    if kind == "roles":
        return Do("roles", cluster, n_prefill, do.count("n_decode", low=1), for_s=for_s)
    return Do("at_least_prefill", cluster, n_prefill, for_s=for_s)


def _when(table: Table) -> When:
    zone = table.text("zone")
    try:
        found = zoneinfo.ZoneInfo(zone)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        refuse(table.error("zone", "is no IANA time zone, such as Europe/Paris"))
        found = zoneinfo.ZoneInfo("UTC")
    at = table.text("at")
    if not _TIME.fullmatch(at):
        refuse(table.error("at", "must be HH:MM by the wall clock of the zone"))
        at = "00:00"
    if ("on" in table.data) == ("days" in table.data):
        raise table.error("on", "give `on`, a date, or `days` of the week, not both")
    moment = datetime.time.fromisoformat(at)
    if "on" in table.data:
        return When(found, moment, on=_date(table))
    days = table.take("days")
    if not isinstance(days, list) or not days or not set(map(str, days)) <= set(DAYS):
        raise table.error("days", f"must be some of {', '.join(DAYS)}")
    return When(found, moment, days=frozenset(DAYS.index(day) for day in days))


def _date(table: Table) -> datetime.date:
    text = table.text("on")
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise table.error("on", "must be a date as 2026-12-01") from None


def _span(table: Table, key: str, *default: float) -> float:
    span_s = table.number(key, *default, low=0.0, inclusive=True)
    if span_s > _LONGEST_S:
        refuse(table.error(key, "must be at most 7 days"))
    return span_s
