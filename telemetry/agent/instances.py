"""`[[instances]]` and `[[routers]]` of `agent.toml`: what is scraped, listed or discovered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from telemetry import wire
from telemetry.agent.urls import is_http
from telemetry.engine_maps import MAPS
from telemetry.refusals import WireError

MAX_ID_CHARS = 300
MAX_RANKS = 1024
MIN_TIMEOUT_S, MAX_TIMEOUT_S = 0.1, 60.0
Role = wire.Role
ROLES: tuple[Role, ...] = get_args(Role)


class Instance(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One engine, scraped at `url`. `engine` is a family of `telemetry/engines` or `auto`.

    `role` is what it is taken for until it tells its role itself: under `role_key` of the JSON
    document at `role_url`, read with each scrape. `timeout_s` None is the agent's. `ranks` are its
    data-parallel ranks, None where nobody says: a text with fewer of them is part of its numbers.
    """

    id: str
    role: Role
    url: str
    engine: str = "auto"
    engine_version: str = ""
    group: str | None = None
    ranks: int | None = None
    role_url: str = ""
    role_key: str = "disagg_mode"
    timeout_s: float | None = None


class Router(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One gate or a router of another make, scraped like an engine.

    `kind` is a family of `telemetry/engines` whose text is that of a router.
    """

    id: str
    url: str
    kind: str = wire.GATE_KIND
    timeout_s: float | None = None


def problems(key: str, entry: Instance | Router) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of whatever the types cannot say; the console's door included."""
    if entry.id.count("/") != 2 or not all(entry.id.split("/")):
        yield f"{key}.id", entry.id, "an id is FLEET/CLUSTER/NAME"
    if len(entry.id) > MAX_ID_CHARS:
        yield f"{key}.id", entry.id, f"must have at most {MAX_ID_CHARS} characters"
    if not is_http(entry.url):
        yield f"{key}.url", entry.url, "must be an http(s) URL"
    if entry.timeout_s is not None and not MIN_TIMEOUT_S <= entry.timeout_s <= MAX_TIMEOUT_S:
        why = f"must be in {MIN_TIMEOUT_S:g}..{MAX_TIMEOUT_S:g} seconds"
        yield f"{key}.timeout_s", entry.timeout_s, why
    if isinstance(entry, Instance):
        yield from _instance_problems(key, entry)
    elif entry.kind not in families("router"):
        yield f"{key}.kind", entry.kind, f"must be one of {', '.join(families('router'))}"
    try:
        wire.check_sample(_example(entry), key)
    except WireError as exc:
        yield exc.field, exc.value, exc.error


def _instance_problems(key: str, instance: Instance) -> Iterator[tuple[str, Any, str]]:
    known_families = families("instance")
    if instance.engine not in ("auto", *known_families):
        known = ", ".join(("auto", *known_families))
        yield f"{key}.engine", instance.engine, f"must be one of {known}"
    if instance.role_url and not is_http(instance.role_url):
        yield f"{key}.role_url", instance.role_url, "must be an http(s) URL"
    if instance.ranks is not None and not 1 <= instance.ranks <= MAX_RANKS:
        yield f"{key}.ranks", instance.ranks, f"must be in 1..{MAX_RANKS}"
    if not instance.role_key:
        yield f"{key}.role_key", instance.role_key, "must name a key of the answer"


def families(kind: str) -> list[str]:
    """Engine families whose text is that of an `instance`, or of a `router`."""
    return [name for name, engine_map in MAPS.items() if engine_map.kind == kind]


def _example(entry: Instance | Router) -> wire.InstanceSample | wire.RouterSample:
    at_s = 1e9
    if isinstance(entry, Router):
        return wire.RouterSample(id=entry.id, kind=entry.kind, at_s=at_s)
    return wire.InstanceSample(
        id=entry.id,
        role=entry.role,
        engine=entry.engine,
        engine_version=entry.engine_version,
        group=entry.group,
        at_s=at_s,
    )
