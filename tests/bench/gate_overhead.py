"""What the gate adds to TTFT: direct against through the gate, run by hand.

    .venv/bin/python tests/bench/gate_overhead.py [--runs 7]

An engine whose first token comes after 30 ms, 64 concurrent streams, prompts of 2 KB and 100 KB of
text (byte estimate, hashing, counting and metrics on). Engine, gate and load are three processes;
direct and gate runs alternate and the medians over the runs are printed, with the gate's CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

FIRST_TOKEN_S = 0.030
N_TOKENS = 8
N_STREAMS = 64
N_REQUESTS = 640
SIZES_BYTES = (2_000, 100_000)
ROOT = Path(__file__).parents[2]

_TOKEN = b'data: {"id":"x","choices":[{"index":0,"text":"word ","finish_reason":null}]}\n\n'


async def answer(request: web.Request) -> web.StreamResponse:
    """One stream of the stand-in engine."""
    body = json.loads(await request.read())
    await asyncio.sleep(FIRST_TOKEN_S)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for _ in range(N_TOKENS):
        await response.write(_TOKEN)
        await asyncio.sleep(0.005)
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(body["prompt"]) // 4, "completion_tokens": N_TOKENS}
        event = json.dumps({"id": "x", "choices": [], "usage": usage})
        await response.write(b"data: " + event.encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


async def engine() -> None:
    """The stand-in engine's process."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.Event().wait()


async def load(url: str, prompts: list[bytes]) -> list[float]:
    """TTFT in seconds of every request, `N_STREAMS` at a time."""
    ttft_s: list[float] = []
    waiting = iter(prompts)

    async def stream(client: aiohttp.ClientSession) -> None:
        for body in waiting:
            started_s = time.perf_counter()
            async with client.post(f"{url}/v1/completions", data=body) as response:
                await response.content.readany()
                ttft_s.append(time.perf_counter() - started_s)
                await response.read()

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        await asyncio.gather(*(stream(client) for _ in range(N_STREAMS)))
    return ttft_s


def prompts_of(size_bytes: int, rng: random.Random) -> list[bytes]:
    """Request bodies: a shared head of a quarter, then text of its own."""
    head = "".join(rng.choices("abcdefgh ", k=size_bytes // 4))
    texts = (head + "".join(rng.choices("abcdefgh ", k=size_bytes - len(head))) for _ in range(80))
    bodies = [json.dumps({"model": "m", "prompt": text, "stream": True}).encode() for text in texts]
    return [bodies[i % len(bodies)] for i in range(N_REQUESTS)]


def cpu_s(pid: int) -> float:
    """User and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def measure(runs: int, direct: str, gate: str, gate_pid: int) -> None:
    rng = random.Random(1)
    for size_bytes in SIZES_BYTES:
        prompts = prompts_of(size_bytes, rng)
        seen: dict[str, list[tuple[float, float]]] = {"direct": [], "gate": []}
        before_s = cpu_s(gate_pid)
        for _ in range(runs):
            for name, url in (("direct", direct), ("gate", gate)):
                ttft_s = await load(url, prompts)
                seen[name].append((percentile(ttft_s, 0.5), percentile(ttft_s, 0.99)))
        cpu_ms = (cpu_s(gate_pid) - before_s) / (runs * N_REQUESTS) * 1e3
        for name, pairs in seen.items():
            p50_ms, p99_ms = (
                statistics.median(column) * 1e3 for column in zip(*pairs, strict=True)
            )
            print(f"{size_bytes:>7} B  {name:<6}  TTFT p50 {p50_ms:6.1f} ms  p99 {p99_ms:6.1f} ms")
        print(f"{size_bytes:>7} B  gate CPU {cpu_ms:.2f} ms per request")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        uvloop.run(engine())
        return
    children: list[subprocess.Popen[str]] = []

    def start(*command: str) -> str:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        url: str = json.loads(child.stdout.readline())["url"]
        return url

    try:
        with tempfile.TemporaryDirectory() as folder:
            direct = start(sys.executable, __file__, "--engine")
            config = Path(folder) / "gate.toml"
            config.write_text(
                f'router = "F/pd/g"\nport = 0\n[upstreams.local]\nurl = "{direct}"\n'
                f'[upstreams.remote.prfaas]\nurl = "{direct}"\n'
            )
            gate = start(sys.executable, "-m", "routing.gate", "--config", str(config))
            uvloop.run(measure(args.runs, direct, gate, children[-1].pid))
    finally:
        for child in children:
            child.terminate()
            child.wait()


if __name__ == "__main__":
    main()
