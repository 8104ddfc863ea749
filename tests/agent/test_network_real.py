"""A narrow, lossy path through the real kernel, in a network namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent import netns_probe

ROOT = Path(__file__).parents[2]
N_BYTES = 3_000_000


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    missing = [name for name in ("unshare", "ip", "tc", "ss") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here")
    # Somebody who is not root is root in a namespace of users, where that is allowed.
    apart = ["unshare", "-n" if os.geteuid() == 0 else "-rn"]
    if subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("a network namespace is refused here")
    probe = Path(__file__).with_name("netns_probe.py")
    done = subprocess.run(
        [*apart, sys.executable, str(probe), str(N_BYTES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    if done.returncode == netns_probe.REFUSED:
        pytest.skip(f"refused here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_was_lost_is_counted_and_sent_again(counted: dict[str, Any]) -> None:
    kernel = counted["kernel"]
    assert kernel["segments_retransmitted"] > 0
    assert kernel["acked_bytes"] == N_BYTES + 1, "the kernel counts the opening of a connection"
    assert kernel["sent_bytes"] > N_BYTES
    assert kernel["retransmitted_bytes"] > 0
    assert kernel["received_bytes"] == 1
    # 30 kB wait before 80 Mbit/s: 3 ms, where a free loopback takes microseconds.
    assert kernel["rtt_s"] > 0.0005
    assert kernel["delivery_bytes_per_s"] > 0.0


def test_ss_and_the_kernel_say_the_same(counted: dict[str, Any]) -> None:
    kernel, text = counted["kernel"], counted["ss"]
    for name in ("sent_bytes", "acked_bytes", "retransmitted_bytes", "received_bytes"):
        assert text[name] == kernel[name], name
    for name in ("segments_sent", "segments_retransmitted", "congestion_control"):
        assert text[name] == kernel[name], name
    for name in ("rtt_s", "min_rtt_s", "delivery_bytes_per_s"):
        assert text[name] == pytest.approx(kernel[name], rel=1e-3), name


def test_the_interface_carries_headers_and_what_was_sent_again(counted: dict[str, Any]) -> None:
    kernel, loopback = counted["kernel"], counted["loopback"]
    assert loopback["tx_bytes"] > N_BYTES
    assert loopback["tx_bytes"] == loopback["rx_bytes"]
    assert counted["host"]["segments_retransmitted"] >= kernel["segments_retransmitted"]
    assert counted["host"]["segments_sent"] >= kernel["segments_sent"]
