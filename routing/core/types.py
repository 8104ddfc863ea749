"""The values that cross the core's one door, `decide.decide`.

Everything is a frozen dataclass of plain values that round-trips through JSON (jsonable.py),
because a Tick row stores the very inputs and outputs of its decision.
Times are epoch seconds; rates requests per second; Gbps 10^9 bit/s; lengths tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["always_local", "always_remote", "threshold"]
SignalState = Literal["value", "idle", "missing", "failed"]
Action = Literal["adopt", "hold"]
CacheMode = Literal["scarce", "abundant"]
LinkLabel = Literal["clear", "near_limit", "congested", "flow_limited", "burst", "down", "unknown"]
BottleneckLabel = Literal["prefill", "decode", "link", "flow", "burst", "unknown"]


@dataclass(frozen=True)
class LengthHistogram:
    """Weighted counts of uncached prompt tokens.

    `edges` shape (n,): upper bounds, ascending; `counts` shape (n + 1,): decayed weights per
    bucket (first bucket from 0, last above `edges[-1]`). `n_effective` is (sum w)^2 / sum w^2 of
    the requests behind it, `n_seen` how many raw requests were ever seen (warm-up), `oldest_s` the
    age of the oldest observation used.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    n_effective: float
    n_seen: float
    oldest_s: float = 0.0


@dataclass(frozen=True)
class LengthShift:
    """ln of uncached tokens in the last `span_s` against the window before: counts, mean, sd."""

    span_s: float
    n_recent: float
    mean_recent: float
    n_before: float
    mean_before: float
    sd: float


@dataclass(frozen=True)
class RoleChange:
    """The newest attempt to move instances of a cluster between roles, and how it stands.

    `running` until it ended; `ended_at_s` then, and `why` says what went wrong, if anything did.
    """

    id: int
    state: Literal["running", "done", "expired", "failed", "cancelled"]
    n_prefill: int
    n_decode: int
    since_s: float
    ended_at_s: float | None = None
    why: str = ""


@dataclass(frozen=True)
class PdObservation:
    """One PD cluster as seen in the window. None means not measured, never zero.

    `movable_ratio` is the share of prompt tokens that a PrfaaS cluster's cache held beyond this
    cluster's. `prefill_silent` and `decode_silent` are instances counted in their pool that were
    not read lately, `prefill_warming` and `decode_warming` those that started or changed role too
    lately to be evidence; `role_change` is the newest rebalance, `n_gates` how many gates the
    demand is of. Queues, KV usage and preemptions are of the instances that were read and are
    warm: requests waiting (`decode_in_transfer` are those of `queue_decode` whose KV is on its
    way), the used part of their KV memory, and how often a second a request was put back for want
    of it. Until `maintenance_until_s` people work on it: nobody moves its roles.
    """

    demand_rps: float | None
    demand_state: SignalState
    lengths: LengthHistogram | None
    n_prefill: int
    n_decode: int
    queue_prefill: float | None = None
    queue_decode: float | None = None
    remote_share: float | None = None
    gates_silent: tuple[str, ...] = ()
    age_s: float | None = None
    movable_ratio: float | None = None
    shifts: tuple[LengthShift, ...] = ()
    prefill_silent: tuple[str, ...] = ()
    decode_silent: tuple[str, ...] = ()
    role_change: RoleChange | None = None
    prefill_warming: tuple[str, ...] = ()
    decode_warming: tuple[str, ...] = ()
    decode_in_transfer: float | None = None
    decode_kv_usage_ratio: float | None = None
    preemptions_per_s: float | None = None
    n_gates: int | None = None
    maintenance_until_s: float | None = None


@dataclass(frozen=True)
class PrefillObservation:
    """One PrfaaS cluster as seen in the window."""

    n_prefill: int
    queue_prefill: float | None = None
    age_s: float | None = None


