"""Programs of the host whose output is read: with a deadline and a size limit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from telemetry.agent.http import ReadError

MAX_BYTES = 64 * 1024 * 1024


async def output(command: Sequence[str], *, timeout_s: float) -> str:
    """What `command` prints. Raises ReadError, also where it ends with an error."""
    try:
        program = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as exc:
        raise ReadError(f"{command[0]} cannot be run: {exc.strerror}") from None
    assert program.stdout is not None, "it was asked for a pipe"
    printed = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            while chunk := await program.stdout.read(64 * 1024):
                printed += chunk
                if len(printed) > MAX_BYTES:
                    raise ReadError(f"{command[0]} prints more than {MAX_BYTES} bytes")
            code = await program.wait()
    except TimeoutError:
        raise ReadError(f"{command[0]} did not end within {timeout_s:g} s", "slow") from None
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    if code != 0:
        raise ReadError(f"{command[0]} ended with {code}")
    return printed.decode("utf-8", errors="replace")
