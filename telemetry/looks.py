"""Which layouts reported lately, and where the border between landing zone and chunks is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from telemetry import layouts, tables

_REWRITTEN_S: Final = 360.0
"""A clock may be ahead, and a layout's row is rewritten now and then only."""


@dataclass(frozen=True)
class _Look:
    """(layout, when it reported last) of all that reported after `limit`, and the border between
    landing zone and chunks, epoch seconds."""

    limit: datetime
    seen: Sequence[tuple[int, datetime]]
    floor_s: float


_NO_LOOK: Final = _Look(datetime.max.replace(tzinfo=UTC), (), 0.0)
_look: ContextVar[_Look | None] = ContextVar("look", default=None)


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """While it lasts, which layouts report is asked once: for a page that reads many kinds."""
    token = _look.set(_NO_LOOK)
    try:
        yield
    finally:
        _look.reset(token)


def _seen_after(limit: datetime) -> tuple[Sequence[tuple[int, datetime]], float]:
    rows = tables.rows(
        "SELECT id, last_seen_at, extract(epoch FROM floor)::float8"
        " FROM telemetry_layout, telemetry_compaction WHERE last_seen_at > %(limit)s",
        limit=limit,
    )
    return [row[:2] for row in rows], rows[0][2] if rows else 0.0


_seen_layouts: dict[int, layouts.Layout] = {}
_MAX_LAYOUTS: Final = 100_000


def layouts_since(since_s: float) -> dict[int, layouts.Layout]:
    """Every layout that reported since then, by its number."""
    return layouts_and_floor(since_s)[0]


def layouts_and_floor(since_s: float) -> tuple[dict[int, layouts.Layout], float]:
    """The same, and the border between landing zone and chunks, epoch seconds."""
    if len(_seen_layouts) > _MAX_LAYOUTS:
        _seen_layouts.clear()
    # Rows of layouts are rewritten now and then only, so look back a little further.
    limit = tables.utc(max(since_s - _REWRITTEN_S, 0.0))
    look = _look.get()
    if look is None or limit < look.limit:
        look = _Look(limit, *_seen_after(limit))
        if _look.get() is not None:
            _look.set(look)
    ids = [layout_id for layout_id, seen_at in look.seen if seen_at > limit]
    unknown = [layout_id for layout_id in ids if layout_id not in _seen_layouts]
    if unknown:
        for layout_id, facts in tables.rows(
            "SELECT id, facts FROM telemetry_layout WHERE id = ANY(%(ids)s)", ids=unknown
        ):
            _seen_layouts[layout_id] = layouts.decode(facts)
    found = {layout_id: _seen_layouts[layout_id] for layout_id in ids if layout_id in _seen_layouts}
    return found, look.floor_s
