"""The gate's settings: one TOML file, every key checked, every error naming file, key and value.

    router = "prfaas-1t/pd/gate-1"     # FLEET/CLUSTER/NAME
    host = "127.0.0.1"
    port = 8100                        # 0: any free port, told in the ready line
    console_url = "http://127.0.0.1:8000"   # absent: no console, the plan file is all there is
    token_file = "gate.token"          # or token = "..."; scope router
    plan_file = "gate.plan.json"       # the last plan, so that a restart does not forget it

    [upstreams.local]
    url = "http://127.0.0.1:9001"
    cache_capacity_tokens = 2000000    # prefix cache of the stack; "infinite"; 0: it keeps none;
                                       # absent: 4194304
    [upstreams.remote.prfaas]          # one table per PrfaaS cluster, by its name in the plan
    url = "http://127.0.0.1:9002"

A place with several stacks has one `[[upstreams.local]]` or `[[upstreams.remote.prfaas]]` each.
Relative paths are relative to the file. The rest, with defaults, is in `settings`; docs/gate.md
explains it.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from routing.gate import kv_events
from routing.gate.settings import (
    BreakerConfig,
    GateConfig,
    Limits,
    Tenants,
    UpstreamConfig,
    upstream_names,
)

_ABOVE_ZERO = (
    "health_interval_s",
    "connect_timeout_s",
    "read_timeout_s",
    "ack_interval_s",
    "poll_interval_s",
    "console_timeout_s",
)
_FILES = ("token_file", "tokenizer_file", "console_ca_file")
_SECRET = re.compile(r"(token|secret|passw(or)?d|api_?key)$", re.IGNORECASE)
"""Keys whose value is nobody's to read in a log or on a page, misspelt or not."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ConfigError(ValueError):
    """A configuration the gate will not start with."""

    def __init__(self, message: str, *, file: Path, key: str = "", value: Any = None) -> None:
        shown = "'...'" if _SECRET.search(key) else repr(value)
        where = f"{key} = {shown}: " if key else ""
        super().__init__(f"{file}: {where}{message}")


