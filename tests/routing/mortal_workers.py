"""Workers that die at a chosen moment of a rebalance, for tests to drive; see `mortal_driver`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from django.conf import settings

from console.embedded import die_with_parent
from routing.models import Rebalance
from tests import servers
from tests.routing.cases import after


class Workers:
    """Forks them, each with the environment of now. `moments` are the kinds of those that the
    newest one came to, in order."""

    def __init__(self) -> None:
        self.moments: list[str] = []
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

    def drive(self, row: Rebalance, *, at_s: float, dies_at: int = 0, kind: str = "") -> bool:
        """True if it died on the way, False if it finished. Only moments of `kind` count towards
        `dies_at`, if one is named."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{row.pk} {after(at_s).timestamp()} {dies_at} {kind}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, "the workers are gone"
        how, *self.moments = answer
        row.refresh_from_db()
        return how == "killed"

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
