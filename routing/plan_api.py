"""REST for routers: the plan in force, and in the same request what a polling one runs."""

from __future__ import annotations

import msgspec
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import acks, delivery
from routing import serializers as s
from routing.api import FleetMixin, whole_number
from routing.models import Fleet

ACK_HEADERS = [
    OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, description=text)
    for name, text in (
        ("If-None-Match", 'ETag of the plan at hand, "epoch.version"; the same plan answers 304.'),
        ("X-Router", "The polling router's FLEET/CLUSTER/NAME: makes this request its ack."),
        ("X-Version-Running", "epoch.version that it runs, or none."),
        ("X-State", "running, accepted, refused, no_plan or overridden."),
        ("X-Error", "Why it refused."),
        ("X-Override", "JSON: what a person on the gate put above the plan."),
    )
]


class PlanView(FleetMixin, APIView):
    """The plan in force. A polling router acks in the headers of this request."""

    required_scope = ("router", "read")
    throttle_classes = []  # a gate is never refused its plan

    @extend_schema(parameters=ACK_HEADERS, responses={200: s.PlanSerializer, 304: None, 404: None})
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        if "X-Router" in request.headers:
            self._ack(request, found)
        told = self._release(request)
        document = delivery.newest_document(found)
        if document is None:
            raise exceptions.NotFound("no plan was issued yet: a gate without one is always_local")
        etag = f'"{document["epoch"]}.{document["version"]}"'
        seen = [tag.strip() for tag in request.headers.get("If-None-Match", "").split(",")]
        if etag in seen:
            return Response(status=status.HTTP_304_NOT_MODIFIED, headers={"ETag": etag, **told})
        return Response(document, headers={"ETag": etag, **told})

    def _ack(self, request: Request, fleet: Fleet) -> None:
        if "router" not in getattr(request.auth, "scopes", ()):
            raise exceptions.PermissionDenied("only a token with scope router may ack")
        try:
            delivery.record_ack(
                fleet=fleet,
                router=request.headers["X-Router"],
                running=_version(request.headers.get("X-Version-Running", "none")),
                state=request.headers.get("X-State", "running"),
                error=request.headers.get("X-Error"),
                transport="poll",
                override=_override(request.headers.get("X-Override")),
                now=timezone.now(),
            )
        except acks.AckError as exc:
            raise exceptions.ValidationError({exc.field: [exc.message]}) from None

    def _release(self, request: Request) -> dict[str, str]:
        """The header that has an overridden gate end its override."""
        if "X-Override" not in request.headers or "X-Router" not in request.headers:
            return {}
        release = delivery.to_release(request.headers["X-Router"])
        return {"X-Release-Override": release} if release else {}


def _override(text: str | None) -> acks.Override | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=acks.Override)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise acks.AckError("X-Override", text, str(exc)) from None


def _version(text: str) -> tuple[int, int] | None:
    if text in ("", "none"):
        return None
    epoch, _, version = text.strip('"').partition(".")
    numbers = whole_number(epoch), whole_number(version)
    if None in numbers:
        raise acks.AckError("X-Version-Running", text, "must be epoch.version, or none")
    if max(numbers) >= 2**31:
        raise acks.AckError("X-Version-Running", text, "is out of range")
    return numbers


urlpatterns = [path("fleets/<slug:fleet>/plan", PlanView.as_view(), name="api-plan")]
