"""What an emulated engine counts, written out under the metric names of vLLM 0.32.

Caveats of the real thing are kept on purpose: on a decode instance the whole prompt that came over
the connector counts as `request_prefill_kv_computed_tokens`, and only `prompt_tokens_by_source`
tells that nothing was computed there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5)
TTFT_EDGES_S = (*_SECONDS, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
STEP_EDGES_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
PHASE_EDGES_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TRANSFER_EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
TRANSFER_EDGES_BYTES = tuple(2.0 ** (11 + 2 * i) for i in range(12))
TOKEN_EDGES = tuple(
    float(digit * 10**power)
    for power in range(6)
    for digit in (1, 2, 5)
    if digit * 10**power < 262_144
)


class Histogram:
    """Cumulative-counter histogram; `counts` has one entry more than `edges`, for what is above."""

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges, self.counts, self.sum = edges, [0] * (len(edges) + 1), 0.0

    def observe(self, value: float, n: int = 1) -> None:
        if n:
            self.counts[bisect_left(self.edges, value)] += n
            self.sum += value * n


class EngineMetrics:
    """Counters of one instance since its start."""

    def __init__(self) -> None:
        self.prompt_tokens_by_source = dict.fromkeys(
            ("local_compute", "local_cache_hit", "external_kv_transfer"), 0
        )
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self.failed_transfers = 0
        self.ttft = Histogram(TTFT_EDGES_S)
        self.inter_token = Histogram(STEP_EDGES_S)
        self.e2e = Histogram(PHASE_EDGES_S)
        self.queue = Histogram(PHASE_EDGES_S)
        self.prefill = Histogram(PHASE_EDGES_S)
        self.decode = Histogram(PHASE_EDGES_S)
        self.prompt_tokens = Histogram(TOKEN_EDGES)
        self.generated_tokens = Histogram(TOKEN_EDGES)
        self.computed_tokens = Histogram(TOKEN_EDGES)
        self.transfer_s = Histogram(TRANSFER_EDGES_S)
        self.transfer_bytes = Histogram(TRANSFER_EDGES_BYTES)

    def prompt_computed(
        self, *, prompt_tokens: int, cached_tokens: int, moved_tokens: int = 0
    ) -> None:
        """A prefill ran here; of its `cached_tokens` so many were brought here for it."""
        self.prompt_tokens_by_source["local_compute"] += prompt_tokens - cached_tokens
        self.prompt_tokens_by_source["local_cache_hit"] += cached_tokens - moved_tokens
        self.prompt_tokens_by_source["external_kv_transfer"] += moved_tokens
        self.prefix_queries += prompt_tokens
        self.prefix_hits += cached_tokens - moved_tokens
        self.prompt_tokens.observe(prompt_tokens)
        self.computed_tokens.observe(prompt_tokens - cached_tokens)

    def prefix_received(self, *, kv_bytes: int, transfer_s: float) -> None:
        """A prefix's KV came from another cluster, for a prefill here."""
        self.transfer_bytes.observe(kv_bytes)
        self.transfer_s.observe(transfer_s)

    def prompt_received(self, *, prompt_tokens: int, kv_bytes: int, transfer_s: float) -> None:
        """A prompt's KV came from a prefill instance."""
        self.prompt_tokens_by_source["external_kv_transfer"] += prompt_tokens
        self.prefix_queries += prompt_tokens
        self.prompt_tokens.observe(prompt_tokens)
        self.computed_tokens.observe(prompt_tokens)
        self.transfer_bytes.observe(kv_bytes)
        self.transfer_s.observe(transfer_s)


@dataclass(frozen=True)
class EngineLoad:
    """Requests in an instance by what they do: compute, have KV here that is still leaving
    (`shipping`, in no gauge of the engine), wait for a prefill turn, for their KV or that of their
    prefix (`waiting_kv`), or with it for a decode slot (`waiting_slot`)."""

    running: int
    shipping: int
    waiting_prefill: int
    waiting_kv: int
    waiting_slot: int
    kv_usage_ratio: float


