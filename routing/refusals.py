"""Why a change is not made, in words that name field and value. Doors answer with them."""

from __future__ import annotations

from typing import Any


class Refused(ValueError):
    """A change that cannot be meant: which field, what stood there, why not."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.value, self.message = field, value, message


class Outdated(Refused):
    """What was decided on is no longer so: look again, then decide."""


class Stale(Outdated):
    """Somebody changed it first; `current` is its version now."""

    def __init__(self, if_version: int, current: int, *, of: str) -> None:
        super().__init__(
            "version", if_version, f"the {of} is at version {current} now; read it again"
        )
        self.current = current
