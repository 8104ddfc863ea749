"""What a cluster says of its routers, its engines and how its roles are given (docs/contracts.md).

Which settings a make takes is not known here: `adapters.registry` checks them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

from routing.core.scenario.tables import ScenarioError, Table
from routing.core.urls import base_url

RoleSwitch = Literal["engine", "label"]
STACK = "stack"
"""The kind of a router that `control_urls` names."""
_ROLE_SWITCHES = ("engine", "label")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_PLACE = re.compile(r"[a-z][a-z0-9+.-]*://[^\s@]{1,490}")
"""Where a router is controlled: not every one by HTTP."""


@dataclass(frozen=True)
class Router:
    """One router of a cluster: its make, where it is controlled, its name within the cluster.

    `settings` are all keys that its make may read, `url` among them; `field` is where they stand.
    """

    kind: str
    url: str
    name: str
    settings: dict[str, Any]
    field: str


def read_routers(table: Table) -> tuple[Router, ...]:
    """`control_urls` as routers of kind `stack`, then `routers`. Raises ScenarioError."""
    found: list[Router] = []
    for i, url in enumerate(_list(table, "control_urls")):
        where = f"{table.at('control_urls')}[{i}]"
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise ScenarioError(where, url, "must be http://HOST... or https://HOST...")
        stack = Router(STACK, url.rstrip("/"), "", {"url": url.rstrip("/")}, where)
        _add(found, where, url, stack)
    for i, data in enumerate(_list(table, "routers")):
        where = f"{table.at('routers')}[{i}]"
        each = Table(data, where, known=None)
        kind, url = each.text("kind"), each.text("url")
        if not _KIND.fullmatch(kind):
            raise each.error("kind", "must be small letters, digits, - and _")
        if not _PLACE.fullmatch(url) or (url.startswith("http") and not _URL.fullmatch(url)):
            raise each.error("url", "must be http://HOST..., https://HOST... or SCHEME://PLACE")
        name = each.text("name") if "name" in data else ""
        if name and not _NAME.fullmatch(name):
            raise each.error("name", "must be letters, digits, ., - and _")
        settings = {k: v for k, v in data.items() if k not in ("kind", "name")}
        url = url.rstrip("/")
        _add(found, f"{where}.url", url, Router(kind, url, name, {**settings, "url": url}, where))
    named = tuple(
        replace(router, name=router.name or f"{router.kind}-{i}")
        for i, router in enumerate(found, start=1)
    )
    names = Counter(router.name for router in named)
    for router in named:
        if names[router.name] > 1:
            raise table.error("routers", f"two are named {router.name}")
    return named


def read_engines(table: Table, instances: int) -> dict[str, str]:
    """Names of instances and their engines' base URLs. Raises ScenarioError."""
    engines: dict[str, str] = {}
    given = table.table("engines", None, optional=True)
    for name, url in given.data.items():
        if not _NAME.fullmatch(name):
            raise given.error(name, "is no name: letters, digits, ., - and _")
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise given.error(name, "must be http://HOST... or https://HOST...")
        if base_url(url) in engines.values():
            raise given.error(name, "is the URL of another engine")
        engines[name] = base_url(url)
    if len(engines) > instances:
        raise table.error("engines", f"names {len(engines)}, of {instances} instances")
    return engines


def read_role_switch(table: Table) -> RoleSwitch:
    if "role_switch" not in table.data:
        return "engine"
    word = table.one_of("role_switch", _ROLE_SWITCHES)
    return "label" if word == "label" else "engine"


def read_token_file(table: Table) -> str:
    """The name of a file in the folder of routers' keys; empty: engines want none."""
    if "engine_token_file" not in table.data:
        return ""
    name = table.text("engine_token_file")
    if not _FILE.fullmatch(name):
        raise table.error("engine_token_file", "must be the name of a file, without a folder")
    return name


def read_groups(
    table: Table, engines: dict[str, str], instances: int
) -> dict[str, tuple[str, ...]]:
    """Names of the instances of each group; an instance is in one at most. Raises ScenarioError."""
    groups: dict[str, tuple[str, ...]] = {}
    given = table.table("groups", None, optional=True)
    for name, members in given.data.items():
        if not _NAME.fullmatch(name):
            raise given.error(name, "is no name: letters, digits, ., - and _")
        if not isinstance(members, list) or len(members) < 2:
            raise given.error(name, "must be a list of at least two names of instances")
        for i, member in enumerate(members):
            where = f"{given.at(name)}[{i}]"
            if not isinstance(member, str) or not _NAME.fullmatch(member):
                raise ScenarioError(where, member, "must be the name of an instance")
            if engines and member not in engines:
                raise ScenarioError(where, member, "is not in engines")
            if member in members[:i] or any(member in others for others in groups.values()):
                raise ScenarioError(where, member, "is in a group already")
        groups[name] = tuple(members)
    if sum(map(len, groups.values())) > instances:
        raise table.error("groups", f"name more than the {instances} instances")
    return groups


def _list(table: Table, key: str) -> list[Any]:
    items = table.take(key, [])
    if not isinstance(items, list):
        what = "URLs" if key == "control_urls" else "tables"
        raise table.error(key, f"must be a list of {what}")
    return items


def _add(found: list[Router], where: str, value: Any, router: Router) -> None:
    if any(other.url == router.url for other in found):
        raise ScenarioError(where, value, "is listed twice")
    found.append(router)
