"""A real etcd for tests, where one is installed (Debian: etcd-server)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.peers.programs import answers, free_ports, running


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its client URL. Skips the test where there is no etcd."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed (Debian: etcd-server)")
    url, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    command = [program, "--data-dir", str(folder / "etcd"), "--initial-cluster", f"one={peer}"]
    command += ["--name", "one", "--listen-client-urls", url, "--advertise-client-urls", url]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    with running(command, folder / "etcd.log", is_up=lambda: answers(f"{url}/health")):
        yield url
