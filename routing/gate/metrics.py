"""What the gate counts, and its `/metrics` page in Prometheus' text format.

Label values come from the configuration and from fixed lists only, never from clients, so the page
cannot grow with traffic. Series of fixed lists exist from the start at 0: a counter that appears
with its first event loses that event to whoever computes rates.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from routing.core.placement import sides
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.gate.admission import REASONS as REFUSALS
from routing.gate.breaker import STATES as BREAKER_STATES
from routing.gate.override import Override

SIDES = ("local", "remote")
JUDGED = "judged"
"""Beside the two sides: what the rule compared with t."""
LENGTH_KINDS = (
    *(("tokenised", "text"), ("usage", "text"), ("usage", "media")),
    *(("estimated", "text"), ("estimated", "media")),
)
"""Source and modality of lengths. Nobody but the engine tokenises an image or a clip."""
CACHE_IGNORED = ("invalid", "unknown_place", "other_blocks", "old_epoch")
KV_EVENTS = ("stored", "removed", "cleared")
KV_EVENTS_DROPPED = ("unknown_parent", "other", "full", "invalid")
RESULTS = ("ok", "client_error", "server_error", "failed", "cancelled")

RELOADS = ("applied", "refused")
MODES = ("threshold", "always_local", "always_remote")

TTFT_EDGES_S = tuple(round(0.001 * 2 ** (i / 2), 6) for i in range(37))
"""Upper bounds, seconds: 1 ms to 262 s in steps of x1.41."""

Labels = tuple[str, ...]


class Family:
    """One counter or gauge with its label names."""

    def __init__(self, name: str, help_text: str, kind: str, labels: Sequence[str] = ()) -> None:
        self.name, self.help_text, self.kind, self.labels = name, help_text, kind, tuple(labels)
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        """Adds to one series."""
        self.values[labels] = self.values.get(labels, 0.0) + by

    def set(self, *labels: str, to: float) -> None:
        """Sets one series."""
        self.values[labels] = to

    def lines(self) -> Iterable[str]:
        for labels, value in self.values.items():
            yield f"{self.name}{_labels(self.labels, labels)} {_number(value)}"


class Histogram:
    """A histogram with fixed `edges` (upper bounds, inclusive) and fixed series."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        help_text: str,
        edges: Sequence[float],
        labels: Sequence[str],
        series: Iterable[Labels],
    ) -> None:
        self.name, self.help_text, self.labels, self.edges = name, help_text, tuple(labels), edges
        les = [*map(_number, edges), "+Inf"]
        # Written once: nearly a thousand lines a scrape, while every stream waits.
        self._heads = {
            key: [f"{name}_bucket{_labels((*self.labels, 'le'), (*key, le))} " for le in les]
            for key in series
        }
        self.counts: dict[Labels, list[int]] = {key: [0] * len(les) for key in self._heads}
        self.sums: dict[Labels, float] = dict.fromkeys(self.counts, 0.0)

    def observe(self, *labels: str, value: float) -> None:
        """Counts one observation."""
        self.counts[labels][bisect_left(self.edges, value)] += 1
        self.sums[labels] += value

    def lines(self) -> Iterable[str]:
        for labels, counts in self.counts.items():
            total = 0
            for head, count in zip(self._heads[labels], counts, strict=True):
                total += count
                yield f"{head}{total}"
            tail = _labels(self.labels, labels)
            yield f"{self.name}_sum{tail} {_number(self.sums[labels])}"
            yield f"{self.name}_count{tail} {total}"


