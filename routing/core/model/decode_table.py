"""Decode steps measured over batch and context, and the batch to run under a speed promised.

Between measured points a step is linear in the batch, and linear in the context between two rows
of the table. Below what was measured it is held (fewer or shorter requests are never slower), above
it the last slope goes on; both are extrapolated.

A decode slot holds prompt and answer, on the average half of it: context = E[prompt] + output / 2.
For that context the table gives one instance's batch cap, the batch of the largest rate

    max over whole b of  b / step_s(b, context)
    with  step_s(b, context) <= longest step the SLO allows,  b * context <= KV tokens it holds
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from routing.core.model.curves import Array
from routing.core.model.profiles import DecodeProfile, ProfileError

_MOST_BATCH = 65_536
"""No engine decodes more requests at once, and every batch up to the largest measured is tried."""


@dataclass(frozen=True)
class DecodeTable:
    """`contexts` shape (m,), rising; of each, `batches` rising and `steps_s`, both shape (k_m,),
    k_m >= 2. Rows may be of different batches: long contexts fit fewer requests."""

    contexts: tuple[float, ...]
    batches: tuple[tuple[float, ...], ...]
    steps_s: tuple[tuple[float, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> DecodeTable:
        """From (batch, context tokens, step seconds) in any order. Raises ProfileError."""
        if not rows:
            raise ProfileError("needs [batch, context_tokens, step_s] rows")
        steps: dict[float, dict[float, float]] = {}
        for batch, context, step_s in rows:
            if min(batch, context, step_s) <= 0:
                raise ProfileError("batch, context_tokens and step_s must be above zero")
            if batch > _MOST_BATCH:
                raise ProfileError(f"batch {batch:g} is more than {_MOST_BATCH:,}")
            if batch in steps.setdefault(context, {}):
                raise ProfileError(f"batch {batch:g} at context {context:g} is there twice")
            steps[context][batch] = step_s
        contexts = sorted(steps)
        for context in contexts:
            if len(steps[context]) < 2:
                raise ProfileError(f"context {context:g} needs at least two batches")
            _check_rising(f"at context {context:g}", "batch", steps[context])
        for shorter, longer in itertools.pairwise(contexts):
            for batch in steps[shorter].keys() & steps[longer].keys():
                pair = {shorter: steps[shorter][batch], longer: steps[longer][batch]}
                _check_rising(f"at batch {batch:g}", "context", pair)
        return cls(
            tuple(contexts),
            tuple(tuple(sorted(steps[c])) for c in contexts),
            tuple(tuple(steps[c][b] for b in sorted(steps[c])) for c in contexts),
        )

    @property
    def kv_tokens(self) -> float:
        """The most KV tokens an instance was measured to hold at once: batch times context."""
        return max(c * b[-1] for c, b in zip(self.contexts, self.batches, strict=True))

    def step_s(self, batch: ArrayLike, context_tokens: float) -> Array:
        """Seconds of one step at `batch` requests of `context_tokens` each; shape of `batch`."""
        rows = np.array([self._along(i, batch) for i in range(len(self.contexts))])
        if len(rows) == 1 or context_tokens <= self.contexts[0]:
            first: Array = rows[0]
            return first
        upper = min(int(np.searchsorted(self.contexts, context_tokens)), len(rows) - 1)
        low, high = self.contexts[upper - 1], self.contexts[upper]
        share = (context_tokens - low) / (high - low)
        # Above the last context a slope that noise turned down must not shorten steps.
        between: Array = rows[upper - 1] + share * np.maximum(rows[upper] - rows[upper - 1], 0.0)
        return between

    def _along(self, row: int, batch: ArrayLike) -> Array:
        at, x, y = np.asarray(batch, dtype=np.float64), self.batches[row], self.steps_s[row]
        beyond: Array = np.maximum(at - x[-1], 0.0) * (y[-1] - y[-2]) / (x[-1] - x[-2])
        return np.interp(at, x, y) + beyond

    def extrapolated(self, batch: float, context_tokens: float) -> bool:
        """Whether `batch` at `context_tokens` lies outside what was measured."""
        if not self.contexts[0] <= context_tokens <= self.contexts[-1]:
            return True
        upper = int(np.searchsorted(self.contexts, context_tokens))
        exact = self.contexts[upper] == context_tokens
        rows = self.batches[upper if exact else upper - 1 : upper + 1]
        return any(not row[0] <= batch <= row[-1] for row in rows)

    def at(
        self,
        context_tokens: float,
        *,
        longest_step_s: float,
        kv_capacity_tokens: float | None = None,
    ) -> DecodeProfile:
        """Batch cap and step of one instance for requests of `context_tokens`.

        Never more requests than the largest batch measured, nor more KV than `kv_capacity_tokens`
        (`kv_tokens` where that is not known). Raises ProfileError if not even one request fits.
        """
        held = self.kv_tokens if kv_capacity_tokens is None else kv_capacity_tokens
        most = int(min(max(row[-1] for row in self.batches), held / context_tokens))
        if most < 1:
            raise ProfileError(
                f"a context of {context_tokens:.0f} tokens does not fit {held:.0f} tokens of KV"
            )
        batches = np.arange(1, most + 1)
        steps = self.step_s(batches, context_tokens)
        allowed = steps <= longest_step_s
        if not allowed.any():
            raise ProfileError(
                f"one request of {context_tokens:.0f} tokens takes {float(steps[0]):.4g} s a step"
            )
        best = int(np.argmax(np.where(allowed, batches / steps, 0.0)))
        batch = float(batches[best])
        return DecodeProfile(
            batch, float(steps[best]), extrapolated=self.extrapolated(batch, context_tokens)
        )


def _check_rising(where: str, what: str, steps: dict[float, float]) -> None:
    keys = sorted(steps)
    for a, b in itertools.pairwise(keys):
        if steps[b] < steps[a]:
            raise ProfileError(
                f"{where} the step falls from {steps[a]:g} s to {steps[b]:g} s "
                f"between {what} {a:g} and {b:g}"
            )
