"""What the API answers when it cannot, as exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ClientError(Exception):
    """Something did not happen; the text says what, for people."""


class Unreachable(ClientError):
    """No answer: the console is away, or not at this address."""


class ApiError(ClientError):
    """An answer that says no. `errors` is by field, `code` what it is called for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        errors: Mapping[str, list[str]] | None = None,
        code: str = "",
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code = status, message, code
        self.errors, self.request_id = dict(errors or {}), request_id


class NotAllowed(ApiError):
    """No token, or one that may not do this (401, 403)."""


class NotFound(ApiError):
    """There is no such thing, or none that may be seen (404)."""


class Outdated(ApiError):
    """It was changed meanwhile, or its version was not said: read it again (412, 428)."""


class Frozen(ApiError):
    """Not now: something else forbids it (409)."""


class Refused(ApiError):
    """It cannot be meant as it was asked (other 4xx)."""


class TooMany(ApiError):
    """Asked too often (429)."""


class Failed(ApiError):
    """The console failed (5xx)."""


_BY_STATUS: dict[int, type[ApiError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Frozen,
    412: Outdated,
    428: Outdated,
    429: TooMany,
}


def error_of(status: int, body: Any) -> ApiError:
    """The exception of an answer; a body of another shape is somebody's in between."""
    kind = _BY_STATUS.get(status, Failed if status >= 500 else Refused)
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        return kind(status, f"answered {status}, and not as a console does")
    errors = body.get("errors")
    return kind(
        status,
        body["error"],
        errors=errors if isinstance(errors, dict) else {},
        code=str(body.get("code", "")),
        request_id=str(body.get("request_id", "")),
    )
