"""Instances of one PD cluster on their way from one role to the other, one after the other.

Cordon, drain, flip: the instance takes nothing new, finishes what it has, and serves in its new
role no earlier than `drain_s` after it was cordoned. One that leaves decode and is not empty in
time goes back, and the attempt has expired, as a live rebalance does (docs/operations.md).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from routing.core.types import RoleChange
from routing.twin.decode import DecodePool
from routing.twin.prefill import PrefillPool

LOOK_S = 1.0
"""How often a move is looked after, as the live driver does."""
State = Literal["running", "done", "expired", "failed", "cancelled"]


@dataclass(frozen=True)
class _Move:
    """`decoder` is the instance that leaves decode, None for one that leaves prefill; it may flip
    from `flip_s` on, if it is empty."""

    decoder: int | None
    flip_s: float
    began_s: float


class RoleMoves:
    """Follows what the plan asks of one cluster's two pools."""

    def __init__(
        self, prefill: PrefillPool, decode: DecodePool, *, drain_s: float, drain_timeout_s: float
    ) -> None:
        self._prefill, self._decode = prefill, decode
        self._drain_s, self._timeout_s = drain_s, drain_timeout_s
        self._move: _Move | None = None
        self.change: RoleChange | None = None
        self.n_moved = 0

    @property
    def roles(self) -> tuple[int, int]:
        """Instances by role; one on its way counts where it comes from."""
        n_prefill, n_decode = len(self._prefill), len(self._decode)
        if self._move is None:
            return n_prefill, n_decode
        if self._move.decoder is None:
            return n_prefill + 1, n_decode
        return n_prefill, n_decode + 1

    def ask(self, n_prefill: int, n_decode: int, now_s: float) -> None:
        """The plan wants these roles from now on."""
        change, wanted = self.change, (n_prefill, n_decode)
        running = change is not None and change.state == "running"
        if running and change is not None and wanted != (change.n_prefill, change.n_decode):
            self._end("cancelled", now_s)
            running = False
        # Where instances are lost the plan is of others than there are: it is about to change.
        if not running and wanted != self.roles and sum(wanted) == sum(self.roles):
            number = 1 if change is None else change.id + 1
            self.change = RoleChange(number, "running", *wanted, since_s=now_s)

    def look(self, now_s: float) -> None:
        """One pass: finish a move that can be finished, begin the next one."""
        if self._move is not None:
            self._pass(self._move, now_s)
        change = self.change
        if self._move is not None or change is None or change.state != "running":
            return
        n_prefill, _ = self.roles
        if n_prefill == change.n_prefill:
            self._end("done", now_s)
        else:
            self._move = self._begin(to_prefill=n_prefill < change.n_prefill, now_s=now_s)

    @property
    def active(self) -> bool:
        return self._move is not None or (
            self.change is not None and self.change.state == "running"
        )

    def _begin(self, *, to_prefill: bool, now_s: float) -> _Move:
        if to_prefill:
            return _Move(self._decode.remove(), now_s + self._drain_s, now_s)
        free_s = self._prefill.remove(now_s)
        return _Move(None, max(free_s, now_s + self._drain_s), now_s)

    def _pass(self, move: _Move, now_s: float) -> None:
        if move.decoder is None:
            if now_s >= move.flip_s:
                self._decode.add(now_s)
                self._moved()
        elif now_s >= move.flip_s and self._decode.drained(move.decoder):
            self._prefill.add(now_s)
            self._moved()
        elif now_s - move.began_s > self._timeout_s:
            self._decode.restore(move.decoder)
            self._move = None
            self._end("expired", now_s)

    def _moved(self) -> None:
        self._move = None
        self.n_moved += 1

    def _end(self, state: State, now_s: float) -> None:
        assert self.change is not None, "only what began can end"
        self.change = dataclasses.replace(self.change, state=state, ended_at_s=now_s)