@dataclass(frozen=True)
class LinkObservation:
    """One directed link. `capacity_gbps` 0: it is down; `state` `failed`: it could not be read.

    Of the newest KV transfers to the far end, none older than half a minute: `transfers` how many,
    `transfers_failed_ratio` how many of these failed, `transfer_s` and `transfer_bytes` the
    mean of one. None where that was not measured, or not of this link alone. `connections` are open
    ones; at `breaker_reset_at_s` a person last closed the link's breaker. Until
    `maintenance_until_s` it, or a cluster at its ends, is in maintenance: nothing is sent over it.
    """

    capacity_gbps: float | None
    tx_gbps: float | None
    state: SignalState
    retransmit_ratio: float | None = None
    rtt_s: float | None = None
    age_s: float | None = None
    connections: float | None = None
    transfers: float | None = None
    transfers_failed_ratio: float | None = None
    transfer_s: float | None = None
    transfer_bytes: float | None = None
    breaker_reset_at_s: float | None = None
    maintenance_until_s: float | None = None


@dataclass(frozen=True)
class Freeze:
    """People let nothing of a kind change: `plans` of the loop, or moves of `roles`.

    `name` is what froze it, in force from `since_s` to `until_s`; `why` is their reason.
    """

    of: Literal["plans", "roles"]
    name: str
    why: str
    since_s: float
    until_s: float


@dataclass(frozen=True)
class Observation:
    """A window of samples as plain values, at `now_s`. Links are keyed `"A->B"`.

    `kv_leaks` are sentences on instances that hold KV memory for nothing (`leaks`), `freezes` what
    people let nobody change now (`frozen`).
    """

    now_s: float
    fleet: str
    pd: dict[str, PdObservation]
    prefill: dict[str, PrefillObservation]
    links: dict[str, LinkObservation]
    kv_leaks: tuple[str, ...] = ()
    freezes: tuple[Freeze, ...] = ()


@dataclass(frozen=True)
class Transport:
    """How KV is sent to a cluster: TCP connections a transfer may use, Gbps of all together."""

    connections: int
    pacing_gbps: float


