"""What routers say they run, and which deliveries that proves or refuses.

Nothing here writes: `delivery` records claims and makes the moves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from routing import fleets
from routing.core.types import Mode
from routing.models import Decision, Fleet

ROUTER_STATES = ("running", "accepted", "refused", "no_plan", "overridden")
OPEN = ("sent", "accepted", "pending_restart")
"""States of a router that is still waited for."""
NOT_APPLIED = (*OPEN, "failed", "superseded", "cancelled", "expired")
_MAX_MESSAGE = 500
_Line = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, lt=2.0**33)]


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person on the gate itself put above the plan, until `until_s` (epoch seconds)."""

    id: _Line
    mode: Mode
    threshold_tokens: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None
    by: _Line
    reason: _Line
    since_s: _Seconds
    until_s: _Seconds


class AckError(ValueError):
    """An ack that cannot be meant: which field, what stood there, why not."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Claim:
    """What one router says: `running` is (epoch, version), or None when it never had a plan."""

    router: str
    running: tuple[int, int] | None
    state: str
    error: str | None
    transport: str
    override: Override | None = None

    @property
    def override_values(self) -> dict[str, Any] | None:
        """As it is stored."""
        return None if self.override is None else msgspec.to_builtins(self.override)

    @property
    def message(self) -> str:
        """Its error as it can be stored."""
        return (self.error or "").replace("\0", "")[:_MAX_MESSAGE]


@dataclass(frozen=True)
class Move:
    """A delivery to `state`, if it is in one of `sources`."""

    decision: Decision
    router: str
    state: str
    sources: tuple[str, ...]
    error: str = ""

    @property
    def key(self) -> tuple[int, str]:
        return self.decision.pk, self.router


def checked(fleet: Fleet, claims: Iterable[Claim]) -> tuple[dict[str, str], list[AckError | None]]:
    """The cluster of each router that is one of this fleet's, and for each claim what is wrong."""
    clusters: dict[str, str] = {}
    refused: list[AckError | None] = []
    for claim in claims:
        try:
            if claim.router not in clusters:
                clusters[claim.router] = _cluster_of(fleet, claim.router)
            if claim.state not in ROUTER_STATES:
                one_of = f"must be one of {', '.join(ROUTER_STATES)}"
                raise AckError("state", claim.state, one_of)
            refused.append(None)
        except AckError as exc:
            refused.append(exc)
    return clusters, refused


def moves(fleet: Fleet, newest: Decision | None, claims: Iterable[Claim]) -> list[Move]:
    """What these claims prove or refuse, in their order; `newest` is the plan in force."""
    claims = list(claims)
    pairs = {claim.running for claim in claims if claim.running is not None}
    known = Decision.objects.filter(
        fleet=fleet, epoch__in={pair[0] for pair in pairs}, version__in={pair[1] for pair in pairs}
    ).only("fleet_id", "epoch", "version")
    ran = {(decision.epoch, decision.version): decision for decision in known}
    found = []
    for claim in claims:
        if claim.override is not None:
            # The plan is there and does not route: no router applies what a person overrides.
            if newest is not None:
                said = f"overridden on the gate itself by {claim.override.by}"
                sources = ("sent", "applied", "expired", "failed")
                found.append(Move(newest, claim.router, "accepted", sources, said))
            continue
        if claim.running is not None and claim.running in ran:
            found.append(Move(ran[claim.running], claim.router, "applied", NOT_APPLIED))
        if newest is None or claim.running == (newest.epoch, newest.version):
            continue
        # A reload that failed after all, or another who took it back: applied no more.
        runs = "no plan" if claim.running is None else "plan {}.{}".format(*claim.running)
        back = f"it runs {runs} again"
        found.append(Move(newest, claim.router, "failed", ("applied",), back))
        if claim.state == "refused":
            found.append(Move(newest, claim.router, "failed", OPEN, claim.message))
        elif claim.state == "accepted":
            found.append(Move(newest, claim.router, "accepted", ("sent",)))
    return found


def _cluster_of(fleet: Fleet, router: str) -> str:
    parts = router.split("/")
    if len(parts) != 3 or not all(parts) or len(router) > 300 or not router.isprintable():
        raise AckError("router", router, "must be FLEET/CLUSTER/NAME")
    if parts[0] != fleet.pk:
        raise AckError("router", router, f"is not of fleet {fleet.pk}")
    known = [c.name for c in fleets.scenario_of(fleet).clusters if c.kind == "pd"]
    if parts[1] not in known:
        raise AckError("router", router, f"names no PD cluster; there are {', '.join(known)}")
    return parts[1]