class Exposition:
    """Prometheus text, one family at a time; every sample carries the same base labels."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels, self._lines = dict(labels), list[str]()

    def gauge(self, name: str, value: float, help_text: str) -> None:
        self._family(name, "gauge", help_text, [({}, value)])

    def counter(self, name: str, value: float, help_text: str) -> None:
        self._family(name, "counter", help_text, [({}, value)])

    def by(
        self, name: str, kind: str, label: str, values: Mapping[str, float], help_text: str
    ) -> None:
        self._family(name, kind, help_text, [({label: key}, v) for key, v in values.items()])

    def info(self, name: str, labels: Mapping[str, str], help_text: str) -> None:
        self._family(name, "gauge", help_text, [(labels, 1.0)])

    def histogram(self, name: str, histogram: Histogram, help_text: str) -> None:
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} histogram")
        total = 0
        for edge, count in zip((*histogram.edges, "+Inf"), histogram.counts, strict=True):
            total += count
            self._sample(f"{name}_bucket", {"le": str(edge)}, total)
        self._sample(f"{name}_count", {}, total)
        self._sample(f"{name}_sum", {}, histogram.sum)

    def bare(self, name: str, kind: str, value: float, help_text: str) -> None:
        """A sample of the process itself, without the base labels."""
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value!r}")

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _family(
        self,
        name: str,
        kind: str,
        help_text: str,
        samples: Iterable[tuple[Mapping[str, str], float]],
    ) -> None:
        self._lines += (f"# HELP {name} {help_text}", f"# TYPE {name} {kind}")
        for labels, value in samples:
            self._sample(name, labels, value)

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        pairs = ",".join(f'{k}="{v}"' for k, v in sorted({**self._labels, **labels}.items()))
        self._lines.append(f"{name}{{{pairs}}} {float(value)!r}")


def exposition(
    metrics: EngineMetrics,
    load: EngineLoad,
    *,
    model_name: str,
    block_tokens: int,
    kv_capacity_tokens: int,
    started_s: float,
) -> str:
    """The engine's `/metrics`. `started_s` is epoch seconds."""
    out = Exposition({"engine": "0", "model_name": model_name})
    out.bare(
        "process_start_time_seconds", "gauge", started_s, "Start time since unix epoch in seconds."
    )
    _gauges(out, load)
    _counters(out, metrics)
    _histograms(out, metrics)
    out.info(
        "vllm:cache_config_info",
        {
            "block_size": str(block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(kv_capacity_tokens),
            "num_gpu_blocks": str(kv_capacity_tokens // block_tokens),
        },
        "Cache configuration.",
    )
    return out.text()


def _gauges(out: Exposition, load: EngineLoad) -> None:
    capacity = load.waiting_prefill + load.waiting_slot
    out.gauge("vllm:num_requests_running", load.running, "Requests being computed.")
    out.gauge("vllm:num_requests_waiting", capacity + load.waiting_kv, "Requests waiting.")
    out.by(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "reason",
        {"capacity": capacity, "deferred": load.waiting_kv},
        "Waiting requests: capacity = for their turn, deferred = for their KV. Sums to the total.",
    )
    out.by(
        "vllm:num_requests_kv_fetch_by_stage",
        "gauge",
        "stage",
        {
            "waiting_to_start": 0,
            "in_progress": load.waiting_kv,
            "completed_waiting": load.waiting_slot,
        },
        "Waiting requests by the stage of their KV load.",
    )
    out.gauge("vllm:kv_cache_usage_perc", load.kv_usage_ratio, "KV-cache usage, 1 is full.")
    out.by(
        "vllm:engine_sleep_state",
        "gauge",
        "sleep_state",
        {"awake": 1, "weights_offloaded": 0, "discard_all": 0},
        "Sleep state of the engine.",
    )


def _counters(out: Exposition, metrics: EngineMetrics) -> None:
    sources = metrics.prompt_tokens_by_source
    external = sources["external_kv_transfer"]
    out.counter("vllm:prefix_cache_queries_total", metrics.prefix_queries, "Tokens looked up.")
    out.counter("vllm:prefix_cache_hits_total", metrics.prefix_hits, "Tokens found.")
    out.counter(
        "vllm:external_prefix_cache_queries_total", external, "Tokens asked of a connector."
    )
    out.counter("vllm:external_prefix_cache_hits_total", external, "Tokens a connector supplied.")
    out.counter("vllm:num_preemptions_total", 0, "Preemptions; an emulated engine has none.")
    out.counter("vllm:prompt_tokens_total", sum(sources.values()), "Prompt tokens processed.")
    out.by("vllm:prompt_tokens_by_source_total", "counter", "source", sources, "By source.")
    out.counter(
        "vllm:prompt_tokens_cached_total",
        sources["local_cache_hit"] + external,
        "Prompt tokens that needed no computing.",
    )
    out.counter("vllm:generation_tokens_total", metrics.generation_tokens, "Tokens generated.")
    out.by(
        "vllm:request_success_total",
        "counter",
        "finished_reason",
        metrics.finished,
        "Requests ended, by reason.",
    )
    out.counter(
        "vllm:nixl_num_failed_transfers_total", metrics.failed_transfers, "KV transfers given up."
    )


def _histograms(out: Exposition, metrics: EngineMetrics) -> None:
    for name, histogram, help_text in (
        ("time_to_first_token_seconds", metrics.ttft, "Time to first token."),
        ("inter_token_latency_seconds", metrics.inter_token, "Time between tokens."),
        ("e2e_request_latency_seconds", metrics.e2e, "Arrival to end."),
        ("request_queue_time_seconds", metrics.queue, "Time waiting."),
        ("request_prefill_time_seconds", metrics.prefill, "Time in prefill."),
        ("request_decode_time_seconds", metrics.decode, "Time in decode."),
        ("request_prompt_tokens", metrics.prompt_tokens, "Prompt tokens per request."),
        ("request_generation_tokens", metrics.generated_tokens, "Generated tokens per request."),
        (
            "request_prefill_kv_computed_tokens",
            metrics.computed_tokens,
            "New KV tokens in prefill.",
        ),
        ("nixl_xfer_time_seconds", metrics.transfer_s, "Duration of KV transfers."),
        ("nixl_bytes_transferred", metrics.transfer_bytes, "Bytes per KV transfer."),
    ):
        out.histogram(f"vllm:{name}", histogram, help_text)
