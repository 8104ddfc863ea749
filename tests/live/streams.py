"""Streams kept going from a thread of their own, each request judged by every byte of its answer.

A request is whole when it was answered 200, gave exactly the tokens it asked for, said that it
ended (`[DONE]`, last) and its connection ended properly. Prompts are new to every cache.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

DONE = b"data: [DONE]\n\n"


@dataclass
class Outcome:
    """One request: what came of it, as far as it came."""

    wanted_tokens: int
    status: int = 0
    got_tokens: int = 0
    ended: bool = False
    error: str = ""
    said: dict[str, str] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return (
            self.status == 200
            and self.ended
            and not self.error
            and self.got_tokens == self.wanted_tokens
        )


class _Choice(msgspec.Struct):
    text: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_chunk = msgspec.json.Decoder(_Chunk)


class Streams:
    """`n` streams over `gates`, begun on entering; on leaving each ends its last request.

    `prompt_tokens` and `output_tokens` are ranges that lengths are drawn from.
    """

    def __init__(
        self,
        gates: Sequence[str],
        n: int,
        *,
        prompt_tokens: tuple[int, int],
        output_tokens: tuple[int, int],
        seed: int,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self._gates, self._n, self._seed = gates, n, seed
        self._prompt_tokens, self._output_tokens = prompt_tokens, output_tokens
        self._ids = itertools.count()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self.n_open = 0

    def __enter__(self) -> Streams:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def broken(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if not outcome.whole]

    async def _run(self) -> None:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=60.0),
        ) as session:
            await asyncio.gather(*(self._stream(session, i) for i in range(self._n)))

    async def _stream(self, session: aiohttp.ClientSession, i: int) -> None:
        rng = random.Random(self._seed + i)
        gate = self._gates[i % len(self._gates)]
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        while not self._stopping.is_set():
            await self.request(session, gate, rng)

    async def request(self, session: aiohttp.ClientSession, gate: str, rng: random.Random) -> None:
        """One request of a stream; what came of it is among `outcomes`."""
        outcome = Outcome(rng.randint(*self._output_tokens))
        self.n_open += 1
        try:
            await self._ask(session, gate, outcome, rng.randint(*self._prompt_tokens))
        except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as exc:
            outcome.error = f"{type(exc).__name__}: {exc}"
        self.n_open -= 1
        self.outcomes.append(outcome)

    async def _ask(
        self, session: aiohttp.ClientSession, gate: str, outcome: Outcome, prompt_tokens: int
    ) -> None:
        first = next(self._ids) * 1_000_000 % 2_000_000_000
        body: dict[str, Any] = {
            "model": "m",
            "prompt": list(range(first, first + prompt_tokens)),
            "max_tokens": outcome.wanted_tokens,
            "stream": True,
        }
        async with session.post(f"{gate}/v1/completions", json=body) as answer:
            outcome.status = answer.status
            outcome.said = {k.lower(): v for k, v in answer.headers.items()}
            if answer.status != 200:
                outcome.error = (await answer.text())[:300]
                return
            held = b""
            async for data in answer.content.iter_any():
                *events, held = (held + data).split(b"\n\n")
                for event in events:
                    self._read(event + b"\n\n", outcome)
            if held:
                outcome.error = f"ends within an event: {held[:100]!r}"
                outcome.ended = False

    def _read(self, event: bytes, outcome: Outcome) -> None:
        if outcome.ended:
            outcome.error = f"goes on after its end: {event[:100]!r}"
            outcome.got_tokens = -1
        elif event == DONE:
            outcome.ended = True
        else:
            for choice in _chunk.decode(event.removeprefix(b"data: ")).choices:
                outcome.got_tokens += len(choice.text.split())
