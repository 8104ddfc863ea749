"""Send one completion and say what came back, as one flat record."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

CANCELLED = "cancelled"
GATE_HEADER = "x-prfaas-"


@dataclass
class Result:
    """`status` is HTTP's, 0 where there was no answer; `error` the beginning of its body where it
    was not 200, or what else went wrong; `at_s` epoch seconds; `gate` holds the
    `X-PrfaaS-*` headers by their names after the prefix, dashes as underscores."""

    id: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    row: int | None = None
    status: int = 0
    error: str | None = None
    ttft_s: float | None = None
    total_s: float | None = None
    received_tokens: int | None = None
    cached_tokens: int | None = None
    gate: dict[str, str] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        return self.status == 200 and self.received_tokens == self.output_tokens

    @property
    def side(self) -> str | None:
        return self.gate.get("side")

    def document(self) -> dict[str, Any]:
        """What is written to the record file; a header that is a whole number is one."""
        gate: dict[str, Any] = {
            name: int(value) if value.isdecimal() else value for name, value in self.gate.items()
        }
        known = {
            name: gate.pop(name, None)
            for name in ("side", "reason", "plan", "uncached_tokens", "length_source")
        }
        return {
            "id": self.id,
            "at_s": self.at_s,
            "row": self.row,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "status": self.status,
            "error": self.error,
            "completed": self.completed,
            "ttft_s": self.ttft_s,
            "total_s": self.total_s,
            "cached_tokens": self.cached_tokens,
            **known,
            "gate": gate,
        }


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    usage: _Usage | None = None


_chunks = msgspec.json.Decoder(_Chunk)


def completion_body(prompt: list[int] | str, *, output_tokens: int, model: str) -> bytes:
    """A streamed completion of exactly that many tokens, with usage at its end."""
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    )


async def send(session: aiohttp.ClientSession, url: str, result: Result, body: bytes) -> None:
    """POST the completion, once, and fill `result`. A failure is an outcome, not an exception."""
    loop = asyncio.get_running_loop()
    headers = {"Content-Type": "application/json", "X-Request-Id": result.id}
    result.at_s, start_s = time.time(), loop.time()
    try:
        async with session.post(f"{url}/v1/completions", data=body, headers=headers) as response:
            result.status = response.status
            result.gate = {
                name.lower().removeprefix(GATE_HEADER).replace("-", "_"): value
                for name, value in response.headers.items()
                if name.lower().startswith(GATE_HEADER)
            }
            if response.status == 200:
                await _read_stream(response, result, start_s)
            else:
                result.error = (await response.text())[:500]
    except (aiohttp.ClientError, msgspec.MsgspecError, OSError) as exc:
        result.error = f"{type(exc).__name__}: {exc}"
    except asyncio.CancelledError:
        result.error = CANCELLED
        raise
    finally:
        result.total_s = loop.time() - start_s


async def _read_stream(response: aiohttp.ClientResponse, result: Result, start_s: float) -> None:
    loop, tail = asyncio.get_running_loop(), b""
    async for data in response.content.iter_any():
        if result.ttft_s is None:
            result.ttft_s = loop.time() - start_s
        tail = (tail + data)[-4096:]
    if b"data: [DONE]" not in tail:
        result.error = "the stream ended early"
        return
    for line in reversed(tail.splitlines()):
        if line.startswith(b"data: {") and (usage := _chunks.decode(line[6:]).usage):
            result.received_tokens = usage.completion_tokens
            details = usage.prompt_tokens_details
            result.cached_tokens = details.cached_tokens if details else None
            if not result.completed:
                result.error = f"{usage.completion_tokens} of {result.output_tokens} tokens came"
            return
    result.error = "the stream had no usage"
