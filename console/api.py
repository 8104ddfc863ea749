"""How the API answers when it cannot: one error shape, whatever went wrong and wherever.

`{"ok": false, "error": "one sentence", "errors": {"field": ["why"]}, "status": 422, "code":
"invalid", "request_id": "…"}`: the sentence is for people, the code for programs.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig
from django.db import OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.template import loader
from django.utils import timezone
from django.views.defaults import page_not_found, server_error
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework import exceptions, status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from console import live_source
from console.auth import RolePermission
from routing import request_ids
from routing.approvals.answers import proposed
from routing.approvals.asking import Proposed
from routing.commands import Outdated, Refused
from routing.models import Fleet
from routing.windows.refusing import FrozenNow

log = logging.getLogger(__name__)


CODES: Final = {
    400: "bad_request",
    401: "not_authenticated",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    412: "changed_meanwhile",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    428: "precondition_required",
    429: "too_many_requests",
    500: "failed",
    502: "no_history",
    503: "unavailable",
}
"""What an error is called by its status. An exception with a `code` of its own says it closer."""


def error_body(
    message: str, status: int, errors: dict[str, list[str]] | None = None, code: str = ""
) -> dict:
    """The one shape of every error."""
    return {
        "ok": False,
        "error": message,
        "errors": errors or {},
        "status": status,
        "code": code or CODES[status],
        "request_id": request_ids.known(),
    }


def error_response(exc: Exception, context: dict[str, Any]) -> Response:
    """DRF's exception handler. What nobody foresaw is logged here, once, and answers 500."""
    if request := context.get("request"):
        # Whatever else was asked for (a table, a stream): errors are JSON.
        request.accepted_renderer = JSONRenderer()
        request.accepted_media_type = JSONRenderer.media_type
    return proposed(exc.kept()) if isinstance(exc, Proposed) else _error(exc, context)


def _error(exc: Exception, context: dict[str, Any]) -> Response:
    own = getattr(exc, "code", "")
    if isinstance(exc, Refused):
        code = status.HTTP_422_UNPROCESSABLE_ENTITY
        if isinstance(exc, Outdated):
            code = status.HTTP_412_PRECONDITION_FAILED
        elif isinstance(exc, FrozenNow):
            code = status.HTTP_409_CONFLICT
        body = error_body(str(exc), code, {exc.field: [exc.message]}, own)
        return Response(body, status=code)
    if isinstance(exc, RequestDataTooBig):
        return Response(error_body("the body is too large", 413), status=413)
    if isinstance(exc, Http404):
        exc = exceptions.NotFound(*exc.args)
    elif isinstance(exc, PermissionDenied):
        exc = exceptions.PermissionDenied(*exc.args)
    if isinstance(exc, exceptions.ValidationError):
        code = status.HTTP_422_UNPROCESSABLE_ENTITY
        errors = dict(_flat(exc.detail))
        field, messages = next(iter(errors.items()))
        return Response(error_body(f"{field}: {messages[0]}", code, errors), status=code)
    if isinstance(exc, exceptions.APIException):
        headers = {}
        if getattr(exc, "auth_header", None):
            headers["WWW-Authenticate"] = exc.auth_header
        if getattr(exc, "wait", None):
            headers["Retry-After"] = f"{exc.wait:.0f}"
        body = error_body(str(exc.detail), exc.status_code, code=own)
        return Response(body, status=exc.status_code, headers=headers)
    path = context["request"].path if context.get("request") else "?"
    log.error("%s failed", path, exc_info=exc)
    if isinstance(exc, OperationalError):
        return Response(error_body("the database does not answer", 503), status=503)
    return Response(error_body("the console failed on this request; see its log", 500), status=500)


class TokenScheme(OpenApiAuthenticationExtension):
    """How the schema describes `console.auth.TokenAuthentication`."""

    target_class = "console.auth.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "A token: Bearer pf_…"}


class SchemaView(SpectacularAPIView):
    """The schema of this API, for whoever may read anything of it."""

    across_fleets = True
    permission_classes = (RolePermission,)


class SnapshotView(APIView):
    """The live view's newest frame, for pages whose socket is away and for scripts."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, fleet: str) -> Response:
        get_object_or_404(Fleet, pk=fleet)
        return Response(live_source.snapshot(fleet, now_s=timezone.now().timestamp()))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler404: addresses under /api/ answer in the API's shape, pages as a page."""
    if request.path.startswith("/api/"):
        return JsonResponse(error_body(f"there is no {request.path}", 404), status=404)
    return page_not_found(request, exception)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's handler400: a Host we do not answer to, a query that cannot be meant."""
    if request.path.startswith("/api/"):
        why = str(exception) if isinstance(exception, BadRequest) else "the request is not valid"
        return JsonResponse(error_body(why, 400), status=400)
    # Without the request: nobody is signed in yet, and the frame around pages asks who is.
    return HttpResponse(loader.get_template("400.html").render(), status=400)


def failed(request: HttpRequest) -> HttpResponse:
    """Django's handler500: what failed outside the API's views; Django has logged it."""
    away = isinstance(sys.exception(), OperationalError)
    if request.path.startswith("/api/"):
        if away:
            return JsonResponse(error_body("the database does not answer", 503), status=503)
        message = "the console failed on this request; see its log"
        return JsonResponse(error_body(message, 500), status=500)
    if away:
        return HttpResponse(loader.get_template("503.html").render(), status=503)
    return server_error(request)


def _flat(detail: Any, path: str = "") -> list[tuple[str, list[str]]]:
    """DRF's nested error detail as (dotted field, messages)."""
    if isinstance(detail, dict):
        parts = [_flat(v, f"{path}.{k}".lstrip(".")) for k, v in detail.items()]
        return [pair for part in parts for pair in part]
    if any(isinstance(item, dict | list) for item in detail):
        parts = [_flat(v, f"{path}[{i}]") for i, v in enumerate(detail) if v]
        return [pair for part in parts for pair in part]
    return [(path or "body", [str(item) for item in detail])]
