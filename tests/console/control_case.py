"""A fleet whose roles can be moved: a past, engines that report, and a router that was read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from routing import commands
from routing.models import Fleet, ManagedRouter
from telemetry import wire
from tests.console.page_case import busy_fleet
from tests.routing.cases import feed, scenario

ROLES = (3, 5)
URL = "http://127.0.0.1:9/clusters/pd"
CAN = {
    "threshold": "live",
    "roles": "live",
    "drain": "until_idle",
    "has_auth": False,
    "is_readable": True,
    "tried_versions": ["1"],
    "threshold_means": "",
    "why": "",
}


def movable_fleet(name: str = "f1", *, mode: str = "active", on_each: int = 4) -> Fleet:
    """3/5 in pd; `on_each` requests on every decode instance but d0, which has one."""
    fleet = busy_fleet(name, mode=mode)
    make_movable(fleet)
    report(fleet, on_each=on_each)
    return fleet


def make_movable(fleet: Fleet) -> None:
    """Give its PD cluster a router in the scenario."""
    commands.create_fleet(
        scenario=scenario(fleet.pk, pd={"control_urls": [URL]}),
        mode=None,
        actor="test",
        via="test",
        reason="",
        now=timezone.now(),
    )
    fleet.refresh_from_db()


def report(fleet: Fleet, *, roles: tuple[int, int] = ROLES, on_each: int = 4) -> None:
    """Every engine is read now, and so is the router that lists them."""
    now = timezone.now()
    names = [f"h20-{i + 1}" for i in range(sum(roles))]
    workers: dict[str, Any] = {}
    samples = []
    for i, name in enumerate(names):
        role = "prefill" if i < roles[0] else "decode"
        n = 1 if i == roles[0] else on_each
        samples.append(
            wire.InstanceSample(
                id=f"{fleet.pk}/pd/{name}",
                role=role,
                engine="sglang",
                engine_version="0.5.23",
                at_s=now.timestamp(),
                signals=wire.InstanceSignals(requests_running=float(n), requests_waiting=0.0),
            )
        )
        workers[f"http://127.0.0.1:9/{name}"] = {
            "role": role,
            "status": "ready",
            "requests": n,
            "key": f"{fleet.pk}/pd/{name}",
        }
    feed(samples)
    ManagedRouter.objects.update_or_create(
        fleet=fleet,
        cluster="pd",
        url=URL,
        defaults={
            "name": "stack-1",
            "kind": "stack",
            "capabilities": CAN,
            "observed": {"workers": workers, "threshold": None, "facts": {}},
            "observed_at": now,
            "state": "sync",
            "since": now - timedelta(minutes=5),
        },
    )
