"""A rule that a person on the gate itself put above the plan, for a time.

For the day the console is away, or wrong: `python -m routing.gate override` sets it over a local
door. It is kept in a file, so that a restart keeps it, and ends by itself at `until_s`. A plan that
arrives meanwhile is accepted and waits under it. It ends earlier when it is released here, or when
the console names its id (docs/contracts.md, Plan); nothing else overwrites it.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from routing.core.types import Mode

MAX_DURATION_S = 7 * 86_400.0
MAX_TEXT = 200

log = logging.getLogger(__name__)


class OverrideError(ValueError):
    """An override that cannot be meant. Names the field and the value."""

    def __init__(self, message: str, *, field: str, value: Any) -> None:
        super().__init__(f"{field} = {value!r}: {message}")


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`threshold_tokens` is None unless mode is `threshold`. Times are epoch seconds."""

    id: str
    mode: Mode
    threshold_tokens: int | None
    by: str
    reason: str
    since_s: float
    until_s: float

    def __str__(self) -> str:
        """As a log line or a note says it."""
        what = self.mode if self.threshold_tokens is None else f"threshold {self.threshold_tokens}"
        return f"override {self.id} ({what}) by {self.by}: {self.reason}"


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a person asks for; `for_s` is how long it shall hold."""

    mode: Mode
    threshold_tokens: int | None
    by: str
    reason: str
    for_s: float

    def granted(self, *, now_s: float) -> Override:
        """The override from now on. Raises OverrideError."""
        _check(self)
        if not (math.isfinite(self.for_s) and 0.0 < self.for_s <= MAX_DURATION_S):
            raise OverrideError("must be above 0 and at most 7 days", field="for", value=self.for_s)
        return Override(
            id=secrets.token_hex(6),
            mode=self.mode,
            threshold_tokens=self.threshold_tokens,
            by=self.by.strip(),
            reason=self.reason.strip(),
            since_s=now_s,
            until_s=now_s + self.for_s,
        )


def _check(rule: Asked | Override) -> None:
    """Mode, threshold and texts. Raises OverrideError."""
    if (rule.threshold_tokens is None) == (rule.mode == "threshold"):
        raise OverrideError(
            f"must be null unless mode is threshold, which needs it; mode is {rule.mode}",
            field="threshold_tokens",
            value=rule.threshold_tokens,
        )
    if rule.threshold_tokens is not None and not 0 <= rule.threshold_tokens < 2**31:
        raise OverrideError(
            "must be in 0..2^31-1", field="threshold_tokens", value=rule.threshold_tokens
        )
    for field, text in (("by", rule.by), ("reason", rule.reason)):
        if not text.strip() or not text.isprintable() or len(text) > MAX_TEXT:
            raise OverrideError(
                f"must be one line of 1 to {MAX_TEXT} characters", field=field, value=text
            )


class OverrideKeeper:
    """The override of one gate, or None, kept in `file`. `epoch_s` tells epoch seconds."""

    def __init__(self, file: Path | None, *, epoch_s: Callable[[], float]) -> None:
        self._file, self._epoch_s = file, epoch_s
        self._held: Override | None = None

    def load(self) -> None:
        """Takes up the one on disk. One that cannot be read, or that no door would have granted,
        is said and left alone."""
        if self._file is None:
            return
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=Override)
            _check(found)
            if not (found.id.isascii() and found.id.isalnum()):  # it goes into headers
                raise OverrideError("must be letters and digits", field="id", value=found.id)
            if found.until_s > self._epoch_s() + MAX_DURATION_S:
                raise OverrideError(
                    "is more than 7 days away", field="until_s", value=found.until_s
                )
            self._held = found
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, OverrideError) as exc:
            log.warning("%s: the override cannot be read: %s", self._file, exc)
            return
        if self.current() is not None:
            log.warning("%s is still in force", self._held)

    def current(self) -> Override | None:
        """The one in force now."""
        held = self._held
        if held is None or self._epoch_s() < held.until_s:
            return held
        self._end(f"{held} has expired")
        return None

    def put(self, asked: Asked) -> Override:
        """Sets it, in place of one that is there. Raises OverrideError, OSError."""
        if self._file is None:
            raise OverrideError("this gate keeps nothing on disk", field="plan_file", value=None)
        granted = asked.granted(now_s=self._epoch_s())
        scratch = self._file.with_name(self._file.name + ".new")
        with scratch.open("wb") as out:
            out.write(msgspec.json.encode(granted))
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(self._file)
        self._held = granted
        log.warning("%s is in force", granted)
        return granted

    def release(self, by: str, *, only: str | None = None) -> Override | None:
        """Ends it; what was ended. `only`: unless it has another id."""
        held = self.current()
        if held is None or (only is not None and held.id != only):
            return None
        self._end(f"{held} is released by {by}")
        return held

    def _end(self, why: str) -> None:
        self._held = None
        log.warning("%s", why)
        if self._file is not None:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as exc:
                # It has ended all the same; after a restart it would be there until it expires.
                log.warning("%s cannot be removed: %s", self._file, exc.strerror)
