"""The two programs as they are started: one ready line, one summary, clean ends, clear errors."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.lab.small import write_config

FAST: dict[str, Any] = {"prefill_s": 0.01, "slow_prefill_s": 0.02, "step_s": 0.001, "gbps": 100.0}


@asynccontextmanager
async def program(module: str, *argv: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"routing.lab.{module}", *argv, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_stack_says_where_it_is_and_stops_when_asked(tmp_path: Path) -> None:
    path = write_config(tmp_path, **FAST)
    async with program("stack", "--config", str(path)) as stack:
        assert stack.stdout is not None
        ready = json.loads(await stack.stdout.readline())
        assert ready["ready"] is True
        assert list(ready["remote"]) == ["far"]
        record = tmp_path / "record.jsonl"
        async with program(
            "load",
            *("--target", ready["local"], "--target", ready["remote"]["far"]),
            *("--scenario", str(tmp_path / "scenario.toml"), "--limit", "6", "--seed", "4"),
            *("--record", str(record)),
        ) as load:
            out, err = await load.communicate()
            assert load.returncode == 0, err.decode()
            summary = json.loads(out)
            assert (summary["requests"], summary["completed"]) == (6, 6)
            assert len(record.read_bytes().splitlines()) == 6
        stack.send_signal(signal.SIGTERM)
        out, _ = await stack.communicate()
        assert stack.returncode == 0
        assert out == b"", "stdout carries the ready line and nothing else"


async def test_an_interrupted_load_still_sums_up(tmp_path: Path) -> None:
    path = write_config(tmp_path, **{**FAST, "slow_prefill_s": 3600.0})
    async with program("stack", "--config", str(path)) as stack:
        assert stack.stdout is not None
        local = json.loads(await stack.stdout.readline())["local"]
        scenario = str(tmp_path / "scenario.toml")
        argv = ("--target", local, "--scenario", scenario, "--admin-port", "0")
        async with program("load", *argv) as load:
            assert load.stdout is not None
            assert json.loads(await load.stdout.readline())["ready"] is True
            load.send_signal(signal.SIGINT)
            out, _ = await load.communicate()
            assert load.returncode == 0
            summary = json.loads(out)
            assert summary["cancelled"] == summary["requests"]


async def test_a_bad_config_is_one_line_and_exit_2(tmp_path: Path) -> None:
    path = write_config(tmp_path, extra="truth_records = -1")
    async with program("stack", "--config", str(path)) as stack:
        out, err = await stack.communicate()
        assert (stack.returncode, out) == (2, b"")
        assert "stack.toml: truth_records: " in err.decode()
        assert len(err.splitlines()) == 1
