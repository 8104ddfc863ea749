"""REST for truth checks: what was found, what could not be checked, what is clear."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from routing import findings
from routing.api import FleetMixin
from routing.core.truth.finding import CHECKS, GRADES, SEVERITIES, UNITS, Report
from routing.queries import Queried, Query


class FigureSerializer(serializers.Serializer):
    """One figure of the evidence. A value of null was not measured; it is never zero."""

    what = serializers.CharField()
    value = serializers.JSONField(allow_null=True, help_text="A number, or words.")
    unit = serializers.ChoiceField(UNITS, allow_blank=True)
    grade = serializers.ChoiceField(list(GRADES.items()))


class FindingSerializer(serializers.Serializer):
    """`since_s` epoch seconds; `longer`: it was so as far back as was looked."""

    name = serializers.ChoiceField(list(CHECKS.items()))
    subject = serializers.CharField(help_text="A cluster F/C, an instance, a router, or a link.")
    severity = serializers.ChoiceField(SEVERITIES)
    sentence = serializers.CharField()
    evidence = FigureSerializer(many=True)
    next_step = serializers.CharField()
    since_s = serializers.FloatField(allow_null=True)
    longer = serializers.BooleanField()


class UnknownSerializer(serializers.Serializer):
    """A check that could not be made, which says nothing of whether all is well."""

    name = serializers.ChoiceField(list(CHECKS.items()))
    subject = serializers.CharField()
    why = serializers.CharField()
    next_step = serializers.CharField()


class ClearSerializer(serializers.Serializer):
    """A check that was made and found nothing."""

    name = serializers.ChoiceField(list(CHECKS.items()))
    subject = serializers.CharField()
    what = serializers.CharField()


class ReportSerializer(serializers.Serializer):
    """All checks of a fleet, made when asked for; the gravest finding first."""

    at_s = serializers.FloatField()
    findings = FindingSerializer(many=True)
    unknown = UnknownSerializer(many=True)
    clear = ClearSerializer(many=True)


def document(report: Report) -> dict[str, Any]:
    """A report as the API says it."""
    return asdict(report)


class FindingList(FleetMixin, Queried):
    """What does not hold although it is claimed, with evidence and the next step."""

    query_class = Query

    @extend_schema(responses=ReportSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = findings.report(self.get_fleet(), now=timezone.now())
        return Response(ReportSerializer(document(found)).data)


urlpatterns = [path("fleets/<slug:fleet>/findings", FindingList.as_view(), name="api-findings")]
