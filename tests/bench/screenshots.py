"""Every page as a picture: a live demo, then a fleet in which everything happens at once.

    python -m tests.bench.screenshots OUT [--minutes 6] [--only NAME ...] [--quick]

Starts `manage.py up --demo` of its own and lets it run for a while, or looks at the one that runs
with `--state DIR` at `--port N`. Writes OUT/NAME-N-WIDTH-THEME.png.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.gate_overhead import free_port

ROOT = Path(__file__).parents[2]
_START_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true", help="each width once, in one theme")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.state is not None:
        _shoot(asked.state, asked.port, asked.out, asked.only, asked.quick)
        return
    with tempfile.TemporaryDirectory(prefix="shots-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user
        state, port = Path(folder) / "state", free_port()
        with _demo(state, port):
            time.sleep(60.0 * asked.minutes)
            _shoot(state, port, asked.out, asked.only, asked.quick)


@contextmanager
def _demo(state: Path, port: int) -> Iterator[None]:
    """A demo whose words are in the file beside its state folder."""
    given = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    log = state.with_suffix(".log")
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--demo", "--port", str(port)],
            cwd=ROOT,
            env=given | {"CONSOLE_STATE_DIR": str(state)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        give_up_s = time.monotonic() + _START_S
        while "ready after" not in log.read_text():
            if process.poll() is not None or time.monotonic() > give_up_s:
                raise SystemExit(f"the demo did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _shoot(state: Path, port: int, out: Path, only: list[str], quick: bool) -> None:
    """Beside the console, in its database: what addresses are filled with stands there."""
    log = state.with_suffix(".log")
    call = f"shots.main(r'{log}', {port}, r'{out.absolute()}', {only!r}, {quick})"
    subprocess.run(
        [
            sys.executable,
            "manage.py",
            "shell",
            "-v",
            "0",
            "-c",
            f"from tests.bench import shots; {call}",
        ],
        cwd=ROOT,
        # Playwright keeps a loop in the thread that also asks the database.
        env=os.environ | {"CONSOLE_STATE_DIR": str(state), "DJANGO_ALLOW_ASYNC_UNSAFE": "true"},
        check=True,
    )


if __name__ == "__main__":
    main()
