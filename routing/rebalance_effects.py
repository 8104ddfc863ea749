"""What a rebalance does to routers and engines: each act here may be repeated after a crash.

All it changes outside the database goes through these functions.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from routing import canary as canaries
from routing.adapters import engines, places
from routing.adapters.surface import Role, Surface, SurfaceError
from routing.models import Rebalance, RoleMove
from routing.rebalance_looks import Routers
from routing.rebalance_steps import Cordon, ListAs, Switch

FAILS = 3
"""Canaries that fail in a row, one a second, before the old role is restored."""
_TRIES = 6
"""Canaries that succeed while nothing shows that the instance had a part in one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Met:
    """What canaries met so far. `seen` are instances that worked off tokens during one; None:
    they do not tell. `error` is why the newest failed."""

    router: str
    at_s: float
    n_served: int
    n_failed: int
    seen: dict[str, bool | None]
    error: str = ""

    @property
    def ok(self) -> bool:
        """Enough: every instance had a part, or it cannot be told by trying on."""
        if self.error or not self.n_served:
            return False
        return self.n_served >= _TRIES or all(seen is not False for seen in self.seen.values())

    def facts(self, move: RoleMove) -> dict[str, Any]:
        """As the move keeps it."""
        return {
            "router": self.router,
            "at_s": self.at_s,
            "n_served": self.n_served,
            "n_failed": self.n_failed,
            "seen": self.seen[move.instance],
            "ok": self.ok,
            "error": self.error,
        }


def perform(routers: Routers, move: RoleMove, act: Cordon | ListAs | Switch) -> None:
    """Raises SurfaceError."""
    match act:
        case Cordon(router):
            cordon(routers, router, move)
        case ListAs(router, role):
            list_as(routers, router, move, role)
        case Switch(role):
            switch(routers, move, role)


def cordon(routers: Routers, router: str, move: RoleMove) -> None:
    _surface(routers, router).cordon(move.url)


def list_as(routers: Routers, router: str, move: RoleMove, role: Role) -> None:
    _surface(routers, router).list_as(move.url, role)


def switch(routers: Routers, move: RoleMove, role: Role) -> None:
    engines.switch(
        move.url,
        role,
        token_file=routers.cluster.engine_token_file,
        decode_cuda_graph_memory_gb=routers.cluster.decode_cuda_graph_memory_gb
        if role == "decode"
        else None,
    )


def hold(routers: Routers, move: RoleMove) -> None:
    """Out of work for longer. What is not renewed lapses, which a later look sees and says."""
    for url, listed in routers.of(move).items():
        if listed is None or listed.status == "draining":
            try:
                _surface(routers, url).hold(move.url)
            except SurfaceError as exc:
                log.warning("a drain was not renewed: %s", exc)


def canary(
    routers: Routers,
    router: str,
    row: Rebalance,
    moves: Sequence[RoleMove],
    now: datetime.datetime,
) -> Met:
    """One more completion through that router. No two prompts are alike, so that none is answered
    from where the last was."""
    before = moves[0].evidence.get("canary", {})
    n_served, n_failed = before.get("n_served", 0), before.get("n_failed", 0)
    seen = {move.instance: move.evidence.get("canary", {}).get("seen", False) for move in moves}
    tokens = {move.instance: engines.worked_tokens(move.url) for move in moves}
    prompt = f"{row.pk} {moves[0].seq} {n_served} {n_failed}: say that you are there."
    at_s, error = now.timestamp(), ""
    try:
        _complete(routers, router, prompt)
    except SurfaceError as exc:
        error = str(exc)
    if error:
        return Met(routers.named(router), at_s, n_served, n_failed + 1, seen, error)
    for move in moves:
        then, since = tokens[move.instance], engines.worked_tokens(move.url)
        if then is None or since is None:
            seen[move.instance] = seen[move.instance] or None
        else:
            seen[move.instance] = bool(seen[move.instance]) or since != then
    return Met(routers.named(router), at_s, n_served + 1, 0, seen)


def _complete(routers: Routers, router: str, prompt: str) -> None:
    serves_at = _surface(routers, router).serves_at
    if serves_at is None:
        raise SurfaceError(f"{router}: serves no requests, or is not told where")
    settings = next(r.settings for r in routers.cluster.routers if r.url == router)
    headers = places.bearer(settings.get("token_file", ""), router=router)
    canaries.complete(serves_at, prompt, headers=headers)


def _surface(routers: Routers, router: str) -> Surface:
    site = routers.read_of(router).site
    if site.surface is None:
        raise SurfaceError(f"{router}: {site.error}")
    return site.surface
