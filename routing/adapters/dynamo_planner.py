"""Dynamo's planner decides how many workers there are, and somebody else has to see to it: we do.

It writes `num_prefill_workers`, `num_decode_workers` and `decision_id` under
`v1/<namespace>/planner/`, and decides nothing more until `scaled_decision_id` has caught up (it
gives up after 30 minutes). So there is one who carries decisions out: this is his side of it
(Dynamo 1.6.1, environment `virtual`, discovery in etcd).

The planner's keys go with its process, and its ids begin at 0 anew, while what was reported to the
one before it stays: an old 7 then stands for a new 0 that nobody has carried out. So a decision
counts as carried out only by a report that was written after it.
"""

from __future__ import annotations

from dataclasses import dataclass

from routing.adapters import etcd
from routing.adapters.surface import SurfaceError, Unheeded

TRIED_VERSIONS = ("1.6.1",)
_MAX_WORKERS = 100_000
_MAX_ID = 2**63 - 1


class OtherWriter(SurfaceError):
    """Somebody else carries this planner's decisions out. Two would undo each other's work."""


class Superseded(SurfaceError):
    """The planner has decided anew since: read again, and carry that out."""


@dataclass(frozen=True)
class Decision:
    """What the planner wants of the fleet; None: it has never said anything of that role."""

    id: int
    n_prefill: int | None
    n_decode: int | None
    revision: int


@dataclass(frozen=True)
class Done:
    """A decision that was reported as carried out, and the revision of that report."""

    id: int
    revision: int


@dataclass(frozen=True)
class Handshake:
    """How far planner and actor are. `is_settled` False: the planner is writing just now."""

    decision: Decision | None
    done: Done | None
    is_settled: bool

    @property
    def pending(self) -> Decision | None:
        """The decision that waits for its actor, if one does."""
        wanted, done = self.decision, self.done
        if wanted is None or not self.is_settled:
            return None
        is_done = done is not None and done.id >= wanted.id and done.revision > wanted.revision
        return None if is_done else wanted

    def other_writer(self, ours: Done | None) -> str | None:
        """Who else acts on this planner, in a sentence. `ours` is what we reported last.

        A report that was there before we ever made one counts as well: whoever made it may go on.
        """
        if self.done is None or self.done == ours:
            return None
        return f"decision {self.done.id} was reported as carried out, and not by this console"


@dataclass(frozen=True)
class Planner:
    """One planner: `etcd_url` of the store it uses, and its Dynamo namespace."""

    etcd_url: str
    namespace: str

    def read(self) -> Handshake:
        """What stands there now, all of one revision. Raises SurfaceError."""
        found = etcd.prefix(self.etcd_url, self._root)
        id = self._count(found, "decision_id", _MAX_ID)
        done = self._count(found, "scaled_decision_id", _MAX_ID)
        n_prefill, n_decode = (
            self._count(found, name, _MAX_WORKERS)
            for name in ("num_prefill_workers", "num_decode_workers")
        )
        if id is None:
            decision, is_settled = None, n_prefill is None and n_decode is None
        else:
            revision = found[self._decision_key].revision
            decision = Decision(id, n_prefill, n_decode, revision)
            # A count that is newer than the id belongs to the decision to come.
            is_settled = all(
                entry.revision <= revision for key, entry in found.items() if key != self._done_key
            )
        return Handshake(
            decision,
            None if done is None else Done(done, found[self._done_key].revision),
            is_settled,
        )

    def report_done(self, decision: Decision, *, ours: Done | None) -> Done:
        """Tell the planner that its decision is carried out, and read that back.

        `ours` is what this returned last. Saying it twice is saying it once. Raises OtherWriter
        when somebody else has reported since, Superseded, and SurfaceError.
        """
        before = self.read()
        other = before.other_writer(ours)
        if other is not None:
            raise OtherWriter(f"{self.etcd_url}: {other}")
        if before.decision != decision:
            raise Superseded(f"{self.etcd_url}: decision {decision.id} is no longer the newest")
        if before.done is not None and before.pending is None:
            return before.done
        at = {
            self._decision_key: decision.revision,
            self._done_key: 0 if before.done is None else before.done.revision,
        }
        written = etcd.put_if(self.etcd_url, self._done_key, str(decision.id), at=at)
        if written is None:
            raise Superseded(f"{self.etcd_url}: {self._root} was written meanwhile")
        after = self.read().done
        if after != Done(decision.id, written):
            raise Unheeded(
                f"{self.etcd_url}: took scaled_decision_id {decision.id}, and shows "
                f"{after.id if after is not None else 'none'}"
            )
        return after

    @property
    def _root(self) -> str:
        return f"v1/{self.namespace}/planner/"

    @property
    def _decision_key(self) -> str:
        return f"{self._root}decision_id"

    @property
    def _done_key(self) -> str:
        return f"{self._root}scaled_decision_id"

    def _count(self, found: dict[str, etcd.Entry], name: str, most: int) -> int | None:
        entry = found.get(f"{self._root}{name}")
        if entry is None:
            return None
        text = entry.value.decode("ascii", "replace")
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise SurfaceError(
                f"{self.etcd_url}: {entry.key}={text[:40]!r}: not a count up to {most}"
            )
        return int(text)
