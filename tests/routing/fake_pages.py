"""A program that answers what a test says, by method and path; with the server of `fake_router`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Answer = bytes | dict[str, Any] | list[Any] | tuple[int, Any] | Callable[[Any], Any]


class Pages:
    """`at` maps `GET /path` to what is answered: text, JSON, (status, that), or a function of the
    body. What is not there is a 404. A path counts without its query; `asked` has all of it."""

    def __init__(self, at: dict[str, Answer] | None = None) -> None:
        self.at: dict[str, Answer] = at or {}
        self.asked: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []

    def handle(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        found: Any = self.at.get(f"{method} {path.partition('?')[0]}", (404, {"error": "no page"}))
        if callable(found):
            found = found(body)
        status, content = found if isinstance(found, tuple) else (200, found)
        return status, content if isinstance(content, bytes) else msgspec.json.encode(content)
