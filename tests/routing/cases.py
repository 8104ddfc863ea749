"""A small fleet, and telemetry for it written straight into the landing zone.

Rows go through Django's connection, so a test that rolls back takes them along.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.db import connection

from routing import commands
from routing.models import Fleet
from telemetry import bodies, layouts, store, wire
from telemetry.models import Source

NOW = datetime.datetime(2026, 11, 29, 12, 0, tzinfo=datetime.UTC)
NOW_S = NOW.timestamp()
EDGES = [round(128 * 1024 ** (i / 80)) for i in range(81)] + [1_048_576]

SCENARIO: dict[str, Any] = {
    "fleet": {"name": "f1", "slo": {"tokens_per_s": 40.0, "ttft_s": 10.0}},
    "model": {"bytes_per_token": 17280, "state_bytes": 182347366},
    "profiles": {
        "h200": {
            "prefill": [[1024, 0.44], [8192, 0.72], [27486, 1.63265], [131072, 7.40]],
            "decode": {"batch": 20, "step_s": 0.025},
        },
        "h20": {
            "prefill": [[10224, 1.829], [27486, 4.265], [62410, 9.73]],
            "decode": {"batch": 20, "step_s": 0.025},
        },
    },
    "clusters": [
        {"name": "prfaas", "kind": "prefill", "profile": "h200", "instances": 4},
        {
            "name": "pd",
            "kind": "pd",
            "profile": "h20",
            "instances": 8,
            "start": {"n_prefill": 3, "threshold_tokens": 4000},
        },
    ],
    "links": [{"from": "prfaas", "to": "pd", "gbps": 100.0, "rtt_ms": 5.0}],
    "workload": {
        "rate_rps": 2.5,
        "output_tokens": 1024,
        "lengths": {"kind": "lognormal", "mu": 9.9, "sigma": 1.0, "min": 128, "max": 131072},
    },
}


def scenario(
    name: str = "f1", *, start: bool = True, pd: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The fleet's document; `pd` changes its PD cluster."""
    document = copy.deepcopy(SCENARIO)
    document["fleet"]["name"] = name
    document["clusters"][1].update(pd or {})
    if not start:
        del document["clusters"][1]["start"]
    return document


def make_fleet(
    name: str = "f1",
    *,
    mode: str = "active",
    start: bool = True,
    pd: dict[str, Any] | None = None,
) -> Fleet:
    return commands.create_fleet(
        scenario=scenario(name, start=start, pd=pd),
        mode=mode,
        actor="test",
        via="test",
        reason="",
        now=NOW,
    )


def after(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


def feed(samples: Iterable[store.Sample], *, delay_s: float = 0.0) -> None:
    """Store samples as ingest would have, received `delay_s` after each was taken."""
    places: dict[layouts.Key, int] = {}
    for sample in samples:
        received_s = sample.at_s + delay_s
        reading = store.from_sample(sample, received_s=received_s)
        batch = wire.Batch(
            v=wire.WIRE_VERSION,
            agent="test",
            boot=1,
            seq=1,
            sent_at_s=received_s,
            **{f"{reading.kind}s": [sample]},
        )
        key = layouts.key_of(batch)
        if key not in places:
            places[key] = _place(layouts.of(key), received_s)
            Source.objects.update_or_create(
                kind=reading.kind,
                path=reading.path,
                defaults={
                    "role": reading.role,
                    "engine": reading.engine,
                    "agent": "test",
                    "last_seen_at": _utc(received_s),
                },
            )
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO telemetry_landing (layout_id, landed_at, at, received_at, body)"
                " VALUES (%s, now(), %s, %s, %s)",
                [
                    places[key],
                    _utc(reading.at_s),
                    _utc(received_s),
                    bodies.pack(wire.encode(batch)),
                ],
            )
            cursor.execute(
                "UPDATE telemetry_layout SET last_seen_at = greatest(last_seen_at, %s)"
                " WHERE id = %s",
                [_utc(received_s), places[key]],
            )


def _place(layout: layouts.Layout, seen_s: float) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO telemetry_layout AS old (digest, facts, last_seen_at) VALUES (%s, %s, %s)"
            " ON CONFLICT (digest) DO UPDATE SET last_seen_at = old.last_seen_at RETURNING id",
            [layout.digest, layout.encode(), _utc(seen_s)],
        )
        [(layout_id,)] = cursor.fetchall()
        assert isinstance(layout_id, int)
        return layout_id


