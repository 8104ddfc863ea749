"""The gate as a process: ready line, wrong settings, port in use, SIGTERM under a stream."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.gate.peers import Upstream, until

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "routing.gate", "--config")


def config_file(tmp_path: Path, upstream: Upstream, *, extra: str = "", port: int = 0) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(
        f'router = "F/pd/g1"\nport = {port}\n{extra}\n[upstreams.local]\nurl = "{upstream.url}"\n'
    )
    return path


@asynccontextmanager
async def gate_process(path: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The process and the URL of its ready line."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, str(path), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        assert ready.keys() == {"ready", "url"}
        yield process, ready["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_it_serves_and_stops_only_after_its_streams(local: Upstream, tmp_path: Path) -> None:
    local.open.clear()
    async with (
        gate_process(config_file(tmp_path, local)) as (process, url),
        aiohttp.ClientSession() as client,
    ):
        async with client.get(url + "/healthz") as health:
            assert (await health.json())["state"] == "no_plan"
        request = asyncio.create_task(
            client.post(url + "/v1/completions", json={"prompt": "a", "stream": True})
        )
        await until(lambda: local.requests)
        process.send_signal(signal.SIGTERM)
        await until(lambda: _refuses(url))
        assert process.returncode is None
        local.open.set()
        response = await request
        body = await response.read()
        assert body == b"".join(local.stream) + b"data: [DONE]\n\n"
        assert await process.wait() == 0


async def test_streams_beyond_the_limit_are_cut(local: Upstream, tmp_path: Path) -> None:
    local.stall_after = 1
    path = config_file(tmp_path, local, extra="drain_s = 0")
    async with (
        gate_process(path) as (process, url),
        aiohttp.ClientSession() as client,
        client.post(url + "/v1/completions", json={"prompt": "a", "stream": True}) as response,
    ):
        await response.content.readany()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        await until(lambda: local.n_cancelled == 1)
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


def _refuses(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def run(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


async def test_wrong_settings_are_one_line_and_exit_2(local: Upstream, tmp_path: Path) -> None:
    path = config_file(tmp_path, local, extra="colour = 3")
    done = run(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{path}: colour = 3: unknown key\n"


async def test_a_file_that_is_no_tokenizer_is_exit_2(local: Upstream, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    done = run(config_file(tmp_path, local, extra='tokenizer_file = "tokenizer.json"'))
    assert done.returncode == 2
    assert "tokenizer_file = " in done.stderr


async def test_a_port_in_use_is_a_clear_error(local: Upstream, tmp_path: Path) -> None:
    done = run(config_file(tmp_path, local, port=local.port))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot listen on 127.0.0.1:{local.port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_gate_needs_neither_django_nor_numpy() -> None:
    heavy = (
        "django",
        "numpy",
        "scipy",
        "celery",
        "telemetry",
        "routing.lab",
        "routing.core.model.lengths",
    )
    script = (
        "import sys; import routing.gate.__main__;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_it_opens_as_many_files_as_it_is_allowed(local: Upstream, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = min(256, hard - 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        async with gate_process(config_file(tmp_path, local)) as (process, _):
            assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
