"""What agents and the loop would tell a running console, sent through its real doors."""

from __future__ import annotations

import itertools
import time
from typing import Any

from django.utils import timezone

from routing import announce, fleets, scheduler
from routing.models import Fleet
from telemetry import wire
from tests import servers
from tests.console.api_case import token
from tests.console.page_case import tick
from tests.telemetry import batches

TTFT_EDGES = [0.5, 1.0, 2.0, 4.0, 8.0]


class Traffic:
    """One agent of a fleet: engines, a link, a gate. `send` ships a second of it."""

    def __init__(self, server: servers.Server, fleet: Fleet) -> None:
        self.server, self.fleet = server, fleet
        self.secret = token("ingest")
        self.agent = batches.unique("agent")
        self.seq = itertools.count(1)
        self.routed = 0.0

    def send(
        self,
        *,
        waiting: float = 2.0,
        tx_gbps: float = 9.4,
        capacity_gbps: float = 100.0,
        version: int = 2,
        instances: bool = True,
        **link: Any,
    ) -> None:
        at_s, name = time.time(), self.fleet.pk
        self.routed += 5
        engine = {"requests_running": 1.0, "requests_waiting": waiting, "kv_cache_usage_ratio": 0.5}
        samples: list[Any] = [
            batches.link(
                "prfaas->pd",
                at_s,
                tx_gbps=tx_gbps,
                capacity_gbps=capacity_gbps,
                retransmit_ratio=0.0,
                **link,
            ),
            batches.router(
                f"{name}/pd/gw-1",
                at_s,
                plan_epoch=1,
                plan_version=version,
                signals={
                    "requests_total": {"local|short": self.routed, "remote|long": self.routed},
                    "requests_per_s": 2.5,
                    "in_flight": {"local": 3.0, "remote": 1.0},
                    "upstream_up": {"local": 1.0, "remote:prfaas": 0.0},
                    "ttft_seconds": {
                        "local": wire.Histogram(TTFT_EDGES, [0, self.routed, 0, 0, 0, 0], 1.0)
                    },
                },
            ),
        ]
        if instances:
            samples += [
                batches.instance(f"{name}/pd/p1", at_s, role="prefill", signals=engine),
                batches.instance(f"{name}/pd/d1", at_s, role="decode", signals=engine),
                batches.instance(f"{name}/prfaas/p1", at_s, role="prefill", signals=engine),
            ]
        answer = self.server.post(
            batches.batch(self.agent, *samples, seq=next(self.seq)), self.secret
        )
        assert answer.status == 200, answer

    def loop(self, **verdict: Any) -> None:
        """One pass of the loop, announced as the worker does."""
        made = tick(self.fleet, timezone.now(), **verdict)
        announce.publish(scheduler.tick_message(made, fleets.newest_adopted(self.fleet)))
