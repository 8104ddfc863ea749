"""The benchmark kit's synthetic fleet in our own wire format.

`body` is the kit's `--body ingest_fleet:body`: it runs under the kit's Python, with the repository
on its path. The kit's 20 columns become 20 scalar signals of the like kind: 6 counters, 4 whole
gauges, 6 ratios of four digits, 4 quotients with all their digits.
"""

from __future__ import annotations

from typing import Any

from telemetry import wire

FLEET = "bench"
BOOT = 1
SIGNALS = (
    # counters
    "prompt_tokens_total",
    "generation_tokens_total",
    "requests_finished_total",
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "kv_transfer_bytes_total",
    # whole gauges
    "requests_running",
    "requests_waiting",
    "requests_swapped",
    "preemptions_total",
    # ratios
    "kv_cache_usage_ratio",
    "host_cache_usage_ratio",
    "gpu_utilization_ratio",
    "gpu_memory_usage_ratio",
    "prefix_cache_hit_ratio",
    "external_cache_hit_ratio",
    # quotients
    "prompt_tokens_per_s",
    "generation_tokens_per_s",
    "gpu_power_w",
    "gpu_temperature_celsius",
)


def agent_name(agent: int) -> str:
    """Of the agent with this index, from 0."""
    return f"agent-{agent + 1:04d}"


def path(instance: int, *, fleet: str = FLEET, n_clusters: int = 5) -> str:
    """FLEET/CLUSTER/NAME of the instance with this index, from 0."""
    return f"{fleet}/pd-{instance % n_clusters}/i-{instance:05d}"


def batch(
    agent: int, samples: list[tuple[int, float, list[float]]], *, seq: int, fleet: str = FLEET
) -> wire.Batch:
    """What one agent sends: `samples` are (instance index, at_s, the 20 values as SIGNALS)."""
    return wire.Batch(
        v=wire.WIRE_VERSION,
        agent=agent_name(agent),
        boot=BOOT,
        seq=seq,
        sent_at_s=max(at_s for _, at_s, _ in samples),
        instances=[
            wire.InstanceSample(
                id=path(n, fleet=fleet),
                role=("prefill", "decode")[n % 2],
                engine="vllm",
                engine_version="0.11.0",
                epoch_s=1_790_000_000.0,
                at_s=at_s,
                signals=wire.InstanceSignals(**dict(zip(SIGNALS, values, strict=True))),
            )
            for n, at_s, values in samples
        ],
    )


def body(fleet: Any, values: Any, at_ms: int, seq: int, k: int) -> list[bytes]:
    """One POST body an agent, agents of `k` instances; `values` (n_instances, 20)."""
    rows, at_s = values.tolist(), at_ms / 1000.0
    return [
        wire.encode(
            batch(first // k, [(n, at_s, rows[n]) for n in range(first, first + k)], seq=seq)
        )
        for first in range(0, fleet.N, k)
    ]
