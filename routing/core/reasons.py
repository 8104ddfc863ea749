"""Every reason a verdict can carry, with one sentence for people. The only list: tests compare the
documentation and every verdict with it."""

from __future__ import annotations

REASONS: dict[str, str] = {
    # adopted
    "PrefillImbalance": "Local and remote prefill were not equally busy; t moves to balance them.",
    "ShareImbalance": "PrfaaS clusters were not equally busy; remote requests are shared out anew.",
    "LinkLimit": "A link is the tightest stage at the present mix; t moves to suit its capacity.",
    "Congestion": "A link is congested: t rises at once and comes down only once it is clear.",
    "CongestionCleared": "Congestion has been over for the clear time; t comes down again.",
    "LinkDown": "Every link a cluster depends on, or one of several, is down; it is not used.",
    "LinkBack": "A link is up again for the clear time; the cluster uses it again.",
    "RemoteGone": "A PrfaaS cluster was drained or left the fleet; nothing is sent there any more.",
    "OutOfBounds": "The running t lay outside the policy's bounds and moves inside them.",
    "RoleImbalance": "Prefill and decode were not equally busy; instances change roles.",
    "FloorRestored": "A role had fewer instances than its least number and is refilled.",
    "RolesCancelled": "The move of roles under way is no longer worth it and is called back.",
    "RolesFollowed": "Engines run other roles than the plan said; the plan follows them.",
    "CacheAbundant": "The link has room: prefixes move to where they are needed if that pays.",
    "CacheScarce": "The link has no room for moved prefixes: caches are judged separately.",
    "QueuesApart": "Requests queue on one side only, or nothing is heard; gates choose by waits.",
    "PolicyChanged": "The policy's band, remote limit or cache mode changed.",
    "TransportChanged": "A path suits other connections or pacing for its KV than the plan says.",
    "LeastRemote": "Headroom is above its target; t moves to send the least traffic remote.",
    # adopted by a person, or waiting for one
    "Held": "A person pinned the plan; owner and expiry are in the message.",
    "Paused": "The policy is paused: nothing is decided until it is resumed.",
    "Frozen": "A freeze keeps the change back until the end that the message names.",
    # issued by the scheduler without asking the core
    "Initial": "The first plan of the fleet, as its scenario starts.",
    "EpochRaised": "The last plan again, under an epoch that an operator raised.",
    # held
    "Optimal": "No threshold gains as much headroom as a change must.",
    "WithinNoise": "A better threshold shows, but its gain is not clear of sampling noise.",
    "GainPending": "A better threshold shows and has to last a while first.",
    "RolesGainPending": "Better roles show and have to last a while first.",
    "AfterStateFull": "A role would shrink whose KV cache is measured too full for that.",
    "RolesDwell": "Roles were moved too recently, or the last attempt failed.",
    "BottleneckForbids": "What limits a cluster forbids what the model alone would change.",
    "BelowQuorum": "Too few instances or gates were read lately to judge by; nothing is changed.",
    "Dwell": "The last change is too recent for the next.",
    "RateLimited": "The limit on changes an hour, or on pushes, is reached.",
    "WarmingUp": "Fewer requests were counted than the first change needs.",
    "NoTraffic": "No request arrives, so there is nothing to balance.",
    "StaleTelemetry": "An input is missing or too old: the plan stays until it is measured again.",
    "NoRemote": "The fleet has no PrfaaS cluster to send to.",
}
