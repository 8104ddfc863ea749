"""TLS of the listener, of upstreams and of the console: contexts from files, read when asked."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from routing.gate.config import ConfigError
from routing.gate.settings import GateConfig, Tls, UpstreamConfig

Context = ssl.SSLContext | bool
"""As aiohttp takes it: True is what the system trusts."""


@dataclass(frozen=True)
class Trust:
    """All of one configuration. `listener` None: clients speak plain HTTP. `upstreams` by place
    (`local` or the PrfaaS cluster's name) and url."""

    listener: ssl.SSLContext | None
    upstreams: dict[tuple[str, str], Context]
    console: Context


def load_trust(config: GateConfig, file: Path) -> Trust:
    """Reads every certificate that the configuration `file` names. Raises ConfigError."""
    places = {"local": config.upstreams.local, **config.upstreams.remote}
    return Trust(
        listener=_listener(config.tls, file),
        upstreams={
            (place, stack.url): _of_upstream(stack, f"upstreams of {place}", file)
            for place, stacks in places.items()
            for stack in stacks
        },
        console=_of_console(config, file),
    )


def _listener(tls: Tls | None, file: Path) -> ssl.SSLContext | None:
    """What the gate shows to clients, and whom it asks for among them."""
    if tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, tls.cert_file, tls.key_file, "tls.cert_file", file)
    if tls.client_ca_file is not None:
        _load_ca(context, tls.client_ca_file, "tls.client_ca_file", file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _of_upstream(upstream: UpstreamConfig, key: str, file: Path) -> Context:
    """Whom to trust as this upstream and what to show it."""
    if upstream.ca_file is None and upstream.cert_file is None:
        return True
    context = ssl.create_default_context()
    if upstream.ca_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_ca(context, upstream.ca_file, f"{key}.ca_file", file)
    if upstream.cert_file is not None and upstream.key_file is not None:
        _load_chain(context, upstream.cert_file, upstream.key_file, f"{key}.cert_file", file)
    return context


def _of_console(config: GateConfig, file: Path) -> Context:
    if config.console_ca_file is None:
        return True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_ca(context, config.console_ca_file, "console_ca_file", file)
    return context


def _load_chain(context: ssl.SSLContext, cert: str, key: str, name: str, file: Path) -> None:
    try:
        # Without the password callback OpenSSL would ask at the terminal.
        context.load_cert_chain(cert, key, password=lambda: b"")
    except OSError as exc:
        raise ConfigError(
            f"no certificate with its key in {key}: {_one_line(exc)}",
            file=file,
            key=name,
            value=cert,
        ) from None


def _load_ca(context: ssl.SSLContext, ca: str, name: str, file: Path) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as exc:
        raise ConfigError(
            f"holds no certificates: {_one_line(exc)}", file=file, key=name, value=ca
        ) from None


def _one_line(exc: OSError) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
