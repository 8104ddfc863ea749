"""What a gate can be told, with defaults. `config` reads and checks it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

DEFAULT_CACHE_CAPACITY_TOKENS = 4_194_304
STALE_UNTIL_RESTART = (
    *("router", "host", "port", "plan_file", "tokenizer_file", "block_tokens"),
    *("media_part_tokens", "max_body_bytes", "kv_events_model", "chat_template"),
    "console_timeout_s",
)
"""Keys that a running gate cannot change: they name it, or everything it knows is built on them."""


class UpstreamConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One OpenAI-compatible P/D stack. `url` is its base, without `/v1`.

    `trust_cached_tokens`: whether `usage.prompt_tokens_details.cached_tokens` tells what *prefill*
    had cached. Set it to false for stacks whose answer comes from a decode engine that counts the
    KV it was sent as cached (vLLM with a KV connector): to the loop every prompt would look short.

    `linear_state` `exact`: the model has layers with one state a request (linear attention, sliding
    windows), so a cached prefix is of use only up to where such a state was left. `none`: all of it
    is.

    `kv_events`: `tcp://HOST:PORT` of every engine behind it that publishes KV events and prefills.

    `name` is what headers and metrics call it; absent: its place where it is the only one there,
    else HOST:PORT of its url. `ca_file` is whom to trust for an https url (absent: the system's),
    `cert_file` and `key_file` what this gate shows of itself.
    """

    url: str
    name: str = ""
    cache_capacity_tokens: int | Literal["infinite"] = DEFAULT_CACHE_CAPACITY_TOKENS
    health_path: str = "/health"
    trust_cached_tokens: bool = True
    linear_state: Literal["exact", "none"] = "none"
    kv_events: tuple[str, ...] = ()
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def capacity_blocks(self, block_tokens: int) -> int | None:
        """Full blocks the side's prefix cache holds; None: unbounded."""
        if self.cache_capacity_tokens == "infinite":
            return None
        return self.cache_capacity_tokens // block_tokens


class Upstreams(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The stacks of the two sides; `remote` by PrfaaS cluster name."""

    local: tuple[UpstreamConfig, ...]
    remote: dict[str, tuple[UpstreamConfig, ...]] = {}


class BreakerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """When the breaker of an upstream opens and how long it stays open.

    After `failures` in a row, or when of at least `min_requests` in `window_s` a share of
    `failure_ratio` failed. Open for `open_s`, twice as long after each failed trial, at most
    `max_open_s`.
    """

    failures: int = 5
    failure_ratio: float = 0.5
    min_requests: int = 20
    window_s: float = 30.0
    open_s: float = 5.0
    max_open_s: float = 60.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many requests may be in this gate's hands at once; None: no limit.

    Above `in_flight` or `local_in_flight` up to `queue` requests wait, each at most `queue_s`.
    Above `remote_in_flight` requests stay local (`RemoteLimit`), as by the plan's own limit.
    """

    in_flight: int | None = None
    local_in_flight: int | None = None
    remote_in_flight: int | None = None
    queue: int = 0
    queue_s: float = 5.0


class Tenants(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one tenant may take; None: no limit.

    A tenant is who sends one bearer key, or one value of `header` where that is named. `rps` is
    refilled continuously and holds up to `burst` requests (absent: `rps`, at least 1).
    """

    header: str | None = None
    in_flight: int | None = None
    rps: float | None = None
    burst: float | None = None


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The listener's certificate; with `client_ca_file` clients must show one of that authority."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None


class AccessLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One JSON line a request, appended to `file`."""

    file: str


class ChatTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the model's template lays out a plain chat: `begin`, `message` for each with `{role}` and
    `{content}`, `end`. With a tokenizer such chats are counted exactly."""

    message: str
    begin: str = ""
    end: str = ""


class GateConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All settings of one gate.

    `media_part_tokens` stands for each image or clip of a chat until the engine reports usage.
    `read_timeout_s` is the longest silence of an upstream, before and between its bytes.
    `console_timeout_s` limits a GET and the handshake of the plan socket.
    `drain_s` is how long streams may go on after SIGTERM.
    `kv_events_model` is the `model` of the requests that KV events are of.
    `retries_per_side`: how many more upstreams of a side are tried for a request that one failed.
    `console_ca_file` is whom to trust for an https console (absent: the system's).
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
    retries_per_side: int = 1
    console_ca_file: str | None = None
    breaker: BreakerConfig = BreakerConfig()
    limits: Limits = Limits()
    tenants: Tenants | None = None
    tls: Tls | None = None
    access_log: AccessLog | None = None
    chat_template: ChatTemplate | None = None

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

    def beside_plan_file(self, suffix: str) -> Path | None:
        """A file of the gate's own, named after `plan_file`; None without one."""
        return None if self.plan_file is None else Path(self.plan_file + suffix)


def upstream_names(place: str, stacks: tuple[UpstreamConfig, ...]) -> list[str]:
    """What the stacks of a place are called in headers and metrics."""
    if len(stacks) == 1:
        return [stacks[0].name or place]
    return [stack.name or urlsplit(stack.url).netloc for stack in stacks]
