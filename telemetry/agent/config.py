"""The agent's one file, `agent.toml`, read strictly: a misspelt key is an error, not a default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from telemetry import strict_toml, wire
from telemetry.agent import link_config
from telemetry.agent.link_config import Link
from telemetry.agent.urls import is_http
from telemetry.engine_maps import MAPS
from telemetry.strict_toml import TomlError

MIN_SPOOL_BYTES = 1024 * 1024
MAX_AGENT_CHARS = 200
MAX_ID_CHARS = 300


class TokenError(ValueError):
    """There is no token to send; says what is missing."""


class Instance(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One engine, scraped at `url`. `engine` is a family of `telemetry/engines` or `auto`.

    `role` is what it is taken for until it tells its role itself: under `role_key` of the JSON
    document at `role_url`, read with each scrape.
    """

    id: str
    role: Literal["prefill", "decode", "both"]
    url: str
    engine: str = "auto"
    engine_version: str = ""
    group: str | None = None
    role_url: str = ""
    role_key: str = "disagg_mode"


class Router(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One gate, scraped like an engine."""

    id: str
    url: str
    kind: Literal["gate"] = "gate"


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Everything an agent needs. Relative paths count from the file's own folder."""

    agent: str
    console_url: str
    spool_dir: str
    token: str = ""
    token_file: str = ""
    interval_s: float = 1.0
    timeout_s: float = 2.0
    spool_max_bytes: int = 256 * 1024 * 1024
    instances: tuple[Instance, ...] = ()
    routers: tuple[Router, ...] = ()
    links: tuple[Link, ...] = ()


def load(path: Path) -> Config:
    """The checked configuration at `path`. Raises TomlError naming file, key and value."""
    config = strict_toml.read(path, Config)
    for key, value, why in _problems(config):
        raise TomlError(path, key, value, why)
    return msgspec.structs.replace(
        config,
        spool_dir=str(path.parent / config.spool_dir),
        token_file=str(path.parent / config.token_file) if config.token_file else "",
    )


def read_token(config: Config) -> str:
    """The bearer token, from the file each time so that a rotated one is picked up.

    Raises TokenError.
    """
    if config.token:
        return config.token
    if not config.token_file:
        raise TokenError("neither token nor token_file is set: the console takes no readings")
    try:
        token = Path(config.token_file).read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise TokenError(f"token_file={config.token_file!r}: {exc.strerror}") from None
    if not token:
        raise TokenError(f"token_file={config.token_file!r}: is empty")
    return token


def _problems(config: Config) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of whatever the types cannot say."""
    if not 1 <= len(config.agent) <= MAX_AGENT_CHARS:
        yield "agent", config.agent, f"must have 1..{MAX_AGENT_CHARS} characters"
    if not is_http(config.console_url):
        yield "console_url", config.console_url, "must be an http(s) URL"
    if config.token and config.token_file:
        yield "token_file", config.token_file, "give token or token_file, not both"
    if not 0.1 <= config.interval_s <= 60.0:
        yield "interval_s", config.interval_s, "must be in 0.1..60 seconds"
    if not 0.1 <= config.timeout_s <= 60.0:
        yield "timeout_s", config.timeout_s, "must be in 0.1..60 seconds"
    if config.spool_max_bytes < MIN_SPOOL_BYTES:
        yield "spool_max_bytes", config.spool_max_bytes, f"must be at least {MIN_SPOOL_BYTES}"
    if not (config.instances or config.routers or config.links):
        yield "instances", [], "nothing to read: give [[instances]], [[routers]] or [[links]]"
    if not config.agent.isprintable():
        yield "agent", config.agent, "must not contain control characters"
    yield from _source_problems(config)
    yield from _wire_problems(config)
    for i, link in enumerate(config.links):
        yield from link_config.problems(f"links[{i}]", link)


def _wire_problems(config: Config) -> Iterator[tuple[str, Any, str]]:
    """What the console would refuse in every batch."""
    at_s = 1e9
    for i, entry in enumerate(config.instances):
        yield from _refusal(
            wire.InstanceSample(
                id=entry.id,
                role=entry.role,
                engine=entry.engine,
                engine_version=entry.engine_version,
                group=entry.group,
                at_s=at_s,
            ),
            f"instances[{i}]",
        )
    for i, router in enumerate(config.routers):
        yield from _refusal(
            wire.RouterSample(id=router.id, kind=router.kind, at_s=at_s), f"routers[{i}]"
        )
    for i, link in enumerate(config.links):
        yield from _refusal(
            wire.LinkSample(id=link.id, measured_layer=link.measured_layer, at_s=at_s),
            f"links[{i}]",
        )


def _refusal(
    sample: wire.InstanceSample | wire.RouterSample | wire.LinkSample, key: str
) -> Iterator[tuple[str, Any, str]]:
    try:
        wire.check_sample(sample, key)
    except wire.WireError as exc:
        yield exc.field, exc.value, exc.error


def _source_problems(config: Config) -> Iterator[tuple[str, Any, str]]:
    families = [name for name, engine_map in MAPS.items() if engine_map.kind == "instance"]
    scraped: tuple[tuple[str, tuple[Instance | Router, ...]], ...] = (
        ("instances", config.instances),
        ("routers", config.routers),
    )
    for kind, sources in scraped:
        seen: set[str] = set()
        for i, source in enumerate(sources):
            key = f"{kind}[{i}]"
            if source.id.count("/") != 2 or not all(source.id.split("/")):
                yield f"{key}.id", source.id, "an id is FLEET/CLUSTER/NAME"
            if len(source.id) > MAX_ID_CHARS:
                yield f"{key}.id", source.id, f"must have at most {MAX_ID_CHARS} characters"
            if source.id in seen:
                yield f"{key}.id", source.id, "is given twice"
            seen.add(source.id)
            if not is_http(source.url):
                yield f"{key}.url", source.url, "must be an http(s) URL"
            if isinstance(source, Instance):
                yield from _instance_problems(key, source, families)


def _instance_problems(
    key: str, instance: Instance, families: list[str]
) -> Iterator[tuple[str, Any, str]]:
    if instance.engine not in ("auto", *families):
        known = ", ".join(("auto", *families))
        yield f"{key}.engine", instance.engine, f"must be one of {known}"
    if instance.role_url and not is_http(instance.role_url):
        yield f"{key}.role_url", instance.role_url, "must be an http(s) URL"
    if not instance.role_key:
        yield f"{key}.role_key", instance.role_key, "must name a key of the answer"
