"""Every reason for a side, with one sentence for the person who meets it.

The reason stands in the `X-PrfaaS-Reason` header of each response and in the `reason` label of
`prfaas_gate_requests_total`.
"""

from __future__ import annotations

NO_PLAN = "NoPlan"
ALWAYS_LOCAL = "AlwaysLocal"
ALWAYS_REMOTE = "AlwaysRemote"
SHORT = "Short"
LONG = "Long"
BAND_LOCAL = "BandLocal"
BAND_REMOTE = "BandRemote"
UNMEASURED = "Unmeasured"
NO_REMOTE = "NoRemote"
REMOTE_DOWN = "RemoteDown"
REMOTE_LIMIT = "RemoteLimit"
LOCAL_DOWN = "LocalDown"

REASONS: dict[str, str] = {
    NO_PLAN: "Local: the gate never had a plan, so it sends nothing over the link.",
    ALWAYS_LOCAL: "Local: the plan's mode is always_local.",
    ALWAYS_REMOTE: "Remote: the plan's mode is always_remote.",
    SHORT: "Local: the uncached tokens are at or below the plan's threshold.",
    LONG: "Remote: the uncached tokens are above the plan's threshold.",
    BAND_LOCAL: "Local: inside the plan's band, and local is expected to answer sooner.",
    BAND_REMOTE: "Remote: inside the plan's band, and remote is expected to answer sooner.",
    UNMEASURED: "Local: the request holds no prompt whose length the gate can tell.",
    NO_REMOTE: "Local: the plan wants remote but gives weight to no remote this gate can reach.",
    REMOTE_DOWN: "Local: the plan wants remote but no remote answers, or the chosen one failed it.",
    REMOTE_LIMIT: "Local: the plan's max_remote_in_flight is reached.",
    LOCAL_DOWN: "Remote: short enough for local, but local does not answer and a remote does.",
}

REMOTE_REASONS = frozenset({ALWAYS_REMOTE, LONG, BAND_REMOTE, LOCAL_DOWN})
"""The reasons that send a request remote; every other one sends it local."""
