"""The gate's settings: one TOML file, every key checked, every error naming file, key and value.

    router = "prfaas-1t/pd/gate-1"     # FLEET/CLUSTER/NAME
    host = "127.0.0.1"
    port = 8100                        # 0: any free port, told in the ready line
    console_url = "http://127.0.0.1:8000"   # absent: no console, the plan file is all there is
    token_file = "gate.token"          # or token = "..."; scope router
    plan_file = "gate.plan.json"       # the last plan, so that a restart does not forget it

    [upstreams.local]
    url = "http://127.0.0.1:9001"
    cache_capacity_tokens = 2000000    # prefix cache of the side; "infinite"; 0: it keeps none;
                                       # absent: 4194304
    [upstreams.remote.prfaas]          # one table per PrfaaS cluster, by its name in the plan
    url = "http://127.0.0.1:9002"

Relative paths are relative to the file. The rest, with defaults, is in `GateConfig` and
`UpstreamConfig`.
"""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec

from routing.gate import kv_events

DEFAULT_CACHE_CAPACITY_TOKENS = 4_194_304

_ABOVE_ZERO = (
    "health_interval_s",
    "connect_timeout_s",
    "read_timeout_s",
    "ack_interval_s",
    "poll_interval_s",
    "console_timeout_s",
)


class ConfigError(ValueError):
    """A configuration the gate will not start with."""

    def __init__(self, message: str, *, file: Path, key: str = "", value: Any = None) -> None:
        where = f"{key} = {value!r}: " if key else ""
        super().__init__(f"{file}: {where}{message}")


class UpstreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One OpenAI-compatible P/D stack. `url` is its base, without `/v1`.

    `trust_cached_tokens`: whether `usage.prompt_tokens_details.cached_tokens` tells what *prefill*
    had cached. Set it to false for stacks whose answer comes from a decode engine that counts the
    KV it was sent as cached (vLLM with a KV connector): to the loop every prompt would look short.

    `linear_state` `exact`: the model has layers with one state a request (linear attention, sliding
    windows), so a cached prefix is of use only up to where such a state was left. `none`: all of it
    is.

    `kv_events`: `tcp://HOST:PORT` of every engine behind it that publishes KV events and prefills.
    """

    url: str
    cache_capacity_tokens: int | Literal["infinite"] = DEFAULT_CACHE_CAPACITY_TOKENS
    health_path: str = "/health"
    trust_cached_tokens: bool = True
    linear_state: Literal["exact", "none"] = "none"
    kv_events: tuple[str, ...] = ()

    def capacity_blocks(self, block_tokens: int) -> int | None:
        """Full blocks the side's prefix cache holds; None: unbounded."""
        if self.cache_capacity_tokens == "infinite":
            return None
        return self.cache_capacity_tokens // block_tokens


class Upstreams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The two sides; `remote` by PrfaaS cluster name."""

    local: UpstreamConfig
    remote: dict[str, UpstreamConfig] = {}


class GateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of one gate.

    `media_part_tokens` stands for each image or clip of a chat until the engine reports usage.
    `read_timeout_s` is the longest silence of an upstream, before and between its bytes.
    `console_timeout_s` limits a GET and the handshake of the plan socket.
    `drain_s` is how long streams may go on after SIGTERM.
    `kv_events_model` is the `model` of the requests that KV events are of.
    """

    router: str
    upstreams: Upstreams
    host: str = "127.0.0.1"
    port: int = 8100
    console_url: str | None = None
    token: str | None = None
    token_file: str | None = None
    plan_file: str | None = None
    tokenizer_file: str | None = None
    block_tokens: int = 512
    media_part_tokens: int = 1000
    max_body_bytes: int = 64 * 1024 * 1024
    health_interval_s: float = 2.0
    connect_timeout_s: float = 2.0
    read_timeout_s: float = 600.0
    ack_interval_s: float = 5.0
    poll_interval_s: float = 2.0
    console_timeout_s: float = 10.0
    drain_s: float = 30.0
    kv_events_model: str = ""

    @property
    def fleet(self) -> str:
        return self.router.split("/")[0]

    @property
    def cluster(self) -> str:
        return self.router.split("/")[1]

    def read_token(self) -> str | None:
        """The token as of now, so that a rotated file is picked up at the next connection.

        Raises OSError when the token file cannot be read.
        """
        if self.token_file is None:
            return self.token
        return Path(self.token_file).read_text().strip()


