"""Which console, and as whom: from flags, else the environment, else a file that only its owner may
read."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import tomli_w

URL, TOKEN, FILE = "PRFAAS_URL", "PRFAAS_TOKEN", "PRFAAS_CONFIG"
_KEYS = ("url", "token")


class ConfigError(Exception):
    """What is missing or may not be used, for people."""


@dataclass(frozen=True)
class Config:
    url: str
    token: str


def file_of(environment: Mapping[str, str]) -> Path:
    """Where the file is."""
    if FILE in environment:
        return Path(environment[FILE])
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "prfaas" / "cli.toml"


def read(environment: Mapping[str, str], *, url: str | None, token_file: Path | None) -> Config:
    """Raises ConfigError."""
    kept: dict[str, str] = {}
    if not (url or environment.get(URL)) or not (token_file or environment.get(TOKEN)):
        kept = _kept(file_of(environment))
    found = url or environment.get(URL) or kept.get("url", "")
    if not found:
        raise ConfigError(f"no console is named: --url, {URL}, or `login`")
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"{found}: must be http://HOST... or https://HOST..., without a user")
    if token_file is not None:
        token = _secret(token_file)
    else:
        token = environment.get(TOKEN) or kept.get("token", "")
    # A kept token is for the console that it was kept with, and for no other.
    if token_file is None and not environment.get(TOKEN) and kept.get("url", found) != found:
        token = ""
    if not token.isascii() or not token.isprintable():
        raise ConfigError("the token holds what no token holds")
    return Config(found, token)


def write(path: Path, config: Config) -> None:
    """Keep it, for its owner's eyes only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        tomli_w.dump({"url": config.url, "token": config.token}, out)
    beside.replace(path)


def _kept(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            _private(path, os.fstat(file.fileno()))
            found = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {getattr(exc, 'strerror', None) or exc}") from None
    wrong = [key for key, value in found.items() if key not in _KEYS or not isinstance(value, str)]
    if wrong:
        raise ConfigError(f"{path}: {wrong[0]} is not one of {', '.join(_KEYS)}, or no text")
    return found


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            _private(path, os.fstat(file.fileno()))
            return file.read(10_000).decode("ascii", "replace").strip()
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from None


def _private(path: Path, found: os.stat_result) -> None:
    if os.name == "posix" and stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
        raise ConfigError(f"{path}: others may read it: chmod 600 {path}")
