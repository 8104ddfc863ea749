"""Which signals the product wants of each kind of source, for what, and what fails without them.

The one table that the onboarding page, its gaps and the API are made from. Names are those of
`telemetry.wire`. A counter that appears with its first event (errors, failed transfers) is not
here: a source that shows none had none.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final, Literal

from django.utils.translation import gettext_lazy as _lazy

Kind = Literal["instance", "link", "router"]
KINDS: Final[tuple[Kind, ...]] = ("instance", "link", "router")


@dataclass(frozen=True, eq=False)
class Wanted:
    """One signal, or one of several that say the same. Each is itself only: they key tallies.

    `decides`: a decision needs it. `roles` and `cluster` say of which instances it is wanted
    (empty: of all).
    """

    kind: Kind
    any_of: tuple[str, ...]
    serves: str
    without: str
    decides: bool = False
    roles: tuple[str, ...] = ()
    cluster: Literal["", "pd", "prefill"] = ""

    @property
    def name(self) -> str:
        return self.any_of[0]

    def is_for(self, kind: str, role: str, cluster: str) -> bool:
        """Whether it is wanted of a source; `cluster` is the kind of its cluster."""
        return (
            kind == self.kind
            and (not self.roles or role in self.roles)
            and (not self.cluster or cluster in ("", self.cluster))
        )

    def is_in(self, found: frozenset[str]) -> bool:
        return not found.isdisjoint(self.any_of)


_PREFILL, _DECODE = ("prefill", "both"), ("decode", "both")
WANTED: Final[tuple[Wanted, ...]] = (
    Wanted(
        "router",
        ("requests_total",),
        "demand",
        _lazy("its demand is unknown; with no gate that tells it the loop decides nothing"),
        decides=True,
    ),
    Wanted(
        "router",
        ("uncached_tokens",),
        _lazy("threshold t"),
        _lazy(
            "the lengths of its requests are unknown; with no gate that tells them no t is computed"
        ),
        decides=True,
    ),
    Wanted(
        "router",
        ("refused_total",),
        "demand",
        _lazy("refused requests are left out of demand"),
    ),
    Wanted(
        "router",
        ("movable_tokens_total",),
        _lazy("cache mode"),
        _lazy("what moved prefixes would save is unknown"),
    ),
    Wanted(
        "router",
        ("ttft_seconds",),
        _lazy("time to first token"),
        _lazy("the overview shows no time to first token"),
    ),
    Wanted(
        "router",
        ("in_flight",),
        "pages",
        _lazy("the overview shows no requests in flight"),
    ),
    Wanted(
        "instance",
        ("requests_waiting",),
        _lazy("roles, bottleneck"),
        _lazy("its queue counts for nothing: no reading of it supports moving a role"),
        decides=True,
    ),
    Wanted(
        "instance",
        ("kv_cache_usage_ratio",),
        _lazy("roles, bottleneck"),
        _lazy("whether decode is short of KV memory is unknown, and with it whether it may shrink"),
        decides=True,
        roles=_DECODE,
        cluster="pd",
    ),
    Wanted(
        "instance",
        ("requests_running",),
        _lazy("leaks of KV memory"),
        _lazy("an idle instance that holds KV memory looks like a busy one"),
    ),
    Wanted(
        "instance",
        ("preemptions_total",),
        "bottleneck",
        _lazy("one sign less that decode is short of KV memory"),
        roles=_DECODE,
        cluster="pd",
    ),
    Wanted(
        "instance",
        ("requests_waiting_by_stage",),
        "bottleneck",
        _lazy("requests whose KV is on its way count as waiting for decode"),
        roles=_DECODE,
        cluster="pd",
    ),
    Wanted(
        "instance",
        ("kv_transfer_seconds",),
        _lazy("link breakers, transport"),
        _lazy("transfers are judged by what gates tell of them alone"),
        roles=_PREFILL,
        cluster="prefill",
    ),
    Wanted(
        "instance",
        ("prefill_seconds",),
        "profiles",
        _lazy("prefill times cannot be fitted (manage.py profile)"),
        roles=_PREFILL,
    ),
    Wanted(
        "instance",
        ("uncached_prompt_tokens",),
        "profiles",
        _lazy("how long the prompts were is not known to a fit (manage.py profile)"),
        roles=_PREFILL,
    ),
    Wanted(
        "instance",
        ("prompt_tokens_total", "prompt_tokens_per_s"),
        "pages",
        _lazy("the fleet page shows no prompt tokens per second"),
    ),
    Wanted(
        "instance",
        ("generation_tokens_total", "generation_tokens_per_s"),
        "pages",
        _lazy("the fleet page shows no output tokens per second"),
    ),
    Wanted(
        "link",
        ("tx_gbps", "tx_bytes_total"),
        _lazy("link use, threshold t"),
        _lazy("its use is unknown, and nothing that relies on its room changes"),
        decides=True,
    ),
    Wanted(
        "link",
        ("retransmit_ratio", "segments_retransmitted_total"),
        "congestion",
        _lazy("loss is unknown: congestion shows by use and round trips alone"),
    ),
    Wanted(
        "link",
        ("rtt_s",),
        _lazy("congestion, transport"),
        _lazy("growing round trips are not seen"),
    ),
    Wanted(
        "link",
        ("connections",),
        "transport",
        _lazy("a path that its connections limit looks like a congested one"),
    ),
    Wanted(
        "link",
        ("capacity_gbps",),
        _lazy("links that are down"),
        _lazy("the scenario's capacity stands in, and a link that loses its own is not seen"),
    ),
)


@functools.cache
def wanted_of(kind: str, role: str = "", cluster: str = "") -> tuple[Wanted, ...]:
    """What is wanted of one source, in the table's order."""
    return tuple(want for want in WANTED if want.is_for(kind, role, cluster))


@functools.lru_cache(maxsize=1024)
def absent_of(wanted: tuple[Wanted, ...], found: frozenset[str]) -> tuple[Wanted, ...]:
    """What of `wanted` is not in `found`: engines of one kind tell the same, thousands of them."""
    return tuple(want for want in wanted if not want.is_in(found))
