"""One small completion through a router: that what it now lists serves, and not only says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from routing.adapters import http
from routing.adapters.surface import SurfaceError

TIMEOUT_S = 10.0
_TOKENS = 4


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model]


class _Completion(msgspec.Struct, frozen=True):
    choices: list[dict[str, Any]]


def complete(serves_at: str, prompt: str, *, headers: Mapping[str, str]) -> None:
    """Ask for a few tokens and wait for all of them. Raises SurfaceError, also for an answer
    without any."""
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": _TOKENS, "stream": False}
    model = _first_model(serves_at, headers)
    if model is not None:
        body["model"] = model
    url = f"{serves_at}/v1/completions"
    try:
        answer = http.ask("POST", url, body=body, headers=headers, timeout_s=TIMEOUT_S)
        choices = answer.read_as(_Completion).choices
    except http.HttpError as exc:
        raise SurfaceError(str(exc)) from None
    if not choices:
        raise SurfaceError(f"{url}: answers {answer.status} without a choice")


def _first_model(serves_at: str, headers: Mapping[str, str]) -> str | None:
    """The model to ask for: the first that is served; None where that is not told."""
    try:
        answer = http.ask("GET", f"{serves_at}/v1/models", headers=headers)
        models = answer.read_as(_Models).data
    except http.HttpError:
        return None
    return models[0].id if models else None
