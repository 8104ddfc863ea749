"""Is prefill really apart from decode? Told by where decode engines got their prompts from.

A router may speak of prefill and decode and pass requests on so that decode computes every prompt
itself: answers are right, status is 200, and no KV ever moved (seen with smg 1.13 before vLLM). Two
witnesses, neither of them the router:

* engines: of the prompt tokens that came into use on a decode engine, `local_compute` is the share
  it computed. Apart, that is next to nothing (the last block of a prompt at most). Engines that
  do not split prompts by source are judged by their KV transfers: none at all while prefill engines
  of the cluster compute prompts.
* links: each request that the rule sent to the far side had more than t tokens to compute there, so
  its link must have carried at least t * bytes_per_token for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from routing.core.truth.finding import (
    MOST_NAMED,
    Clear,
    Figure,
    Finding,
    Outcome,
    Unknown,
    named,
)

NAME = "FakeDisaggregation"
WINDOW_S = 300.0
COMPUTED_RATIO = 0.5
"""Of a decode engine's prompts. A recomputed prompt now and then, after a failed transfer, stays
far below; where nothing is transferred it is 1."""
LEAST_TOKENS = 2000.0
"""Fewer say nothing: one prompt whose transfer failed is as long."""
LEAST_REQUESTS = 20.0
CARRIED_RATIO = 0.1
"""Of the least KV that must have crossed. Compressed KV is a half or a quarter of its size."""


@dataclass(frozen=True)
class Moved:
    """KV transfers that engines counted; None is not told, and nothing is known to be nothing only
    where something told it."""

    transfers: float | None = None
    n_bytes: float | None = None

    @property
    def is_nothing(self) -> bool:
        told = [value for value in (self.transfers, self.n_bytes) if value is not None]
        return bool(told) and not any(told)

    @property
    def is_something(self) -> bool:
        return bool(self.transfers or self.n_bytes)

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (
            Figure("KV transfers counted by engines", self.transfers, "transfers", "measured"),
            Figure("KV bytes counted by engines", self.n_bytes, "bytes", "measured"),
        )


def together(parts: Iterable[Moved]) -> Moved:
    every = list(parts)
    return Moved(_sum(part.transfers for part in every), _sum(part.n_bytes for part in every))


@dataclass(frozen=True)
class Prompts:
    """Prompt tokens of one interval of a decode engine, by where their KV came from."""

    since_s: float
    computed: float
    received: float
    cached: float

    @property
    def total(self) -> float:
        return self.computed + self.received + self.cached


@dataclass(frozen=True)
class DecodeEngine:
    """One decode engine over the window.

    `prompts` in order of time, None where it does not tell sources.
    """

    instance: str
    prompts: tuple[Prompts, ...] | None
    moved: Moved

    @property
    def tokens(self) -> float:
        return sum(each.total for each in self.prompts or ())

    @property
    def computed_ratio(self) -> float | None:
        if self.prompts is None or self.tokens < LEAST_TOKENS:
            return None
        return sum(each.computed for each in self.prompts) / self.tokens

    @property
    def fake_since_s(self) -> tuple[float, bool]:
        """(since when its prompts are its own, whether that is all of what was looked at)."""
        loud = [each for each in self.prompts or () if each.total > 0.0]
        since_s = loud[-1].since_s if loud else 0.0
        for each in reversed(loud):
            if each.computed < COMPUTED_RATIO * each.total:
                return since_s, False
            since_s = each.since_s
        return since_s, True


@dataclass(frozen=True)
class PdCluster:
    """A cluster that claims to prefill apart from decode, over the window that began at `since_s`.

    `prefilled_tokens` are what its prefill engines computed (None: not told), `sent` what they
    counted as sent. `keeps_short`: a router of it computes short prompts on decode by design, so
    that only what never moves is a finding.
    """

    subject: str
    since_s: float
    decode: tuple[DecodeEngine, ...]
    n_prefill: int
    prefilled_tokens: float | None
    sent: Moved
    keeps_short: bool = False


def of_cluster(seen: PdCluster) -> Outcome | None:
    """By the engines' own counters; None where the cluster claims no disaggregation at all."""
    if not seen.decode or seen.n_prefill == 0:
        return None
    judged = [engine for engine in seen.decode if engine.computed_ratio is not None]
    moved = together([seen.sent, *(engine.moved for engine in seen.decode)])
    fakes = [engine for engine in judged if (engine.computed_ratio or 0.0) >= COMPUTED_RATIO]
    if seen.keeps_short:
        # Short prompts are meant to be computed on decode: only that nothing moves is strange.
        fakes = [engine for engine in fakes if engine.moved.is_nothing]
    if fakes:
        return _computed_on_decode(seen, judged, fakes, moved)
    if judged:
        share = sum(e.computed_ratio or 0.0 for e in judged) / len(judged)
        return Clear(
            NAME,
            seen.subject,
            f"decode computes {share:.0%} of its prompts, the rest arrives as KV",
        )
    if moved.is_nothing and (seen.prefilled_tokens or 0.0) >= LEAST_TOKENS:
        return _nothing_moved(seen, moved)
    if moved.is_something:
        return Clear(NAME, seen.subject, "KV is transferred between its engines")
    return Unknown(NAME, seen.subject, *_why_unknown(seen))


