"""The agent's one file, `agent.toml`, read strictly: a misspelt key is an error, not a default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from telemetry import strict_toml, wire
from telemetry.agent import discovery, instances, link_config
from telemetry.agent.discovery import Discover
from telemetry.agent.instances import Instance, Router
from telemetry.agent.link_config import Link
from telemetry.agent.urls import is_http
from telemetry.refusals import WireError
from telemetry.strict_toml import TomlError

MIN_SPOOL_BYTES = 1024 * 1024
MAX_AGENT_CHARS = 200
MIN_SERIES = 1000


class TokenError(ValueError):
    """There is no token to send; says what is missing."""


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Everything an agent needs. Relative paths count from the file's own folder.

    `max_series` bounds what is read of one source's text: above it only series that an engine map
    knows are, and the others are counted as dropped.
    """

    agent: str = ""
    console_url: str
    spool_dir: str
    token: str = ""
    token_file: str = ""
    interval_s: float = 1.0
    timeout_s: float = 2.0
    spool_max_bytes: int = 256 * 1024 * 1024
    max_series: int = 50_000
    instances: tuple[Instance, ...] = ()
    routers: tuple[Router, ...] = ()
    links: tuple[Link, ...] = ()
    discover: tuple[Discover, ...] = ()


def load(path: Path, *, agent: str = "") -> Config:
    """The checked configuration at `path`, with `agent` as the name if one is given.

    Raises TomlError naming file, key and value.
    """
    config = strict_toml.read(path, Config)
    if agent:
        config = msgspec.structs.replace(config, agent=agent)
    for key, value, why in _problems(config):
        raise TomlError(path, key, value, why)

    def beside(written: str) -> str:
        return str(path.parent / written) if written else ""

    return msgspec.structs.replace(
        config,
        spool_dir=beside(config.spool_dir),
        token_file=beside(config.token_file),
        discover=tuple(
            msgspec.structs.replace(
                entry,
                path=beside(entry.path),
                api_token_file=beside(entry.api_token_file),
                api_ca_file=beside(entry.api_ca_file),
            )
            for entry in config.discover
        ),
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
    if not config.agent.isprintable():
        yield "agent", config.agent, "must not contain control characters"
    if not is_http(config.console_url):
        yield "console_url", config.console_url, "must be an http(s) URL"
    if config.token and config.token_file:
        yield "token_file", config.token_file, "give token or token_file, not both"
    if not 0.1 <= config.interval_s <= 60.0:
        yield "interval_s", config.interval_s, "must be in 0.1..60 seconds"
    if not instances.MIN_TIMEOUT_S <= config.timeout_s <= instances.MAX_TIMEOUT_S:
        yield "timeout_s", config.timeout_s, "must be in 0.1..60 seconds"
    if config.spool_max_bytes < MIN_SPOOL_BYTES:
        yield "spool_max_bytes", config.spool_max_bytes, f"must be at least {MIN_SPOOL_BYTES}"
    if config.max_series < MIN_SERIES:
        yield "max_series", config.max_series, f"must be at least {MIN_SERIES}"
    if not (config.instances or config.routers or config.links or config.discover):
        why = "nothing to read: give [[instances]], [[discover]], [[routers]] or [[links]]"
        yield "instances", [], why
    yield from _source_problems(config)


def _source_problems(config: Config) -> Iterator[tuple[str, Any, str]]:
    scraped: tuple[tuple[str, tuple[Instance | Router, ...]], ...] = (
        ("instances", config.instances),
        ("routers", config.routers),
    )
    for kind, entries in scraped:
        seen: set[str] = set()
        for i, entry in enumerate(entries):
            yield from instances.problems(f"{kind}[{i}]", entry)
            if entry.id in seen:
                yield f"{kind}[{i}].id", entry.id, "is given twice"
            seen.add(entry.id)
    for i, discover in enumerate(config.discover):
        yield from discovery.problems(f"discover[{i}]", discover)
    for i, link in enumerate(config.links):
        key = f"links[{i}]"
        yield from link_config.problems(key, link, interval_s=config.interval_s)
        # What the console would refuse in every batch.
        sample = wire.LinkSample(id=link.id, measured_layer=link.measured_layer, at_s=1e9)
        try:
            wire.check_sample(sample, key)
        except WireError as exc:
            yield exc.field, exc.value, exc.error
