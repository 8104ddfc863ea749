"""Moments as commands take them: epoch seconds, ISO 8601, or so long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime

HELP = (
    "epoch seconds, ISO 8601 (UTC unless it says a zone), or a span back from now as in "
    "--from=-15m (s, m, h, d)"
)
_BACK = re.compile(r"-(\d+(?:\.\d+)?)([smhd])")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse(text: str, *, now_s: float) -> float:
    """Epoch seconds; `now` and `-15m` count from `now_s`. Raises ValueError saying why not."""
    if text == "now":
        return now_s
    back = _BACK.fullmatch(text)
    at_s = now_s - float(back[1]) * _UNIT_S[back[2]] if back else _absolute_s(text)
    if not 0.0 <= at_s < 1e10:
        raise ValueError("is no time")
    return at_s


def _absolute_s(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is neither epoch seconds nor ISO 8601 nor a span like -15m") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