@dataclass(frozen=True)
class ClusterPlan:
    """What one PD cluster runs. `threshold_tokens` is None unless mode is `threshold`.

    `moves` says per directed link the fewest prefix tokens worth moving over it, `transport` per
    PrfaaS cluster how its KV should be sent.
    """

    mode: Mode
    threshold_tokens: int | None
    n_prefill: int
    n_decode: int
    remote: dict[str, float] = field(default_factory=dict)
    band: tuple[int, int] | None = None
    cache_mode: CacheMode = "scarce"
    max_remote_in_flight: int | None = None
    moves: dict[str, int] = field(default_factory=dict)
    transport: dict[str, Transport] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The state everybody is asked to run; versions only ever rise within an epoch."""

    fleet: str
    epoch: int
    version: int
    clusters: dict[str, ClusterPlan]


@dataclass(frozen=True)
class HeldPlan:
    """A person's pin on one cluster. Cluster None pins every cluster of the fleet.

    With a `mode` it pins how requests are shared out, and the loop moves no roles meanwhile; with
    `n_prefill` and `n_decode` instead it pins the roles of its cluster alone, and t stays the
    loop's.
    """

    cluster: str | None
    mode: Mode | None
    threshold_tokens: int | None
    owner: str
    reason: str
    expires_at_s: float
    n_prefill: int | None = None
    n_decode: int | None = None


@dataclass(frozen=True)
class Params:
    """What people want (Policy) and what the fleet is (profiles), as the core reads it.

    Defaults are those of docs/algorithms.md, Dampers.
    """

    mode: Literal["active", "advisory", "paused"] = "advisory"
    objective: Literal["max_headroom", "min_remote"] = "max_headroom"
    headroom_target: float = 1.2
    t_min_tokens: int = 512
    t_max_tokens: int = 131_072
    min_requests: int = 200
    t_min_gain_ratio: float = 0.02
    t_gain_hold_s: float = 20.0
    t_dwell_s: float = 20.0
    t_max_step_factor: float = 1.5
    congestion_utilisation_ratio: float = 0.9
    congestion_retransmit_ratio: float = 0.01
    congestion_clear_s: float = 60.0
    stale_after_s: float = 15.0
    quorum_ratio: float = 0.5
    max_changes_per_hour: int = 60
    push_min_interval_s: float = 2.0
    roles_mode: Literal["auto", "fixed"] = "auto"
    roles_min_gain_ratio: float = 0.04
    roles_gain_hold_s: float = 60.0
    roles_dwell_s: float = 120.0
    roles_max_step_ratio: float = 0.25
    rebalance_deadline_s: float = 600.0
    drain_timeout_s: float = 240.0
    cache_mode: Literal["auto", "scarce", "abundant"] = "auto"
    abundant_below_ratio: float = 0.4
    scarce_above_ratio: float = 0.7
    cache_dwell_s: float = 300.0
    band_ratio: float = 0.2
    max_remote_in_flight: int | None = None
    holds: tuple[HeldPlan, ...] = ()


@dataclass(frozen=True)
class BillingMemory:
    """The running cycle of a link billed by its 95th percentile (`billing`).

    `cycle` is its month, `n_over` of `n_measured` five-minute samples were above the cap, the
    `n_missing` were not measured. `sum_gbps` of `n_readings` is the sample `slot` in the making.
    """

    cycle: str = ""
    slot: int = -1
    sum_gbps: float = 0.0
    n_readings: int = 0
    n_over: int = 0
    n_measured: int = 0
    n_missing: int = 0


@dataclass(frozen=True)
class LinkMemory:
    """What is remembered of one link: its trouble, since when, and since when it looks clear.

    `cleared_at_s` is when the last trouble ended. `tx_gbps` are the newest readings at one
    `capacity_gbps`, oldest first, the last taken at `read_at_s`. `plateau_gbps` is the rate that a
    saturated link was seen to pass although more was promised, last seen at `plateau_at_s`.
    `n_downs` failures in a row ended at `up_at_s` the last time; before the last one the link had
    lasted `lasted_s`. It is `needed` while requests queue for want of it. `breaker` is in its state
    since `breaker_at_s`, opened `n_openings` times in a row. Nothing was sent since
    `quiet_since_s`, or something again since `resumed_at_s`. A transfer usually runs at
    `transfer_gbps` over `transfer_bytes`, `n_odd` in a row did not; one connection was seen to be
    limited to `per_connection_gbps`, last at `per_connection_at_s`, and since `flow_since_s` that
    is what limits the link. The last burst was at `burst_at_s`. `label`, `signs` and `events` are
    what the last look found (`links/state`).
    """

    trouble: Literal["none", "congested", "down"] = "none"
    since_s: float | None = None
    clear_since_s: float | None = None
    cleared_at_s: float | None = None
    capacity_gbps: float | None = None
    read_at_s: float | None = None
    tx_gbps: tuple[float, ...] = ()
    plateau_gbps: float | None = None
    plateau_at_s: float | None = None
    n_downs: int = 0
    up_at_s: float | None = None
    lasted_s: float | None = None
    needed: bool = False
    breaker: Literal["closed", "open", "half_open"] = "closed"
    breaker_at_s: float | None = None
    n_openings: int = 0
    quiet_since_s: float | None = None
    resumed_at_s: float | None = None
    transfer_gbps: float | None = None
    transfer_bytes: float | None = None
    n_odd: int = 0
    flow_since_s: float | None = None
    per_connection_gbps: float | None = None
    per_connection_at_s: float | None = None
    burst_at_s: float | None = None
    billing: BillingMemory = BillingMemory()
    label: LinkLabel = "unknown"
    signs: str = ""
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class Awaited:
    """A change of t whose effect on the remote share has not shown: since when, from what share."""

    since_s: float
    before: float


@dataclass(frozen=True)
class Memory:
    """What the dampers remember between ticks; lives in the Tick row, so any worker can go on.

    `lengths` holds per PD cluster the requests that have left the window (`uncertainty.smooth`), as
    of `smoothed_at_s`; `before_down` the thresholds clusters ran before their links failed.
    `lengths_since_s`: the mix of a cluster changed then, older lengths are of other traffic.
    `roles_ended` is the last rebalance of each cluster that was counted, `roles_failed` how many in
    a row did not succeed. `spare_since_s`: since when a cluster's links have had room for moved
    prefixes; `scarce_at_s`: when they last had none. `awaited`: per cluster, the effect of its
    last changes of t that has not shown yet.
    """

    gain_since_s: float | None = None
    last_change_s: float | None = None
    changes_s: tuple[float, ...] = ()
    base_rtt_s: dict[str, float] = field(default_factory=dict)
    links: dict[str, LinkMemory] = field(default_factory=dict)
    lengths: dict[str, LengthHistogram] = field(default_factory=dict)
    smoothed_at_s: float | None = None
    before_down: dict[str, int] = field(default_factory=dict)
    lengths_since_s: dict[str, float] = field(default_factory=dict)
    roles_gain_since_s: float | None = None
    roles_changed_at_s: float | None = None
    roles_failed: dict[str, int] = field(default_factory=dict)
    roles_ended: dict[str, int] = field(default_factory=dict)
    roles_astray_since_s: dict[str, float] = field(default_factory=dict)
    spare_since_s: dict[str, float] = field(default_factory=dict)
    scarce_at_s: dict[str, float] = field(default_factory=dict)
    awaited: dict[str, Awaited] = field(default_factory=dict)


@dataclass(frozen=True)
class StageLoad:
    """One stage's capacity at a plan against demand. `capacity_rps` counts whole requests."""

    name: str
    capacity_rps: float
    utilisation_ratio: float | None


