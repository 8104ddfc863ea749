"""The OpenAI surface of the lab: parse a completion, run it on a backend, write the answer.

Every emulated engine and both upstreams of a stack serve this same surface. Answers are always
exactly `max_tokens` long (as with `ignore_eos`), any model name is accepted and echoed, and the
stages of the time to first token are in `X-Lab-Stage-*` headers, in seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol
from uuid import uuid4

import msgspec
from aiohttp import web

from routing.lab import prompt as prompts
from routing.lab.engine import Generation, Half, Job, Misdirected, Move, Unavailable

MAX_BODY_BYTES = 64 * 2**20
MAX_MODEL_LEN_TOKENS = 1_048_576
DEFAULT_MAX_TOKENS = 16
MOVE_HEADER = "X-PrfaaS-Move"
WORD = "tok "
"""The text of one generated token."""


class Backend(Protocol):
    """What serves requests behind a port."""

    def generate(self, job: Job) -> AbstractAsyncContextManager[Generation]: ...


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct, kw_only=True):
    model: str = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int | None = None
    bootstrap_room: Annotated[int, msgspec.Meta(ge=0)] | None = None
    kv_transfer_params: dict[str, Any] | None = None


class CompletionBody(_Body):
    prompt: str | list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]]


class Part(msgspec.Struct):
    type: str
    text: str = ""


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return " ".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(_Body):
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


_completions = msgspec.json.Decoder(CompletionBody)
_chats = msgspec.json.Decoder(ChatBody)


class BadRequest(Exception):
    """HTTP 400; `param` is the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class Call:
    """A parsed request and how its answer looks. The prompt's text or ids are gone by now."""

    job: Job
    model: str
    chat: bool
    stream: bool
    include_usage: bool
    created_s: int

    def usage(self, cached_tokens: int, output: int) -> dict[str, Any]:
        prompt = self.job.prompt.tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }

    def envelope(self, choices: list[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        if self.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
            id = f"chatcmpl-{self.job.id}"
        else:
            kind, id = "text_completion", f"cmpl-{self.job.id}"
        return {
            "id": id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }

    def choice(self, text: str, *, finish: str | None, first: bool, chunk: bool) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
        if not self.chat:
            return {**choice, "text": text}
        role = {"role": "assistant"} if first else {}
        return {**choice, "delta" if chunk else "message": {**role, "content": text}}


def add_openai_routes(
    app: web.Application,
    backend: Backend,
    *,
    model_name: str,
    block_tokens: int,
    trouble: Callable[[], str | None],
    as_vllm: bool = True,
) -> None:
    """`/v1/completions`, `/v1/chat/completions`, `/v1/models`, `/health`; `as_vllm`: `/version`.

    `trouble()` says why the backend cannot serve now (health answers 503), or None.
    """

    async def completions(request: web.Request) -> web.StreamResponse:
        return await _serve(request, backend, _parse_completion, block_tokens)

    async def chat(request: web.Request) -> web.StreamResponse:
        return await _serve(request, backend, _parse_chat, block_tokens)

    async def models(request: web.Request) -> web.Response:
        model = {"id": model_name, "object": "model", "owned_by": "lab"}
        card = {**model, "max_model_len": MAX_MODEL_LEN_TOKENS}
        return web.json_response({"object": "list", "data": [card]})

    async def health(request: web.Request) -> web.Response:
        why = trouble()
        return web.Response(status=503 if why else 200, text=why or "")

    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    if as_vllm:
        app.router.add_get("/version", version)


def error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    """OpenAI's error shape."""
    body = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": body}, status=status)


def _parse_completion(raw: bytes, id: str, block_tokens: int) -> Call:
    body = _decode(_completions, raw)
    if isinstance(body.prompt, str):
        prompt = prompts.of_text(body.prompt, block_tokens=block_tokens)
    else:
        prompt = prompts.of_ids(body.prompt, block_tokens=block_tokens)
    return _call(body, id, prompt, body.max_tokens, chat=False)


def _parse_chat(raw: bytes, id: str, block_tokens: int) -> Call:
    body = _decode(_chats, raw)
    text = "\n".join(message.text() for message in body.messages)
    prompt = prompts.of_text(text, block_tokens=block_tokens)
    return _call(body, id, prompt, body.max_completion_tokens or body.max_tokens, chat=True)


def _decode(decoder: msgspec.json.Decoder[Any], raw: bytes) -> Any:
    try:
        body = decoder.decode(raw)
    except msgspec.ValidationError as exc:
        message, _, path = str(exc).partition(" - at `$")
        raise BadRequest(message, path.rstrip("`").lstrip(".") or None) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadRequest(f"the body is not valid JSON: {exc}") from None
    if body.n not in (None, 1):
        raise BadRequest(f"only n = 1 is served, got {body.n}", "n")
    return body


def _call(
    body: _Body, id: str, prompt: prompts.Prompt, max_tokens: int | None, *, chat: bool
) -> Call:
    output_tokens = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    if prompt.tokens == 0:
        raise BadRequest("the prompt has no tokens", "messages" if chat else "prompt")
    if prompt.tokens + output_tokens > MAX_MODEL_LEN_TOKENS:
        raise BadRequest(
            f"{prompt.tokens} + {output_tokens} tokens are more than {MAX_MODEL_LEN_TOKENS}",
            "max_tokens",
        )
    options = body.stream_options
    half = None
    if body.bootstrap_room is not None or body.kv_transfer_params is not None:
        half = Half(body.bootstrap_room, body.kv_transfer_params)
    return Call(
        job=Job(id, prompt, output_tokens, half=half),
        model=body.model,
        chat=chat,
        stream=body.stream,
        include_usage=options is not None and options.include_usage,
        created_s=int(time.time()),
    )


def parse_move(header: str | None) -> Move | None:
    """`A->B; tokens=N` of the request's header. Raises BadRequest naming it."""
    if header is None:
        return None
    found = re.fullmatch(r"\s*([^\s;>]+)->([^\s;>]+)\s*;\s*tokens=(\d{1,9})\s*", header)
    if found is None:
        raise BadRequest(f"{MOVE_HEADER} must be 'A->B; tokens=N', got {header!r}", MOVE_HEADER)
    return Move(source=found[1], target=found[2], tokens=int(found[3]))


async def _serve(
    request: web.Request,
    backend: Backend,
    parse: Callable[[bytes, str, int], Call],
    block_tokens: int,
) -> web.StreamResponse:
    id = request.headers.get("X-Request-Id") or uuid4().hex
    try:
        call = parse(await request.read(), id, block_tokens)
        job = replace(call.job, move=parse_move(request.headers.get(MOVE_HEADER)))
    except BadRequest as exc:
        return error(400, str(exc), "BadRequestError", exc.param)
    try:
        async with backend.generate(job) as generation:
            if call.stream:
                return await _stream(request, call, generation)
            return await _whole(call, generation)
    except Misdirected as exc:
        return error(400, f"{MOVE_HEADER}: {exc}", "BadRequestError", MOVE_HEADER)
    except Unavailable as exc:
        return error(503, str(exc), "ServiceUnavailable")
    except ConnectionResetError:
        # The client left between two chunks, and nobody is there to be answered.
        return web.Response(status=499)


def _headers(call: Call, generation: Generation) -> dict[str, str]:
    stages = {
        f"X-Lab-Stage-{name.replace('_', '-').title()}": f"{seconds:.6f}"
        for name, seconds in generation.stages_s.items()
    }
    return {"X-Request-Id": call.job.id, **generation.headers, **stages}


async def _whole(call: Call, generation: Generation) -> web.Response:
    async for _ in generation.tokens():
        pass
    output_tokens = _output_tokens(call, generation)
    choice = call.choice(WORD * output_tokens, finish="length", first=True, chunk=False)
    answer = call.envelope([choice], chunk=False) | generation.extra
    answer["usage"] = call.usage(generation.cached_tokens, output_tokens)
    return web.json_response(answer, headers=_headers(call, generation))


def _output_tokens(call: Call, generation: Generation) -> int:
    shorter = generation.output_tokens
    return call.job.output_tokens if shorter is None else shorter


async def _stream(request: web.Request, call: Call, generation: Generation) -> web.StreamResponse:
    """Server-sent events: one chunk each time more tokens are out, then usage, then [DONE]."""
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            **_headers(call, generation),
        }
    )
    await response.prepare(request)
    n_sent, output_tokens = 0, _output_tokens(call, generation)
    async with aclosing(generation.tokens()) as counts:
        async for n in counts:
            choice = call.choice(
                WORD * (n - n_sent),
                finish="length" if n == output_tokens else None,
                first=n_sent == 0,
                chunk=True,
            )
            await response.write(_event(call.envelope([choice], chunk=True)))
            n_sent = n
    last = b"data: [DONE]\n\n"
    if call.include_usage:
        usage = call.envelope([], chunk=True)
        usage["usage"] = call.usage(generation.cached_tokens, output_tokens)
        last = _event(usage) + last
    await response.write(last)
    await response.write_eof()
    return response


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
