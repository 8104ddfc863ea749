"""Every setting that comes from the environment: name, default, help. The README table is tested
against this list, so a setting cannot exist without a line of documentation."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class SettingError(ValueError):
    """A setting with a value that cannot be meant; names the setting and the value."""


@dataclass(frozen=True)
class Setting:
    name: str
    default: Any
    help: str
    parse: Callable[[str], Any] = str

    def read(self) -> Any:
        raw = os.environ.get(self.name)
        if raw is None or raw == "":
            return self.default
        try:
            return self.parse(raw)
        except ValueError as exc:
            raise SettingError(f"{self.name}={raw!r}: {exc}") from None


def _boolean(raw: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if raw.lower() not in words:
        raise ValueError("must be one of 1, true, yes, 0, false, no")
    return words[raw.lower()]


def _positive_number(raw: str) -> float:
    number = float(raw)
    if not 0 < number < float("inf"):
        raise ValueError("must be a positive number")
    return number


def _positive_integer(raw: str) -> int:
    number = int(raw)
    if number < 1:
        raise ValueError("must be a whole number >= 1")
    return number


def _words(raw: str) -> list[str]:
    return [word.strip() for word in raw.split(",") if word.strip()]


def _networks(raw: str) -> list[str]:
    return [str(ipaddress.ip_network(word)) for word in _words(raw)]


def _headers(raw: str) -> dict[str, str]:
    headers = {}
    for line in filter(None, (part.strip() for part in raw.split(";"))):
        name, colon, value = line.partition(":")
        if not (colon and name.strip().replace("-", "").isalnum() and value.strip().isprintable()):
            raise ValueError("must be 'Name: value; Name: value'")
        headers[name.strip()] = value.strip()
    return headers


def _groups(raw: str) -> dict[str, tuple[str, ...]]:
    groups: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in raw.split(";"))):
        # The last = counts: the name of theirs may be one of LDAP, with some of its own.
        theirs, equals, ours = (word.strip() for word in part.rpartition("="))
        if not (equals and theirs and ours):
            raise ValueError("must be 'their group=our group; …'")
        groups[theirs] = (*groups.get(theirs, ()), ours)
    return groups


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if urlsplit(raw).scheme not in schemes:
            raise ValueError(
                f"must be a URL starting with {' or '.join(s + '://' for s in schemes)}"
            )
        _ = urlsplit(raw).port  # raises ValueError for what is no port
        return raw

    return parse


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "DATABASE_URL",
        None,
        "PostgreSQL to use instead of the embedded one.",
        _url("postgresql", "postgres"),
    ),
    Setting(
        "REDIS_URL",
        None,
        "Redis or Valkey to use instead of the embedded one.",
        _url("redis", "rediss", "unix"),
    ),
    Setting(
        "CONSOLE_STATE_DIR",
        None,
        "Where embedded services and logs live (`.data`, or `/var/lib/prfaas-console` as root).",
    ),
    Setting(
        "CONSOLE_SERVICE_USER",
        "nobody",
        "The user embedded PostgreSQL and Valkey run as when the console is started by root.",
    ),
    Setting(
        "CONSOLE_SECRET_KEY",
        None,
        "Signs sessions. `up` makes one and keeps it; set it when you run the roles yourself.",
    ),
    Setting("CONSOLE_DEBUG", False, "Django's debug pages. Never on a reachable host.", _boolean),
    Setting(
        "CONSOLE_ALLOWED_HOSTS",
        ["localhost", "127.0.0.1", "[::1]"],
        "Host names the console answers to, comma separated.",
        _words,
    ),
    Setting(
        "CONSOLE_TRUSTED_ORIGINS",
        [],
        "Extra origins (https://host) allowed for forms and sockets, comma separated.",
        _words,
    ),
    Setting(
        "CONSOLE_SECURE_COOKIES",
        False,
        "Send cookies over HTTPS only; set it behind TLS.",
        _boolean,
    ),
    Setting(
        "CONSOLE_SESSION_H",
        168,
        "Hours after which whoever signed in signs in again, whatever they did meanwhile.",
        _positive_integer,
    ),
    Setting(
        "CONSOLE_LOCAL_PASSWORDS",
        True,
        "Sign in with passwords of this console; switch it off where everybody comes by OIDC.",
        _boolean,
    ),
    Setting(
        "CONSOLE_OIDC_ISSUER",
        None,
        "Identity provider (https://host/realm) that people may sign in with; empty is none.",
        _url("http", "https"),
    ),
    Setting("CONSOLE_OIDC_CLIENT_ID", "", "What the provider calls this console."),
    Setting("CONSOLE_OIDC_SECRET", "", "The client's secret at the provider."),
    Setting("CONSOLE_OIDC_NAME", "single sign-on", "What the button to sign in says."),
    Setting(
        "CONSOLE_OIDC_SCOPES",
        ["openid", "profile", "email"],
        "Scopes asked of the provider, comma separated; some need `groups` too.",
        _words,
    ),
    Setting("CONSOLE_OIDC_GROUPS_CLAIM", "groups", "The claim that lists somebody's groups there."),
    Setting(
        "CONSOLE_OIDC_GROUPS",
        None,
        "Groups here by groups there, `sre=operator; pd-team=operator:demo`; without it people are"
        " put into groups here.",
        _groups,
    ),
    Setting(
        "CONSOLE_OIDC_DOMAINS",
        [],
        "Domains of verified addresses that may sign in by OIDC, comma separated; empty is any.",
        _words,
    ),
    Setting(
        "CONSOLE_TICK_S", 2.0, "Seconds between two passes of the decision loop.", _positive_number
    ),
    Setting(
        "CONSOLE_INGEST_MAX_BYTES",
        8_388_608,
        "Largest accepted telemetry body, after which 413.",
        _positive_integer,
    ),
    Setting(
        "CONSOLE_INGEST_QUEUE",
        2_000,
        "Batches waiting for commit before ingest answers 503.",
        _positive_integer,
    ),
    Setting(
        "CONSOLE_RETENTION_HOURS",
        72,
        "Hours of raw readings kept, in whole days.",
        _positive_integer,
    ),
    Setting("CONSOLE_ROLLUP_10S_DAYS", 14, "Days of roll-ups over 10 s kept.", _positive_integer),
    Setting(
        "CONSOLE_ROLLUP_1M_DAYS", 400, "Days of roll-ups over a minute kept.", _positive_integer
    ),
    Setting(
        "CONSOLE_DOORS_RULES",
        None,
        "File of mapping rules (doors.toml) that opens the remote-write and OTLP doors.",
    ),
    Setting(
        "CONSOLE_FORWARD_URL",
        None,
        "Where history is sent on by remote-write (http(s)://host/api/v1/write).",
        _url("http", "https"),
    ),
    Setting(
        "CONSOLE_HISTORY_URL",
        None,
        "Where ranges older than what is kept here are read back by PromQL (http(s)://host).",
        _url("http", "https"),
    ),
    Setting(
        "CONSOLE_HISTORY_HEADERS",
        None,
        "Headers of both, `Name: value; Name: value`, such as Mimir's `X-Scope-OrgID: prfaas`.",
        _headers,
    ),
    Setting(
        "CONSOLE_ROUTERS_DIR",
        None,
        "Folder of the keys and manifests of routers that a scenario names.",
    ),
    Setting(
        "CONSOLE_URL",
        "http://127.0.0.1:8000",
        "Where people reach the console: what links in alerts begin with.",
        _url("http", "https"),
    ),
    Setting(
        "CONSOLE_ALERT_NETWORKS",
        [],
        "Networks (CIDR) beside the public ones that alerts may be sent to, comma separated.",
        _networks,
    ),
    Setting(
        "CONSOLE_API_READS",
        1_200,
        "Requests a minute that one person or token may read the API with, after which 429.",
        _positive_integer,
    ),
    Setting(
        "CONSOLE_API_CHANGES",
        240,
        "Requests a minute that one person or token may change something with.",
        _positive_integer,
    ),
    Setting("CONSOLE_MAX_STREAMS", 200, "Event streams one web process serves.", _positive_integer),
    Setting(
        "CONSOLE_MAX_SOCKETS", 2_000, "Browser sockets one web process accepts.", _positive_integer
    ),
)


def read_all() -> dict[str, Any]:
    """Every setting's value. Raises SettingError on the first that cannot be meant."""
    return {setting.name: setting.read() for setting in SETTINGS}
