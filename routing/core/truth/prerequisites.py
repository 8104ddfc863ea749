"""What decisions rely on, and somebody switched off or says otherwise.

* KV events: a gate that is told of caches by events goes by nothing else. None heard while the
  engines of that place compute prompts: what it believes cached is empty, or old.
* Prefix caches: engines that count no lookups have no prefix cache, or do not tell; then every
  token a gate believes cached is a guess that nothing confirms.
* `trust_cached_tokens`: some stacks answer with the cached tokens of the *decode* engine, which
  counts KV it was sent as cached. A gate that trusts them learns that every prompt is short. The
  witness is the prefill engines' own hit ratio.
* Capabilities: what the plan or the policy asks of a router that it cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from routing.core.truth.finding import Clear, Figure, Finding, Outcome, Unknown, named

NAME = "PrerequisiteMissing"
LEAST_TOKENS = 2000.0
CONTRADICTS = 0.3
"""By so much the share that answers call cached may be above the engines' own: windows of gate and
engines are not the same seconds."""


@dataclass(frozen=True)
class KvEvents:
    """What a gate heard of the engines of one place (`local` or a PrfaaS cluster) in the window.

    `events` None: it is told of no engine there. `computed_tokens`: prompts the engines computed.
    """

    gate: str
    place: str
    since_s: float
    events: float | None
    computed_tokens: float | None


def kv_events(seen: KvEvents) -> Outcome | None:
    """None where the gate does without events: it counts the prompts it sent itself."""
    if seen.events is None:
        return None
    subject, what = seen.gate, f"KV events of {seen.place}"
    if seen.events > 0.0:
        return Clear(NAME, subject, f"{what} are heard")
    if seen.computed_tokens is None:
        return Unknown(
            NAME,
            subject,
            f"{what}: none was heard, and the engines do not tell whether they computed anything",
            "Let an agent read the /metrics of those engines",
        )
    if seen.computed_tokens < LEAST_TOKENS:
        return Clear(NAME, subject, f"{what}: none, and none is due")
    return Finding(
        name=NAME,
        subject=subject,
        severity="bad",
        sentence=f"The gate listens for {what} and hears none, while engines compute prompts",
        evidence=(
            Figure("KV events heard", 0.0, "", "measured"),
            Figure(
                "prompt tokens the engines computed", seen.computed_tokens, "tokens", "measured"
            ),
        ),
        next_step="Start the engines with --kv-events-config "
        '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}\' '
        "(vLLM) and name tcp://HOST:5557 of each in the gate's kv_events, or take kv_events out of "
        "the gate's configuration",
        since_s=seen.since_s,
        longer=True,
    )


@dataclass(frozen=True)
class PrefillPool:
    """The prefill engines of a cluster in the window: how many tell of their prefix cache, lookups
    and hits in tokens (None: none tells), and what they computed."""

    subject: str
    since_s: float
    instances: tuple[str, ...]
    silent: tuple[str, ...]
    queries_tokens: float | None
    hits_tokens: float | None
    computed_tokens: float | None

    @property
    def hit_ratio(self) -> float | None:
        if not self.queries_tokens or self.hits_tokens is None:
            return None
        return min(self.hits_tokens / self.queries_tokens, 1.0)


def prefix_cache(seen: PrefillPool) -> Outcome | None:
    """Is there a prefix cache, and does it tell? None without an instance."""
    if not seen.instances:
        return None
    if len(seen.silent) == len(seen.instances):
        return Finding(
            name=NAME,
            subject=seen.subject,
            severity="warn",
            sentence="No prefill engine tells of its prefix cache, so what gates believe cached "
            "is confirmed by nobody",
            evidence=(
                Figure("prefill instances", len(seen.instances), "instances", "measured"),
                Figure("of these that count lookups", 0.0, "instances", "measured"),
            ),
            next_step="vLLM: start with --enable-prefix-caching and without --disable-log-stats; "
            "SGLang: --enable-metrics and without --disable-radix-cache. See with manage.py "
            "canonical that prefix_cache_queries_total appears",
            since_s=seen.since_s,
            longer=True,
        )
    busy = (seen.computed_tokens or 0.0) >= LEAST_TOKENS
    if seen.queries_tokens == 0.0 and busy:
        return Finding(
            name=NAME,
            subject=seen.subject,
            severity="warn",
            sentence="The prefix cache of its prefill engines is off: prompts are computed and "
            "nothing is looked up",
            evidence=(
                Figure("prefix lookups", 0.0, "tokens", "measured"),
                Figure("prompt tokens computed", seen.computed_tokens, "tokens", "measured"),
            ),
            next_step="Start them with --enable-prefix-caching (vLLM) or without "
            "--disable-radix-cache (SGLang), or set cache_capacity_tokens = 0 on that upstream of "
            "the gate so that it believes nothing",
            since_s=seen.since_s,
            longer=True,
        )
    if seen.silent:
        why = f"{len(seen.silent)} of {len(seen.instances)} prefill engines ({_short(seen.silent)})"
        return Unknown(
            NAME,
            seen.subject,
            f"{why} tell nothing of their prefix cache",
            "Let them count it as the others do, or let the agent read them",
        )
    return Clear(NAME, seen.subject, "prefix caches are counted")


@dataclass(frozen=True)
class CachedClaims:
    """Per side of a gate, in the window: prompt tokens of answers that told cached ones, and those.

    `engines` is the hit ratio of the prefill engines behind that side, None where unknown.
    """

    gate: str
    side: str
    since_s: float
    prompt_tokens: float | None
    cached_tokens: float | None
    engines: float | None

    @property
    def claimed(self) -> float | None:
        if self.cached_tokens is None or (self.prompt_tokens or 0.0) < LEAST_TOKENS:
            return None
        return min(self.cached_tokens / (self.prompt_tokens or 1.0), 1.0)


def cached_tokens(seen: CachedClaims) -> Outcome | None:
    """None where answers tell no cached tokens, or the gate does not trust them."""
    claimed = seen.claimed
    if claimed is None:
        return None
    if seen.engines is None:
        if claimed < 1.0 - CONTRADICTS:
            return None  # nothing to contradict
        return Unknown(
            NAME,
            seen.gate,
            f"answers of the {seen.side} side call {claimed:.0%} of prompts cached, and no prefill "
            "engine tells its own hit ratio to hold against it",
            "Let the agent read the prefill engines, or set trust_cached_tokens = false",
        )
    if claimed - seen.engines < CONTRADICTS:
        return Clear(NAME, seen.gate, f"cached tokens of the {seen.side} side agree with engines")
    return Finding(
        name=NAME,
        subject=seen.gate,
        severity="bad",
        sentence=f"Answers of the {seen.side} side call prompts cached that prefill engines "
        "computed: the gate learns that every prompt is short",
        evidence=(
            Figure("cached share by the answers", claimed, "ratio", "measured"),
            Figure("hit share of the prefill engines", seen.engines, "ratio", "measured"),
            Figure("prompt tokens of these answers", seen.prompt_tokens, "tokens", "measured"),
        ),
        next_step=f"Set trust_cached_tokens = false on that upstream ({seen.side}) in the gate's "
        "configuration: its answers come from a decode engine, which counts the KV it was sent as "
        "cached",
        since_s=seen.since_s,
        longer=True,
    )


@dataclass(frozen=True)
class RouterAbility:
    """What one router of a cluster can be told. `why` is its own reason for what it cannot."""

    router: str
    kind: str
    threshold: str
    roles: str
    why: str


@dataclass(frozen=True)
class Wants:
    """What the running plan and the policy ask of a cluster's routers.

    `threshold_tokens` None: the plan has no threshold. `moves_roles`: instances may change roles.
    `has_gate`: one of our gates decides the side there.
    """

    subject: str
    threshold_tokens: int | None
    moves_roles: bool
    has_gate: bool
    routers: Sequence[RouterAbility]


def capabilities(seen: Wants) -> list[Outcome]:
    """What is asked of a router that it cannot do; a gate takes every t, so none is asked then."""
    found: list[Outcome] = []
    if seen.threshold_tokens is not None and not seen.has_gate:
        unable = [router for router in seen.routers if router.threshold == "none"]
        if not seen.routers:
            found.append(
                Unknown(
                    NAME,
                    seen.subject,
                    "the plan has a threshold, and no gate or router of the cluster is known",
                    "Start a gate for the cluster (python -m routing.gate --config gate.toml), or "
                    "name its routers in the scenario",
                )
            )
        elif len(unable) == len(seen.routers):
            found.append(_no_threshold(seen, unable))
    if seen.moves_roles:
        found += [_no_roles(router) for router in seen.routers if router.roles == "none"]
    if not found and seen.routers:
        found.append(Clear(NAME, seen.subject, "its routers can do what is asked of them"))
    return found


def _no_threshold(seen: Wants, unable: Sequence[RouterAbility]) -> Finding:
    return Finding(
        name=NAME,
        subject=seen.subject,
        severity="bad",
        sentence="The plan has a threshold and none of the cluster's routers can be told one",
        evidence=(
            Figure("threshold of the plan", seen.threshold_tokens, "tokens", "measured"),
            Figure("routers", named(f"{r.router} ({r.kind})" for r in unable), "", "measured"),
        ),
        next_step="Put a gate in front (docs/gate.md): it applies t itself and sends to these "
        "routers as its upstreams",
    )


def _no_roles(router: RouterAbility) -> Finding:
    return Finding(
        name=NAME,
        subject=router.router,
        severity="warn",
        sentence="Instances may change roles by the policy, and this router cannot be told: "
        + (router.why or "it has no way to do it"),
        evidence=(Figure("kind", router.kind, "", "measured"),),
        next_step="Set roles_mode to fixed for this fleet, or run the router in a mode and version "
        "that can (docs/routers.md)",
    )


def _short(paths: Sequence[str]) -> str:
    return named(path.rpartition("/")[2] for path in paths)
