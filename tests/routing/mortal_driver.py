"""`python -m tests.routing.mortal_driver`: workers that carry a rebalance out and die on the way.

Reads lines `PK START_S DIES_AT` and forks one process for each. It drives that rebalance, its clock
going a second a pass, and gets SIGKILL at its DIES_AT-th moment: right after a side effect, before
the commit, or right after a commit. 0 never comes. Answers `killed N` or `finished N`, N moments.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import django

django.setup()

from routing import rebalance_driver, workers  # noqa: E402
from routing.rebalance import ACTIVE  # noqa: E402


def main() -> None:
    for line in sys.stdin:
        pk, start_s, dies_at = line.split()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            work(int(pk), float(start_s), int(dies_at), writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as moments:
            n = len(moments.read())
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or status == 0, f"the worker failed: {status}"
        print("killed" if killed else "finished", n, flush=True)


def work(pk: int, start_s: float, dies_at: int, moments: int) -> None:
    """Every moment is one byte down the pipe, so that it counts although the process dies of it."""
    n = 0

    def moment() -> None:
        nonlocal n
        n += 1
        os.write(moments, b".")
        if n == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def then_moment(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            answer = function(*args)
            moment()
            return answer

        return called

    workers.put = then_moment(workers.put)
    workers.switch = then_moment(workers.switch)
    one_pass = then_moment(rebalance_driver.one_pass)
    at = datetime.datetime.fromtimestamp(start_s, datetime.UTC)
    for _ in range(60):
        one_pass(pk, at)
        at += datetime.timedelta(seconds=1)
        if not rebalance_driver.Rebalance.objects.filter(pk=pk, state__in=ACTIVE).exists():
            return
    os._exit(3)


if __name__ == "__main__":
    main()
