"""Trace files, plain or gzipped: read from a path or taken as an upload's bytes."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable
from pathlib import Path

from routing.twin.recorded import Recording
from routing.twin.recording_formats import (
    RATE_COLUMNS,
    parse_intervals,
    parse_rates,
    with_lengths,
)
from routing.twin.trace_rows import TraceError
from routing.twin.traces import Trace, parse_trace

_GZIP = b"\x1f\x8b"
_MOST_BYTES = 1 << 30
"""Of text. A few hundred MB hold months of a busy service; a gzip bomb holds more."""


def read_trace(
    path: Path, *, histograms: Path | None = None, block_tokens: int | None = None
) -> Trace | Recording:
    """What a file holds: requests (Trace), or intervals of recorded traffic (Recording).

    `histograms` are ServeGen's lengths, in a file beside the one of its rates; `block_tokens` the
    size of the blocks that are wanted, if not the file's. Raises TraceError naming the file and,
    where there are, line, field and value.
    """
    beside = None if histograms is None else (_bytes(histograms), histograms.name)
    return trace_of(_bytes(path), source=path.name, histograms=beside, block_tokens=block_tokens)


def trace_of(
    data: bytes,
    *,
    source: str,
    histograms: tuple[bytes, str] | None = None,
    block_tokens: int | None = None,
    most_bytes: int = _MOST_BYTES,
) -> Trace | Recording:
    """The same of a file's bytes; `source` is what errors call it, `histograms` (bytes, name).

    `most_bytes` of text are read: more is an error.
    """
    text = _text(data, source, most_bytes)
    recording = _recording(text, source)
    if histograms is None:
        if recording is not None:
            return recording
        return parse_trace(_lines(text), source=source, block_tokens=block_tokens)
    if recording is None:
        raise TraceError("holds lengths of its own: no histograms go with it", source=source)
    beside, name = histograms
    return with_lengths(recording, _lines(_text(beside, name, most_bytes)), source=name)


def _recording(text: str, source: str) -> Recording | None:
    first = next((line for line in _lines(text) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return parse_intervals(_lines(text), source=source) if '"demand_rps"' in first else None
    header = {name.strip() for name in first.split(",")}
    return parse_rates(_lines(text), source=source) if set(RATE_COLUMNS) <= header else None


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise TraceError(f"cannot be read: {exc.strerror or exc}", source=str(path)) from None


def _text(data: bytes, source: str, most_bytes: int) -> str:
    try:
        with io.BytesIO(data) as raw:
            file = gzip.GzipFile(fileobj=raw) if data.startswith(_GZIP) else raw
            found = file.read(most_bytes + 1)
        if len(found) > most_bytes:
            raise TraceError(f"holds more than {most_bytes} bytes of text", source=source)
        return found.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as exc:
        raise TraceError(f"cannot be decoded: {exc}", source=source) from None


def _lines(text: str) -> Iterable[str]:
    return io.StringIO(text, newline=None)
