"""Many agents in one process, on a fixed schedule, for `scale`. Run by the benchmark kit's Python.

    python -m scale_agents --url URL --token-file FILE --agents N --seconds S --start-at T --out F

Every agent has a connection of its own and posts once a second, agent i of n at `i / n` of each
second. What it sends was "sampled" at the moment its POST is due, so a late sender counts as stale
telemetry. Bodies are made once; each second only numbers in them are patched, so that this process
takes little of the machine. An answer other than 200 is counted and not sent again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import time
from collections import deque
from pathlib import Path

import ingest_fleet
import numpy as np
import send

from telemetry import wire

N_SIGNALS = len(ingest_fleet.SIGNALS)
_FIRST_SEQ = 1 << 17
"""Sequence numbers from here to 2^32 take the same five bytes each."""
_N_COUNTERS = 6
_WAIT_S = 60.0
_CONNECT_S = 3.0


class Bodies:
    """The bodies of all agents as one matrix of bytes (n_agents, n_bytes)."""

    def __init__(self, n_agents: int, k: int, fleet: str, rng: np.random.Generator) -> None:
        n = n_agents * k
        self._values = rng.random((n, N_SIGNALS))
        self._values[:, :_N_COUNTERS] = np.floor(self._values[:, :_N_COUNTERS] * 1e7)
        self._steps = np.floor(rng.uniform(1.0, 1000.0, (n, _N_COUNTERS)))
        self._rng, self._k = rng, k
        marks = 1.5e9 + np.arange(k * (N_SIGNALS + 1) + 1) * 0.125
        encoded = []
        for agent in range(n_agents):
            samples = [
                (agent * k + i, float(marks[i]), marks[k + i * N_SIGNALS :][:N_SIGNALS].tolist())
                for i in range(k)
            ]
            batch = ingest_fleet.batch(agent, samples, seq=_FIRST_SEQ, fleet=fleet)
            encoded.append(wire.encode(_sent_at(batch, float(marks[-1]))))
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8).reshape(n_agents, -1).copy()
        first = encoded[0]
        places = np.array([first.index(struct.pack(">d", mark)) for mark in marks])
        self._times_at = _eight(np.append(places[:k], places[-1]))
        self._values_at = _eight(places[k:-1])
        self._seq_at = first.index(struct.pack(">BI", 0xCE, _FIRST_SEQ)) + 1 + np.arange(4)

    def patch(self, tick: int, at_s: np.ndarray) -> None:
        """The next readings of all agents, taken at `at_s` (n_agents,)."""
        n_agents, k = len(at_s), self._k
        self._values[:, :_N_COUNTERS] += self._steps
        # One gauge of each instance moves each second, as most stand still in most.
        moving = _N_COUNTERS + tick % (N_SIGNALS - _N_COUNTERS)
        self._values[:, moving] = np.round(self._rng.random(n_agents * k), 4)
        times = np.repeat(at_s[:, None], k + 1, axis=1)
        self._bytes[:, self._times_at] = _big_endian(times)
        self._bytes[:, self._values_at] = _big_endian(self._values.reshape(n_agents, -1))
        seq = np.frombuffer(struct.pack(">I", _FIRST_SEQ + tick), np.uint8)
        self._bytes[:, self._seq_at] = seq

    def body(self, agent: int) -> bytes:
        return self._bytes[agent].tobytes()


def _sent_at(batch: wire.Batch, sent_at_s: float) -> wire.Batch:
    return wire.Batch(
        v=batch.v,
        agent=batch.agent,
        boot=batch.boot,
        seq=batch.seq,
        sent_at_s=sent_at_s,
        instances=batch.instances,
    )


def _eight(places: np.ndarray) -> np.ndarray:
    return (places[:, None] + np.arange(8)).ravel()


def _big_endian(numbers: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(numbers.astype(">f8")).view(np.uint8)


async def run(args: argparse.Namespace) -> dict[str, object]:
    token = args.token_file.read_text().strip()
    host, _, port = args.url.removeprefix("http://").partition("/")[0].partition(":")
    bodies = Bodies(args.agents, args.k, args.fleet, np.random.default_rng(args.seed))
    head = (
        f"POST /api/v1/ingest HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Length: {len(bodies.body(0))}\r\n\r\n"
    ).encode()
    # A connection that says nothing is closed after a while, so they are made just before.
    await asyncio.sleep(max(0.0, args.start_at - _CONNECT_S - time.time()))
    state = send.St()
    connections = await send._conns((host, int(port)), args.agents, state)
    n_total, ended = args.agents * args.seconds, asyncio.get_running_loop().create_future()
    n_left = n_total

    def done(_: object) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            ended.set_result(None)

    state.done = done
    clock_s = time.time() - time.perf_counter()
    share_s = np.arange(args.agents) / args.agents
    late_s: deque[float] = deque(maxlen=100_000)
    cpu_s = time.process_time()
    for tick in range(args.seconds):
        due_s = args.start_at + tick + share_s
        bodies.patch(tick, due_s)
        agent = 0
        while agent < args.agents:
            now_s = time.time()
            while agent < args.agents and due_s[agent] <= now_s:
                late_s.append(now_s - due_s[agent])
                connections[agent].post(head + bodies.body(agent), due_s[agent] - clock_s)
                agent += 1
            await asyncio.sleep(0.001)
    try:
        await asyncio.wait_for(ended, _WAIT_S)
    except TimeoutError:
        state.codes["unanswered"] += n_left
    return {
        "sent": n_total,
        "codes": {str(code): n for code, n in state.codes.items()},
        "ack_p50_ms": send.q(state.lat, 0.5),
        "ack_p99_ms": send.q(state.lat, 0.99),
        "ack_max_ms": send.q(state.lat, 1.0),
        "late_p99_ms": send.q(late_s, 0.99),
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "body_bytes": len(bodies.body(0)),
        "errors": state.err,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--agents", type=int, required=True)
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--fleet", default=ingest_fleet.FLEET)
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--start-at", type=float, required=True, help="epoch seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=send.LOOP) as runner:
        found = runner.run(run(args))
    args.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
