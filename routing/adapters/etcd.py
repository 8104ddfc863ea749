"""etcd over its own HTTP gateway (`/v3/kv/...`, etcd 3.4 and later): JSON with base64 inside.

Counts are strings in that JSON, as protocol buffers have 64 bits; a field that is zero is left out.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from routing.adapters import answers
from routing.adapters.surface import SurfaceError

MAX_KEYS = 10_000


@dataclass(frozen=True)
class Entry:
    """One key. `revision` is the store's own count of changes when it was last written."""

    key: str
    value: bytes
    revision: int


class _Kv(msgspec.Struct, frozen=True):
    key: str
    value: str = ""
    mod_revision: str = "0"


class _Range(msgspec.Struct, frozen=True):
    kvs: list[_Kv] = []
    more: bool = False


class _Header(msgspec.Struct, frozen=True):
    revision: str = "0"


class _Txn(msgspec.Struct, frozen=True):
    header: _Header = _Header()
    succeeded: bool = False


def prefix(url: str, keys_under: str) -> dict[str, Entry]:
    """Every key that begins with `keys_under`, all of one revision. Raises SurfaceError."""
    asked = {"key": _coded(keys_under), "range_end": _coded(_after(keys_under)), "limit": MAX_KEYS}
    at = f"{url}/v3/kv/range"
    found = answers.post(at, asked, _Range)
    if found.more:
        raise SurfaceError(f"{at}: more than {MAX_KEYS} keys under {keys_under}")
    return {entry.key: entry for entry in (_entry(at, kv) for kv in found.kvs)}


def put_if(url: str, key: str, value: str, *, at: Mapping[str, int]) -> int | None:
    """Write `key` if the keys in `at` still have these revisions (0: it does not exist).

    The revision it has then; None: one of them was written since. Raises SurfaceError.
    """
    same = [
        {"key": _coded(each), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
        for each, revision in at.items()
    ]
    write = {"requestPut": {"key": _coded(key), "value": _coded(value)}}
    to = f"{url}/v3/kv/txn"
    answer = answers.post(to, {"compare": same, "success": [write]}, _Txn)
    return _count(to, "header.revision", answer.header.revision) if answer.succeeded else None


def _entry(at: str, kv: _Kv) -> Entry:
    try:
        key = base64.b64decode(kv.key, validate=True).decode()
        value = base64.b64decode(kv.value, validate=True)
    except (binascii.Error, UnicodeDecodeError) as exc:
        raise SurfaceError(f"{at}: kvs[].key={kv.key!r}: {exc}") from None
    return Entry(key, value, _count(at, "kvs[].mod_revision", kv.mod_revision))


def _count(at: str, field: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 20):
        raise SurfaceError(f"{at}: {field}={value!r}: not a count")
    return int(value)


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _after(text: str) -> str:
    """The first key behind all that begin with `text`, which ends with a plain character."""
    return text[:-1] + chr(ord(text[-1]) + 1)
