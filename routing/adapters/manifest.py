"""A file that lists instances for a program that follows it: read whole, changed by one rename.

    {"version": 1, "workers": [{"url": ..., "worker_type": "prefill" | "decode", ...}, ...]}

Fields that are not known here are kept as they are. An empty list is obeyed by those who follow it,
so a change that would leave none of a role is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from routing.adapters import places
from routing.adapters.places import Url
from routing.adapters.surface import Refused, Role, SurfaceError
from routing.core.urls import base_url

MAX_BYTES = 1_000_000


class Entry(msgspec.Struct, frozen=True):
    url: Url
    worker_type: Role


class _Document(msgspec.Struct, frozen=True):
    version: int
    workers: list[Entry]


def read(path: Path, *, router: str) -> dict[str, Entry]:
    """What it lists, by base URL. Raises SurfaceError naming the file and the field."""
    return _parse(path, _load(path, router), router)[0]


def change(path: Path, url: str, entry: dict[str, Any] | None, *, router: str) -> None:
    """List the instance with the fields of `entry`, or not at all. Saying it twice is writing once.

    Raises Refused for the last one of a role, and SurfaceError, also for a file that somebody else
    changes at the same moment.
    """
    url = base_url(url)
    try:
        with places.changing(path):
            raw = _load(path, router)
            entries, document = _parse(path, raw, router)
            _not_last(entries, url, entry, what=f"{router}: {url}", of=path.name)
            workers = _changed(document["workers"], url, entry)
            if workers != document["workers"]:
                document["workers"] = workers
                written = msgspec.json.format(msgspec.json.encode(document)) + b"\n"
                places.replace_file(path, written, instead_of=raw)
    except OSError as exc:
        raise SurfaceError(f"{router}: {path}: {exc.strerror}") from None


def _not_last(
    entries: dict[str, Entry], url: str, entry: dict[str, Any] | None, *, what: str, of: str
) -> None:
    if url not in entries:
        return
    had = entries[url].worker_type
    keeps_it = entry is not None and entry["worker_type"] == had
    if not keeps_it and sum(each.worker_type == had for each in entries.values()) == 1:
        raise Refused(f"{what} is the last {had} of {of}")


def _changed(
    workers: list[dict[str, Any]], url: str, entry: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """`workers` with the instance as `entry` in its place, or at the end. What else is said of it
    stays, but for its bootstrap port, which is of a prefill."""
    found = next((i for i, each in enumerate(workers) if base_url(each["url"]) == url), None)
    if entry is None:
        return [each for i, each in enumerate(workers) if i != found]
    if found is None:
        return [*workers, entry]
    stood = workers[found]
    if stood["worker_type"] != entry["worker_type"]:
        stood = {key: value for key, value in stood.items() if key != "bootstrap_port"}
    return [*workers[:found], {**stood, **entry, "url": stood["url"]}, *workers[found + 1 :]]


def _load(path: Path, router: str) -> bytes:
    try:
        return places.content(path, max_bytes=MAX_BYTES)
    except OSError as exc:
        raise SurfaceError(f"{router}: {path}: {exc.strerror}") from None


def _parse(path: Path, raw: bytes, router: str) -> tuple[dict[str, Entry], dict[str, Any]]:
    """What it lists, and all of it."""
    try:
        known = msgspec.json.decode(raw, type=_Document)
        document: dict[str, Any] = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SurfaceError(f"{router}: {path}: {exc}") from None
    if known.version != 1:
        raise SurfaceError(f"{router}: {path}: version = {known.version}: only 1 is known")
    found: dict[str, Entry] = {}
    for entry in known.workers:
        url = base_url(entry.url)
        if url in found:
            raise SurfaceError(f"{router}: {path}: {entry.url} is listed twice")
        found[url] = entry
    return found, document
