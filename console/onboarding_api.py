"""REST for what the onboarding page shows: every source with what it tells and what it lacks."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from console import agents_seen, onboarding
from console.onboarding_rows import STATES, SourceRow
from console.wanted import KINDS
from routing import rights
from routing.api import Page
from routing.models import Fleet
from routing.queries import PageQuery, Queried


class SourceQuery(PageQuery):
    kind = serializers.ChoiceField(KINDS, required=False)
    state = serializers.ChoiceField(
        (*STATES, "trouble"), required=False, help_text="trouble: every state that wants a hand."
    )


class LackSerializer(serializers.Serializer):
    """A signal that a source should tell and does not."""

    signal = serializers.CharField()
    why = serializers.CharField(help_text="As its agent says, else `not exposed`.")
    without = serializers.CharField(help_text="What fails without it.")
    decides = serializers.BooleanField(help_text="A decision of the loop needs it.")


class SourceSerializer(serializers.Serializer):
    """A source as it was heard, and as its agent reports of it (null where none does)."""

    kind = serializers.ChoiceField(KINDS)
    id = serializers.CharField()
    fleet = serializers.CharField(allow_null=True, help_text="Null: it belongs to no fleet.")
    role = serializers.CharField()
    engine = serializers.CharField()
    engine_version = serializers.CharField()
    agent = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(STATES)
    message = serializers.CharField()
    first_seen_at = serializers.DateTimeField(allow_null=True)
    last_seen_at = serializers.DateTimeField(allow_null=True)
    read_s = serializers.FloatField(allow_null=True)
    wanted = serializers.ListField(child=serializers.CharField())
    missing = LackSerializer(many=True)
    n_series = serializers.IntegerField(allow_null=True)
    unmatched = serializers.ListField(child=serializers.CharField())
    n_unmatched = serializers.IntegerField(allow_null=True)
    n_bad_lines = serializers.IntegerField(allow_null=True)
    warnings = serializers.ListField(child=serializers.CharField())


def document(row: SourceRow) -> dict[str, Any]:
    """One source as the API says it."""
    report = row.report
    return {
        "kind": row.kind,
        "id": row.path,
        "fleet": row.fleet or None,
        "role": row.role,
        "engine": row.engine,
        "engine_version": row.engine_version,
        "agent": row.agent or None,
        "state": row.state,
        "message": row.mark.text,
        "first_seen_at": row.first_at,
        "last_seen_at": row.last_at,
        "read_s": report.read_s if report else None,
        "wanted": [want.name for want in row.wanted],
        "missing": [
            {
                "signal": lack.want.name,
                "why": lack.why,
                "without": lack.want.without,
                "decides": lack.want.decides,
            }
            for lack in row.lacks
        ],
        "n_series": report.n_series if report else None,
        "unmatched": report.unmatched if report else [],
        "n_unmatched": report.n_unmatched if report else None,
        "n_bad_lines": report.n_bad_lines if report else None,
        "warnings": report.warnings if report else [],
    }


class SourceList(Queried, GenericAPIView):
    """What is expected to report and what does, with what each source lacks."""

    query_class = SourceQuery
    pagination_class = Page
    page_key = ("kind", "path")

    @extend_schema(parameters=[SourceQuery], responses=SourceSerializer(many=True))
    def get(self, request: Request, fleet: str | None = None) -> Response:
        shown = None if fleet is None else get_object_or_404(Fleet, pk=fleet).pk
        kind, state = self.asked.get("kind"), self.asked.get("state")
        seen = agents_seen.by(rights.of(request.user))
        rows = [
            row
            for row in onboarding.load(shown, timezone.now(), seen).rows
            if kind in (None, row.kind)
            and (row.in_trouble if state == "trouble" else state in (None, row.state))
        ]
        page = self.paginate_queryset(rows)
        documents = [document(row) for row in page]
        return self.get_paginated_response(SourceSerializer(documents, many=True).data)


urlpatterns = [
    path("telemetry/sources", SourceList.as_view(), name="api-telemetry-sources"),
    path(
        "fleets/<slug:fleet>/telemetry/sources",
        SourceList.as_view(),
        name="api-fleet-telemetry-sources",
    ),
]
