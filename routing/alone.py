"""One task of a kind at a time in a process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def alone(lock: threading.Lock) -> Iterator[bool]:
    """Whether this is the only one of its kind in the process: what waits for slow routers or
    receivers must not have one thread after the other wait, until none is left for the ticks."""
    mine = lock.acquire(blocking=False)
    try:
        yield mine
    finally:
        if mine:
            lock.release()
