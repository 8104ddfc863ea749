"""What a change would have to wait for, whoever asked for it in this pass: each damper until when.

A verdict's sentence names the one damper that decided. The others may be longer: a person who reads
"roles moved too recently" wants to know that t is at rest as well. Only what is not over is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from routing.core import hysteresis
from routing.core.roles.model import free_at_s
from routing.core.situation import Situation
from routing.core.types import Verdict, Wait

MOST: Final = 12


def waits(s: Situation, verdict: Verdict) -> tuple[Wait, ...]:
    """The dampers that hold changes back after `verdict`, the one that ends last first."""
    if s.params.mode == "paused":
        return ()
    left = [wait for wait in _dampers(s, verdict) if wait.until_s > s.now_s]
    return tuple(sorted(left, key=lambda wait: -wait.until_s)[:MOST])


def _dampers(s: Situation, verdict: Verdict) -> Iterator[Wait]:
    memory, params, now_s = verdict.memory, s.params, s.now_s

    def after(reason: str, what: str, since_s: float | None, wait_s: float) -> Iterator[Wait]:
        if since_s is not None:
            yield Wait(reason, what, since_s, hysteresis.wait_until(since_s, wait_s, now_s))

    yield from after("GainPending", "t", memory.gain_since_s, params.t_gain_hold_s)
    yield from after("Dwell", "t", memory.last_change_s, params.t_dwell_s)
    yield from after(
        "RolesGainPending", "roles", memory.roles_gain_since_s, params.roles_gain_hold_s
    )
    for name in s.staffed:
        yield Wait("RolesDwell", name, memory.roles_changed_at_s, free_at_s(s, name))
    if (soon := s.too_soon()) is not None:
        yield Wait("RateLimited", soon[0], memory.last_change_s, soon[1])
    for view in s.links.values():
        if view.down or view.congested:
            reason = "LinkDown" if view.down else "Congestion"
            yield Wait(reason, view.id, view.memory.since_s, view.clear_at_s(params, now_s))
    for freeze in s.observation.freezes if s.params.mode == "active" else ():
        yield Wait("Frozen", freeze.of, freeze.since_s, freeze.until_s)
    for name, pin in (*s.pins.items(), *s.role_pins.items()):
        yield Wait("Held", name, None, pin.expires_at_s)