def _computed_on_decode(
    seen: PdCluster,
    judged: Sequence[DecodeEngine],
    fakes: Sequence[DecodeEngine],
    moved: Moved,
) -> Finding:
    tokens = sum(engine.tokens for engine in judged)
    computed = sum((engine.computed_ratio or 0.0) * engine.tokens for engine in judged)
    begun = [engine.fake_since_s for engine in fakes]
    since_s, longer = min(begun)
    which = "every decode instance" if len(fakes) == len(seen.decode) else "decode instances"
    shown = sorted(fakes, key=lambda engine: -(engine.computed_ratio or 0.0))
    return Finding(
        name=NAME,
        subject=seen.subject,
        severity="bad",
        sentence=f"Prefill is claimed to run apart, and {which} "
        f"({named(_short(engine.instance) for engine in fakes)}) computed the prompts themselves",
        evidence=(
            Figure("prompt tokens that came into use on decode", tokens, "tokens", "measured"),
            Figure("of these computed on decode", computed / tokens, "ratio", "measured"),
            *(
                Figure(f"of those of {_short(e.instance)}", e.computed_ratio, "ratio", "measured")
                for e in shown[:MOST_NAMED]
            ),
            *moved.figures,
            Figure("prefill instances that are listed", seen.n_prefill, "instances", "measured"),
        ),
        next_step="Check that engines and router speak the same KV connector: each decode engine "
        "needs --kv-transfer-config with the connector that the router hands out "
        '(smg counts smg_pd_kv_connector_mode_total{mode="passthrough"} when it hands out none), '
        'then send one prompt and see prompt_tokens_by_source_total{source="external_kv_transfer"} '
        "rise on decode",
        since_s=since_s,
        longer=longer,
    )


def _nothing_moved(seen: PdCluster, moved: Moved) -> Finding:
    return Finding(
        name=NAME,
        subject=seen.subject,
        severity="bad",
        sentence="Prefill is claimed to run apart, its engines compute prompts, and no engine "
        "counted a KV transfer",
        evidence=(
            Figure("prompt tokens on prefill", seen.prefilled_tokens, "tokens", "measured"),
            *moved.figures,
            Figure("prompts that decode computes", None, "ratio", "measured"),
        ),
        next_step="Compare the KV connector that prefill and decode engines were started with, and "
        "the one the router hands out; then send one prompt and see kv_transfer_bytes_total rise",
        since_s=seen.since_s,
        longer=True,
    )


def _why_unknown(seen: PdCluster) -> tuple[str, str]:
    if any(engine.prompts is not None for engine in seen.decode):
        return (
            f"fewer than {LEAST_TOKENS:,.0f} prompt tokens came to its decode engines",
            "Wait for traffic, or send a few long prompts through the router",
        )
    return (
        "its decode engines tell neither prompt tokens by source nor KV transfers",
        "Use vLLM from 0.32 with a KV connector, or SGLang from 0.5.23, and let the agent read the "
        "decode engines' /metrics",
    )


@dataclass(frozen=True)
class RemoteLink:
    """A link over the window: `requests` that the rule sent to its far side, each of which had more
    than `least_tokens` to compute there, and what the link carried meanwhile."""

    subject: str
    since_s: float
    requests: float | None
    least_tokens: float
    bytes_per_token: float
    carried_bytes: float | None


def of_link(seen: RemoteLink) -> Outcome | None:
    """By what the link carried; None where nothing was sent remote that would have to show."""
    if seen.requests is None:
        return None
    needed = seen.requests * seen.least_tokens * seen.bytes_per_token
    if seen.requests < LEAST_REQUESTS or needed <= 0.0:
        return None
    if seen.carried_bytes is None:
        return Unknown(
            NAME,
            seen.subject,
            "the link's bytes are not read, so nobody sees whether KV crosses it",
            "Give the agent of the sending site a [[links]] entry for it (docs/links.md)",
        )
    if seen.carried_bytes >= CARRIED_RATIO * needed:
        return Clear(NAME, seen.subject, "the link carries the KV of remote requests")
    return Finding(
        name=NAME,
        subject=seen.subject,
        severity="bad",
        sentence="Requests are sent to the far side, and the link carried less than a tenth of "
        "the KV that they must have produced",
        evidence=(
            Figure("requests sent to the far side", seen.requests, "requests", "measured"),
            Figure("bytes the link carried", seen.carried_bytes, "bytes", "measured"),
            Figure("least tokens of each, by the rule", seen.least_tokens, "tokens", "inferred"),
            Figure("least KV that had to cross", needed, "bytes", "inferred"),
            Figure("KV of a token, by the scenario", seen.bytes_per_token, "bytes", "assumed"),
        ),
        next_step="Look at where the gate's remote upstream leads (upstreams.remote in its "
        "configuration): its stack must prefill at the far side. Then check that the link's entry "
        "in the agent's configuration measures the path that KV takes",
        since_s=seen.since_s,
        longer=True,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _short(path: str) -> str:
    return path.rpartition("/")[2]
