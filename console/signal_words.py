"""What each signal that a chart can show means, in one line, and its unit.

One row for every plain number and histogram of instances and gates in `telemetry.wire`; what a
signal serves, and what fails without it, is said by `console.wanted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext_lazy as _

from console.wanted import WANTED, Kind, Wanted
from telemetry import chunks

ROLES: Final = ("prefill", "decode", "both")
Sides = tuple[tuple[str, str], ...]
_SIDES: Final[Sides] = (("", _("all requests")), ("local", _("local")), ("remote", _("remote")))
_LENGTHS: Final[Sides] = (
    ("judged", _("as the rule judged")),
    ("local", _("if computed locally")),
    ("remote", _("if computed remotely")),
)
_GBPS_PER_BYTE_PER_S: Final = 8e-9


@dataclass(frozen=True)
class Signal:
    """`unit` is that of the value; of a counter, that of what it counts. `sides`: keys of a
    labelled histogram that may be asked for, the first by default. `over`: it is shown as a share
    of this other signal."""

    kind: Kind
    name: str
    unit: str
    meaning: str
    sides: Sides = ()
    over: str = ""

    @property
    def label(self) -> str:
        """What a list of signals calls it."""
        return f"{self.name} / {self.over}" if self.over else self.name

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
        ("requests_waiting", "req", _("Requests in the engine's queue.")),
        ("requests_running", "req", _("Requests the engine computes at the moment.")),
        ("kv_cache_usage_ratio", "ratio", _("Share of the KV memory on the GPUs that is in use.")),
        ("requests_swapped", "req", _("Requests whose KV was moved out of GPU memory.")),
        ("kv_capacity_tokens", "tok", _("Tokens that the KV memory on the GPUs can hold.")),
        ("host_cache_usage_ratio", "ratio", _("Share of the KV memory on the host in use.")),
        ("prompt_tokens_per_s", "tok/s", _("Prompt tokens a second, as the engine says.")),
        ("generation_tokens_per_s", "tok/s", _("Output tokens a second, as the engine says.")),
        ("prompt_tokens_total", "tok", _("Prompt tokens computed.")),
        ("generation_tokens_total", "tok", _("Output tokens generated.")),
        ("requests_finished_total", "req", _("Requests that ended well.")),
        ("requests_failed_total", "req", _("Requests that ended with an error.")),
        ("preemptions_total", "req", _("Requests stopped because KV memory ran out.")),
        ("prefix_cache_hits_total", "tok", _("Prompt tokens found in the prefix cache.")),
        ("prefix_cache_queries_total", "tok", _("Prompt tokens looked up in the prefix cache.")),
        ("prefix_cache_hit_ratio", "ratio", _("Share of looked up tokens that the cache had.")),
        ("external_cache_hit_ratio", "ratio", _("The same of the cache outside the engine.")),
        ("kv_transfer_bytes_total", "B", _("KV sent to or fetched from other instances.")),
        ("kv_transfer_failures_total", "transfers", _("Transfers of KV that failed.")),
        ("kv_expired_total", "req", _("Requests whose KV was freed before it was fetched.")),
        ("gpu_utilization_ratio", "ratio", _("Share of the time in which a GPU ran anything.")),
        ("gpu_memory_usage_ratio", "ratio", _("Share of the GPUs' memory in use.")),
        ("gpu_power_w", "W", _("Power that the GPUs draw.")),
        ("gpu_temperature_celsius", "°C", _("Temperature of the GPUs.")),
        ("ttft_seconds", "s", _("Time to the first token, as the engine measures it.")),
        ("e2e_seconds", "s", _("Time of a request from arrival to its last token.")),
        ("inter_token_seconds", "s", _("Time between two output tokens of a request.")),
        ("prefill_seconds", "s", _("Time to compute a prompt.")),
        ("queue_seconds", "s", _("Time a request waited in the engine's queue.")),
        ("uncached_prompt_tokens", "tok", _("Tokens of a prompt that no cache held.")),
        ("kv_transfer_seconds", "s", _("Time of one transfer of KV.")),
    ),
    **_of(
        "router",
        ("requests_per_s", "req/s", _("Requests that arrived, a second, as the gate says.")),
        ("requests_waiting", "req", _("Requests that wait in the gate.")),
        ("refused_total", "req", _("Requests that the gate refused.")),
        ("prompt_tokens_total", "tok", _("Prompt tokens of all requests.")),
        ("movable_tokens_total", "tok", _("Prompt tokens that only a remote side's cache held.")),
        ("read_timeout_s", "s", _("Longest silence of an upstream that the gate waits for.")),
        ("ttft_seconds", "s", _("Time to the first token, as clients of the gate see it."), _SIDES),
        ("e2e_seconds", "s", _("Time of a request from arrival to its last byte."), _SIDES),
        ("uncached_tokens", "tok", _("Tokens of a prompt left to compute."), _LENGTHS),
        ("prompt_tokens", "tok", _("Length of the prompts at a router that knows no sides.")),
    ),
    "link.use": Signal(
        "link", "tx_gbps", "ratio", _("Share of its capacity that a link carries."),
        over="capacity_gbps",
    ),
    **_of(
        "link",
        ("tx_gbps", "Gbps", _("What a link carries to its second cluster.")),
        ("rx_gbps", "Gbps", _("What a link carries back from its second cluster.")),
        ("capacity_gbps", "Gbps", _("What a link can carry, as its agent found.")),
        ("delivery_gbps", "Gbps", _("How fast the other end receives, as TCP measures it.")),
        ("retransmit_ratio", "ratio", _("Share of what was sent that had to be sent again.")),
        ("rtt_s", "s", _("Time there and back.")),
        ("min_rtt_s", "s", _("The least time there and back, without queues.")),
        ("connections", "", _("Connections that are open.")),
        ("congestion_window_bytes", "B", _("Bytes that may be under way, of all connections.")),
        ("tx_bytes_total", "B", _("Bytes sent.")),
        ("rx_bytes_total", "B", _("Bytes received.")),
        ("tx_acked_bytes_total", "B", _("Bytes that the other end acknowledged.")),
        ("tx_retransmitted_bytes_total", "B", _("Bytes that were sent again.")),
        ("segments_sent_total", "segments", _("Segments sent.")),
        ("segments_retransmitted_total", "segments", _("Segments that were sent again.")),
        ("retransmit_timeouts_total", "timeouts", _("Waits for an answer that ran out.")),
        ("n_members", "", _("Ports that make up the link.")),
        ("n_members_up", "", _("Ports of the link that are up.")),
    ),
}  # fmt: skip
"""By `kind.name`, as the page's address has it."""
