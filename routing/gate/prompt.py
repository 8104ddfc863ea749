"""What a request asks to prefill, as bytes that can be measured, hashed and compared.

A prompt is one or more *pieces*: UTF-8 text, or token ids packed as little-endian uint32. Both are
cut into blocks of `4 * block_tokens` bytes, so a block is exactly `block_tokens` ids, or about as
many tokens of English text. A batch (`prompt` a list) is judged as one request of summed length.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from dataclasses import dataclass
from typing import Literal

import msgspec

Endpoint = Literal["completions", "chat"]
Fields = dict[str, msgspec.Raw]

BYTES_PER_ID = 4
_MEDIA_DIGEST_BYTES = 16
_FIELD_END = b"\x1f"
_MESSAGE_END = b"\x1e"
_JSON_SPACE = b" \t\r\n"
_LAID_OUT_OTHERWISE = frozenset(
    {
        *("tools", "functions", "documents", "chat_template", "chat_template_kwargs"),
        *("add_generation_prompt", "continue_final_message"),
    }
)


class BadRequest(ValueError):
    """A body that is not a JSON object: no upstream could make sense of it either."""


@dataclass(frozen=True)
class Prompt:
    """`pieces` hold text (`unit` byte) or packed ids (`unit` token).

    `n_media` counts image, audio and other parts without text; in the pieces each stands as a
    digest, so that two prompts with different images never share a prefix behind them. `salt`
    separates what can never share KV: endpoint, model, cache_salt.

    `n_plain` is the number of messages of a chat that holds roles and texts only, else 0.
    `is_laid_out`: the ids are those of the model's own chat template.
    """

    endpoint: Endpoint
    model: str
    unit: Literal["byte", "token"]
    pieces: tuple[bytes, ...]
    n_media: int
    salt: bytes
    n_plain: int = 0
    is_laid_out: bool = False

    @property
    def n_bytes(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    @property
    def modality(self) -> Literal["text", "media"]:
        """`media` where any part is not text."""
        return "media" if self.n_media else "text"


_fields = msgspec.json.Decoder(Fields)
_text = msgspec.json.Decoder(str)
_texts = msgspec.json.Decoder(list[str])
_ids = msgspec.json.Decoder(list[int])
_batch_of_ids = msgspec.json.Decoder(list[list[int]])
_objects = msgspec.json.Decoder(list[Fields])


def parse_body(body: bytes) -> Fields:
    """The top-level fields with their values still as the client wrote them."""
    try:
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BadRequest(f"the body is not a JSON object: {exc}") from None


def parse_prompt(endpoint: Endpoint, fields: Fields) -> Prompt | None:
    """The prompt, or None when there is none the gate can measure (the upstream then judges it)."""
    try:
        model = _optional_text(fields, "model")
        salt = salt_of(endpoint, model, _optional_text(fields, "cache_salt"))
        if endpoint == "chat":
            stream, n_media, n_plain = _chat(fields)
            return Prompt(endpoint, model, "byte", (stream,), n_media, salt, n_plain)
        unit, pieces = _completion(fields["prompt"])
    except (KeyError, OverflowError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return Prompt(endpoint, model, unit, pieces, 0, salt)


def salt_of(endpoint: Endpoint, model: str, cache_salt: str) -> bytes:
    """What keys of one prefix cache must not share with others: `Prompt.salt`."""
    return msgspec.json.encode([endpoint, model, cache_salt])


def wants_stream(fields: Fields) -> bool:
    """Whether the client asked for server-sent events."""
    return "stream" in fields and bytes(fields["stream"]) == b"true"


def pack_ids(ids: list[int]) -> bytes:
    """Token ids as bytes. Raises OverflowError for one outside 0..2^32-1."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _optional_text(fields: Fields, name: str) -> str:
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return ""
    return _text.decode(raw)


def _completion(raw: msgspec.Raw) -> tuple[Literal["byte", "token"], tuple[bytes, ...]]:
    start = bytes(memoryview(raw)[:64]).translate(None, _JSON_SPACE)
    if start.startswith(b'"'):
        return "byte", (_text.decode(raw).encode(),)
    if start.startswith(b'["'):
        return "byte", tuple(text.encode() for text in _texts.decode(raw))
    if start.startswith(b"[["):
        return "token", tuple(pack_ids(ids) for ids in _batch_of_ids.decode(raw))
    return "token", (pack_ids(_ids.decode(raw)),)


def _chat(fields: Fields) -> tuple[bytes, int, int]:
    """Messages in the order templates lay them out: tools first, then role and content each; how
    many parts are media, and how many messages there are if all are plain."""
    stream = bytearray()
    n_media = 0
    if "tools" in fields:
        stream += memoryview(fields["tools"])
        stream += _MESSAGE_END
    messages = _objects.decode(fields["messages"])
    is_plain = fields.keys().isdisjoint(_LAID_OUT_OTHERWISE)
    for message in messages:
        for name, raw in message.items():
            if name != "content":
                stream += memoryview(raw)
                stream += _FIELD_END
        content = message.get("content")
        is_plain = is_plain and _is_plain(message, content)
        n_media += _content(content, stream)
        stream += _MESSAGE_END
    return bytes(stream), n_media, len(messages) if is_plain else 0


def _is_plain(message: Fields, content: msgspec.Raw | None) -> bool:
    return (
        len(message) == 2
        and "role" in message
        and content is not None
        and bytes(memoryview(content)[:1]) == b'"'
    )


def plain_messages(prompt: Prompt) -> list[tuple[str, str]] | None:
    """Role and text of each message of a plain chat, else None."""
    if not prompt.n_plain:
        return None
    messages = prompt.pieces[0].split(_MESSAGE_END)[:-1]
    pairs = [message.split(_FIELD_END) for message in messages]
    # A text with these bytes in it is nobody's everyday chat.
    if len(pairs) != prompt.n_plain or any(len(pair) != 2 for pair in pairs):
        return None
    try:
        return [(_text.decode(role), text.decode()) for role, text in pairs]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _content(raw: msgspec.Raw | None, stream: bytearray) -> int:
    """Appends one message's content; says how many of its parts are media."""
    if raw is None or bytes(memoryview(raw)[:4]) == b"null":
        return 0
    if bytes(memoryview(raw)[:1]) != b"[":
        stream += _text.decode(raw).encode()
        return 0
    n_media = 0
    for part in _objects.decode(raw):
        if "text" in part:
            stream += _text.decode(part["text"]).encode()
            continue
        n_media += 1
        digest = hashlib.blake2b(digest_size=_MEDIA_DIGEST_BYTES)
        for value in part.values():
            digest.update(memoryview(value))
        stream += digest.digest()
    return n_media
