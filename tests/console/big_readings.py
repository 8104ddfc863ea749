"""What 3,000 engines, 300 links and 200 gates report, as rows of the landing zone.

Counters rise and gauges sway with time; the same moment always reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from django.db import connection

from console.wanted import wanted_of
from telemetry import bodies, layouts, reports, wire
from telemetry.models import Agent, Source, StoredReport
from tests.routing.cases import EDGES

BOOT_S = 1_790_000_000.0
ENGINES_AN_AGENT, GATES_AN_AGENT, LINKS_AN_AGENT = 8, 8, 50


@dataclass(frozen=True)
class Place:
    """One source: its id and its role, or its make."""

    path: str
    role: str


@dataclass
class Plant:
    """Everything that reports, and by which agent. `failing` are paths that cannot be read."""

    engines: Sequence[Place]
    links: Sequence[Place]
    gates: Sequence[Place]
    failing: frozenset[str] = frozenset()
    odd_agent: str = "agent-0001"
    seq: int = 0
    _layouts: dict[layouts.Key, int] = field(default_factory=dict)

    def agents(self) -> list[tuple[str, str, Sequence[Place], int]]:
        """(name, kind, its sources, number of the first of them)."""
        found = []
        for kind, places, n in (
            ("instance", self.engines, ENGINES_AN_AGENT),
            ("link", self.links, LINKS_AN_AGENT),
            ("router", self.gates, GATES_AN_AGENT),
        ):
            for first in range(0, len(places), n):
                name = f"agent-{len(found) + 1:04d}" if found else self.odd_agent
                found.append((name, kind, places[first : first + n], first))
        return found

    def report(self, moments: Iterable[float]) -> None:
        """Every agent ships a batch at each of these times (epoch seconds)."""
        rows = []
        for at_s in moments:
            self.seq += 1
            for name, kind, places, first in self.agents():
                batch = self._batch(name, kind, places, first, at_s)
                rows.append(
                    (self._layout(batch, at_s), _utc(at_s), bodies.pack(wire.encode(batch)))
                )
        with connection.cursor() as cursor:
            with cursor.copy(
                "COPY telemetry_landing (layout_id, landed_at, at, received_at, body) FROM STDIN"
            ) as copy:
                landed_at = datetime.now(UTC)
                for layout_id, at, body in rows:
                    copy.write_row((layout_id, landed_at, at, at, body))
            latest = max(row[1] for row in rows)
            cursor.execute("UPDATE telemetry_layout SET last_seen_at = %s", [latest])
        Agent.objects.update(last_seen_at=latest, last_seq=self.seq)

    def register(self, at_s: float) -> None:
        """The rows of agents, sources and reports that stay the same."""
        at, found = _utc(at_s), self.agents()
        Agent.objects.bulk_create(
            Agent(name=name, boot=1, last_seq=0, last_seen_at=at, skew_s=0.01)
            for name, _, _, _ in found
        )
        Source.objects.bulk_create(
            Source(
                kind=kind,
                path=place.path,
                role=place.role if kind == "instance" else "",
                engine={"instance": "vllm", "router": "gate", "link": ""}[kind],
                engine_version="0.32.0" if kind == "instance" else "",
                agent=name,
                last_seen_at=at,
            )
            for name, kind, places, _ in found
            for place in places
        )
        StoredReport.objects.bulk_create(
            StoredReport(
                agent=name, report=reports.encoded(self._told(kind, places)), reported_at=at
            )
            for name, kind, places, _ in found
        )

    def _told(self, kind: str, places: Sequence[Place]) -> wire.AgentReport:
        return wire.AgentReport(
            version="0.5.0",
            interval_s=1.0,
            rss_bytes=44e6,
            sources=[
                wire.SourceReport(
                    kind=kind,
                    id=place.path,
                    engine="vllm",
                    engine_version="0.32.0",
                    state="failed" if place.path in self.failing else "ok",
                    read_s=0.012,
                    n_series=240,
                    found=[want.name for want in wanted_of(kind, place.role)],
                    unmatched=["vllm:something_new_total"],
                    n_unmatched=1,
                )
                for place in places
            ],
        )

    def _batch(
        self, name: str, kind: str, places: Sequence[Place], first: int, at_s: float
    ) -> wire.Batch:
        make = {"instance": self._engine, "link": self._link, "router": self._gate}[kind]
        samples = [make(place, first + i, at_s) for i, place in enumerate(places)]
        return wire.Batch(
            v=wire.WIRE_VERSION,
            agent=name,
            boot=1,
            seq=self.seq,
            sent_at_s=at_s,
            **{f"{kind}s": samples},  # type: ignore[arg-type]
        )

    def _engine(self, place: Place, n: int, at_s: float) -> wire.InstanceSample:
        if place.path in self.failing:
            return wire.InstanceSample(
                id=place.path,
                role=place.role,  # type: ignore[arg-type]
                engine="vllm",
                engine_version="0.32.0",
                at_s=at_s,
                state="failed",
                error="timed out after 2 s",
            )
        lived_s, sway = at_s - BOOT_S, (n * 37 + int(at_s)) % 100 / 100.0
        decodes = place.role == "decode"
        signals = wire.InstanceSignals(
            requests_running=8.0 + 12.0 * sway,
            requests_waiting=float(int(4 * sway)) if n % 3 else 0.0,
            kv_cache_usage_ratio=0.3 + 0.5 * sway,
            kv_capacity_tokens=1.2e6,
            prompt_tokens_total=9_000.0 * lived_s,
            generation_tokens_total=800.0 * lived_s,
            prompt_tokens_per_s=9_000.0 * sway,
            generation_tokens_per_s=800.0 * sway,
            requests_finished_total=0.5 * lived_s,
            requests_failed_total=0.001 * lived_s,
            prefix_cache_hits_total=4_000.0 * lived_s,
            prefix_cache_queries_total=9_000.0 * lived_s,
            prefix_cache_hit_ratio=0.44,
            kv_transfer_bytes_total=2e8 * lived_s,
            kv_transfer_failures_total=0.0,
            preemptions_total=0.002 * lived_s,
            prompt_tokens_by_source_total={
                "local_compute": 100.0 * lived_s,
                "external_kv_transfer": 8_000.0 * lived_s,
                "local_cache_hit": 900.0 * lived_s,
            }
            if decodes
            else None,
            gpu_utilization_ratio=0.6 + 0.3 * sway,
            gpu_memory_usage_ratio=0.9,
            gpu_power_w=540.0,
        )
        return wire.InstanceSample(
            id=place.path,
            role=place.role,  # type: ignore[arg-type]
            engine="vllm",
            engine_version="0.32.0",
            epoch_s=BOOT_S,
            at_s=at_s,
            signals=signals,
        )

    def _link(self, place: Place, n: int, at_s: float) -> wire.LinkSample:
        lived_s, sway = at_s - BOOT_S, (n * 17 + int(at_s)) % 100 / 100.0
        return wire.LinkSample(
            id=place.path,
            at_s=at_s,
            measured_layer="nic",
            signals=wire.LinkSignals(
                tx_bytes_total=5e8 * lived_s,
                rx_bytes_total=1e7 * lived_s,
                tx_gbps=4.0 + 50.0 * sway,
                rx_gbps=0.1,
                segments_sent_total=3e5 * lived_s,
                segments_retransmitted_total=3.0 * lived_s,
                retransmit_ratio=0.00001,
                rtt_s=0.005,
                connections=8.0,
                capacity_gbps=0.0 if n % 100 == 99 else 100.0,
            ),
        )

    def _gate(self, place: Place, n: int, at_s: float) -> wire.RouterSample:
        lived_s = at_s - BOOT_S
        counts = (_SHAPE * 0.6 * lived_s).round().tolist()
        slow = (_TTFT_SHAPE * 0.3 * lived_s).round().tolist()
        return wire.RouterSample(
            id=place.path,
            kind="gate",
            at_s=at_s,
            epoch_s=BOOT_S,
            plan_epoch=1,
            plan_version=120,
            signals=wire.RouterSignals(
                requests_total={"local|short": 0.31 * lived_s, "remote|long": 0.29 * lived_s},
                requests_per_s=0.6,
                refused_total=0.0,
                errors_total={"local": 0.0, "remote": 0.001 * lived_s},
                uncached_tokens={
                    "local|tokenised": wire.Histogram(_EDGES, counts, 0.0),
                    "remote|tokenised": wire.Histogram(_EDGES, counts, 0.0),
                },
                prompt_tokens_total=18_000.0 * lived_s,
                cached_tokens_total={"local": 4_000.0 * lived_s, "remote": 0.0},
                ttft_seconds={
                    side: wire.Histogram(_TTFT_EDGES, slow, 0.0) for side in ("local", "remote")
                },
                in_flight={"local": float(n % 7), "remote": float(n % 5)},
                upstream_up={"local": 1.0, "remote": 1.0},
            ),
        )

    def _layout(self, batch: wire.Batch, at_s: float) -> int:
        key = layouts.key_of(batch)
        if key not in self._layouts:
            layout = layouts.of(key)
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO telemetry_layout (digest, facts, last_seen_at)"
                    " VALUES (%s, %s, %s) RETURNING id",
                    [layout.digest, layout.encode(), _utc(at_s)],
                )
                [self._layouts[key]] = cursor.fetchone()
        return self._layouts[key]


_EDGES = [float(edge) for edge in EDGES]
_SHAPE = np.diff(
    np.interp(
        np.log([1.0, *_EDGES, 1e9]),
        np.log([128.0, 5_000.0, 20_000.0, 60_000.0, 131_072.0]),
        [0.0, 0.2, 0.5, 0.85, 1.0],
    )
)
"""Of a gate's prompts, by bucket: a median of 20,000 tokens."""
_TTFT_EDGES = [0.1 * 1.25**i for i in range(28)]
_TTFT_SHAPE = np.diff(
    np.interp(np.log([1e-3, *_TTFT_EDGES, 1e3]), np.log([0.1, 1.6, 3.9, 20.0]), [0, 0.5, 0.9, 1])
)


def _utc(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)
