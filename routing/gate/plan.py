"""Which plan the gate runs: a pure state machine over the documents it is offered.

A document is accepted if it is valid for this gate's cluster and its (epoch, version) is higher
than what runs. Anything else changes nothing but what the gate says: the ack always names the
version that *runs*, and a refusal stands in it until a good document arrives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from routing.core.placement.rule import Rule
from routing.core.types import CacheMode, Mode
from routing.gate.override import Override

AckState = Literal["running", "refused", "no_plan", "overridden"]


class PlanError(ValueError):
    """A document this gate cannot run. Names the field and the value."""

    def __init__(self, message: str, *, field: str, value: Any) -> None:
        super().__init__(f"{field} = {value!r}: {message}")


class Transport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hint for who ships KV from one PrfaaS cluster; None: the plan has none."""

    connections: int | None = None
    pacing_gbps: float | None = None


class _Document(msgspec.Struct, frozen=True):
    # Unknown fields are ignored on purpose: a newer console may add optional ones. The entries of
    # other clusters stay unread, so nothing in them can stop this gate.
    fleet: str
    epoch: int
    version: int
    clusters: dict[str, msgspec.Raw]


class _Cluster(msgspec.Struct, frozen=True):
    mode: Mode
    threshold_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    cache_mode: CacheMode = "scarce"
    moves: dict[str, int] = {}
    band: tuple[int, int] | None = None
    remote: dict[str, float] = {}
    max_remote_in_flight: int | None = None
    transport: dict[str, Transport] = {}


class Ack(msgspec.Struct, frozen=True):
    """What the gate tells the console (docs/contracts.md, Plan). `override` only where one is."""

    router: str
    epoch: int | None
    version_running: int | None
    state: AckState
    error: str | None
    override: Override | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True)
class Running:
    """An accepted plan: its number, its rule for this cluster, its document as received, its hints
    by PrfaaS cluster."""

    epoch: int
    version: int
    rule: Rule
    document: bytes
    transport: dict[str, Transport]

    @property
    def name(self) -> str:
        return f"{self.epoch}.{self.version}"


@dataclass(frozen=True)
class PlanState:
    """What runs (None: never had a plan) and why the latest document was refused, if it was."""

    running: Running | None = None
    refusal: str | None = None

    def ack(
        self, router: str, *, override: Override | None = None, notes: tuple[str, ...] = ()
    ) -> Ack:
        """The ack, with `notes` on what keeps the plan from full effect. An `override` is what
        runs, whatever became of the plan."""
        running = self.running
        state: AckState = "running" if running else "no_plan"
        if self.refusal is not None:
            state = "refused"
        if override is not None:
            state = "overridden"
        said = ([self.refusal] if self.refusal else []) + list(notes)
        return Ack(
            router=router,
            epoch=running.epoch if running else None,
            version_running=running.version if running else None,
            state=state,
            error="; ".join(said) or None,
            override=msgspec.UNSET if override is None else override,
        )


def offer(state: PlanState, document: bytes, *, fleet: str, cluster: str) -> PlanState:
    """The state after a document arrived, from the console or from disk."""
    try:
        offered = parse_plan(document, fleet=fleet, cluster=cluster)
    except PlanError as exc:
        return replace(state, refusal=f"refused a plan: {exc}")
    running = state.running
    if running is None or (offered.epoch, offered.version) > (running.epoch, running.version):
        return PlanState(offered)
    if offered.name == running.name:
        return replace(state, refusal=None)
    return replace(
        state, refusal=f"refused plan {offered.name}: older than {running.name}, which runs"
    )


def parse_plan(document: bytes, *, fleet: str, cluster: str) -> Running:
    """The plan for this gate's cluster. Raises PlanError."""
    try:
        plan = msgspec.json.decode(document, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise PlanError(str(exc), field="document", value=_excerpt(document)) from None
    if plan.fleet != fleet:
        raise PlanError(f"this gate is in fleet {fleet!r}", field="fleet", value=plan.fleet)
    for field, number in (("epoch", plan.epoch), ("version", plan.version)):
        if not 0 <= number < 2**63:
            raise PlanError("must be in 0..2^63-1", field=field, value=number)
    if cluster not in plan.clusters:
        raise PlanError(
            f"plan {plan.epoch}.{plan.version} says nothing of this gate's cluster {cluster!r}",
            field="clusters",
            value=sorted(plan.clusters),
        )
    path, raw = f"clusters.{cluster}", plan.clusters[cluster]
    try:
        entry = msgspec.json.decode(raw, type=_Cluster)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise PlanError(str(exc), field=path, value=_excerpt(bytes(raw))) from None
    rule = _rule(entry, path=path)
    return Running(plan.epoch, plan.version, rule, document, entry.transport)


def _rule(entry: _Cluster, *, path: str) -> Rule:
    threshold = _threshold(entry, path=f"{path}.threshold_tokens")
    band = _band(entry, threshold, path=f"{path}.band")
    for link, tokens in entry.moves.items():
        if not all(link.partition("->")):
            raise PlanError("a link is A->B", field=f"{path}.moves", value=link)
        if tokens < 0:
            raise PlanError("must not be negative", field=f"{path}.moves.{link}", value=tokens)
    for name, weight in entry.remote.items():
        if not (math.isfinite(weight) and weight >= 0.0):
            raise PlanError(
                "a weight is finite and not negative", field=f"{path}.remote.{name}", value=weight
            )
    limit = entry.max_remote_in_flight
    if limit is not None and limit < 0:
        raise PlanError("must not be negative", field=f"{path}.max_remote_in_flight", value=limit)
    return Rule(
        entry.mode,
        threshold,
        entry.remote,
        max_remote_in_flight=limit,
        cache_mode=entry.cache_mode,
        moves=entry.moves,
        band=band,
    )


def _threshold(entry: _Cluster, *, path: str) -> int | None:
    """0, null and absent are three different things; each mode takes exactly what it needs."""
    value = entry.threshold_tokens
    if entry.mode != "threshold":
        if value is None or value is msgspec.UNSET:
            return None
        raise PlanError(f"must be null in mode {entry.mode}", field=path, value=value)
    if value is msgspec.UNSET:
        raise PlanError("mode threshold needs it", field=path, value="absent")
    if value is None:
        raise PlanError("mode threshold needs a number; null is not 0", field=path, value=None)
    assert isinstance(value, int)
    if value < 0:
        raise PlanError("must not be negative", field=path, value=value)
    return value


def _band(entry: _Cluster, threshold: int | None, *, path: str) -> tuple[int, int] | None:
    if entry.band is None:
        return None
    if threshold is None:
        raise PlanError(f"must be null in mode {entry.mode}", field=path, value=list(entry.band))
    low, high = entry.band
    if not 0 <= low <= threshold <= high:
        raise PlanError(
            f"must be [low, high] with 0 <= low <= {threshold} (threshold_tokens) <= high",
            field=path,
            value=list(entry.band),
        )
    return low, high


def _excerpt(document: bytes) -> str:
    return document[:80].decode(errors="replace")
