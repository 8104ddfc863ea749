"""Who may come in now: limits of the gate, of the local side, of each tenant.

Above a limit of the gate a request waits in a bounded queue, first come first served, and is
refused with 503 when the queue is full or its time is over. Above a bound of its tenant it is
refused with 429 at once: that one waits for itself, not in everybody's queue.

A tenant is the hash of a bearer key or of a named header. The key itself is kept nowhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from routing.gate.settings import Limits, Tenants

MAX_TENANTS = 10_000
"""Tenants remembered. Keys come from clients: those idle longest are forgotten."""
NOBODY = "none"
"""The tenant of requests that name none."""
REASONS = (
    *("stopping", "queue_full", "queue_timeout"),
    *("tenant_in_flight", "tenant_rate"),
)

_TENANT_BYTES = 6
_BUSY_RETRY_S = 1.0


class Refused(Exception):
    """Not let in. `reason` is one of `REASONS`, `retry_s` when another try makes sense.

    `is_demand`: more instances would have served it. What a tenant may not send is nobody's demand.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_s: float) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason
        self.is_demand = status == 503
        self.headers = {"Retry-After": str(max(1, math.ceil(retry_s)))}


def tenant_of(headers: Mapping[str, str], header: str | None) -> str:
    """Who sends this: 12 hex digits, or `NOBODY`."""
    if header is not None:
        value = headers.get(header, "")
    else:
        scheme, _, value = headers.get("Authorization", "").partition(" ")
        value = value.strip() if scheme.lower() == "bearer" else ""
    if not value:
        return NOBODY
    raw = value.encode(errors="surrogateescape")
    return hashlib.blake2b(raw, digest_size=_TENANT_BYTES).hexdigest()


class Slots:
    """At most `limit` at once (None: any number); up to `queue` more wait `queue_s` each."""

    def __init__(self, limit: int | None, *, queue: int, queue_s: float) -> None:
        self.n_taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.resize(limit, queue=queue, queue_s=queue_s)

    def resize(self, limit: int | None, *, queue: int, queue_s: float) -> None:
        """Takes other limits. Who is in stays in, who waits goes on waiting."""
        self._limit, self._queue, self._queue_s = limit, queue, queue_s
        self._let_in()

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def _is_free(self) -> bool:
        return self._limit is None or self.n_taken < self._limit

    async def take(self, what: str) -> bool:
        """Takes one, at once or after a wait: whether it waited. Raises Refused."""
        if not self._waiting and self._is_free:
            self.n_taken += 1
            return False
        if len(self._waiting) >= self._queue:
            raise Refused(
                503, "queue_full", f"{what} has all the requests it takes", retry_s=_BUSY_RETRY_S
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._queue_s):
                await turn
        except TimeoutError:
            self._leave(turn)
            raise Refused(
                503,
                "queue_timeout",
                f"{what} had no room for {self._queue_s:g} s",
                retry_s=self._queue_s,
            ) from None
        except asyncio.CancelledError:
            self._leave(turn)
            raise
        return True

    def give(self) -> None:
        """Gives one back."""
        self.n_taken -= 1
        self._let_in()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        """It waits no more; a slot that it was given in the same moment goes to the next."""
        if turn.done() and not turn.cancelled():
            self.give()
        elif turn in self._waiting:
            self._waiting.remove(turn)

    def _let_in(self) -> None:
        while self._waiting and self._is_free:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.n_taken += 1


@dataclass(slots=True)
class _Tenant:
    in_flight: int = 0
    tokens: float = 0.0
    at_s: float = 0.0


class TenantBounds:
    """What each tenant may take. Times are of one monotonic clock."""

    def __init__(self, config: Tenants) -> None:
        self.config = config
        self._known: OrderedDict[str, _Tenant] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def enter(self, name: str, now_s: float) -> None:
        """One more request of this tenant. Raises Refused."""
        config, tenant = self.config, self._get(name, now_s)
        if config.in_flight is not None and tenant.in_flight >= config.in_flight:
            message = f"this tenant has {tenant.in_flight} requests in flight, as many as it may"
            raise Refused(429, "tenant_in_flight", message, retry_s=_BUSY_RETRY_S)
        if config.rps is not None:
            burst = self._burst(config.rps)
            tenant.tokens = min(burst, tenant.tokens + (now_s - tenant.at_s) * config.rps)
            tenant.at_s = now_s
            if tenant.tokens < 1.0:
                message = f"this tenant may send {config.rps:g} requests a second"
                retry_s = (1.0 - tenant.tokens) / config.rps
                raise Refused(429, "tenant_rate", message, retry_s=retry_s)
            tenant.tokens -= 1.0
        tenant.in_flight += 1

    def leave(self, name: str) -> None:
        """That request is over."""
        tenant = self._known.get(name)
        if tenant is not None:
            tenant.in_flight -= 1

    def _burst(self, rps: float) -> float:
        return self.config.burst if self.config.burst is not None else max(1.0, rps)

    def _get(self, name: str, now_s: float) -> _Tenant:
        tenant = self._known.get(name)
        if tenant is None:
            full = self._burst(self.config.rps) if self.config.rps is not None else 0.0
            tenant = self._known[name] = _Tenant(tokens=full, at_s=now_s)
            self._forget_idle()
        self._known.move_to_end(name)
        return tenant

    def _forget_idle(self) -> None:
        while len(self._known) > MAX_TENANTS:
            name = next((n for n, tenant in self._known.items() if not tenant.in_flight), None)
            if name is None:
                return
            del self._known[name]


class Admission:
    """All bounds of one gate. `now_s` is a monotonic clock."""

    def __init__(
        self, limits: Limits, tenants: Tenants | None, *, now_s: Callable[[], float]
    ) -> None:
        self._now_s = now_s
        self.all = Slots(limits.in_flight, queue=limits.queue, queue_s=limits.queue_s)
        self.local = Slots(limits.local_in_flight, queue=limits.queue, queue_s=limits.queue_s)
        self.tenants: TenantBounds | None = None
        self.configure(limits, tenants)

    def configure(self, limits: Limits, tenants: Tenants | None) -> None:
        """Takes other bounds, without a word to who is in."""
        self.bounds_local = limits.local_in_flight is not None
        self.all.resize(limits.in_flight, queue=limits.queue, queue_s=limits.queue_s)
        self.local.resize(limits.local_in_flight, queue=limits.queue, queue_s=limits.queue_s)
        if tenants is None:
            self.tenants = None
        elif self.tenants is None:
            self.tenants = TenantBounds(tenants)
        else:
            self.tenants.config = tenants

    async def enter(self, headers: Mapping[str, str]) -> Entry:
        """Lets a request in. Raises Refused. What comes back must be left."""
        bounds, tenant = self.tenants, None
        if bounds is not None:
            tenant = tenant_of(headers, bounds.config.header)
            bounds.enter(tenant, self._now_s())
        try:
            await self.all.take("this gate")
        except BaseException:
            if bounds is not None and tenant is not None:
                bounds.leave(tenant)
            raise
        return Entry(self.all, bounds, tenant)


@dataclass(frozen=True, slots=True)
class Entry:
    """One request that was let in."""

    slots: Slots
    bounds: TenantBounds | None
    tenant: str | None

    def leave(self) -> None:
        """It is over."""
        self.slots.give()
        if self.bounds is not None and self.tenant is not None:
            self.bounds.leave(self.tenant)