def load_config(path: Path) -> GateConfig:
    """The checked configuration. Raises ConfigError."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", file=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"is not TOML: {exc}", file=path) from None
    _check_remotes(document, path)
    config = _convert(document, GateConfig, "", path)
    _check(config, path)
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


def _check_remotes(document: dict[str, Any], path: Path) -> None:
    """Each remote alone first: inside a map msgspec's errors do not name the entry."""
    upstreams = document.get("upstreams")
    remotes = upstreams.get("remote") if isinstance(upstreams, dict) else None
    for name, entry in remotes.items() if isinstance(remotes, dict) else ():
        key = f"upstreams.remote.{name}"
        if not isinstance(entry, dict):
            raise ConfigError("must be a table with a url", file=path, key=key, value=entry)
        _convert(entry, UpstreamConfig, key, path)


def _check(config: GateConfig, path: Path) -> None:
    """What types cannot say."""
    parts = config.router.split("/")
    if len(parts) != 3 or not all(parts):
        raise ConfigError(
            "must be FLEET/CLUSTER/NAME", file=path, key="router", value=config.router
        )
    if not 0 <= config.port <= 65535:
        raise ConfigError("must be in 0..65535", file=path, key="port", value=config.port)
    for key in ("block_tokens", "max_body_bytes"):
        if getattr(config, key) < 1:
            raise ConfigError("must be at least 1", file=path, key=key, value=getattr(config, key))
    for key in ("media_part_tokens", "drain_s"):
        value = getattr(config, key)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError("must be finite and not negative", file=path, key=key, value=value)
    for key in _ABOVE_ZERO:
        value = getattr(config, key)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError("must be finite and above 0", file=path, key=key, value=value)
    _check_console(config, path)
    _check_upstream(config.upstreams.local, "upstreams.local", path)
    for name, upstream in config.upstreams.remote.items():
        key = f"upstreams.remote.{name}"
        if name == config.cluster:
            raise ConfigError("is this gate's own cluster", file=path, key=key, value=upstream.url)
        _check_upstream(upstream, key, path)


def _check_console(config: GateConfig, path: Path) -> None:
    if config.console_url is not None:
        _check_url(config.console_url, "console_url", path)
    if config.token is not None and config.token_file is not None:
        raise ConfigError(
            "give token or token_file, not both",
            file=path,
            key="token_file",
            value=config.token_file,
        )


def _check_upstream(upstream: UpstreamConfig, key: str, path: Path) -> None:
    _check_url(upstream.url, f"{key}.url", path)
    capacity = upstream.cache_capacity_tokens
    if capacity != "infinite" and capacity < 0:
        raise ConfigError(
            'must be "infinite" or at least 0',
            file=path,
            key=f"{key}.cache_capacity_tokens",
            value=capacity,
        )
    if not upstream.health_path.startswith("/"):
        raise ConfigError(
            "must start with /", file=path, key=f"{key}.health_path", value=upstream.health_path
        )
    _check_kv_events(upstream.kv_events, f"{key}.kv_events", path)


def _check_kv_events(endpoints: tuple[str, ...], key: str, path: Path) -> None:
    for endpoint in endpoints:
        found = re.fullmatch(
            r"tcp://[^\s/:*]+:([0-9]{1,5})|tcp://\[[^\s\]]+\]:([0-9]{1,5})", endpoint
        )
        if found is None or not 0 < int(found[1] or found[2]) < 65536:
            raise ConfigError("must be tcp://HOST:PORT", file=path, key=key, value=endpoint)
        if endpoints.count(endpoint) > 1:
            raise ConfigError("is named twice", file=path, key=key, value=endpoint)
    if endpoints and not kv_events.AVAILABLE:
        raise ConfigError(
            "hearing them needs the `pyzmq` package: install prfaas-console[kv-events]",
            file=path,
            key=key,
            value=list(endpoints),
        )


def _check_url(url: str, key: str, path: Path) -> None:
    if not re.fullmatch(r"https?://[^/\s?#]+(/[^\s?#]*)?", url):
        raise ConfigError("must be http(s)://HOST[:PORT][/PATH]", file=path, key=key, value=url)


def _resolve_paths(config: GateConfig, path: Path) -> GateConfig:
    """Files named in the configuration, relative to it; those that must exist are looked for."""
    resolved: dict[str, str] = {}
    for key, must_exist in (("token_file", True), ("tokenizer_file", True), ("plan_file", False)):
        value = getattr(config, key)
        if value is None:
            continue
        target = path.parent / value
        if must_exist and not target.is_file():
            raise ConfigError("no such file", file=path, key=key, value=value)
        resolved[key] = str(target)
    return msgspec.structs.replace(config, **resolved)
