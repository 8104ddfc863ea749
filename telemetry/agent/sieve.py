"""Reads less of a text than there is in it: what no signal is made of is skipped unparsed.

Most families of an engine's `/metrics` feed no signal, and parsing them each second would be most
of what the agent costs. So one reading in `FULL_EVERY` is whole, and shows which families the
signals are made of; those in between are cut down to them first, by blocks of one family. A cut is
used only where it was seen to give the same signals as the whole text did.

It also holds the bound on series. A text with more keeps those that an engine map knows, which is
the allow-list, and the others are dropped and counted: an exporter that runs away with its labels
costs its own detail, not the reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from telemetry.engine_maps import MAPS
from telemetry.exposition import Sample

FULL_EVERY = 30
_ENDS = ("", "_bucket", "_sum", "_count")
_ENDS_OF_LABELS = ("{", " ", "\t")


def _known(kind: str) -> frozenset[str]:
    names: set[str] = set()
    for engine_map in MAPS.values():
        if engine_map.kind == kind:
            names.update(engine_map.start_time)
            names.update(
                prefix + name + end
                for prefix in engine_map.prefixes
                for name in engine_map.series_names()
                for end in _ENDS
            )
    return frozenset(names)


KNOWN: Mapping[str, frozenset[str]] = {
    kind: _known(kind) for kind in {engine_map.kind for engine_map in MAPS.values()}
}
"""Names of series that a map of that kind knows."""


class Recorded(dict[str, list[Sample]]):
    """Samples by name that remember which names were asked for."""

    def __init__(self, samples: Mapping[str, list[Sample]]) -> None:
        super().__init__(samples)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> list[Sample]:
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


class Sieve:
    """What is left out of the texts of one target."""

    def __init__(self) -> None:
        self._separator = ""
        self._unneeded: frozenset[str] = frozenset()
        self._n_cut = 0

    @property
    def wants_all(self) -> bool:
        """Whether the next text is to be read whole."""
        return self._n_cut >= FULL_EVERY - 1

    def forget(self) -> None:
        """Cut nothing until something else is learnt."""
        self._unneeded = frozenset()

    def cut(self, text: str) -> str:
        """The text without the blocks that no signal needs; the last block always stays."""
        self._n_cut += 1
        if not self._unneeded:
            return text
        *blocks, last = text.split(self._separator)
        unneeded = self._unneeded
        # The first has no separator before it: what it is called was not looked at.
        kept = [block for block in blocks[1:] if _family(block) not in unneeded]
        return self._separator.join([*blocks[:1], *kept, last])

    def learn(self, text: str, needed: Iterable[str]) -> None:
        """Make the cut for texts like this one, of which the samples called `needed` are used."""
        needed = set(needed)
        self._n_cut = 0
        self._separator = "\n# HELP " if text.startswith("# HELP ") else "\n# TYPE "
        used: set[str] = set()
        unused: set[str] = set()
        for block in text.split(self._separator)[1:]:
            names = _names(block)
            # A family without series stays: its first one must not wait for a whole reading.
            (unused if names and not names & needed else used).add(_family(block))
        self._unneeded = frozenset(unused - used)


def bound(text: str, *, kind: str, max_series: int) -> tuple[str, int]:
    """(text, series dropped from it): all of it, or the lines of names that a map knows."""
    if text.count("\n") <= max_series:
        return text, 0
    known, kept, n_dropped = KNOWN.get(kind, frozenset()), [], 0
    for line in text.split("\n"):
        if line.startswith("#") or _name(line) in known:
            kept.append(line)
        elif line:
            n_dropped += 1
    return "\n".join(kept), n_dropped


def _family(block: str) -> str:
    """The name that follows the separator."""
    return block[: block.find(" ")]


def _names(block: str) -> set[str]:
    lines = block.split("\n")[1:]
    return {_name(line) for line in lines if line and line[0] != "#"}


def _name(line: str) -> str:
    ends = [at for mark in _ENDS_OF_LABELS if (at := line.find(mark)) >= 0]
    return line[: min(ends)] if ends else line
