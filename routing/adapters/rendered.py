"""What a router cannot be told is written down for those who can: a document, and its command.

A make that reads its settings only at start, or from objects that others own, gets its change as
a `Rendered`. It is `pending restart` until `runs` says that it is applied, which is read back like
everything else and never taken from the command's own success (S-40).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from routing.adapters.surface import Actual, Role, Surface, Threshold
from routing.core.types import Mode


@dataclass(frozen=True)
class Wanted:
    """What the plan asks of a router: remote iff uncached > `tokens`.

    `tokens` is None unless `mode` is `threshold`; 0 sends every prompt remote that has at least one
    uncached token. Raises ValueError for what no plan says.
    """

    mode: Mode
    tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) is (self.mode == "threshold"):
            raise ValueError(f"tokens={self.tokens}: given if and only if mode is threshold")
        if self.tokens is not None and self.tokens < 0:
            raise ValueError(f"tokens={self.tokens}: must not be negative")

    def __str__(self) -> str:
        return self.mode if self.tokens is None else f"remote above {self.tokens} uncached tokens"


@dataclass(frozen=True)
class Rendered:
    """One change for others to apply. `apply` is the exact command, `content` what it is given."""

    what: str
    content: str
    apply: str
    notes: tuple[str, ...] = ()
    """What it does besides, or not exactly, in sentences."""


class Renders(Surface, Protocol):
    """A router whose threshold is applied by others: `roll`, `restart` or `patch`."""

    def rendered(self, wanted: Wanted, actual: Actual) -> Rendered:
        """The change that makes it run `wanted`. Raises CannotDo if this make has no such rule."""
        ...

    def runs(self, wanted: Wanted, actual: Actual) -> bool | None:
        """Whether `actual` shows that it runs `wanted`; None: it does not show."""
        ...


class RendersRoles(Surface, Protocol):
    """A router whose roles are applied by others."""

    def rendered_role(self, url: str, role: Role, actual: Actual) -> Rendered:
        """The change that makes it list the instance as `role`. Raises CannotDo."""
        ...


def shows(threshold: Threshold | None, wanted: Wanted) -> bool | None:
    """Whether a threshold that is the plan's own rule is the wanted one; None: not shown."""
    if threshold is None or wanted.mode != "threshold":
        return None
    return None if threshold.tokens is None else threshold.tokens == wanted.tokens