def _utc(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


@dataclass
class Gate:
    """A gate that counts: `arrive` adds requests, `sample` reads its counters."""

    path: str = "f1/pd/gw-1"
    epoch_s: float = NOW_S - 10_000.0
    source: str = "tokenised"
    edges: list[float] = field(default_factory=lambda: list(EDGES))
    local: float = 0.0
    remote: float = 0.0
    refused: float = 0.0
    judged: bool = False
    movable_tokens: float | None = None
    prompt_tokens: float = 0.0
    plan: tuple[int, int] | None = None
    kind: str = "gate"
    counts: dict[str, np.ndarray] = field(default_factory=dict)

    def arrive(
        self, lengths: Sequence[float], *, threshold: float = 4_000.0, refused: float = 0.0
    ) -> None:
        long = np.asarray(lengths) > threshold
        self.local += float((~long).sum())
        self.remote += float(long.sum())
        self.refused += refused
        self.prompt_tokens += float(np.sum(lengths))
        counts = self.counts.setdefault(self.source, np.zeros(len(self.edges) + 1))
        np.add.at(counts, np.searchsorted(self.edges, lengths), 1)

    def sample(self, at_s: float) -> wire.RouterSample:
        return wire.RouterSample(
            id=self.path,
            kind=self.kind,
            at_s=at_s,
            epoch_s=self.epoch_s,
            plan_epoch=self.plan and self.plan[0],
            plan_version=self.plan and self.plan[1],
            signals=wire.RouterSignals(
                requests_total={"local|short": self.local, "remote|long": self.remote},
                refused_total=self.refused,
                prompt_tokens_total=self.prompt_tokens,
                movable_tokens_total=self.movable_tokens,
                uncached_tokens={
                    f"{'judged' if self.judged else 'local'}|{source}": wire.Histogram(
                        self.edges, counts.tolist(), 0.0
                    )
                    for source, counts in self.counts.items()
                },
            ),
        )

    def restart(self, at_s: float) -> None:
        self.epoch_s, self.local, self.remote, self.refused = at_s, 0.0, 0.0, 0.0
        self.counts = {}


def steady(
    gate: Gate,
    rng: np.random.Generator,
    *,
    rate_rps: float = 2.5,
    since_s: float = -600.0,
    until_s: float = 0.0,
    every_s: float = 10.0,
) -> list[wire.RouterSample]:
    """Readings of a gate under Poisson traffic with lognormal lengths, times relative to NOW."""
    samples = [gate.sample(NOW_S + since_s)]
    at_s = since_s
    while at_s < until_s:
        at_s += every_s
        n = rng.poisson(rate_rps * every_s)
        gate.arrive(np.clip(rng.lognormal(9.9, 1.0, n), 128, 131072))
        samples.append(gate.sample(NOW_S + at_s))
    return samples


def instance(
    path: str,
    *,
    role: str = "prefill",
    at_s: float = 0.0,
    state: str = "ok",
    waiting: float | None = 0.0,
) -> wire.InstanceSample:
    """One engine's reading, `at_s` relative to NOW."""
    return wire.InstanceSample(
        id=path,
        role=role,
        engine="vllm",
        engine_version="0.32",
        at_s=NOW_S + at_s,
        state=state,
        error="timed out" if state == "failed" else None,
        signals=wire.InstanceSignals(requests_waiting=waiting if state == "ok" else None),
    )


def engines(
    fleet: str = "f1", *, at_s: float = -1.0, roles: tuple[int, int] = (3, 5)
) -> list[wire.InstanceSample]:
    """The 3/5 split of `pd`, or another, and the four of `prfaas`."""
    return [
        *(
            instance(f"{fleet}/pd/{name}", role="prefill" if i < roles[0] else "decode", at_s=at_s)
            for i, name in enumerate(("p0", "p1", "p2", "d0", "d1", "d2", "d3", "d4"))
        ),
        *(instance(f"{fleet}/prfaas/p{i}", at_s=at_s) for i in range(4)),
    ]


def link(*, at_s: float = -1.0, state: str = "ok", **signals: float) -> wire.LinkSample:
    return wire.LinkSample(
        id="prfaas->pd",
        at_s=NOW_S + at_s,
        measured_layer="lab",
        state=state,
        signals=wire.LinkSignals(**signals),
    )


def traffic(fleet: str = "f1", *, seed: int = 1, rate_rps: float = 2.5) -> None:
    """A fleet in full health: one gate with ten minutes of traffic, its engines, its link."""
    rng = np.random.default_rng(seed)
    feed(steady(Gate(path=f"{fleet}/pd/gw-1"), rng, rate_rps=rate_rps))
    feed(engines(fleet))
    feed([link(tx_gbps=9.4, capacity_gbps=100.0, retransmit_ratio=0.0)])
