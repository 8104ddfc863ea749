"""`python -m tests.routing.mortal_driver`: workers that carry a rebalance out and die on the way.

Reads lines `PK START_S DIES_AT [KIND]` and forks one process for each. It drives that rebalance,
its clock going a second a pass, and gets SIGKILL at its DIES_AT-th moment (of that kind): right
before a side effect, right after one and before the commit, or right after a commit. 0 never comes.
Answers `killed` or `finished`, and the kind of each moment that came: `before:cordon`,
`after:cordon`, `commit:drain` (by the step that the newest move is then in).
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import django

django.setup()

from routing import rebalance_driver, rebalance_effects  # noqa: E402
from routing.models import RoleMove  # noqa: E402
from routing.rebalance import ACTIVE  # noqa: E402
from tests.routing import swapping_router  # noqa: E402

EFFECTS = ("cordon", "list_as", "switch", "canary")


def main() -> None:
    with swapping_router.registered():
        for line in sys.stdin:
            pk, start_s, dies_at, *kinds = line.split()
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                work(int(pk), float(start_s), int(dies_at), kinds, writing)
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as moments:
                came = moments.read().decode()
            _, status = os.waitpid(child, 0)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            assert killed or status == 0, f"the worker failed: {status}"
            print("killed" if killed else "finished", came, flush=True)


def work(pk: int, start_s: float, dies_at: int, kinds: Sequence[str], moments: int) -> None:
    """Every moment is a word down the pipe, so that it counts although the process dies of it."""
    n = 0

    def moment(kind: str) -> None:
        nonlocal n
        n += not kinds or kind in kinds
        os.write(moments, f"{kind} ".encode())
        if n == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def between_moments(effect: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            moment(f"before:{effect}")
            answer = function(*args)
            moment(f"after:{effect}")
            return answer

        return called

    for effect in EFFECTS:
        plain = getattr(rebalance_effects, effect)
        setattr(rebalance_effects, effect, between_moments(effect, plain))
    at = datetime.datetime.fromtimestamp(start_s, datetime.UTC)
    for _ in range(90):
        rebalance_driver.one_pass(pk, at)
        moment(f"commit:{step_of(pk)}")
        at += datetime.timedelta(seconds=1)
        if not rebalance_driver.Rebalance.objects.filter(pk=pk, state__in=ACTIVE).exists():
            return
    os._exit(3)


def step_of(pk: int) -> str:
    """Where its newest move is."""
    begun = RoleMove.objects.filter(rebalance=pk).exclude(step="planned").order_by("-seq").first()
    return "planned" if begun is None else begun.step


if __name__ == "__main__":
    main()