class Metrics:
    """All families of one gate."""

    def __init__(self) -> None:
        self.info = Family(
            "prfaas_gate_info",
            "Who this gate is.",
            "gauge",
            ("router", "cluster", "fleet", "version"),
        )
        self.start_time_s = Family(
            "prfaas_gate_start_time_seconds", "When this process started, epoch seconds.", "gauge"
        )
        self.plan_epoch = Family(
            "prfaas_gate_plan_epoch", "Epoch of the plan that runs; absent without one.", "gauge"
        )
        self.plan_version = Family(
            "prfaas_gate_plan_version",
            "Version of the plan that runs; absent without one.",
            "gauge",
        )
        self.requests = Family(
            "prfaas_gate_requests_total",
            "Requests at arrival, by the side chosen and why.",
            "counter",
            ("side", "reason"),
        )
        self.refused = Family(
            "prfaas_gate_refused_total",
            "Requests turned away unread for want of room, or by a gate that stops; not in "
            "requests_total. Those of tenants above their bounds are in neither.",
            "counter",
        )
        self.refusals = Family(
            "prfaas_gate_refusals_total",
            "Requests answered 429 or 503 by the gate itself, by reason.",
            "counter",
            ("reason",),
        )
        self.invalid = Family(
            "prfaas_gate_invalid_total",
            "Requests answered 400 or 413 unread; not in requests_total.",
            "counter",
        )
        self.errors = Family(
            "prfaas_gate_errors_total",
            "Requests that a side failed: no answer, a broken answer or a 5xx.",
            "counter",
            ("side",),
        )
        self.results = Family(
            "prfaas_gate_results_total", "Requests at their end.", "counter", ("side", "result")
        )
        self.fallbacks = Family(
            "prfaas_gate_fallbacks_total",
            "Requests counted as remote at arrival and served by local: the remote failed them.",
            "counter",
        )
        self.retries = Family(
            "prfaas_gate_retries_total",
            "Requests sent again, to another upstream of the same side.",
            "counter",
            ("side",),
        )
        self.waiting = Family(
            "prfaas_gate_waiting", "Requests that wait to be let in, or for their side.", "gauge"
        )
        self.tenants = Family(
            "prfaas_gate_tenants", "Tenants remembered, where they are bounded.", "gauge"
        )
        self.prompt_tokens = Family(
            "prfaas_gate_prompt_tokens_total", "Prompt tokens as known at arrival.", "counter"
        )
        self.cached_tokens = Family(
            "prfaas_gate_cached_tokens_total",
            "Prompt tokens believed cached on the side chosen, as known at arrival.",
            "counter",
            ("side",),
        )
        self.engine_prompt_tokens = Family(
            "prfaas_gate_engine_prompt_tokens_total",
            "Prompt tokens of requests whose engine also reported cached tokens, by its usage.",
            "counter",
            ("side",),
        )
        self.engine_cached_tokens = Family(
            "prfaas_gate_engine_cached_tokens_total",
            "Cached prompt tokens as engines reported them.",
            "counter",
            ("side",),
        )
        self.movable_tokens = Family(
            "prfaas_gate_movable_tokens_total",
            "Prompt tokens that only the remote's cache held, whether or not they were moved.",
            "counter",
        )
        self.moves = Family(
            "prfaas_gate_moves_total",
            "Requests sent with a prefix to be moved over the link first.",
            "counter",
            ("link",),
        )
        self.move_tokens = Family(
            "prfaas_gate_move_tokens_total",
            "Tokens asked to be moved that the receiving side is believed not to hold.",
            "counter",
            ("link",),
        )
        self.media_requests = Family(
            "prfaas_gate_media_requests_total",
            "Requests with image, audio or other parts, whose length is a guess at arrival.",
            "counter",
        )
        self.in_flight = Family(
            "prfaas_gate_in_flight", "Requests sent and not finished.", "gauge", ("side",)
        )
        self.read_timeout_s = Family(
            "prfaas_gate_read_timeout_seconds",
            "The longest silence of an upstream that this gate waits through.",
            "gauge",
        )
        upstream = ("side", "upstream")
        self.upstream_up = Family(
            "prfaas_gate_upstream_up",
            "1 while the upstream takes requests freely, 0 while it is down or on trial.",
            "gauge",
            upstream,
        )
        self.breaker = Family(
            "prfaas_gate_breaker_state",
            "1 for the state that the upstream's breaker is in.",
            "gauge",
            (*upstream, "state"),
        )
        self.breaker_opens = Family(
            "prfaas_gate_breaker_opens_total",
            "How often the upstream's breaker opened.",
            "counter",
            upstream,
        )
        self.upstream_in_flight = Family(
            "prfaas_gate_upstream_in_flight",
            "Requests sent to the upstream and not finished.",
            "gauge",
            upstream,
        )
        self.override_active = Family(
            "prfaas_gate_override_active",
            "1 while a person's override is above the plan.",
            "gauge",
            ("mode",),
        )
        self.override_until_s = Family(
            "prfaas_gate_override_until_seconds",
            "When the override ends by itself, epoch seconds; absent without one.",
            "gauge",
        )
        self.override_threshold = Family(
            "prfaas_gate_override_threshold_tokens",
            "The override's threshold; absent unless it is one.",
            "gauge",
        )
        self.reloads = Family(
            "prfaas_gate_reloads_total",
            "Times the configuration was read again, by outcome.",
            "counter",
            ("outcome",),
        )
        self.access_log_dropped = Family(
            "prfaas_gate_access_log_dropped_total",
            "Lines of the access log that were not written.",
            "counter",
        )
        self.prefix_blocks = Family(
            "prfaas_gate_prefix_index_blocks", "Blocks believed cached.", "gauge", upstream
        )
        self.prefix_credit = Family(
            "prfaas_gate_prefix_credit_ratio",
            "Share of cached tokens claimed lately that engines confirmed.",
            "gauge",
            upstream,
        )
        self.cache_keys_sent = Family(
            "prfaas_gate_cache_keys_sent_total",
            "Keys of cached blocks told to the other gates.",
            "counter",
        )
        self.cache_keys_received = Family(
            "prfaas_gate_cache_keys_received_total",
            "Keys of cached blocks that other gates told and this one could use.",
            "counter",
        )
        self.cache_keys_adopted = Family(
            "prfaas_gate_cache_keys_adopted_total",
            "Keys received that this gate did not know yet.",
            "counter",
        )
        self.cache_keys_dropped = Family(
            "prfaas_gate_cache_keys_dropped_total",
            "Keys not told because more came than may be told.",
            "counter",
        )
        self.cache_ignored = Family(
            "prfaas_gate_cache_messages_ignored_total",
            "Messages on caches that this gate could not use.",
            "counter",
            ("reason",),
        )
        self.cache_epochs = Family(
            "prfaas_gate_cache_epochs_total",
            "How often a cluster's cache was forgotten: its engines restarted or changed role.",
            "counter",
        )
        self.kv_events = Family(
            "prfaas_gate_kv_events_total",
            "KV events of a cluster's engines, by what they say.",
            "counter",
            ("place", "event"),
        )
        self.kv_events_dropped = Family(
            "prfaas_gate_kv_events_dropped_total",
            "Blocks in KV events that this gate could not use, and messages that made no sense.",
            "counter",
            ("place", "reason"),
        )
        self.kv_event_gaps = Family(
            "prfaas_gate_kv_event_gaps_total",
            "How often an engine's cache was forgotten because its events were not consecutive.",
            "counter",
            ("place",),
        )
        self.kv_event_keys = Family(
            "prfaas_gate_kv_event_keys",
            "Blocks that the cluster's engines hold, by their events.",
            "gauge",
            ("place",),
        )
        self.kv_event_engines = Family(
            "prfaas_gate_kv_event_engines",
            "Publishers of KV events by whether this gate is connected to them.",
            "gauge",
            ("place", "state"),
        )
        self.uncached = Histogram(
            "prfaas_gate_uncached_tokens",
            "Prompt tokens minus cached on this side; each request is counted for both sides, and "
            "as side judged with what the rule compared with t.",
            TOKEN_EDGES,
            ("side", "source", "modality"),
            [(side, *kind) for side in (*SIDES, JUDGED) for kind in LENGTH_KINDS],
        )
        self.ttft_s = Histogram(
            "prfaas_gate_ttft_seconds",
            "Arrival to the first byte of a streamed answer.",
            TTFT_EDGES_S,
            ("side",),
            [(side,) for side in SIDES],
        )
        self._start_at_zero()

    def _start_at_zero(self) -> None:
        self.plan_epoch.values.clear()
        self.plan_version.values.clear()
        for reason in REFUSALS:
            self.refusals.add(reason, by=0)
        for outcome in RELOADS:
            self.reloads.add(outcome, by=0)
        for reason in CACHE_IGNORED:
            self.cache_ignored.add(reason, by=0)
        for reason in sides.REASONS:
            self.requests.add("remote" if reason in sides.REMOTE_REASONS else "local", reason, by=0)
        for side in SIDES:
            for family in (
                self.errors,
                self.cached_tokens,
                self.engine_prompt_tokens,
                self.engine_cached_tokens,
                self.in_flight,
                self.retries,
            ):
                family.add(side, by=0)
            for result in RESULTS:
                self.results.add(side, result, by=0)

    def start_kv_events(self, place: str) -> None:
        """The series of a place whose engines publish KV events."""
        for event in KV_EVENTS:
            self.kv_events.add(place, event, by=0)
        for reason in KV_EVENTS_DROPPED:
            self.kv_events_dropped.add(place, reason, by=0)
        self.kv_event_gaps.add(place, by=0)

    def forget_upstreams(self) -> None:
        """The set of upstreams changed: the gauges of those that went must go with them."""
        for family in (self.upstream_up, self.breaker, self.upstream_in_flight):
            family.values.clear()
        for family in (self.prefix_blocks, self.prefix_credit, self.breaker_opens):
            family.values.clear()

    def start_link(self, link: str) -> None:
        """The series of a directed link that prefixes may be moved over."""
        self.moves.add(link, by=0)
        self.move_tokens.add(link, by=0)

    def show_breaker(self, *labels: str, state: str, n_opens: int) -> None:
        """One upstream's breaker."""
        for each in BREAKER_STATES:
            self.breaker.set(*labels, each, to=each == state)
        self.breaker_opens.set(*labels, to=n_opens)

    def show_override(self, override: Override | None) -> None:
        """The override in force, if one is."""
        for mode in MODES:
            self.override_active.set(mode, to=override is not None and mode == override.mode)
        self.override_threshold.values.clear()
        self.override_until_s.values.clear()
        if override is not None:
            self.override_until_s.set(to=override.until_s)
            if override.threshold_tokens is not None:
                self.override_threshold.set(to=override.threshold_tokens)

    def render(self) -> str:
        """The page."""
        out: list[str] = []
        for family in vars(self).values():
            out.append(f"# HELP {family.name} {family.help_text}")
            out.append(f"# TYPE {family.name} {family.kind}")
            out.extend(family.lines())
        return "\n".join(out) + "\n"


def _labels(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{n}="{_escape(v)}"' for n, v in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
