"""What the agent costs: CPU of its process over wall time. Run by hand.

    .venv/bin/python -m tests.bench.agent_cost [--engines 8] [--interval-s 1] [--duration-s 60]
        [--text FILE] [--engine auto]

Engines and console are one process, the agent another. Every engine answers with a text of the size
and shape that vLLM 0.33 has (about 110 families, 520 series, 70 KB), or with `--text`, in which
every counter and bucket has grown since the scrape before. The console acknowledges at once. The
first 10 s are not counted: they hold the start of the interpreter. Figures are of the agent's own
`utime + stime`, which is what `top` shows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from telemetry import wire

ROOT = Path(__file__).parents[2]
WARM_UP_S = 10.0
N_VARIANTS = 32
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"^(vllm:\S+|sglang:\S+) (\d+(?:\.\d+)?)$", re.MULTILINE)

HISTOGRAMS = {
    # What a map reads.
    "time_to_first_token_seconds": 22,
    "inter_token_latency_seconds": 20,
    "e2e_request_latency_seconds": 20,
    "request_queue_time_seconds": 20,
    "request_prefill_time_seconds": 20,
    "request_prefill_kv_computed_tokens": 18,
    # What none does.
    "request_decode_time_seconds": 20,
    "request_inference_time_seconds": 20,
    "request_time_per_output_token_seconds": 20,
    "iteration_tokens_total": 14,
    "request_prompt_tokens": 16,
    "request_generation_tokens": 16,
    "request_max_num_generation_tokens": 16,
    "request_params_n": 6,
    "request_params_max_tokens": 16,
    "nixl_xfer_time_seconds": 14,
    "nixl_post_time_seconds": 14,
    "nixl_bytes_transferred": 12,
    "nixl_num_descriptors": 10,
}
COUNTERS = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "mm_cache_queries_total",
    "mm_cache_hits_total",
    "nixl_num_failed_transfers_total",
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "lora_requests")
OTHERS = 60


def text_like_vllm() -> str:
    """A text of vLLM's size and shape, written here: names of families, buckets, HELP lines."""
    labels = 'engine="0",model_name="/models/some-model-70b-instruct"'
    lines = [
        "# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.",
        "# TYPE process_start_time_seconds gauge",
        "process_start_time_seconds 1.79595e+09",
    ]

    def family(name: str, kind: str, samples: list[str]) -> None:
        about = f"{name.replace('_', ' ')}, as the engine counts it since it was started"
        lines.extend([f"# HELP vllm:{name} {about}.", f"# TYPE vllm:{name} {kind}", *samples])

    for name in GAUGES:
        family(name, "gauge", [f"vllm:{name}{{{labels}}} 0.5"])
    for name in COUNTERS:
        family(name, "counter", [f"vllm:{name}{{{labels}}} 1000.0"])
    for name, n_buckets in HISTOGRAMS.items():
        bounds = [f"{0.001 * 2**i:g}" for i in range(n_buckets)]
        samples = [
            f'vllm:{name}_bucket{{{labels},le="{bound}"}} {10.0 * i}'
            for i, bound in enumerate([*bounds, "+Inf"], 1)
        ]
        count = 10.0 * (n_buckets + 1)
        family(
            name,
            "histogram",
            [
                *samples,
                f"vllm:{name}_count{{{labels}}} {count}",
                f"vllm:{name}_sum{{{labels}}} {count}",
            ],
        )
        created = [f"vllm:{name}_created{{{labels}}} 1.79595e+09"]
        family(f"{name}_created", "gauge", created)
    for i in range(OTHERS):
        family(f"other_family_{i}_total", "counter", [f"vllm:other_family_{i}{{{labels}}} 7.0"])
    return "\n".join(lines) + "\n"


def variants(text: str) -> list[bytes]:
    """The text as it grows: each number above one a little larger from variant to variant."""

    def grown(step: int) -> bytes:
        def grow(match: re.Match[str]) -> str:
            value = float(match[2])
            return f"{match[1]} {value + step * max(1.0, value // 50) if value > 1.0 else value}"

        return _SAMPLE.sub(grow, text).encode()

    return [grown(step) for step in range(N_VARIANTS)]


class _Engine(asyncio.Protocol):
    """Answers whatever is asked with the next variant."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies, self._n = bodies, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._n += 1
        body = self._bodies[min(self._n, N_VARIANTS * 1000) % N_VARIANTS]
        if b"/version" in data:
            body = b'{"version": "0.33.0"}'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}"
        self._transport.write(head.encode() + b"\r\n\r\n" + body)  # type: ignore[attr-defined]


async def _measure(options: argparse.Namespace) -> dict[str, Any]:
    text = options.text.read_text() if options.text else text_like_vllm()
    bodies = variants(text)
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: _Engine(bodies), "127.0.0.1", 0)
        for _ in range(options.engines)
    ]
    counts = {"posts": 0, "bytes": 0, "samples": 0, "failed": 0}

    async def ingest(request: web.Request) -> web.Response:
        counts["bytes"] += request.content_length or 0
        batch = wire.decode(await request.read())
        counts["posts"] += 1
        counts["samples"] += len(batch.instances)
        counts["failed"] += sum(sample.state != "ok" for sample in batch.instances)
        return web.json_response({"acked_seq": batch.seq})

    console = web.Application(client_max_size=1 << 26)
    console.router.add_post("/api/v1/ingest", ingest)
    runner = web.AppRunner(console, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.toml"
        path.write_text(_toml(options, [s.sockets[0].getsockname()[1] for s in servers], port))
        command = [sys.executable, "-m", "telemetry.agent", "--config", str(path)]
        agent = subprocess.Popen(command, cwd=ROOT)
        try:
            await asyncio.sleep(WARM_UP_S)
            counts.update(dict.fromkeys(counts, 0))
            began_s, before_s = time.monotonic(), _cpu_s(agent.pid)
            await asyncio.sleep(options.duration_s)
            wall_s, cpu_s = time.monotonic() - began_s, _cpu_s(agent.pid) - before_s
            rss_bytes = _rss_bytes(agent.pid)
        finally:
            agent.terminate()
            await asyncio.to_thread(agent.wait)
    await runner.cleanup()
    for server in servers:
        server.close()
    return {
        "engines": options.engines,
        "interval_s": options.interval_s,
        "text_bytes": len(bodies[0]),
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 3),
        "core_ratio": round(cpu_s / wall_s, 5),
        "ms_per_reading": round(1e3 * cpu_s / max(counts["samples"], 1), 3),
        "rss_mib": round(rss_bytes / 2**20, 1),
        **counts,
    }


def _toml(options: argparse.Namespace, ports: list[int], console_port: int) -> str:
    rng = random.Random(1)
    head = {
        "agent": f"bench-{rng.randrange(1000)}",
        "console_url": f"http://127.0.0.1:{console_port}",
        "token": "pf_x_y",
        "spool_dir": "spool",
        "interval_s": options.interval_s,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in head.items()]
    for i, port in enumerate(ports):
        instance = {
            "id": f"f/pd/d{i}",
            "role": "decode",
            "engine": options.engine,
            "url": f"http://127.0.0.1:{port}/metrics",
        }
        lines += ["[[instances]]", *(f"{k} = {json.dumps(v)}" for k, v in instance.items())]
    return "\n".join(lines)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--interval-s", type=float, default=1.0)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--text", type=Path, help="a /metrics text to serve instead")
    parser.add_argument("--engine", default="auto")
    print(json.dumps(asyncio.run(_measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
