"""A fleet of thousands, and what its agents read of it, for pages that list and look closely."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from django.db import connection
from django.utils import timezone

from routing import commands
from routing.models import Fleet
from telemetry import bodies, layouts, wire
from telemetry.models import Agent, Source
from tests.routing import cases

PER_AGENT = 10
EDGES = [0.1, 0.3, 1.0, 3.0, 10.0]
HOSTILE = "<img src=x onerror=alert(1)>"
RTL = "\u202egnp.exe"
FORMULA = "=HYPERLINK(1)"


def large_fleet(name: str = "f1", *, n_instances: int = 3000, n_links: int = 300) -> Fleet:
    """A fleet with links from PrfaaS clusters to a PD cluster each; mode active."""
    document = copy.deepcopy(cases.SCENARIO)
    document["fleet"]["name"] = name
    n_sites = max(1, n_links // 2)
    pd = document["clusters"][1]
    document["clusters"] = [
        {"name": "pd", "kind": "pd", "profile": "h20", "instances": n_instances},
        *(
            {"name": f"site-{i:03d}", "kind": "prefill", "profile": "h200", "instances": 4}
            for i in range(n_sites)
        ),
    ]
    document["clusters"][0]["start"] = pd["start"]
    document["links"] = [
        link
        for i in range(n_sites)
        for link in (
            {"from": f"site-{i:03d}", "to": "pd", "gbps": 100.0},
            {"from": "pd", "to": f"site-{i:03d}", "gbps": 40.0},
        )
    ][:n_links]
    return commands.create_fleet(
        scenario=document, mode="active", actor="test", via="test", reason="", now=cases.NOW
    )


def instance(path: str, at_s: float, **more: Any) -> wire.InstanceSample:
    """An engine with everything that lists show."""
    signals = {
        "requests_running": 3.0,
        "requests_waiting": 2.0,
        "kv_cache_usage_ratio": 0.5,
        "prompt_tokens_per_s": 900.0,
        "generation_tokens_per_s": 400.0,
        "prompt_tokens_total": 1e6,
        "ttft_seconds": wire.Histogram(EDGES, [1.0, 5.0, 3.0, 1.0, 0.0, 0.0], 9.0),
        **more.pop("signals", {}),
    }
    facts = {"role": "decode", "engine": "vllm", "engine_version": "0.32.0", "epoch_s": 1e9}
    return wire.InstanceSample(
        **{**facts, "id": path, "at_s": at_s, **more},
        signals=wire.InstanceSignals(**{k: v for k, v in signals.items() if v is not None}),
    )


def link(path: str, at_s: float, **more: Any) -> wire.LinkSample:
    """A link that carries 40 of 100 Gbps."""
    signals = {"tx_gbps": 40.0, "capacity_gbps": 100.0, "rtt_s": 0.005, "retransmit_ratio": 0.001}
    signals |= more.pop("signals", {})
    return wire.LinkSample(
        id=path, at_s=at_s, measured_layer="lab", **more, signals=wire.LinkSignals(**signals)
    )


def land(samples: Iterable[wire.InstanceSample | wire.LinkSample], *, agent: str = "a") -> None:
    """Store readings in batches of `PER_AGENT`, an agent each, received as they were taken."""
    for i, part in enumerate(_parts(samples)):
        name = f"{agent}-{i:03d}"
        kind = "instances" if isinstance(part[0], wire.InstanceSample) else "links"
        at_s = part[0].at_s
        batch = wire.Batch(
            v=wire.WIRE_VERSION, agent=name, boot=1, seq=1, sent_at_s=at_s, **{kind: part}
        )
        layout = layouts.of(layouts.key_of(batch))
        at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO telemetry_layout AS old (digest, facts, last_seen_at)"
                " VALUES (%s, %s, %s) ON CONFLICT (digest) DO UPDATE"
                " SET last_seen_at = greatest(old.last_seen_at, EXCLUDED.last_seen_at)"
                " RETURNING id",
                [layout.digest, layout.encode(), at],
            )
            [(layout_id,)] = cursor.fetchall()
            cursor.execute(
                "INSERT INTO telemetry_landing (layout_id, landed_at, at, received_at, body)"
                " VALUES (%s, now(), %s, %s, %s)",
                [layout_id, at, at, bodies.pack(wire.encode(batch))],
            )
        Agent.objects.update_or_create(
            name=name, defaults={"boot": 1, "last_seq": 1, "last_seen_at": at}
        )
        Source.objects.bulk_create(
            [
                Source(
                    kind=kind[:-1],
                    path=sample.id,
                    role=getattr(sample, "role", ""),
                    engine=getattr(sample, "engine", ""),
                    agent=name,
                    last_seen_at=at,
                )
                for sample in part
            ],
            ignore_conflicts=True,
        )


def _parts(samples: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(samples)
    while part := list(islice(left, PER_AGENT)):
        yield part


def now_s() -> float:
    return timezone.now().timestamp()
