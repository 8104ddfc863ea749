"""What an engine says its role is: roles move while the agent runs, its configuration does not."""

from __future__ import annotations

import json

import aiohttp

from telemetry.agent import http
from telemetry.agent.http import ReadError
from telemetry.agent.instances import ROLES, Instance, Role


class RoleReader:
    """The role of one engine: the last one it told, before that the configured one."""

    def __init__(
        self, instance: Instance, *, session: aiohttp.ClientSession, timeout_s: float
    ) -> None:
        self.role: Role = instance.role
        self.warnings: tuple[str, ...] = ()
        """Why the engine was not heard at the last reading, or nothing."""
        self._url, self._key = instance.role_url, instance.role_key
        self._session, self._timeout_s = session, timeout_s

    @property
    def asks(self) -> bool:
        """Whether the configuration says where."""
        return bool(self._url)

    async def ask(self) -> str | None:
        """Read the role; only where the configuration says at which URL.

        An engine that does not answer keeps the role it had. An answer that names no role is an
        error, which is returned: the engine is not what the configuration takes it for.
        """
        try:
            text, _ = await http.get(self._session, self._url, timeout_s=self._timeout_s)
        except ReadError as exc:
            self.warnings = (f"its role cannot be read, {self.role} is kept: {exc}",)
            return None
        self.warnings = ()
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return f"role_url: the answer is not JSON ({self._url})"
        told = document.get(self._key) if isinstance(document, dict) else None
        for role in ROLES:
            if told == role:
                self.role = role
                return None
        value = repr(told)[:80]
        return f"role_url: {self._key}={value}: must be one of {', '.join(ROLES)} ({self._url})"
