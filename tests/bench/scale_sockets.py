"""Many browsers' live sockets in one process, for `scale`: how old is what a frame shows?

    python -m tests.bench.scale_sockets --url URL --fleets F --n 50 --seconds S --out FILE

Name and password come as two lines on stdin. Every socket answers heartbeats. In a fleet too large
for a frame, each shows one of `N_PAGES` pages of `N_ROWS` rows, from agents all over the fleet. The
first of each page also reads its frames: which readings are new in which frame. The others note
when each frame had come whole. Freshness is from the reading's `at_s` to the arrival of the first
frame with it, over all readings and all sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import struct
import sys
import time
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import uvloop

from tests.bench import ingest_fleet

N_PAGES, N_ROWS = 10, 40
_HEAD_BYTES = 400
_SEQ = re.compile(rb'"seq":(\d+)')
_BUFFER_BYTES = 1 << 22
_PONG = b'{"type":"pong"}'
_CONTINUATION, _TEXT, _CLOSE, _PING, _PONG_FRAME = 0, 1, 8, 9, 10


class _Reading(msgspec.Struct):
    at_s: float


class _Frame(msgspec.Struct):
    """The part of a frame that is looked at; msgspec skips the rest."""

    seq: int
    snapshot: bool
    instances: dict[str, _Reading]


@dataclass
class Seen:
    """What the sockets that show one page saw. `scope` is what they say to be told of its rows."""

    scope: bytes = b""

    arrived: list[dict[int, float]] = field(default_factory=list)
    """Of each socket: when frame `seq` had come, epoch seconds."""
    new: dict[int, np.ndarray] = field(default_factory=dict)
    """By `seq`, the times of the readings that no earlier frame showed."""
    codes: Counter[str] = field(default_factory=Counter)
    n_bytes: int = 0
    at_s: dict[str, float] = field(default_factory=dict)


def ages(seen: Seen, *, skip_s: float, until_s: float) -> np.ndarray:
    """Seconds from each reading after `skip_s` and before `until_s` to its frame, all sockets.

    A frame that a socket did not get shows its readings with the next one that it did.
    """
    found = []
    for arrived in seen.arrived:
        waiting: list[np.ndarray] = []
        for seq in sorted(seen.new):
            waiting.append(seen.new[seq])
            if seq in arrived:
                at_s = np.concatenate(waiting)
                at_s = at_s[(at_s >= skip_s) & (at_s < until_s)]
                found.append(arrived[seq] - at_s)
                waiting = []
    return np.concatenate(found) if found else np.empty(0)


async def sign_in(url: str, name: str, password: str) -> str:
    """The cookie header of a person who has logged in."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as http:
        async with http.get(f"{url}/login/") as page:
            found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', await page.text())
        assert found, "the login page has no form"
        form = {"username": name, "password": password, "csrfmiddlewaretoken": found[1]}
        headers = {"Origin": url, "Referer": f"{url}/login/"}
        async with http.post(f"{url}/login/", data=form, headers=headers) as page:
            await page.read()
        return "; ".join(f"{cookie.key}={cookie.value}" for cookie in jar)


