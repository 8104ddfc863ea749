"""What each signal that a chart can show means, in one line, and its unit.

One row for every plain number and histogram of instances and gates in `telemetry.wire`; what a
signal serves, and what fails without it, is said by `console.wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from console.wanted import WANTED, Kind, Wanted
from telemetry import chunks

ROLES: Final = ("prefill", "decode", "both")
Sides = tuple[tuple[str, str], ...]
_SIDES: Final[Sides] = (("", "all requests"), ("local", "local"), ("remote", "remote"))
_LENGTHS: Final[Sides] = (
    ("judged", "as the rule judged"),
    ("local", "if computed locally"),
    ("remote", "if computed remotely"),
)
_GBPS_PER_BYTE_PER_S: Final = 8e-9


@dataclass(frozen=True)
class Signal:
    """`unit` is that of the value; of a counter, that of what it counts. `sides`: keys of a
    labelled histogram that may be asked for, the first by default."""

    kind: Kind
    name: str
    unit: str
    meaning: str
    sides: Sides = ()

    @property
    def is_counter(self) -> bool:
        """Whether it is shown as a rate: the total itself says only since when a process runs."""
        return chunks.is_counter(self.name)

    @property
    def is_histogram(self) -> bool:
        return chunks.SHAPES[self.kind][self.name].endswith("histogram")

    @property
    def scale(self) -> float:
        """What a value, or a counter's rate, is multiplied by to be in `shown_unit`."""
        return _GBPS_PER_BYTE_PER_S if self.is_counter and self.unit == "B" else 1.0

    @property
    def shown_unit(self) -> str:
        if not self.is_counter:
            return self.unit
        return "Gbps" if self.unit == "B" else f"{self.unit}/s"

    @property
    def unit_words(self) -> str:
        """The unit as the page's text writes it."""
        shown = {"ratio": "%", "": "count", "s": "seconds", "tok": "tokens", "req": "requests"}
        return shown.get(self.shown_unit, self.shown_unit)

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        """What needs it."""
        return tuple(w for w in WANTED if w.kind == self.kind and self.name in w.any_of)


def _of(kind: Kind, *rows: tuple[str, str, str] | tuple[str, str, str, Sides]) -> dict[str, Signal]:
    return {f"{kind}.{row[0]}": Signal(kind, *row) for row in rows}


SIGNALS: Final[dict[str, Signal]] = {
    **_of(
        "instance",
        ("requests_waiting", "req", "Requests in the engine's queue."),
        ("requests_running", "req", "Requests the engine computes at the moment."),
        ("kv_cache_usage_ratio", "ratio", "Share of the KV memory on the GPUs that is in use."),
        ("requests_swapped", "req", "Requests whose KV was moved out of GPU memory."),
        ("kv_capacity_tokens", "tok", "Tokens that the KV memory on the GPUs can hold."),
        ("host_cache_usage_ratio", "ratio", "Share of the KV memory on the host in use."),
        ("prompt_tokens_per_s", "tok/s", "Prompt tokens a second, as the engine says."),
        ("generation_tokens_per_s", "tok/s", "Output tokens a second, as the engine says."),
        ("prompt_tokens_total", "tok", "Prompt tokens computed."),
        ("generation_tokens_total", "tok", "Output tokens generated."),
        ("requests_finished_total", "req", "Requests that ended well."),
        ("requests_failed_total", "req", "Requests that ended with an error."),
        ("preemptions_total", "req", "Requests stopped because KV memory ran out."),
        ("prefix_cache_hits_total", "tok", "Prompt tokens found in the prefix cache."),
        ("prefix_cache_queries_total", "tok", "Prompt tokens looked up in the prefix cache."),
        ("prefix_cache_hit_ratio", "ratio", "Share of looked up tokens that the cache had."),
        ("external_cache_hit_ratio", "ratio", "The same of the cache outside the engine."),
        ("kv_transfer_bytes_total", "B", "KV sent to or fetched from other instances."),
        ("kv_transfer_failures_total", "transfers", "Transfers of KV that failed."),
        ("gpu_utilization_ratio", "ratio", "Share of the time in which a GPU ran anything."),
        ("gpu_memory_usage_ratio", "ratio", "Share of the GPUs' memory in use."),
        ("gpu_power_w", "W", "Power that the GPUs draw."),
        ("gpu_temperature_celsius", "°C", "Temperature of the GPUs."),
        ("ttft_seconds", "s", "Time to the first token, as the engine measures it."),
        ("e2e_seconds", "s", "Time of a request from arrival to its last token."),
        ("inter_token_seconds", "s", "Time between two output tokens of a request."),
        ("prefill_seconds", "s", "Time to compute a prompt."),
        ("queue_seconds", "s", "Time a request waited in the engine's queue."),
        ("uncached_prompt_tokens", "tok", "Tokens of a prompt that no cache held."),
        ("kv_transfer_seconds", "s", "Time of one transfer of KV."),
    ),
    **_of(
        "router",
        ("requests_per_s", "req/s", "Requests that arrived, a second, as the gate says."),
        ("requests_waiting", "req", "Requests that wait in the gate."),
        ("refused_total", "req", "Requests that the gate refused."),
        ("prompt_tokens_total", "tok", "Prompt tokens of all requests."),
        ("movable_tokens_total", "tok", "Prompt tokens that only a remote side's cache held."),
        ("ttft_seconds", "s", "Time to the first token, as clients of the gate see it.", _SIDES),
        ("e2e_seconds", "s", "Time of a request from arrival to its last byte.", _SIDES),
        ("uncached_tokens", "tok", "Tokens of a prompt left to compute.", _LENGTHS),
        ("prompt_tokens", "tok", "Length of the prompts at a router that knows no sides."),
    ),
}  # fmt: skip
"""By `kind.name`, as the page's address has it."""
