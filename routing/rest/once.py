"""Requests that act, done once under an Idempotency-Key however often they are sent.

The answer is kept in the transaction of the change: either both are there or neither is. A second
request of the same key waits for the first to end and is given its answer again.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from django.db import transaction
from django.http import HttpResponse
from django.utils import timezone
from rest_framework import exceptions
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from routing.approvals.answers import proposed
from routing.approvals.asking import Proposed
from routing.refusals import Refused
from routing.repeats import KEPT, MAX_KEY
from routing.rest.models import Answer

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"
_KEPT_HEADERS: Final = ("ETag", "Location")


class SaidOnce(exceptions.APIException):
    """It was done, and what was answered is a secret."""

    status_code = 409
    default_code = "already_done"
    default_detail = "this was done under this key; its answer held a secret and is not repeated"


class KeyReused(Refused):
    """A key that stands for another request."""

    code = "key_reused"


def once(handler: Callable[..., Any]) -> Callable[..., Any]:
    """A view's `post`, `put`, `patch` or `delete` that is done once under a key."""
    return _once(handler, secret=False)


def once_in_secret(handler: Callable[..., Any]) -> Callable[..., Any]:
    """As `once`, for an answer that must not be kept: a repetition is told that it was done."""
    return _once(handler, secret=True)


def _once(handler: Callable[..., Any], *, secret: bool) -> Callable[..., Any]:
    @functools.wraps(handler)
    def answered(view: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
        key = request.headers.get(HEADER, "")
        if not key:
            return handler(view, request, *args, **kwargs)
        if len(key) > MAX_KEY or not key.isprintable():
            raise Refused(HEADER, key, f"must be at most {MAX_KEY} printable characters")
        with transaction.atomic():
            answer, is_new = _claim(holder(request), key, _asked(request), timezone.now())
            if not is_new:
                return _again(answer)
            try:
                response = handler(view, request, *args, **kwargs)
            except Proposed as found:
                response = proposed(found.kept())
            if response.status_code >= 400:
                transaction.set_rollback(True)
            else:
                _keep(answer, response, secret=secret)
            return response

    answered.once = True  # type: ignore[attr-defined]
    return answered


def forget(before: datetime.datetime) -> int:
    """Answers of before then are not given again."""
    return Answer.objects.filter(at__lt=before).delete()[0]


def _claim(holder: str, key: str, asked: str, now: datetime.datetime) -> tuple[Answer, bool]:
    """The answer under this key, and whether it is yet to be found. Raises KeyReused."""
    Answer.objects.filter(holder=holder, key=key, at__lt=now - KEPT).delete()
    answer, is_new = Answer.objects.get_or_create(
        holder=holder, key=key, defaults={"asked": asked, "at": now}
    )
    if answer.asked != asked:
        raise KeyReused(HEADER, key, "was used for another request")
    return answer, is_new


def _keep(answer: Answer, response: Any, *, secret: bool) -> None:
    answer.status = response.status_code
    answer.headers = {n: response.headers[n] for n in _KEPT_HEADERS if n in response.headers}
    if not secret:
        data = response.data
        answer.body = "" if data is None else JSONRenderer().render(data).decode()
    answer.save()


def _again(answer: Answer) -> HttpResponse:
    """Raises SaidOnce."""
    if answer.body is None:
        raise SaidOnce
    kind = "application/json" if answer.body else None
    response = HttpResponse(answer.body, status=answer.status, content_type=kind)
    for name, value in {**answer.headers, REPLAYED: "true"}.items():
        response.headers[name] = value
    return response


def holder(request: Request) -> str:
    """Whose key it is: a person's or a token's."""
    token = getattr(request.user, "token", None)
    return f"user {request.user.pk}" if token is None else f"token {token.pk}"


def _asked(request: Request) -> str:
    """What makes two requests the same: method, address, what was seen, body."""
    said = [
        request.method,
        request.get_full_path(),
        request.headers.get("If-Match"),
        request.data,
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
