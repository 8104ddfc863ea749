"""The access log: one JSON line a request, written behind the requests' backs.

Lines wait in memory and are appended twice a second on a thread of their own; what does not fit
into `MAX_WAITING` lines is dropped and counted. So a slow disk costs lines, never a stream.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import IO

import msgspec

MAX_WAITING = 20_000
WRITE_EVERY_S = 0.5

log = logging.getLogger(__name__)

_encoder = msgspec.json.Encoder()


class Line(msgspec.Struct, kw_only=True, gc=False):
    """One request. `at_s` is epoch seconds of its arrival; None: not known, or nothing there.

    `result` is one of `metrics.RESULTS`, `refused` or `invalid`. `ttft_s` is to the first byte of
    the answer, `total_s` to its last. `tenant` is a hash, and no key is ever in here.
    """

    at_s: float
    endpoint: str
    request_id: str | None
    tenant: str
    result: str
    status: int | None
    queued_s: float
    total_s: float
    ttft_s: float | None = None
    reason: str | None = None
    side: str | None = None
    upstream: str | None = None
    plan: str | None = None
    threshold_tokens: int | None = None
    override: str | None = None
    prompt_tokens: int | None = None
    uncached_tokens: int | None = None
    judged_tokens: int | None = None
    length_source: str | None = None
    stream: bool | None = None
    attempts: int = 0


class AccessLog:
    """Appends to `file`. `run` writes until cancelled, and once more then."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.n_dropped = 0
        self.error: str | None = None
        self._lines: list[bytes] = []
        self._out: IO[bytes] | None = None
        self._reopen = False
        self._turn = threading.Lock()

    def add(self, line: Line) -> None:
        """Takes one line; it is written soon."""
        if len(self._lines) < MAX_WAITING:
            self._lines.append(_encoder.encode(line))
        else:
            self.n_dropped += 1

    def reopen(self, file: Path) -> None:
        """The next line begins with `file`, anew if it was moved away."""
        self.file, self._reopen = file, True

    async def run(self) -> None:
        """Writes what comes."""
        try:
            while True:
                await asyncio.sleep(WRITE_EVERY_S)
                if self._lines or self._reopen:
                    await asyncio.to_thread(self._write, self._taken())
        finally:
            # Not on the loop either: a reload can end it while a thread hangs in a slow disk.
            await asyncio.to_thread(self._end, self._taken())

    def _end(self, lines: list[bytes]) -> None:
        self._write(lines)
        with self._turn:
            self._close()

    def _taken(self) -> list[bytes]:
        lines, self._lines = self._lines, []
        return lines

    def _write(self, lines: list[bytes]) -> None:
        """Appends these; those that cannot be written are dropped and counted."""
        with self._turn:
            try:
                if self._reopen:
                    self._close()
                self._reopen = False
                if self._out is None:
                    self._out = self.file.open("ab")
                self._out.write(b"".join(line + b"\n" for line in lines))
                self._out.flush()
            except OSError as exc:
                self.n_dropped += len(lines)
                self._out = None
                if self.error is None:
                    log.warning("%s: access log cannot be written: %s", self.file, exc.strerror)
                self.error = f"access log cannot be written: {exc.strerror}"
                return
            self.error = None

    def _close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None
