"""Which request this is: one id for whatever a request, a task or a command does.

It stands in answers, errors, logs and the audit, so that one line leads to the others.
"""

from __future__ import annotations

import re
import uuid
from contextvars import ContextVar
from typing import Final

HEADER: Final = "X-Request-ID"
_SAID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_current: ContextVar[str] = ContextVar("request_id", default="")


def begin(said: str = "") -> str:
    """Be in a new request from here on: the id that its caller gave it, if it is one, or a new one.

    Returns what the request is called.
    """
    request_id = said if _SAID.fullmatch(said) else uuid.uuid4().hex
    _current.set(request_id)
    return request_id


def current() -> str:
    """The id of the request that is under way; a command from a shell gets its own at first."""
    return _current.get() or begin()


def known() -> str:
    """The id of the request that is under way, or nothing outside of one."""
    return _current.get()
