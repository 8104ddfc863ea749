"""Runs of ticks in which the loop held for one reason: what it did not do, since when, how long.

A run is found by comparing each tick with the one before it, newest first, so a page of runs reads
no more ticks than lie in them. Each run tells what its last tick said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection

_SQL: Final = """
SELECT run.reason, run.at, run.was_seq IS NULL, COALESCE(run.last_at, run.newest_at),
       run.last_at IS NULL, said.seq, said.message, said.next_action_at_s
FROM (
  SELECT reason, action, at, was_seq, newest_at,
    LAG(was_at) OVER later AS last_at,
    COALESCE(LAG(was_seq) OVER later, newest_seq) AS last_seq
  FROM (
    SELECT reason, action, at,
      LEAD(reason) OVER earlier AS was_reason, LEAD(action) OVER earlier AS was_action,
      LEAD(seq) OVER earlier AS was_seq, LEAD(at) OVER earlier AS was_at,
      FIRST_VALUE(seq) OVER earlier AS newest_seq, FIRST_VALUE(at) OVER earlier AS newest_at
    FROM routing_tick WHERE fleet_id = %s AND at >= %s AND at < %s
    WINDOW earlier AS (ORDER BY at DESC)
  ) tick
  WHERE (reason, action) IS DISTINCT FROM (was_reason, was_action)
  WINDOW later AS (ORDER BY at DESC)
) run
JOIN LATERAL (
  SELECT seq, verdict->>'message' AS message,
    (verdict->>'next_action_at_s')::double precision AS next_action_at_s
  FROM routing_tick WHERE fleet_id = %s AND seq = run.last_seq
) said ON true
WHERE run.action = 'hold'{more}
ORDER BY run.at DESC LIMIT %s
"""
"""Ticks carry their verdicts in the same row: only those of the runs that are shown are read."""


@dataclass(frozen=True)
class Spell:
    """One run. `seq`, `message` and `next_action_at_s` are its last tick's.

    `is_cut`: it may have begun before the range does. `is_last`: no other run followed in it.
    """

    reason: str
    since: datetime
    is_cut: bool
    last_at: datetime
    is_last: bool
    seq: int
    message: str
    next_action_at_s: float | None


def held(
    fleet: str,
    *,
    since: datetime,
    until: datetime,
    before: datetime,
    including: bool = False,
    reason: str = "",
    not_reasons: Sequence[str] = (),
    texts: Sequence[str] = (),
    limit: int,
) -> list[Spell]:
    """The newest runs that began before `before`, or at it, newest first.

    Ticks are read from `since` on, and before `until`: where a run ends is right only if a run
    begins there. `texts` all have to stand in what was said, whatever their case.
    """
    more, values = ["run.at <= %s" if including else "run.at < %s"], [before]
    if reason:
        more.append("run.reason = %s")
        values.append(reason)
    if not_reasons:
        more.append("NOT run.reason = ANY(%s)")
        values.append(list(not_reasons))
    for text in texts:
        more.append("strpos(lower(run.reason || ' ' || said.message), lower(%s)) > 0")
        values.append(text)
    sql = _SQL.replace("{more}", "".join(f" AND {part}" for part in more))
    given: list[Any] = [fleet, since, until, fleet, *values, limit]
    with connection.cursor() as cursor:
        cursor.execute(sql, given)
        return [Spell(*row) for row in cursor.fetchall()]
