"""One request under way: a plain list, because millions of them are made and read a minute.

The names below are places in it. Times are seconds of the run, `UNSET` where not there yet.
"""

from __future__ import annotations

from typing import Any

AT, PROMPT, OUTPUT, SITE = 0, 1, 2, 3
UNCACHED, COMPUTED, REASON, LINK = 4, 5, 6, 7
"""Tokens that were compared with t; tokens that its prefill computes; an index into the reasons;
the index of the link it crosses, -1 for none."""
GIVEN, START, END, READY, SLOT, DONE = 8, 9, 10, 11, 12, 13
"""It is given to a prefill instance, which begins and ends; its KV is where it decodes; it gets a
slot there, and has its last token."""
BYTES, RETRIES, DECODER = 14, 15, 16
"""What crosses the link; how often it began anew; the decode instance, -1 before there is one."""
WIDTH = 17

UNSET = -1.0
Row = list[Any]


def restart(row: Row, now_s: float) -> None:
    """Its instance is lost: whatever was done for it is, too. It arrived when it arrived."""
    row[GIVEN] = now_s
    row[START] = row[END] = row[READY] = row[SLOT] = row[DONE] = UNSET
    row[LINK] = row[DECODER] = -1
    row[BYTES] = 0.0
    row[RETRIES] += 1
