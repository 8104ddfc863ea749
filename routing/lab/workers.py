"""What a stack lists of its instances: which role it uses each in, and which are draining.

The listing is the stack's own, not the engines': as with a real P/D router, both change in steps
that somebody has to take in order, and work sent to an engine of another role is refused there.

* A draining worker gets no new request and finishes those it has.
* The last ready worker of a role and cluster is not drained, so no pool is ever empty.
* A drain has a lease. When it ends unrenewed, the role that the engine has by then is listed and
  the worker is ready again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from routing.lab.clock import Handle
from routing.lab.decode import Sequence as DecodeSequence
from routing.lab.engine import Engine, Job, Receiving

WorkerStatus = Literal["ready", "draining"]


class NotNow(Exception):
    """A change of the listing that has to wait for another; HTTP 409."""


class NeverThat(Exception):
    """A change that this worker can never take; HTTP 422."""


class Worker:
    """One instance as one stack lists it, with what of this stack's requests is still there."""

    def __init__(self, cluster: str, engine: Engine) -> None:
        self.cluster, self.engine = cluster, engine
        self.worker_type = engine.role
        self.status: WorkerStatus = "ready"
        self._lease: tuple[float, Handle] | None = None
        self._n_prefills = 0
        self._sequences: dict[DecodeSequence, None] = {}

    @property
    def name(self) -> str:
        return self.engine.id.rpartition("/")[2]

    @property
    def requests(self) -> int:
        """Requests of this stack that wait, compute, decode or have KV to ship here."""
        return self._n_prefills + sum(not s.left for s in self._sequences)

    @property
    def lease_s(self) -> float | None:
        """Seconds until an unrenewed drain ends; None when ready."""
        if self._lease is None:
            return None
        return max(0.0, self._lease[0] - asyncio.get_running_loop().time())

    @contextmanager
    def prefilling(self) -> Iterator[None]:
        """A request is here from its choice until its KV has left."""
        self._n_prefills += 1
        try:
            yield
        finally:
            self._n_prefills -= 1

    @contextmanager
    def receiving(self, job: Job) -> Iterator[Receiving]:
        """A request decodes here; it counts until its slot is free, not until it has been read."""
        with self.engine.receive(job) as receiving:
            self._sequences[receiving.sequence] = None
            try:
                yield receiving
            finally:
                del self._sequences[receiving.sequence]

    def lease(self, lease_s: float) -> None:
        """Drain, or drain on, for that long."""
        self._end_lease()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + lease_s
        self._lease = (until_s, loop.call_at(until_s, self._expired))
        self.status = "draining"

    def ready(self) -> None:
        self._end_lease()
        self.status = "ready"

    def _expired(self) -> None:
        self.worker_type = self.engine.role
        self.ready()

    def _end_lease(self) -> None:
        if self._lease is not None:
            self._lease[1].cancel()
            self._lease = None


class Listing:
    """The workers of a stack: all instances of its PD cluster and of its PrfaaS clusters."""

    def __init__(self, cluster: str, workers: Sequence[Worker]) -> None:
        self._cluster, self.workers = cluster, workers

    def ready(self, cluster: str, worker_type: str) -> list[Worker]:
        """Those a new request of that role may go to; never empty for a role that is in use."""
        return [
            worker
            for worker in self.workers
            if (worker.cluster, worker.worker_type) == (cluster, worker_type)
            and worker.status == "ready"
        ]

    def find(self, name: str) -> Worker | None:
        """By id, or by the last part of one; of equal names the PD cluster's own is meant."""
        named = [worker for worker in self.workers if name in (worker.engine.id, worker.name)]
        return min(named, key=lambda worker: worker.cluster != self._cluster, default=None)

    def drain(self, worker: Worker, lease_s: float) -> None:
        """No new request for `lease_s`, or for `lease_s` from now if it drains already.

        Raises NotNow for the last ready worker of its role.
        """
        if self.ready(worker.cluster, worker.worker_type) == [worker]:
            raise NotNow(
                f"{worker.engine.id} is the last ready {worker.worker_type} worker "
                f"of {worker.cluster}"
            )
        worker.lease(lease_s)

    def relist(self, worker: Worker, worker_type: str) -> None:
        """Use the worker in another role once it is ready. Raises NotNow, NeverThat."""
        if worker_type not in worker.engine.roles:
            raise NeverThat(
                f"{worker.engine.id} takes the roles {', '.join(worker.engine.roles)} only"
            )
        if worker.status != "draining":
            raise NotNow(f"{worker.engine.id} is not draining")
        worker.worker_type = worker_type