def load_config(path: Path) -> GateConfig:
    """The checked configuration. Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not TOML: {exc}", file=path) from None
    _list_stacks(document, path)
    config = _convert(document, GateConfig, "", path)
    _Checks(path).all(config)
    return _resolve_paths(config, path)


def _convert(value: Any, kind: Any, prefix: str, path: Path) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        message, _, at = str(exc).partition(" - at `$")
        key = at.rstrip("`").lstrip(".")
        unknown = re.search(r"unknown field `(.*)`", message)
        if unknown:
            key, message = f"{key}.{unknown[1]}".lstrip("."), "unknown key"
        raise ConfigError(
            message, file=path, key=f"{prefix}.{key}".strip("."), value=_value_at(value, key)
        ) from None


def _value_at(document: Any, key: str) -> Any:
    for part in filter(None, key.split(".")):
        document = document.get(part) if isinstance(document, dict) else None
    return document


def _list_stacks(document: dict[str, Any], path: Path) -> None:
    """A table is a list of one. Each is read alone first: inside lists and maps msgspec's errors do
    not name the entry."""
    upstreams = document.get("upstreams")
    if not isinstance(upstreams, dict):
        return
    if "local" in upstreams:
        upstreams["local"] = _stacks(upstreams["local"], "upstreams.local", path)
    remotes = upstreams.get("remote")
    if isinstance(remotes, dict):
        for name, entry in remotes.items():
            remotes[name] = _stacks(entry, f"upstreams.remote.{name}", path)


def _stacks(entry: Any, key: str, path: Path) -> list[Any]:
    entries = entry if isinstance(entry, list) else [entry]
    if not entries:
        raise ConfigError("names no stack", file=path, key=key, value=entry)
    for i, each in enumerate(entries):
        at = _stack_key(key, i, len(entries))
        if not isinstance(each, dict):
            raise ConfigError("must be a table with a url", file=path, key=at, value=each)
        _convert(each, UpstreamConfig, at, path)
    return entries


def _stack_key(key: str, i: int, n_stacks: int) -> str:
    return key if n_stacks == 1 else f"{key}[{i}]"


class _Checks:
    """What types cannot say."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def all(self, config: GateConfig) -> None:
        self._router(config)
        self._numbers(config)
        self._console(config)
        self._upstreams(config)
        self._breaker(config.breaker)
        self._limits(config.limits)
        if config.tenants is not None:
            self._tenants(config.tenants)
        if config.chat_template is not None:
            self._template("chat_template.message", config.chat_template.message)

    def _error(self, message: str, key: str, value: Any) -> ConfigError:
        return ConfigError(message, file=self._path, key=key, value=value)

    def _router(self, config: GateConfig) -> None:
        parts = config.router.split("/")
        if len(parts) != 3 or not all(parts):
            raise self._error("must be FLEET/CLUSTER/NAME", "router", config.router)

    def _numbers(self, config: GateConfig) -> None:
        if not 0 <= config.port <= 65535:
            raise self._error("must be in 0..65535", "port", config.port)
        self._at_least(config, ("block_tokens", "max_body_bytes"), 1)
        self._at_least(config, ("media_part_tokens", "retries_per_side", "drain_s"), 0)
        self._above_zero(config, _ABOVE_ZERO)

    def _at_least(self, table: Any, names: tuple[str, ...], least: int, prefix: str = "") -> None:
        for name in names:
            value = getattr(table, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                what = "finite and not negative" if least == 0 else f"at least {least}"
                raise self._error(f"must be {what}", prefix + name, value)

    def _above_zero(self, table: Any, names: tuple[str, ...], prefix: str = "") -> None:
        for name in names:
            value = getattr(table, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise self._error("must be finite and above 0", prefix + name, value)

    def _console(self, config: GateConfig) -> None:
        if config.console_url is not None:
            self._url(config.console_url, "console_url")
        if config.token is not None and config.token_file is not None:
            raise self._error("give token or token_file, not both", "token_file", config.token_file)

    def _upstreams(self, config: GateConfig) -> None:
        taken: dict[str, str] = {}
        for name, stacks in (("", config.upstreams.local), *config.upstreams.remote.items()):
            key = f"upstreams.remote.{name}" if name else "upstreams.local"
            if name == config.cluster:
                raise self._error("is this gate's own cluster", key, [s.url for s in stacks])
            for i, stack in enumerate(stacks):
                self._url(stack.url, f"{_stack_key(key, i, len(stacks))}.url")
            urls = [stack.url.rstrip("/") for stack in stacks]
            for i, (stack, called) in enumerate(
                zip(stacks, upstream_names(name or "local", stacks), strict=True)
            ):
                at = _stack_key(key, i, len(stacks))
                self._stack(stack, at)
                if urls.count(urls[i]) > 1:
                    raise self._error("is named twice", f"{at}.url", stack.url)
                if called in taken:
                    raise self._error(f"is also the name of {taken[called]}", f"{at}.name", called)
                taken[called] = at

    def _stack(self, stack: UpstreamConfig, key: str) -> None:
        capacity = stack.cache_capacity_tokens
        if capacity != "infinite" and capacity < 0:
            raise self._error(
                'must be "infinite" or at least 0', f"{key}.cache_capacity_tokens", capacity
            )
        if not stack.health_path.startswith("/"):
            raise self._error("must start with /", f"{key}.health_path", stack.health_path)
        if not stack.name.isprintable() or "/" in stack.name:
            raise self._error("must be printable, without /", f"{key}.name", stack.name)
        if (stack.cert_file is None) != (stack.key_file is None):
            raise self._error(
                "cert_file and key_file go together", f"{key}.cert_file", stack.cert_file
            )
        self._kv_events(stack.kv_events, f"{key}.kv_events")

    def _kv_events(self, endpoints: tuple[str, ...], key: str) -> None:
        for endpoint in endpoints:
            found = re.fullmatch(
                r"tcp://[^\s/:*]+:([0-9]{1,5})|tcp://\[[^\s\]]+\]:([0-9]{1,5})", endpoint
            )
            if found is None or not 0 < int(found[1] or found[2]) < 65536:
                raise self._error("must be tcp://HOST:PORT", key, endpoint)
            if endpoints.count(endpoint) > 1:
                raise self._error("is named twice", key, endpoint)
        if endpoints and not kv_events.AVAILABLE:
            raise self._error(
                "hearing them needs the `pyzmq` package: install prfaas-console[kv-events]",
                key,
                list(endpoints),
            )

    def _url(self, url: str, key: str) -> None:
        if not re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", url):
            raise self._error("must be http(s)://HOST[:PORT][/PATH]", key, _without_user(url))
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as exc:
            raise self._error(str(exc), key, _without_user(url)) from None
        if not host or "@" in parts.netloc:
            raise self._error("must name a host, and no user before it", key, _without_user(url))

    def _breaker(self, breaker: BreakerConfig) -> None:
        self._at_least(breaker, ("failures", "min_requests"), 1, "breaker.")
        self._above_zero(breaker, ("window_s", "open_s"), "breaker.")
        if not 0.0 < breaker.failure_ratio <= 1.0:
            raise self._error("must be in 0..1", "breaker.failure_ratio", breaker.failure_ratio)
        if not breaker.open_s <= breaker.max_open_s < math.inf:
            raise self._error("must be at least open_s", "breaker.max_open_s", breaker.max_open_s)

    def _limits(self, limits: Limits) -> None:
        self._at_least(limits, ("in_flight", "local_in_flight"), 1, "limits.")
        self._at_least(limits, ("remote_in_flight", "queue"), 0, "limits.")
        self._above_zero(limits, ("queue_s",), "limits.")

    def _tenants(self, tenants: Tenants) -> None:
        if tenants.header is not None and not _HEADER.fullmatch(tenants.header):
            raise self._error("is no header's name", "tenants.header", tenants.header)
        self._at_least(tenants, ("in_flight", "burst"), 1, "tenants.")
        self._above_zero(tenants, ("rps",), "tenants.")
        if tenants.burst is not None and tenants.rps is None:
            raise self._error("needs rps", "tenants.burst", tenants.burst)

    def _template(self, key: str, text: str) -> None:
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as exc:
            raise self._error(str(exc), key, text) from None
        if sorted(fields) != ["content", "role"]:
            raise self._error("must hold {role} and {content} once each", key, text)


def _without_user(url: str) -> str:
    """What may stand before an @ is a password."""
    return re.sub(r"//.*@", "//...@", url)


def _resolve_paths(config: GateConfig, path: Path) -> GateConfig:
    """Files named in the configuration, relative to it; those that must exist are looked for."""

    def found(table: Any, names: tuple[str, ...], prefix: str = "") -> dict[str, str]:
        resolved = {}
        for name in names:
            value = getattr(table, name)
            if value is None:
                continue
            target = path.parent / value
            if not target.is_file():
                raise ConfigError("no such file", file=path, key=prefix + name, value=value)
            resolved[name] = str(target)
        return resolved

    def stacks(key: str, entries: tuple[UpstreamConfig, ...]) -> tuple[UpstreamConfig, ...]:
        names = ("ca_file", "cert_file", "key_file")
        return tuple(
            msgspec.structs.replace(
                entry, **found(entry, names, f"{_stack_key(key, i, len(entries))}.")
            )
            for i, entry in enumerate(entries)
        )

    replaced: dict[str, Any] = found(config, _FILES)
    if config.plan_file is not None:
        replaced["plan_file"] = str(path.parent / config.plan_file)
    if config.tls is not None:
        names = ("cert_file", "key_file", "client_ca_file")
        replaced["tls"] = msgspec.structs.replace(config.tls, **found(config.tls, names, "tls."))
    if config.access_log is not None:
        replaced["access_log"] = msgspec.structs.replace(
            config.access_log, file=str(path.parent / config.access_log.file)
        )
    upstreams = msgspec.structs.replace(
        config.upstreams,
        local=stacks("upstreams.local", config.upstreams.local),
        remote={
            name: stacks(f"upstreams.remote.{name}", entries)
            for name, entries in config.upstreams.remote.items()
        },
    )
    return msgspec.structs.replace(config, upstreams=upstreams, **replaced)