async def connect(
    url: str, cookie: str, fleet: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open live socket."""
    host = url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"), limit=_BUFFER_BYTES)
    writer.write(
        (
            f"GET /ws/live?fleet={urllib.parse.quote(fleet)} HTTP/1.1\r\nHost: {host}\r\n"
            f"Origin: {url}\r\nCookie: {cookie}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n")[0]:
        raise SystemExit(f"a live socket was refused: {head[:200]!r}")
    return reader, writer


async def listen(url: str, cookie: str, fleet: str, seen: Seen, *, reads: bool) -> None:
    """One socket until it is cancelled or closed."""
    reader, writer = await connect(url, cookie, fleet)
    arrived: dict[int, float] = {}
    seen.arrived.append(arrived)
    decode = msgspec.json.Decoder(_Frame).decode
    if seen.scope:
        _say(writer, _TEXT, seen.scope)
    while True:
        kind, n_bytes = await _frame_head(reader)
        payload = await reader.readexactly(n_bytes)
        now_s = time.time()
        if kind == _CLOSE:
            seen.codes[f"closed {int.from_bytes(payload[:2])}"] += 1
            return
        if kind == _PING:
            _say(writer, _PONG_FRAME, payload)
        elif kind == _TEXT and payload[:_HEAD_BYTES].find(b'"type":"heartbeat"') >= 0:
            _say(writer, _TEXT, _PONG)
        elif kind == _TEXT and (found := _SEQ.search(payload[:_HEAD_BYTES])):
            seen.n_bytes += n_bytes
            arrived[int(found[1])] = now_s
            if reads:
                _read(decode(payload), seen)
        elif kind == _CONTINUATION:
            raise SystemExit("a frame came in pieces: this bench does not put them together")


def _read(frame: _Frame, seen: Seen) -> None:
    new = []
    for path, reading in frame.instances.items():
        if seen.at_s.get(path) != reading.at_s:
            seen.at_s[path] = reading.at_s
            new.append(reading.at_s)
    before = seen.new.get(frame.seq, np.empty(0))
    seen.new[frame.seq] = np.concatenate([before, np.array(new)])


async def _frame_head(reader: asyncio.StreamReader) -> tuple[int, int]:
    """(opcode, payload bytes); a server masks nothing."""
    first, length = await reader.readexactly(2)
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2))
    elif length == 127:
        length = int.from_bytes(await reader.readexactly(8))
    return first & 0x0F, length


def _say(writer: asyncio.StreamWriter, opcode: int, payload: bytes) -> None:
    # A client must mask; with a mask of zeros the payload stays as it is.
    if len(payload) < 126:
        head = struct.pack(">BB4x", 0x80 | opcode, 0x80 | len(payload))
    else:
        head = struct.pack(">BBH4x", 0x80 | opcode, 0x80 | 126, len(payload))
    writer.write(head + payload)


async def run(args: argparse.Namespace, name: str, password: str) -> dict[str, Any]:
    cookie = await sign_in(args.url, name, password)
    n_pages = min(N_PAGES, args.n) if args.instances else 1
    pages = [(fleet, page) for page in range(n_pages) for fleet in args.fleets.split(",")]
    seen = {(fleet, page): Seen(_scope(fleet, page, args.instances)) for fleet, page in pages}
    tasks = []
    for i in range(args.n):
        fleet, page = pages[i % len(pages)]
        reads = i < len(pages)
        listening = listen(args.url, cookie, fleet, seen[fleet, page], reads=reads)
        tasks.append(asyncio.create_task(listening))
    print("ready", flush=True)
    until_s = args.start_at + args.seconds
    await asyncio.sleep(until_s + 5.0 - time.time())
    broken = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # Readings of the last seconds may not have had their frame.
    window = {"skip_s": args.start_at + 3.0, "until_s": until_s - 2.0}
    age_s = np.concatenate([ages(one, **window) for one in seen.values()])
    gaps_s = [
        later - earlier
        for one in seen.values()
        for arrived in one.arrived
        for earlier, later in zip(list(arrived.values()), list(arrived.values())[1:], strict=False)
    ]
    codes: Counter[str] = sum((one.codes for one in seen.values()), Counter())
    n_frames = sum(len(arrived) for one in seen.values() for arrived in one.arrived)
    n_bytes = sum(one.n_bytes for one in seen.values())
    return {
        "sockets": sum(len(one.arrived) for one in seen.values()),
        "ended_early": len(broken),
        "closed": dict(codes),
        "frames": n_frames,
        "frame_bytes": round(n_bytes / max(1, n_frames)),
        "readings_shown": int(age_s.size),
        "fresh_p50_s": _quantile(age_s, 0.5),
        "fresh_p99_s": _quantile(age_s, 0.99),
        "fresh_max_s": _quantile(age_s, 1.0),
        "frame_gap_p99_s": _quantile(np.array(gaps_s), 0.99),
        "cpu_s": round(time.process_time(), 1),
    }


def _scope(fleet: str, page: int, n_instances: int) -> bytes:
    if not n_instances:
        return b""
    shown = range(page, n_instances, max(1, n_instances // N_ROWS))[:N_ROWS]
    return msgspec.json.encode(
        {"type": "scope", "instances": [ingest_fleet.path(n, fleet=fleet) for n in shown]}
    )


def _quantile(values: np.ndarray, share: float) -> float | None:
    return round(float(np.quantile(values, share)), 3) if values.size else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--fleets", required=True, help="comma separated")
    parser.add_argument("--n", type=int, default=50, help="sockets, shared out over the fleets")
    parser.add_argument("--instances", type=int, default=0, help="of a fleet; sockets show pages")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--start-at", type=float, required=True, help="epoch seconds")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    name, password = sys.stdin.read().splitlines()
    args.out.write_text(json.dumps(uvloop.run(run(args, name, password))))


if __name__ == "__main__":
    main()
