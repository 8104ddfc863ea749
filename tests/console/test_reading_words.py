"""What a page says of a reading that went wrong: down, failing and slow are three things (S-18)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from console.context import STALE_AFTER_S
from console.sources import freshness

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
UNRESPONSIVE = "unresponsive, maybe busy, 3 times in a row: no answer within 2 s"


@pytest.mark.parametrize(
    ("state", "error", "tone", "text"),
    [
        ("ok", None, "good", "fresh"),
        ("failed", "HTTP 500", "bad", "read failed: HTTP 500"),
        ("failed", None, "bad", "read failed"),
        ("down", "Connection refused", "bad", "down: Connection refused"),
        ("slow", UNRESPONSIVE, "warn", UNRESPONSIVE),
        ("slow", None, "warn", "unresponsive, maybe busy"),
    ],
)
def test_a_reading_says_what_became_of_it(
    state: str, error: str | None, tone: str, text: str
) -> None:
    mark = freshness(state, error, NOW.timestamp(), NOW)
    assert (mark.tone, mark.text) == (tone, text)


def test_silence_goes_before_whatever_was_read_last() -> None:
    mark = freshness("slow", None, NOW.timestamp() - STALE_AFTER_S - 1, NOW)
    assert (mark.tone, mark.text[:12]) == ("warn", "silent since")
