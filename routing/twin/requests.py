"""What arrives: the one form every workload takes, and every stage of the twin reads."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Blocks = Sequence[int]
"""A prompt's full blocks in order. An id names its block and everything before it, so two prompts
share a prefix of n blocks exactly if their n-th ids are equal."""


def cut(ids: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[Blocks]:
    """Prompts out of the `ids` of many: each has those from its start to before its end.

    Machine integers: most ids are only ever carried along, and never looked at one by one.
    """
    packed = array("q", ids.tobytes())
    return [packed[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True)
class Requests:
    """Arrivals of one stretch of time, ascending; every column has shape (n,).

    `at_s` seconds since the start of the run; `prompt_tokens` and `output_tokens` whole, at least
    1; `site` is the index of the PD cluster they arrive at, in the order of the scenario.
    `blocks` is None where no request of the workload shares a prefix with another.
    """

    at_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    site: NDArray[np.int64]
    blocks: list[Blocks] | None = None

    def __len__(self) -> int:
        return len(self.at_s)


class Workload(Protocol):
    """Requests from time 0 on, in pieces: a run of any length needs memory for one piece.

    `block_tokens` is the size of the blocks that `Requests.blocks` names, None without any.
    """

    @property
    def block_tokens(self) -> int | None: ...

    def pieces(self, seed: int) -> Iterator[Requests]:
        """The same seed gives the same requests, whatever the size of the pieces."""
        ...
