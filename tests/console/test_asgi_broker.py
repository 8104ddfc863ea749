"""The web process asks the same broker as the workers: its tasks belong to the console's app."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import console.asgi
from routing import tasks
from console.celery import app
print(tasks.backtest.app is app, bool(tasks.backtest.app.conf.broker_url))
"""


def test_tasks_of_the_web_process_use_the_console_s_broker() -> None:
    # A process of its own: in this one others have imported the app already.
    found = subprocess.run(
        [sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=50, check=False
    )
    assert found.stdout.split() == ["True", "True"], found.stderr
