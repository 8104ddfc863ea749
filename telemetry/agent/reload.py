"""The configuration as it is now: read again on SIGHUP and when the file changes, checked first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from telemetry.agent.config import Config, TokenError, load, read_token
from telemetry.agent.discovery import stamp
from telemetry.strict_toml import TomlError

log = logging.getLogger(__name__)

_FIXED: Final = ("agent", "spool_dir", "spool_max_bytes")
"""What an agent cannot change while it runs: its name and where its unsent batches are."""


class Reloader:
    """Watches one file. A bad one changes nothing, and `warnings` say so until it is mended."""

    def __init__(self, path: Path, config: Config, *, name: str = "") -> None:
        self._path, self._name = path, name
        self._stamp = stamp(path)
        self.asked = False
        """Whether a reading was asked for that is still to come."""
        self._kept = config
        self.warnings: tuple[str, ...] = ()

    def ask(self) -> None:
        """Read it at the next look even if it did not change (SIGHUP)."""
        self.asked = True

    def look(self) -> Config | None:
        """The new configuration if there is one that can be used."""
        now = stamp(self._path)
        if now == self._stamp and not self.asked:
            return None
        self._stamp, self.asked = now, False
        try:
            config = load(self._path, agent=self._name)
            read_token(config)
        except (TomlError, TokenError) as exc:
            why = str(exc).removeprefix(f"{self._path}: ")
            log.error("%s: %s; the old configuration stays", self._path, why)
            self.warnings = (f"the configuration file is not used, the one before is: {why}",)
            return None
        kept = {name: getattr(self._kept, name) for name in _FIXED}
        needs_restart = [name for name in _FIXED if getattr(config, name) != kept[name]]
        self.warnings = tuple(
            f"{name}={getattr(config, name)!r} in the configuration file needs a restart"
            for name in needs_restart
        )
        for warning in self.warnings:
            log.warning("%s", warning)
        log.info("%s: read again", self._path)
        return msgspec.structs.replace(config, **kept)
