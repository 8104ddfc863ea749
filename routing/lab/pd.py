"""The P/D stack of one PD cluster: which instances serve a request, and what crosses the link.

Local:  prefill in the PD cluster, KV over RDMA (taken as no time), decode in the PD cluster.
Remote: prefill in a PrfaaS cluster, KV over the link layer by layer while it is computed, decode in
        the same PD cluster. TTFT waits for the last layer's arrival and for a decode slot.

* Instances are those that the stack's listing (`routing.lab.workers`) has ready in the role.
* Prefill goes to the instance that would finish it first: its queue plus the prompt's uncached
  tokens there. So the longest cached prefix wins unless that instance's queue costs more.
* A request may ask for its prefix to be moved to where it is computed (`routing.lab.moves`). What
  is then cached there counts in that choice as what is cached already, but for its transfer; it
  stays in that instance's cache.
* Decode goes to the instance with the fewest requests, chosen when the prefill has been computed;
  until the KV is there the request waits on it as `deferred`, then for a slot.
* Across the link goes the KV of the tokens that the PD cluster does not hold, plus the fixed state
  once. `decode_holds` says what it is taken to hold: `local_prefix` = the longest prefix in the
  caches of its own prefills (KV that came over the link is dropped after use), `nothing` = always
  the whole KV. A prefix cached in the PrfaaS cluster saves computing there, not bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from routing.lab.engine import Engine, Generation, Job, Misdirected, Unavailable, stages
from routing.lab.link import Link, LinkDown, Shipment
from routing.lab.moves import Moving, Offer, Route
from routing.lab.prefill import PrefillRun
from routing.lab.profile import KvSize
from routing.lab.prompt import Prompt
from routing.lab.truth import Record, Truth
from routing.lab.workers import Listing, Worker

DecodeHolds = Literal["local_prefix", "nothing"]
MOVED_HEADER = "X-PrfaaS-Moved-Tokens"

log = logging.getLogger("lab.stack")


@dataclass(frozen=True)
class Remote:
    """A PrfaaS cluster as one PD cluster reaches it."""

    link_id: str
    link: Link
    engines: Sequence[Engine]


@dataclass(frozen=True)
class Upstream:
    """One OpenAI upstream: a side of a stack. `remote` is a PrfaaS cluster, None the local side."""

    stack: PdStack
    remote: str | None

    def generate(self, job: Job) -> AbstractAsyncContextManager[Generation]:
        return self.stack.generate(job, self.remote)

    def trouble(self) -> str | None:
        """Why this side cannot serve now, or None."""
        return self.stack.trouble(self.remote)


class PdStack:
    """The stack of PD cluster `cluster`; `engines` are all its instances, of either role. Prefixes
    move over `routes`, by link id."""

    def __init__(
        self,
        *,
        cluster: str,
        engines: Sequence[Engine],
        remotes: dict[str, Remote],
        routes: dict[str, Route],
        kv: KvSize,
        n_layers: int,
        decode_holds: DecodeHolds,
        truth: Truth,
    ) -> None:
        self.cluster, self.remotes, self._routes = cluster, remotes, routes
        listed = {cluster: engines} | {name: remote.engines for name, remote in remotes.items()}
        self.listing = Listing(
            cluster, [Worker(name, engine) for name, group in listed.items() for engine in group]
        )
        self._engines, self._kv, self._n_layers = engines, kv, n_layers
        self._decode_holds, self._truth = decode_holds, truth

    def upstream(self, remote: str | None) -> Upstream:
        return Upstream(self, remote)

    def trouble(self, remote: str | None) -> str | None:
        """Why that side cannot serve now, or None."""
        if remote is not None and self.remotes[remote].link.down:
            return f"link {self.remotes[remote].link_id} is down"
        return None

    @asynccontextmanager
    async def generate(self, job: Job, remote: str | None) -> AsyncIterator[Generation]:
        """Serve a request on one side; entered when its first token is out.

        Leaving early, or being cancelled anywhere, frees every slot and stops the transfer.
        Raises Unavailable, and Misdirected for a move to another cluster.
        """
        computes_in = self.cluster if remote is None else remote
        if job.move is not None and job.move.target != computes_in:
            raise Misdirected(
                f"moves to {job.move.target}, and this upstream computes in {computes_in}"
            )
        record = Record(
            id=job.id,
            cluster=self.cluster,
            side="local" if remote is None else "remote",
            link=None if remote is None else self.remotes[remote].link_id,
            at_s=time.time(),
            prompt_tokens=job.prompt.tokens,
            output_tokens=job.output_tokens,
        )
        self._truth.arrived(record)
        state = "cancelled"
        try:
            async with self._run(job, remote, record) as generation:
                yield generation
            state = "completed"
        except Unavailable:
            state = "refused"
            raise
        finally:
            self._truth.ended(record, state)

    @asynccontextmanager
    async def _run(self, job: Job, remote: str | None, record: Record) -> AsyncIterator[Generation]:
        why = self.trouble(remote)
        if why is not None:
            raise Unavailable(why)
        offer = self._offer(job)
        worker = self._pick_prefill(job.prompt, remote, offer)
        prefiller, asked_s = worker.engine, asyncio.get_running_loop().time()
        with ExitStack() as leaving:  # what stays in the prefill instance until the KV has left
            leaving.enter_context(worker.prefilling())
            queued_s = asked_s
            if offer is not None and (moving := offer.to(prefiller.cache)) is not None:
                queued_s = await self._move(offer, moving, prefiller, record)
            async with prefiller.prefill(job, arrived_s=queued_s) as run:
                record.prefill, record.cached_tokens = prefiller.id, run.cached_tokens
                self._truth.prefilled(record)
                shipment = None if remote is None else self._ship(run, remote, record)
                if shipment is not None:
                    leaving.callback(self._settle, record, shipment)
                await prefiller.finish_prefill(run, moved_tokens=record.moved_tokens)
                leaving.enter_context(prefiller.holding(job.prompt.tokens))
            decoder = self._pick_decode()
            record.decode = decoder.engine.id
            with decoder.receiving(job) as receiving:
                ready_s = run.end_s if shipment is None else await shipment.arrival_s()
                leaving.close()
                await receiving.admit(
                    ready_s=ready_s,
                    kv_bytes=self._kv.bytes_of(job.prompt.tokens),
                    transfer_s=0.0 if shipment is None else ready_s - run.start_s,
                )
                start_s = receiving.sequence.at_s(1)
                record.stages_s = stages(
                    run,
                    move_s=queued_s - asked_s,
                    transfer_s=ready_s - run.end_s,
                    decode_wait_s=start_s - ready_s,
                )
                moved = {} if job.move is None else {MOVED_HEADER: str(record.moved_tokens)}
                yield Generation(
                    cached_tokens=run.cached_tokens,
                    stages_s=record.stages_s,
                    tokens=receiving.sequence.tokens,
                    headers={
                        "X-Lab-Side": record.side,
                        "X-Lab-Prefill": prefiller.id,
                        "X-Lab-Decode": decoder.engine.id,
                        "X-Lab-Kv-Bytes": str(record.kv_bytes),
                        **moved,
                    },
                )

    def _offer(self, job: Job) -> Offer | None:
        """What may be moved for the request. Over a link that is not there, nothing: computing
        instead is always right."""
        if job.move is None or job.move.link_id not in self._routes:
            return None
        route = self._routes[job.move.link_id]
        return Offer(route, job.prompt, job.move.tokens, self._kv)

    async def _move(self, offer: Offer, moving: Moving, prefiller: Engine, record: Record) -> float:
        """Bring a prefix to the instance; when its prefill may queue, with it or without."""
        link_id = offer.route.link_id
        try:
            arrival_s = await offer.bring(
                moving, prefiller, lambda n_bytes: self._truth.moved(record, link_id, n_bytes)
            )
        except LinkDown:
            log.info("%s went down under a prefix of %s: it is computed", link_id, record.id)
            return asyncio.get_running_loop().time()
        record.moved_tokens = moving.tokens
        return arrival_s

    def _ship(self, run: PrefillRun, remote: str, record: Record) -> Shipment:
        record.held_tokens = self._held_tokens(run.prompt)
        return Shipment(
            self.remotes[remote].link,
            total_bytes=self._kv.bytes_of(run.prompt.tokens - record.held_tokens),
            start_s=run.start_s,
            duration_s=run.duration_s,
            n_chunks=self._n_layers,
        )

    def _settle(self, record: Record, shipment: Shipment) -> None:
        self._truth.shipped(record, shipment.cancel())

    def _held_tokens(self, prompt: Prompt) -> int:
        """Leading tokens whose KV the PD cluster has from its own prefills."""
        if self._decode_holds == "nothing":
            return 0
        return max(engine.cache.held_tokens(prompt) for engine in self._engines)

    def _pick_prefill(self, prompt: Prompt, remote: str | None, offer: Offer | None) -> Worker:
        def expected_finish_s(worker: Worker) -> float:
            if offer is not None:
                return offer.expected_finish_s(worker.engine)
            return worker.engine.queue.expected_finish_s(prompt)

        pool = self.listing.ready(self.cluster if remote is None else remote, "prefill")
        return min(pool, key=expected_finish_s)

    def _pick_decode(self) -> Worker:
        pool = self.listing.ready(self.cluster, "decode")
        return min(pool, key=lambda worker: worker.engine.slots.load)
