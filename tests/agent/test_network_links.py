"""Links from what counts them to the sample that goes out: every source of the configuration."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry import wire
from telemetry.agent import links, programs
from telemetry.agent.http import ReadError
from telemetry.agent.link_config import Link
from telemetry.agent.link_sources import LinkSource
from telemetry.agent.links import ByteMeter
from telemetry.hosts import inet_diag
from telemetry.hosts.errors import HostError
from tests.agent import kernel
from tests.agent.test_network_parsers import NODE, SS

T0 = 1.7e9
GB = 1e9


def _meter(*readings: float, width_bits: int = 64, gbps: float | None = None) -> list[float | None]:
    meter = ByteMeter(width_bits=width_bits)
    return [
        meter.read(reading, at_s=T0 + second, ceiling_gbps=gbps)
        for second, reading in enumerate(readings)
    ]


def test_s09_a_wrap_is_told_from_a_reset_by_the_declared_width() -> None:
    """S-09: +1296 at 32 bits; at 64 bits the counter fell, and whoever subtracts sees a reset."""
    assert _meter(4294967000, 1000, width_bits=32) == [0.0, 1296.0]
    assert _meter(4294967000, 1000) == [4294967000.0, 1000.0]


def test_totals_of_32_bits_go_on_rising_past_them() -> None:
    half = 2.0**31
    assert _meter(0, half, 2 * half - 1, 5, half, width_bits=32)[-1] == 3 * half


def test_s09_a_jump_above_the_link_is_left_out_of_the_total() -> None:
    """S-09: a bond whose counters take in a member's past: 471 Tb/s over 10 Gb/s."""
    assert _meter(GB, 2 * GB, 59e12, 59e12 + GB, gbps=10.0) == [GB, 2 * GB, None, 3 * GB]
    # ... and loses it again: a fall, but not to what could have passed since a reset.
    assert _meter(59e12, 40e12, 40e12 + GB, gbps=10.0) == [59e12, None, 59e12 + GB]
    assert _meter(59e12, 1e6, gbps=10.0) == [59e12, 1e6], "a real reset"
    assert _meter(GB, 59e12) == [GB, 59e12], "nothing is known that bounds it"


def test_a_driver_that_counts_every_few_seconds_is_no_jump() -> None:
    still = _meter(0, 0, 0, 3.7 * GB, gbps=10.0)
    assert still[-1] == 3.7 * GB


def test_32_bits_that_may_have_wrapped_unseen_are_missing() -> None:
    """Readings were lost: at 1 Gbps a half of 2^32 bytes passes in 17 s."""
    meter = ByteMeter(width_bits=32)
    assert meter.read(10, at_s=T0, ceiling_gbps=1.0) == 0.0
    assert meter.read(20, at_s=T0 + 40, ceiling_gbps=1.0) is None
    assert meter.read(30, at_s=T0 + 41, ceiling_gbps=1.0) == 10.0


@given(
    counter=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 10**9), min_size=1, max_size=20),
    width_bits=st.sampled_from([32, 64]),
    gbps=st.none() | st.floats(0.001, 1000.0),
)
def test_no_meter_goes_below_zero_or_above_what_the_link_carries(
    counter: list[int], width_bits: int, gbps: float | None
) -> None:
    readings = [float(value % 2**width_bits) for value in counter]
    last: float | None = None
    for total in _meter(*readings, width_bits=width_bits, gbps=gbps):
        if total is None:
            continue
        assert total >= 0.0
        if gbps is not None and last is not None and total > last:
            allowed = links.most_bytes(gbps, float(len(readings)))
            assert total - last <= allowed * (1 + 1e-9) + total * 1e-15
        last = total


def test_s09_an_impossible_rate_is_missing_and_said() -> None:
    fast = wire.LinkSignals(tx_gbps=10.6, rx_gbps=10.4, tx_bytes_total=1.0)
    signals, left_out = links.plausible(fast, elapsed_s=100.0, ceiling_gbps=10.0)
    assert (signals.tx_gbps, signals.rx_gbps, signals.tx_bytes_total) == (None, 10.4, 1.0)
    assert left_out == ("tx_gbps was above the 10 Gbps of the link: left out",)
    assert links.plausible(fast, elapsed_s=100.0, ceiling_gbps=None) == (fast, ())
    # Counters are not read on the tick: the shorter the step, the more that makes.
    assert links.plausible(fast, elapsed_s=0.5, ceiling_gbps=10.0) == (fast, ())


