"""One layer of a host's network at one instant: an interface, a bond, an InfiniBand port.

Speeds are 10^9 bit/s. A driver that does not know a speed says -1, or the same in as many bits as
its field has (65535, 4294967295), or 0: all of them mean unknown, never slow.
"""

from __future__ import annotations

from dataclasses import dataclass

MBIT_PER_GBIT = 1000.0
_UNKNOWN_MBIT = frozenset((-1, 0, 2**16 - 1, 2**32 - 1))


def speed_gbps(mbit_per_s: float) -> float | None:
    """The speed a driver states in Mbit/s; None where that means unknown."""
    if mbit_per_s in _UNKNOWN_MBIT or not 0.0 < mbit_per_s < 1e9:
        return None
    return mbit_per_s / MBIT_PER_GBIT


@dataclass(frozen=True)
class Member:
    """One port below a bond."""

    name: str
    up: bool
    speed_gbps: float | None

    @property
    def trouble(self) -> str:
        """Why the bond is not whole, or nothing."""
        if not self.up:
            return f"{self.name} is down"
        # Carrier alone proves nothing: bonds ran for days on one member that way.
        return f"{self.name} has carrier and no known speed" if self.speed_gbps is None else ""


@dataclass(frozen=True)
class Port:
    """Bytes since the counters began, and what is known of the path behind them.

    `up` None: the source does not tell. `warnings` are for people.
    """

    tx_bytes: float
    rx_bytes: float
    speed_gbps: float | None = None
    up: bool | None = None
    members: tuple[Member, ...] = ()
    n_members: int | None = None
    n_members_up: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def trouble(self) -> tuple[str, ...]:
        """Why the path is less than whole; empty where it is whole, or down as such."""
        told = tuple(member.trouble for member in self.members if member.trouble)
        if told or self.n_members is None or self.n_members_up is None:
            return told
        missing = self.n_members - self.n_members_up
        return (f"{missing} of {self.n_members} members are down",) if missing > 0 else ()

    @property
    def path_state(self) -> str | None:
        """`whole`, `degraded` or `down`; None where the source does not tell."""
        if self.up is False:
            return "down"
        if self.trouble:
            return "degraded"
        return None if self.up is None else "whole"
