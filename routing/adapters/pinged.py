"""What `routing.adapters.pings` has pinged, as it leaves it beside its manifest.

How long ago something was is told by the pinger's own steady clock: the time of day may be set
while it runs, and the router counts seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from routing.adapters.surface import Role

FORGETS_AFTER_S = 6.0
"""The router's own 5 s, and one more for a ping that was on its way."""
MAX_BYTES = 4_000_000


class Pinged(msgspec.Struct, frozen=True):
    """In which role, and when last, by the steady clock."""

    worker_type: Role
    last_s: float


class State(msgspec.Struct, frozen=True):
    """Whom the router may still have at `at_s` (time of day), which was `steady_s`, by base URL.
    `error`: why the manifest could not be followed."""

    at_s: float
    steady_s: float
    pinged: dict[str, Pinged]
    error: str = ""

    def due(self, wanted: Mapping[str, Role]) -> dict[str, Role]:
        """Of `wanted` those that may be pinged: not one that the router may have in another role,
        as it would be given both halves of a request."""
        return {
            url: role
            for url, role in wanted.items()
            if url not in self.pinged or self.pinged[url].worker_type == role
        }

    def after(
        self, sent: Mapping[str, Role], *, at_s: float, steady_s: float, error: str = ""
    ) -> State:
        """Once each instance of `sent` has been pinged."""
        pinged = {url: p for url, p in self.pinged.items() if p.last_s > steady_s - FORGETS_AFTER_S}
        pinged |= {url: Pinged(role, steady_s) for url, role in sent.items()}
        return State(at_s, steady_s, pinged, error)

    def taken_over(self, *, at_s: float, steady_s: float) -> State:
        """By a new process, which has another steady clock: as if all of it was pinged just now."""
        pinged = {url: Pinged(p.worker_type, steady_s) for url, p in self.pinged.items()}
        return State(at_s, steady_s, pinged)


def state_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.pinged")
