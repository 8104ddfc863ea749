"""The local door: one JSON line asks, one JSON line answers, over a unix socket of mode 0600.

    {"do": "status"}  {"do": "release", "by": NAME}
    {"do": "set", "asked": {mode, threshold_tokens, by, reason, for_s}}
    -> {"ok": true, "override": {...} | null} | {"ok": false, "error": "..."}

Who may open the socket is who may write the gate's files; there is no other authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from routing.gate.override import Asked, Override, OverrideError, OverrideKeeper

FILE_SUFFIX = ".override"
SOCKET_SUFFIX = ".sock"

_MAX_LINE_BYTES = 64 * 1024
_ANSWER_S = 5.0

log = logging.getLogger(__name__)


class DoorError(Exception):
    """No gate answers at the door, or it said no."""


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    do: Literal["status", "release", "set"]
    by: str = ""
    asked: Asked | None = None


class OverrideDoor:
    """Serves the keeper's override on `path` from `open` to `close`."""

    def __init__(self, path: Path, keeper: OverrideKeeper) -> None:
        self._path, self._keeper = path, keeper
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listens. A place that cannot be used is said: the gate serves without a door."""
        try:
            door = _bound(self._path)
            self._server = await asyncio.start_unix_server(
                self._answer, sock=door, limit=_MAX_LINE_BYTES
            )
        except OSError as exc:
            log.warning("%s: no door for overrides: %s", self._path, exc.strerror or exc)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError):
            async with asyncio.timeout(_ANSWER_S):
                line = await reader.readline()
                writer.write(json.dumps(self._done(line)).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _done(self, line: bytes) -> dict[str, Any]:
        try:
            override = self._do(msgspec.json.decode(line, type=_Request))
        except (msgspec.MsgspecError, UnicodeDecodeError, OverrideError) as exc:
            return {"ok": False, "error": str(exc)}
        except OSError as exc:
            return {"ok": False, "error": f"it cannot be kept: {exc.strerror}"}
        return {"ok": True, "override": override and msgspec.to_builtins(override)}

    def _do(self, request: _Request) -> Override | None:
        if request.do == "set":
            if request.asked is None:
                raise OverrideError("is missing", field="asked", value=None)
            return self._keeper.put(request.asked)
        if request.do == "release":
            if not request.by.strip() or not request.by.isprintable():
                raise OverrideError("must be one line", field="by", value=request.by)
            released = self._keeper.release(request.by)
            if released is None:
                raise OverrideError("none is in force", field="override", value=None)
            return released
        return self._keeper.current()


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    """The override after a request at the door (of `release`: the one that ended). Raises
    DoorError."""
    try:
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(_ANSWER_S)
            door.connect(str(path))
            door.sendall(json.dumps(request).encode() + b"\n")
            line = door.makefile("rb").readline()
    except OSError as exc:
        raise DoorError(f"{path}: no gate answers: {exc.strerror or exc}") from None
    if not line:
        raise DoorError(f"{path}: the gate gave no answer")
    answer = json.loads(line)
    if not answer["ok"]:
        raise DoorError(str(answer["error"]))
    override: dict[str, Any] | None = answer["override"]
    return override


def _bound(path: Path) -> socket.socket:
    """The socket, where nobody else listens. Raises OSError."""
    door = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) == 0:
                    raise OSError(0, "another gate listens there")
            path.unlink()  # left by a gate that was killed
        # Nobody else may open it, not even between two calls.
        before = os.umask(0o177)
        try:
            door.bind(str(path))
        finally:
            os.umask(before)
    except OSError:
        door.close()
        raise
    return door