class Clock:
    """Seconds pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = T0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(session: aiohttp.ClientSession, clock: Clock) -> Callable[..., LinkSource]:
    def make(*, timeout_s: float = 10.0, **values: Any) -> LinkSource:
        link = Link(id="prfaas->pd", measured_layer="test", **values)
        return LinkSource(link, session=session, timeout_s=timeout_s, clock=clock)

    return make


def _net_dev(path: Path, tx: int, rx: int = 0) -> str:
    path.write_text(f"head\n eth0: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0\n")
    return str(path)


async def test_proc_net_dev(
    tmp_path: Path, source: Callable[..., LinkSource], clock: Clock
) -> None:
    path = _net_dev(tmp_path / "dev", 1000, 10)
    link = source(source="proc_net_dev", interface="eth0", path=path, capacity_gbps=10.0)
    first = await link.read()
    assert first.signals == wire.LinkSignals(
        tx_bytes_total=1000.0, rx_bytes_total=10.0, capacity_gbps=10.0
    )
    clock.now_s += 2
    _net_dev(tmp_path / "dev", 1000 + 1_250_000_000, 10)
    second = await link.read()
    assert (second.signals.tx_gbps, second.signals.rx_gbps) == (5.0, 0.0)
    clock.now_s += 1
    _net_dev(tmp_path / "dev", 10**15, 10)
    impossible = await link.read()
    assert impossible.state == "ok"
    assert (impossible.signals.tx_bytes_total, impossible.signals.tx_gbps) == (None, None)
    assert impossible.signals.rx_gbps == 0.0
    assert link.warnings == ("its bytes jumped by more than 10 Gbps: left out",)
    clock.now_s += 1
    _net_dev(tmp_path / "dev", 10**15 + 1000, 10)
    after = await link.read()
    assert after.signals.tx_bytes_total == 1_250_002_000.0
    assert link.warnings == ()
    (tmp_path / "dev").unlink()
    failed = await link.read()
    assert (failed.state, failed.signals) == ("failed", wire.LinkSignals())
    assert failed.error is not None
    assert "No such file" in failed.error


async def test_proc_net_dev_of_32_bits_wraps_unseen(
    tmp_path: Path, source: Callable[..., LinkSource], clock: Clock
) -> None:
    """S-09, as a rate."""
    path = _net_dev(tmp_path / "dev", 4294967000)
    link = source(
        source="proc_net_dev", interface="eth0", path=path, width_bits=32, capacity_gbps=1.0
    )
    assert (await link.read()).signals.tx_bytes_total == 0.0
    clock.now_s += 1
    _net_dev(tmp_path / "dev", 1000)
    assert (await link.read()).signals.tx_gbps == 1296 * 8 / 1e9


async def test_segments_of_the_whole_host_where_it_is_asked_for(
    tmp_path: Path, source: Callable[..., LinkSource]
) -> None:
    if not Path("/proc/net/snmp").exists():
        pytest.skip("no /proc/net here")
    path = _net_dev(tmp_path / "dev", 1)
    plain = await source(source="proc_net_dev", interface="eth0", path=path).read()
    assert plain.signals.segments_sent_total is None
    link = source(source="proc_net_dev", interface="eth0", path=path, host_tcp=True)
    signals = (await link.read()).signals
    assert signals.segments_sent_total is not None
    assert signals.segments_retransmitted_total is not None
    assert signals.retransmit_timeouts_total is not None


async def test_interface_with_the_bytes_of_its_driver(
    tmp_path: Path, source: Callable[..., LinkSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """RoCE shows in the port's own counters only."""
    place = tmp_path / "net/eth0"
    (place / "statistics").mkdir(parents=True)
    for name, value in {"tx_bytes": 5, "rx_bytes": 6}.items():
        (place / "statistics" / name).write_text(str(value))
    for name, text in {"carrier": "1", "speed": "100000", "operstate": "up"}.items():
        (place / name).write_text(text)
    _program(
        tmp_path / "bin/ethtool",
        'test "$*" = "-S eth0" && echo "  tx_bytes_phy: 7000" && echo "  rx_bytes_phy: 8000"',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    kernel = source(source="interface", interface="eth0", path=str(tmp_path / "net"))
    assert (await kernel.read()).signals.tx_bytes_total == 5.0
    driver = source(
        source="interface", interface="eth0", path=str(tmp_path / "net"), counters="driver"
    )
    signals = (await driver.read()).signals
    assert (signals.tx_bytes_total, signals.rx_bytes_total) == (7000.0, 8000.0)
    assert (signals.capacity_gbps, signals.path_state) == (100.0, "whole")


async def test_infiniband_and_its_absence(
    tmp_path: Path, source: Callable[..., LinkSource]
) -> None:
    link = source(source="infiniband", device="mlx5_0", path=str(tmp_path))
    assert (await link.read()).error == "there is no InfiniBand port 'mlx5_0' 1"
    place = tmp_path / "mlx5_0/ports/1"
    (place / "counters").mkdir(parents=True)
    (place / "counters/port_xmit_data").write_text("1000\n")
    (place / "counters/port_rcv_data").write_text("25\n")
    (place / "rate").write_text("400 Gb/sec (4X NDR)\n")
    signals = (await link.read()).signals
    assert (signals.tx_bytes_total, signals.capacity_gbps) == (4000.0, 400.0)


async def test_node_exporter(engine: Any, source: Callable[..., LinkSource], clock: Clock) -> None:
    engine.pages["/metrics"] = NODE
    url = f"{engine.url}/metrics"
    link = source(source="node_exporter", url=url, interface="bond0", host_tcp=True)
    first = (await link.read()).signals
    assert (first.tx_bytes_total, first.capacity_gbps) == (2000.0, 100.0)
    assert (first.segments_sent_total, first.path_state) == (5000.0, "degraded")
    assert link.warnings == ("1 of 2 members are down",)
    # The host was started again, and had sent more than before when it was read.
    engine.pages["/metrics"] = NODE.replace("1.7e9", "1.7001e9").replace("} 2000", "} 2500")
    clock.now_s += 1
    assert (await link.read()).signals.tx_gbps == 2500 * 8 / 1e9
    hca = source(source="node_exporter", url=url, device="mlx5_0", port=1)
    assert (await hca.read()).signals.tx_bytes_total == 4000.0
    engine.pages.clear()
    gone = await link.read()
    assert (gone.state, gone.signals) == ("failed", wire.LinkSignals())
    await engine.stop()
    assert (await link.read()).state == "down"


async def test_peer_by_the_kernel(source: Callable[..., LinkSource], clock: Clock) -> None:
    if why := kernel.why_silent():
        pytest.skip(why)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        link = source(
            source="peer",
            peers=("127.0.0.0/8",),
            remote_ports=(port,),
            via="inet_diag",
            capacity_gbps=100.0,
        )
        idle = (await link.read()).signals
        assert (idle.tx_bytes_total, idle.connections, idle.rtt_s) == (0.0, 0.0, None)
        with socket.create_connection(("127.0.0.1", port)) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"x" * 50_000)
                server.recv(50_000, socket.MSG_WAITALL)
                clock.now_s += 1
                signals = (await link.read()).signals
    assert signals.tx_bytes_total is not None
    assert signals.tx_retransmitted_bytes_total is not None
    assert signals.tx_bytes_total - signals.tx_retransmitted_bytes_total == 50_000
    assert signals.tx_gbps == pytest.approx(signals.tx_bytes_total * 8 / 1e9)
    assert signals.connections == 1.0
    assert signals.rtt_s is not None
    assert signals.congestion_control


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def test_peer_by_ss_where_the_kernel_refuses(
    tmp_path: Path,
    source: Callable[..., LinkSource],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(networks: Any, *, timeout_s: float) -> None:
        raise HostError("inet_diag is refused: Permission denied")

    monkeypatch.setattr(inet_diag, "read", refuse)
    (tmp_path / "said").write_text(SS)
    _program(tmp_path / "bin/ss", f'test "$*" = "-t -i -n" && cat {tmp_path}/said')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    link = source(source="peer", peers=("10.2.0.0/16",))
    first = (await link.read()).signals
    assert (first.connections, first.tx_bytes_total) == (2.0, 0.0)
    assert link.warnings == ("inet_diag is refused: Permission denied; ss is used",)
    assert first.rtt_s == pytest.approx((0.25 + 0.00025) / 2)
    (tmp_path / "said").write_text(SS.replace("bytes_sent:9000", "bytes_sent:10000"))
    clock.now_s += 1
    with monkeypatch.context() as answering:
        answering.setattr(inet_diag, "read", lambda networks, *, timeout_s: [])
        second = (await link.read()).signals
    assert (second.tx_bytes_total, second.rtt_s) == (1000.0, 0.25), "ss is kept to"
    assert link.warnings == ("inet_diag is refused: Permission denied; ss is used",)
    assert second.congestion_control == "bbr,cubic"
    strict = source(source="peer", peers=("10.2.0.0/16",), via="inet_diag")
    assert (await strict.read()).error == "inet_diag is refused: Permission denied"


@pytest.mark.parametrize(
    ("script", "state", "why"),
    [
        ("exit 3", "failed", "ended with 3"),
        ("echo nonsense", "failed", "no connection in 'nonsense'"),
        ("exec sleep 60", "slow", "did not end within 0.3 s"),
    ],
)
async def test_a_program_that_does_not_answer_is_a_failed_reading(
    tmp_path: Path,
    source: Callable[..., LinkSource],
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    state: str,
    why: str,
) -> None:
    _program(tmp_path / "bin/ss", script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    timeout_s = 0.3 if state == "slow" else 20.0
    link = source(source="peer", peers=("10.2.0.0/16",), via="ss", timeout_s=timeout_s)
    sample = await link.read()
    assert sample.state == state
    assert sample.error is not None
    assert why in sample.error


async def test_a_program_that_is_not_there_or_talks_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ReadError, match="cannot be run: No such file"):
        await programs.output([str(tmp_path / "ss")], timeout_s=5.0)
    monkeypatch.setattr(programs, "MAX_BYTES", 100_000)
    with pytest.raises(ReadError, match="prints more than 100000 bytes"):
        await programs.output([sys.executable, "-c", "while 1: print('x' * 999)"], timeout_s=30.0)


async def test_a_kernel_that_keeps_a_reading_waiting_is_asked_once(
    source: Callable[..., LinkSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread cannot be stopped: there is never a second one behind the first."""
    answer, asked = threading.Event(), []

    def wait(networks: Any, *, timeout_s: float) -> list[Any]:
        asked.append(timeout_s)
        answer.wait(30.0)
        return []

    monkeypatch.setattr(inet_diag, "read", wait)
    link = source(source="peer", peers=("10.2.0.0/16",), timeout_s=0.2)
    try:
        first = await link.read()
        assert (first.state, first.error) == ("slow", "no answer of the kernel within 0.2 s")
        second = await link.read()
        assert second.error == "the kernel has not answered the last reading yet"
        assert len(asked) == 1
    finally:
        answer.set()
    for _ in range(100):
        await asyncio.sleep(0.02)
        if (await link.read()).state == "ok":
            return
    pytest.fail("it was never asked again")


async def test_s15_a_links_use_is_what_its_interface_counts(
    tmp_path: Path, source: Callable[..., LinkSource], clock: Clock
) -> None:
    """S-15: engines claim three times the link; nothing of theirs is in a link's sample."""
    path = _net_dev(tmp_path / "dev", 0)
    link = source(source="proc_net_dev", interface="eth0", path=path, capacity_gbps=100.0)
    await link.read()
    clock.now_s += 1
    _net_dev(tmp_path / "dev", 1_250_000_000)
    sample = await link.read()
    assert (sample.signals.tx_gbps, sample.measured_layer) == (10.0, "test")
    assert not {name for name in wire.LinkSignals.__struct_fields__ if "transfer" in name}


async def test_every_sample_passes_the_consoles_door(
    tmp_path: Path, source: Callable[..., LinkSource], engine: Any
) -> None:
    engine.pages["/metrics"] = NODE
    path = _net_dev(tmp_path / "dev", 1)
    made = [
        source(source="proc_net_dev", interface="eth0", path=path),
        source(source="proc_net_dev", interface="eth1\0\ud800", path=path),
        source(source="node_exporter", url=f"{engine.url}/metrics", interface="bond0"),
        source(source="peer", peers=("0.0.0.0/0", "::/0")),
    ]
    samples = [await link.read() for link in made]
    batch = wire.Batch(v=1, agent="a", boot=1, seq=1, sent_at_s=T0, links=samples)
    assert wire.decode(wire.encode(batch)) == batch


def test_s13_a_signal_without_its_unit_is_refused() -> None:
    """S-13."""
    body = (
        b'{"v":1,"agent":"a","boot":1,"seq":1,"sent_at_s":1.7e9,"links":[{"id":"a->b",'
        b'"at_s":1.7e9,"measured_layer":"ip","signals":{"rtt":250}}]}'
    )
    with pytest.raises(wire.WireError) as caught:
        wire.decode(body, "application/json")
    assert (caught.value.field, caught.value.value) == ("links[0].signals.rtt", 250)
