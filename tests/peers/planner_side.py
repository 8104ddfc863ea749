"""Dynamo's own planner side (`dynamo_coordinator`) as a process, for tests to speak with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import servers
from tests.peers import dynamo_fleet

_PROGRAM = Path(__file__).with_name("dynamo_coordinator.py")


@contextmanager
def deciding(etcd_url: str, namespace: str) -> Iterator[Callable[[str], str]]:
    """Takes a line for it and gives what it says. Skips the test where Dynamo is not to be had."""
    process = subprocess.Popen(
        [dynamo_fleet.python(), str(_PROGRAM), namespace],
        env={**os.environ, "ETCD_ENDPOINTS": etcd_url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    told, says = process.stdin, process.stdout

    def said(line: str) -> str:
        print(line, file=told, flush=True)
        return says.readline().strip()

    try:
        assert says.readline().strip() == "started"
        yield said
    finally:
        told.close()
        says.close()
        servers.end(process)