@dataclass(frozen=True)
class Prediction:
    """What the model expects of a plan at the observed mix."""

    lambda_max_rps: float
    headroom: float | None
    remote_fraction: float
    bottleneck: str
    stages: tuple[StageLoad, ...]
    link_gbps: dict[str, float]
    link_utilisation_ratio: dict[str, float | None]


@dataclass(frozen=True)
class Clamp:
    """A limit that changed what would have been adopted."""

    name: str
    wanted: float
    allowed: float


@dataclass(frozen=True)
class Bottleneck:
    """What limits a PD cluster, or the fleet: `stage` is the one meant, `signs` say why in words.

    `measured`: queues, KV memory or a link say so, not only the model.
    """

    label: BottleneckLabel = "unknown"
    stage: str = ""
    signs: str = ""
    measured: bool = False


@dataclass(frozen=True)
class Alternative:
    """A plan that was weighed, in words, and what the model expects of it.

    `stay` runs now, `best` is the unclamped optimum, `step` what is adopted on the way to it;
    `more_prefill` and `more_decode` are one instance more for a role at its best t. `remote_gbps`
    is summed over links, `gain_ratio` is in headroom against the running plan. `why_not` is empty
    for the one that runs from now on.
    """

    name: Literal["stay", "best", "step", "forbidden", "more_prefill", "more_decode"]
    text: str
    headroom: float | None
    remote_gbps: float | None
    gain_ratio: float | None
    bottleneck: str = ""
    why_not: str = ""


@dataclass(frozen=True)
class Wait:
    """A damper that lets nothing pass before `until_s`: one of the reasons, of what it is, since
    when (None: that is not of a moment)."""

    reason: str
    what: str
    since_s: float | None
    until_s: float


@dataclass(frozen=True)
class Verdict:
    """One pass of the loop: adopt `plan` or hold, why, on what inputs, and when it looks again.

    `reason` is CamelCase for machines (listed in docs/operations.md), `message` one sentence.
    `current` predicts the running plan, `best` the unclamped optimum, `adopted` what `plan` gives.
    `bottleneck` is the fleet's, `bottlenecks` those of its PD clusters; `alternatives` are plans
    that were weighed, eight at most. `waits` are the dampers that are not over, the last one first.
    `memory` is what the next tick gets back.
    """

    action: Action
    reason: str
    message: str
    plan: Plan
    memory: Memory
    current: Prediction | None = None
    best: Prediction | None = None
    adopted: Prediction | None = None
    best_plan: dict[str, ClusterPlan] = field(default_factory=dict)
    clamps: tuple[Clamp, ...] = ()
    warnings: tuple[str, ...] = ()
    next_action_at_s: float | None = None
    formula: str = "exact-1"
    bottleneck: Bottleneck = Bottleneck()
    bottlenecks: dict[str, Bottleneck] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    waits: tuple[Wait, ...] = ()
