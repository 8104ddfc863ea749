"""A worker killed at any moment of a rebalance: another one takes it to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from console.embedded import die_with_parent
from routing import commands
from routing.models import Rebalance
from tests import servers
from tests.routing.cases import after
from tests.routing.lab_stack import LabStack, fleet_of, lab_stack
from tests.routing.rebalancing import STEPS, open_for, steps_of, verbs_of, walk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.fault]

START_S = 1.0
RESUME_S = 100.0


class Workers:
    """Forks mortal workers; see `mortal_driver`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            (sys.executable, "-m", "tests.routing.mortal_driver"),
            cwd=servers.ROOT,
            env={
                **os.environ,
                "DATABASE_URL": servers.database_url(),
                "REDIS_URL": settings.REDIS_URL,
                "CONSOLE_SECRET_KEY": settings.SECRET_KEY,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )

    def drive(self, row: Rebalance, *, at_s: float, dies_at: int = 0) -> bool:
        """True if it died on the way, False if it finished."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{row.pk} {after(at_s).timestamp()} {dies_at}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, "the workers are gone"
        row.refresh_from_db()
        return answer[0] == "killed"

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabStack]:
    with lab_stack(tmp_path) as stack:
        yield stack


@pytest.fixture
def workers(transactional_db: None) -> Iterator[Workers]:
    running = Workers()
    yield running
    running.stop()


def test_killed_at_any_moment_another_worker_goes_on(lab: LabStack, workers: Workers) -> None:
    """After each side effect and after each commit: the end is the target, each step told once."""
    fleet = fleet_of(lab.controls)
    seen = set()
    dies_at, target = 1, (1, 3)
    while True:
        row = open_for(fleet, target, at_s=-dies_at)
        killed = workers.drive(row, at_s=START_S, dies_at=dies_at)
        if not killed:
            break
        if row.state == "open":
            seen.update(row.moves.values_list("step", flat=True))
        assert not workers.drive(row, at_s=RESUME_S)
        assert (row.state, lab.counts()) == ("done", target), dies_at
        assert lab.settled(), dies_at
        assert steps_of(row) == [*STEPS, "done"], dies_at
        assert verbs_of(row) == ["rebalance.start", "rebalance.end"]
        dies_at, target = dies_at + 1, (2, 2) if target == (1, 3) else (1, 3)
    assert seen == {*STEPS, "done"}, "it died in every step"
    assert dies_at > 2 * len(STEPS)


@pytest.mark.parametrize("step", ["drain", "verify"])
def test_killed_while_it_gives_up_another_worker_restores(
    lab: LabStack, workers: Workers, step: str
) -> None:
    fleet = fleet_of(lab.controls)
    dies_at = 1
    while True:
        row = open_for(fleet, (1, 3), at_s=-dies_at)
        at_s = walk(row, START_S, lambda row=row: row.moves.filter(step=step).exists())
        commands.cancel_rebalance(
            fleet=fleet.pk,
            rebalance_id=row.pk,
            actor="ada",
            via="test",
            reason="",
            now=after(at_s),
        )
        killed = workers.drive(row, at_s=at_s, dies_at=dies_at)
        if not killed:
            break
        assert not workers.drive(row, at_s=RESUME_S)
        assert (row.state, lab.counts(), lab.settled()) == ("cancelled", (2, 2), True), dies_at
        assert steps_of(row)[-2:] == ["restore", "restored"]
        dies_at += 1
    assert dies_at > 4
