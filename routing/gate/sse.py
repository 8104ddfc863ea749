"""Usage out of answers, and the one chunk a client did not ask for out of its stream.

Engines report usage on a stream only if asked (`stream_options.include_usage`), in one extra event
with no choices before `[DONE]`. When the gate asked on its own account, `UsageFilter(strip=True)`
takes exactly that event out; every other byte passes unchanged and in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from routing.gate.prompt import Fields

MAX_HELD_BYTES = 1 << 20
"""An unfinished event longer than this is passed on unread rather than held."""

MAX_WHOLE_BYTES = 8 << 20
"""A longer whole answer is passed on without its usage being read."""

_MAX_TOKENS = 1 << 40
_ASK = b'{"stream_options":{"include_usage":true},'
_EVENT_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True)
class Usage:
    """What an engine counted. `cached_tokens` None: it did not say, which is not zero."""

    prompt_tokens: int
    cached_tokens: int | None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)
_options = msgspec.json.Decoder(Fields)


def ask_for_usage(body: bytes, fields: Fields) -> bytes | None:
    """The body with `stream_options.include_usage` true, or None when the client asked itself.

    Every other field keeps the client's own bytes. Options that are not an object are left for
    the engine to refuse. `fields` are the body's, of which there is at least one.
    """
    if "stream_options" not in fields:
        # Nothing is written anew: for long prompts that is most of the work.
        return body.replace(b"{", _ASK, 1)
    options: Fields = {}
    if bytes(fields["stream_options"]) != b"null":
        try:
            options = _options.decode(fields["stream_options"])
        except msgspec.MsgspecError:
            return None
    if "include_usage" in options and bytes(options["include_usage"]) == b"true":
        return None
    options["include_usage"] = msgspec.Raw(b"true")
    raw = msgspec.Raw(msgspec.json.encode(options))
    return msgspec.json.encode({**fields, "stream_options": raw})


class WholeAnswer:
    """Reads usage from an answer that is not a stream. Passes everything on as it comes."""

    def __init__(self) -> None:
        self._body = bytearray()

    @property
    def usage(self) -> Usage | None:
        """What the engine reported, once the answer is complete."""
        return _parse(bytes(self._body))[1]

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next bytes of the answer."""
        if len(self._body) <= MAX_WHOLE_BYTES:
            self._body += chunk
        return chunk

    def flush(self) -> bytes:
        """Nothing is ever held."""
        return b""


class UsageFilter:
    """Reads a stream of server-sent events chunk by chunk.

    `feed` returns what may be sent on at once; `flush` what is still held at the end. Without
    `strip` nothing is ever held back.
    """

    def __init__(self, *, strip: bool) -> None:
        self.usage: Usage | None = None
        self._strip = strip
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next bytes of the stream."""
        if not self._held and chunk.endswith(b"\n\n") and b'"usage"' not in chunk:
            return chunk  # whole events with nothing to read, as nearly every chunk is
        data = self._held + chunk if self._held else chunk
        end = _end_of_last_event(data)
        complete, self._held = data[:end], data[end:]
        if b'"usage"' in complete:
            complete = self._read(complete)
        if not self._strip:
            complete = chunk
        if len(self._held) > MAX_HELD_BYTES:
            complete += self.flush()
        return complete

    def flush(self) -> bytes:
        """The unfinished rest, at the end of the stream."""
        rest, self._held = self._held, b""
        return rest if self._strip else b""

    def _read(self, events: bytes) -> bytes:
        """Notes usage; returns the events without the chunk that carries nothing else."""
        kept: list[bytes] = []
        start = 0
        for boundary in _EVENT_END.finditer(events):
            event = events[start : boundary.end()]
            start = boundary.end()
            if b'"usage"' in event:
                only_usage, usage = _parse(_data(event))
                self.usage = usage or self.usage
                if only_usage:
                    continue
            kept.append(event)
        kept.append(events[start:])
        return b"".join(kept)


def _end_of_last_event(data: bytes) -> int:
    ends = [data.rfind(mark) + len(mark) for mark in (b"\n\n", b"\n\r\n") if mark in data]
    return max(ends, default=0)


def _data(event: bytes) -> bytes:
    lines = event.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join(line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:"))


def _parse(body: bytes) -> tuple[bool, Usage | None]:
    """Whether the answer holds usage and no choices, and the usage if it can be true."""
    try:
        answer = _answer.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False, None
    if answer.usage is None:
        return False, None
    return answer.choices == [], _credible(answer.usage)


def _credible(usage: _Usage) -> Usage | None:
    prompt_tokens = usage.prompt_tokens
    if prompt_tokens is None or not 0 <= prompt_tokens <= _MAX_TOKENS:
        return None
    details = usage.prompt_tokens_details
    cached = details.cached_tokens if details is not None else None
    if cached is not None and not 0 <= cached <= prompt_tokens:
        cached = None
    return Usage(prompt_tokens, cached)
