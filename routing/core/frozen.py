"""Freezes: what the loop decides and does not push, because people let nothing change now.

A frozen pass decides as any other. Where it would adopt a plan, it holds, says which freeze until
when and what it would have done, and remembers as if nothing had been chosen. What makes the fleet
safer, carries out what a person asked for, or only says what is so, passes:

| passes | because |
|---|---|
| `LinkDown`, `RemoteGone`, `Congestion`, `CacheScarce` | traffic leaves what cannot carry it |
| `LinkBack` | it returns to what ran before, with a probe first |
| `FloorRestored`, `RolesCancelled`, `RolesFollowed` | too few instances, fewer moves, or a fact |
| `Held`, `OutOfBounds`, `PolicyChanged` | a person asked for it, and was allowed to |

A freeze of `roles` alone holds back moves of roles (`roles/step`), and t goes on. Advice changes
nothing, so nothing holds it back.
"""

from __future__ import annotations

import dataclasses
from typing import Final, Literal

from routing.core import words
from routing.core.situation import Situation
from routing.core.types import Freeze, Verdict

REASON: Final = "Frozen"
PASSES: Final = frozenset(
    {
        *("LinkDown", "LinkBack", "RemoteGone", "Congestion", "CacheScarce"),
        *("FloorRestored", "RolesCancelled", "RolesFollowed"),
        *("Held", "OutOfBounds", "PolicyChanged"),
    }
)


def in_force(s: Situation, of: Literal["plans", "roles"]) -> Freeze | None:
    """What forbids the loop that now: of several, the one that ends last."""
    if s.params.mode != "active":
        return None
    found = [
        freeze
        for freeze in s.observation.freezes
        if freeze.of == of and freeze.since_s <= s.now_s < freeze.until_s
    ]
    return max(found, key=lambda freeze: freeze.until_s, default=None)


def frozen(s: Situation, verdict: Verdict, *, held: Verdict | None = None) -> Verdict:
    """The verdict, held where a freeze forbids it. `held` is what an earlier look made of it: what
    only goes along with a plan then says nothing of its own."""
    if verdict.action != "adopt" or verdict.reason in PASSES:
        return verdict
    freeze = in_force(s, "plans")
    if freeze is None:
        return verdict
    memory = verdict.memory
    kept = dataclasses.replace(
        s.hold(REASON, "").memory,
        gain_since_s=s.memory.gain_since_s,
        roles_gain_since_s=s.memory.roles_gain_since_s,
        spare_since_s=memory.spare_since_s,
        scarce_at_s=memory.scarce_at_s,
    )
    if held is not None and held.action == "hold" and held.reason == REASON:
        return dataclasses.replace(held, memory=kept)
    text = words.held_back(freeze, verdict.message)
    waiting = s.hold(REASON, text, next_at_s=freeze.until_s)
    return dataclasses.replace(
        waiting,
        memory=kept,
        best=verdict.best,
        best_plan=verdict.best_plan,
        clamps=verdict.clamps,
        alternatives=verdict.alternatives,
    )
