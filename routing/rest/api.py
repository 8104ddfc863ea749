"""REST for event streams: who may hear what, from where on.

The view answers whether a stream may begin, and with what; a server that can (`console.streams`)
then sends it on, without a thread or a connection to the database. Elsewhere it ends at once, and
a browser comes back for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from routing import queries, rights
from routing.api import FleetMixin
from routing.queries import Queried
from routing.rest import events
from routing.rest.once import holder

SCOPE: Final = "events"
"""Where in the request's ASGI scope the server finds what to send."""
RETRY_MS: Final = 3000


@dataclass(frozen=True)
class Asked:
    """What a stream sends: `since` None is from now on; `is_lost`: something is missing there."""

    chosen: events.Chosen
    holder: str
    since: events.Place | None = None
    is_lost: bool = False


class EventStream(BaseRenderer):
    """What `Accept: text/event-stream` is answered with."""

    media_type = "text/event-stream"
    format = "sse"
    charset = "utf-8"

    def render(self, data: Any, *args: Any, **kwargs: Any) -> bytes:
        return b""


class EventQuery(queries.Query):
    kinds = serializers.CharField(
        required=False, help_text=f"Comma separated, of {', '.join(events.KINDS)}; default all."
    )
    last_event_id = serializers.CharField(
        required=False, help_text="As the header, for clients that cannot send one."
    )


_LAST = OpenApiParameter(
    "Last-Event-ID",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The id of the last event that was heard: what came after it is sent first.",
)
_STREAM = {
    (200, "text/event-stream"): OpenApiResponse(
        OpenApiTypes.STR, "Events as they happen; a comment where nothing does."
    )
}


class EventList(Queried):
    """What happens in the fleets that one may read, as server-sent events: decisions, deliveries,
    holds, incidents, rebalances. See docs/api.md, Events."""

    query_class = EventQuery
    across_fleets = True
    renderer_classes = [EventStream]

    @extend_schema(parameters=[_LAST], responses=_STREAM)
    def get(self, request: Request) -> HttpResponse:
        return self.answer(request, rights.of(request.user).fleets("read"))

    def answer(self, request: Request, fleets: frozenset[str] | None) -> HttpResponse:
        """Leaves what to send in the request's scope."""
        kinds = frozenset(self.asked.get("kinds", ",".join(events.KINDS)).split(","))
        if strange := sorted(kinds - set(events.KINDS)):
            known = ", ".join(events.KINDS)
            raise ValidationError({"kinds": [f"{strange[0]!r:.40} is none of {known}"]})
        last = request.headers.get("Last-Event-ID") or self.asked.get("last_event_id", "")
        since, is_lost = None, False
        if last:
            try:
                since = events.parse_place(last)
            except ValueError as exc:
                raise ValidationError({"Last-Event-ID": [str(exc)]}) from None
            is_lost = events.is_lost(since, timezone.now())
        asked = Asked(events.Chosen(fleets, kinds), holder(request), since, is_lost)
        getattr(request._request, "scope", {})[SCOPE] = asked
        response = HttpResponse(f"retry: {RETRY_MS}\n\n", content_type=EventStream.media_type)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        return response


class FleetEventList(FleetMixin, EventList):
    """What happens in one fleet, as server-sent events. See docs/api.md, Events."""

    across_fleets = False

    @extend_schema(parameters=[_LAST], responses=_STREAM)
    def get(self, request: Request, fleet: str) -> HttpResponse:
        return self.answer(request, frozenset({self.get_fleet().pk}))


urlpatterns = [
    path("events", EventList.as_view(), name="api-events"),
    path("fleets/<slug:fleet>/events", FleetEventList.as_view(), name="api-fleet-events"),
]
