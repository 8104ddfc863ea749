"""A router in memory that is driven as a real one, and a fleet whose scenario names it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from routing import managed_sites, managed_work, router_commands
from routing.adapters.rendered import Rendered, Wanted
from routing.adapters.surface import (
    Actual,
    Capabilities,
    Listed,
    Refused,
    Role,
    SurfaceError,
    Threshold,
)
from routing.models import Fleet, ManagedRouter
from tests.routing.cases import after, make_fleet

P0, P1, D0, D1 = (f"http://127.0.0.1:91{i:02d}" for i in range(4))
URL = "http://127.0.0.1:9300"
BY: dict[str, Any] = {"actor": "ada", "via": "test", "reason": "seen on the page"}
CAN = Capabilities(
    threshold="none",
    roles="live",
    drain="until_idle",
    has_auth=True,
    is_readable=True,
    tried_versions=("1.13.0",),
    threshold_means="It has none: every prompt goes where its plan's gate sends it.",
)


@dataclass
class FakeRouter:
    """`lies`: it says yes and does nothing. `away`: no answer. `calls` is what was asked of it."""

    url: str = URL
    kind: str = "smg"
    serves_at: str | None = None
    can: Capabilities = CAN
    version: str = "1.13.0"
    listed: dict[str, Listed] = field(default_factory=dict)
    threshold: Threshold | None = None
    facts: dict[str, object] = field(default_factory=dict)
    away: bool = False
    lies: bool = False
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def put(self, url: str, role: Role, status: Any = "ready") -> None:
        self.listed[url] = Listed(url, role, status, requests=0)

    def capabilities(self, actual: Actual) -> Capabilities:
        if actual.version in self.can.tried_versions:
            return self.can
        why = f"version {actual.version} was not tried: it is read, and not changed"
        return replace(self.can, threshold="none", roles="none", why=why)

    def read(self) -> Actual:
        if self.away:
            raise SurfaceError(f"{self.url}: does not answer")
        return Actual(self.version, dict(self.listed), self.threshold, facts=dict(self.facts))

    def cordon(self, url: str) -> None:
        self.calls.append(("cordon", url))
        if not self.lies:
            self.listed.pop(url, None)

    def hold(self, url: str) -> None:
        self.calls.append(("hold", url))

    def list_as(self, url: str, role: Role) -> None:
        self.calls.append(("list_as", url, role))
        if not self.lies:
            self.put(url, role)

    def rendered(self, wanted: Wanted, actual: Actual) -> Rendered:
        return Rendered("its configuration", f"nonCachedTokens: {wanted.tokens}", "kubectl apply")

    def runs(self, wanted: Wanted, actual: Actual) -> bool | None:
        return None if self.threshold is None else self.threshold.tokens == wanted.tokens


class RefusingRouter(FakeRouter):
    def list_as(self, url: str, role: Role) -> None:
        raise Refused(f"{self.url}: {url} is the last ready decode instance it lists")


def two_and_two(kind: type[FakeRouter] = FakeRouter, **changes: Any) -> FakeRouter:
    router = kind(**changes)
    for url in (P0, P1):
        router.put(url, "prefill")
    for url in (D0, D1):
        router.put(url, "decode")
    return router


def fleet_of(
    monkeypatch: pytest.MonkeyPatch, *routers: FakeRouter, name: str = "f1", **pd: Any
) -> Fleet:
    """Its PD cluster of four instances names these routers, as `r1`, `r2`..."""
    known = {router.url: router for router in routers}
    monkeypatch.setattr(managed_sites, "surface_of", lambda _, settings: known[settings["url"]])
    named = [
        {"kind": router.kind, "url": router.url, "name": f"r{i}"}
        for i, router in enumerate(routers, start=1)
    ]
    start = {"n_prefill": 2, "threshold_tokens": 4000}
    return make_fleet(name, pd={"instances": 4, "start": start, "routers": named, **pd})


def cycle(fleet: Fleet, at_s: float, name: str = "r1") -> ManagedRouter:
    """One cycle, and the router's row after it."""
    managed_work.reconcile(clock(at_s))
    return ManagedRouter.objects.get(fleet=fleet, name=name)


def clock(at_s: float) -> Callable[[], datetime.datetime]:
    return lambda: after(at_s)


def act(row: ManagedRouter, at_s: float, verb: str = "override", **changes: Any) -> ManagedRouter:
    """The router after a person has asked for it on what they see."""
    asked = {"fleet": row.fleet_id, "router_id": row.pk, "if_version": row.version, **BY, **changes}
    return getattr(router_commands, verb)(now=after(at_s), **asked).router
