"""One `/metrics` endpoint: fetch, cut down, parse, canonicalise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urljoin

import aiohttp

from telemetry import canonical, exposition
from telemetry.agent import http
from telemetry.agent.http import ReadError
from telemetry.agent.sieve import Recorded, Sieve, bound
from telemetry.engine_maps import MAPS
from telemetry.exposition import Exposition

N_SLOW = 3
"""So many readings in a row without an answer in time: unresponsive, maybe busy (S-18)."""


@dataclass(frozen=True)
class Look:
    """What was in the text besides signals, when it was last read whole."""

    n_series: int = 0
    unmatched: tuple[str, ...] = ()
    n_unmatched: int = 0
    n_bad_lines: int = 0


class Scrape:
    """One target. `look` and `reasons` (why a signal is missing) are of the last whole reading;
    `n_dropped` series were over the bound.
    """

    def __init__(
        self,
        url: str,
        *,
        engine: str,
        kind: str,
        session: aiohttp.ClientSession,
        timeout_s: float,
        max_series: int,
        version: str = "",
        n_ranks: int | None = None,
    ) -> None:
        self.url, self._engine, self._kind, self._n_ranks = url, engine, kind, n_ranks
        self._session, self._timeout_s, self._max_series = session, timeout_s, max_series
        self._parser = exposition.Parser()
        self._sieve = Sieve()
        self._whole: canonical.Canonical | None = None
        self._n_slow = 0
        self.version = version
        """Where the text does not state it: it chooses between meanings of a name that changed."""
        self.look = Look()
        self.reasons: Mapping[str, str] = {}
        self.n_dropped = 0

    async def read(self) -> canonical.Canonical:
        """Raises ReadError when there is nothing that can be trusted as a whole."""
        try:
            text, content_type = await http.get(self._session, self.url, timeout_s=self._timeout_s)
        except ReadError as exc:
            self._n_slow = self._n_slow + 1 if exc.state == "slow" else 0
            if self._n_slow < N_SLOW:
                raise
            why = f"unresponsive, maybe busy, {self._n_slow} times in a row: {exc}"
            raise ReadError(why, "slow") from None
        self._n_slow = 0
        return self._understand(text, exposition.is_openmetrics(content_type))

    def _understand(self, text: str, openmetrics: bool | None) -> canonical.Canonical:
        text, n_dropped = bound(text, kind=self._kind, max_series=self._max_series)
        self.n_dropped += n_dropped
        if self._whole is not None and not self._sieve.wants_all:
            parsed = self._parser.parse(self._sieve.cut(text), openmetrics=openmetrics)
            read = self._canonical(parsed, self._whole.engine)
            if not parsed.truncated and _is_like(read, self._whole):
                return read
        return self._understand_whole(text, openmetrics)

    def _understand_whole(self, text: str, openmetrics: bool | None) -> canonical.Canonical:
        self._whole = None
        parsed = self._parser.parse(text, openmetrics=openmetrics)
        if parsed.truncated:
            raise ReadError(f"{parsed.warnings[0]} ({self.url})")
        samples = parsed.samples = Recorded(parsed.samples)
        read = self._canonical(parsed, self._engine)
        if not read.recognised:
            wanted = "a known engine" if self._engine == "auto" else self._engine
            raise ReadError(f"no series of {wanted} in the answer of {self.url}")
        self.look = Look(read.n_series, read.unmatched, read.n_unmatched, read.n_bad_lines)
        self.reasons = {name: s.reason for name, s in read.signals.items() if s.reason}
        self._whole = read
        self._sieve.learn(text, samples.asked)
        if (cut := self._sieve.cut(text)) is not text:
            parsed = self._parser.parse(cut, openmetrics=openmetrics)
            same = self._canonical(parsed, read.engine)
            if same.signals != read.signals or not _is_like(same, read):
                self._sieve.forget()
        return read

    def _canonical(self, parsed: Exposition, engine: str) -> canonical.Canonical:
        return canonical.canonicalise(
            parsed, engine, kind=self._kind, version=self.version, n_ranks=self._n_ranks
        )

    async def ask_version(self, engine: str) -> str:
        """The version an engine states beside its metrics; empty when it states none."""
        path = MAPS[engine].version_path
        if path is None:
            return ""
        try:
            text, _ = await http.get(
                self._session, urljoin(self.url, path), timeout_s=self._timeout_s
            )
            version = json.loads(text)["version"]
        except (ReadError, ValueError, KeyError, TypeError, RecursionError):
            return ""
        usable = isinstance(version, str) and version.isascii() and version.isprintable()
        return str(version)[:60] if usable else ""


def _is_like(cut: canonical.Canonical, whole: canonical.Canonical) -> bool:
    """Whether nothing is amiss in a text that was cut: same process, nothing that went missing."""
    return (
        cut.recognised
        and cut.n_bad_lines <= whole.n_bad_lines
        and (cut.epoch_s, cut.engine_version) == (whole.epoch_s, whole.engine_version)
        and not any(
            signal.state == "missing" and whole.signals[name].state != "missing"
            for name, signal in cut.signals.items()
            if name in whole.signals
        )
    )
