"""What a `/metrics` text says: classic Prometheus text and OpenMetrics, as samples by name.

A scrape is input from a machine nobody here controls, so nothing in it raises: a line that cannot
be read becomes a warning with its number, and the other lines stand. NaN and infinities are kept
as they are written; what they mean is for `canonical` to say. Exemplars, HELP and UNIT lines are
read past. `_created` series are dropped: they carry the birth time of a counter beside it and look
like a measurement to anything that matches names by prefix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_TEXT_CHARS = 16 * 1024 * 1024
MAX_LINE_CHARS = 64 * 1024
MAX_SAMPLES = 400_000
MAX_WARNINGS = 20
MAX_REMEMBERED_SERIES = 20_000

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_QUOTED = r'"(?:[^"\\]|\\.)*+"'
# Possessive quantifiers keep every match linear in the line, whatever a hostile line contains.
_SERIES = re.compile(rf'({_NAME})[ \t]*+(?:\{{((?:[^"{{}}]|{_QUOTED})*+)\}})?')
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"[ \t]*(,|$)')
# What else Unicode calls white space is part of a bad value.
_BLANKS = " \t\r"
_NO_VALUE, _NOT_A_NUMBER = "no value behind the series", "the value is not a number"
_REST = re.compile(r"[ \t]*+([^ \t]++)(?:[ \t]++([^ \t#][^ \t]*+))?[ \t]*+(?:#.*)?$", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class Sample(NamedTuple):
    """One line. `labels` is shared between scrapes: read it, never change it."""

    labels: Mapping[str, str]
    value: float
    timestamp_s: float | None = None


class _Series(NamedTuple):
    name: str
    labels: dict[str, str]


@dataclass
class Exposition:
    """One parsed text. `samples` by sample name (`x_bucket`, `x_total`, not the family's name).

    `truncated`: the text broke a bound or an OpenMetrics text lacks its end marker, so sums over
    its series may be short.
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    truncated: bool = False
    n_bad_lines: int = 0

    def warn(self, number: int, why: str, line: str) -> None:
        """Count a line that could not be read; keep the first few with what stood there."""
        self.n_bad_lines += 1
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(f"line {number}: {why}: {line.strip(_BLANKS)[:80]!r}")


class Parser:
    """Parses the texts of one target.

    It remembers the series it has already taken apart: the next scrape of the same engine then
    costs one dictionary look-up a line. The memory is bounded by `MAX_REMEMBERED_SERIES`.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}

    def parse(self, text: str, *, openmetrics: bool | None = None) -> Exposition:
        """The samples of `text`; `openmetrics` None decides by the end marker `# EOF`."""
        out = Exposition()
        ended = text.rstrip().endswith("# EOF")
        if openmetrics is None:
            openmetrics = ended
        if len(text) > MAX_TEXT_CHARS:
            out.truncated = True
            out.warn(0, f"more than {MAX_TEXT_CHARS} characters, the rest is left out", "")
            text = text[: text.rfind("\n", 0, MAX_TEXT_CHARS) + 1]
        elif openmetrics and not ended:
            out.truncated = True
            out.warn(0, "OpenMetrics without its end marker # EOF: cut short", text[-80:])
        if len(self._series) > MAX_REMEMBERED_SERIES:
            self._series.clear()
        self._lines(text, out, 1.0 if openmetrics else 1e-3)
        _drop_created(out.samples)
        if out.n_bad_lines > len(out.warnings):
            out.warnings.append(f"and {out.n_bad_lines - len(out.warnings)} more")
        return out

    def _lines(self, text: str, out: Exposition, timestamp_unit_s: float) -> None:
        known, samples = self._series, out.samples
        n_samples = 0
        is_ascii = text.isascii()
        for number, line in enumerate(text.split("\n"), 1):
            head, _, tail = line.rpartition(" ")
            # Only whole series are ever remembered, so a head that is known has nothing but its
            # value behind it: no timestamp, unless behind a tab, and no exemplar.
            series, timestamp_s = known.get(head), None
            if series is None or "\t" in tail:
                line = line.strip(_BLANKS)
                if not line or line[0] == "#":
                    if line.startswith("# TYPE"):
                        _read_type(number, line, out)
                    continue
                read = self._read(number, line, out)
                if read is None:
                    continue
                series, tail, timestamp = read
                if timestamp is not None:
                    timestamp_s = timestamp * timestamp_unit_s
            try:
                value = float(tail)
                # float() also reads 1_000 and digits of other scripts; no exposition has them.
                if "_" in tail or not (is_ascii or tail.isascii()):
                    raise ValueError
            except ValueError:
                out.warn(number, _NOT_A_NUMBER if tail.strip(_BLANKS) else _NO_VALUE, line)
                continue
            n_samples += 1
            if n_samples > MAX_SAMPLES:
                out.truncated = True
                out.warn(number, f"more than {MAX_SAMPLES} samples, the rest is left out", line)
                return
            sample = Sample(series.labels, value, timestamp_s)
            same_name = samples.get(series.name)
            if same_name is None:
                samples[series.name] = [sample]
            else:
                same_name.append(sample)

    def _read(
        self, number: int, line: str, out: Exposition
    ) -> tuple[_Series, str, float | None] | None:
        """Series, value text and timestamp of a line met for the first time; None = a warning."""
        if len(line) > MAX_LINE_CHARS:
            out.warn(number, f"longer than {MAX_LINE_CHARS} characters", line)
            return None
        match = _SERIES.match(line)
        if match is None:
            out.warn(number, "no metric name", line)
            return None
        labels = _labels(match[2])
        if labels is None:
            out.warn(number, "the labels cannot be read", line)
            return None
        rest = _REST.match(line, match.end())
        if rest is None or rest.start(1) == match.end(1):
            out.warn(number, _NO_VALUE, line)
            return None
        try:
            timestamp = float(rest[2]) if rest[2] else None
        except ValueError:
            out.warn(number, "the timestamp is not a number", line)
            return None
        series = _Series(match[1], labels)
        if len(self._series) <= MAX_REMEMBERED_SERIES:
            self._series[line[: match.end()].rstrip()] = series
        return series, rest[1], timestamp


def parse(text: str, *, openmetrics: bool | None = None) -> Exposition:
    """The samples of one text, read once; an agent keeps a `Parser` for each target instead."""
    return Parser().parse(text, openmetrics=openmetrics)


def is_openmetrics(content_type: str) -> bool | None:
    """What a Content-Type header says of the dialect; None when it says nothing."""
    if "openmetrics" in content_type:
        return True
    return False if "text/plain" in content_type else None


def _labels(block: str | None) -> dict[str, str] | None:
    """Labels of the text between the braces, or None when it is malformed."""
    labels: dict[str, str] = {}
    if block is None or not block.strip():
        return labels
    position, end = 0, len(block.rstrip())
    while position < end:
        match = _LABEL.match(block, position)
        if match is None or match[1] in labels:
            return None
        value = match[2]
        labels[match[1]] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        position = match.end()
    return labels


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[0])


def _read_type(number: int, line: str, out: Exposition) -> None:
    parts = line.split()
    if len(parts) == 4 and parts[1] == "TYPE":
        out.types[parts[2]] = parts[3]
    else:
        out.warn(number, "not `# TYPE name type`", line)


def _drop_created(samples: dict[str, list[Sample]]) -> None:
    for name in [name for name in samples if name.endswith("_created")]:
        twin = name.removesuffix("_created")
        if any(twin + end in samples for end in ("", "_total", "_count", "_sum")):
            del samples[name]
