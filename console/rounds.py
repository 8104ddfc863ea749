"""Connections of agents, read together ten times a second instead of each as its bytes come.

A batch waits for its group commit anyway. Read as it comes, it wakes the process from idling and
runs with cold caches; a thousand agents a second wake it a thousand times. Read in rounds, a
hundred of them cost one wake-up, and the commit follows each round at once, so an answer takes no
longer than before.

A connection that is adopted is read by nobody else: its transport is paused. It is given back when
what came is not one whole request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
from typing import Final, Protocol

log = logging.getLogger(__name__)

ROUND_S: Final = 0.1
_MAX_EVENTS: Final = 4096
_BUFFER_BYTES: Final = 512 * 1024


class Reader(Protocol):
    """Who owns a connection."""

    def is_ready(self) -> bool:
        """Whether it wants what came now; what it does not stays in the kernel."""

    def read(self, data: bytes) -> None:
        """Takes what came; nothing: the other side has closed."""


class Rounds:
    """The connections of one event loop that are read in rounds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, round_s: float = ROUND_S) -> None:
        self._loop = loop
        self._round_s = round_s
        self._epoll = select.epoll()
        self._readers: dict[int, Reader] = {}
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._timer: asyncio.TimerHandle | None = None

    def adopt(self, fd: int, reader: Reader) -> None:
        """Read `fd`, a non-blocking socket, from the next round on."""
        self._readers[fd] = reader
        self._epoll.register(fd, select.EPOLLIN)
        if self._timer is None:
            self._timer = self._loop.call_later(self._round_s, self._round)

    def release(self, fd: int, reader: Reader) -> None:
        """Read it no more. Its number may be another connection's by now: then nothing happens."""
        if self._readers.get(fd) is reader:
            del self._readers[fd]
            with contextlib.suppress(OSError):  # closed already, and forgotten by the kernel
                self._epoll.unregister(fd)

    def _round(self) -> None:
        began_s = self._loop.time()
        for fd, _ in self._epoll.poll(0, _MAX_EVENTS):
            reader = self._readers.get(fd)
            if reader is not None and reader.is_ready():
                self._read(fd, reader)
        self._timer = None
        if self._readers:
            self._timer = self._loop.call_at(began_s + self._round_s, self._round)

    def _read(self, fd: int, reader: Reader) -> None:
        try:
            n_bytes = os.readv(fd, [self._buffer])
        except BlockingIOError:
            return
        except OSError:
            n_bytes = 0
        try:
            reader.read(bytes(self._view[:n_bytes]))
        except Exception:
            # Whatever it is, it ends this connection only: all others wait for the next round.
            log.exception("a connection of an agent failed, and is closed")
            reader.read(b"")
