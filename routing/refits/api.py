"""REST for fitted profiles: ask for a fit, look, apply."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing import serializers as s
from routing.api import FleetMixin, Newest, by
from routing.queries import Queried
from routing.refits import proposals
from routing.refits.models import ProfileProposal
from routing.rest.once import once


class FittedSerializer(serializers.ModelSerializer):
    """Profiles of a span beside the scenario's (`profiles`: before, after); how each cluster was
    fitted or why not (`clusters`)."""

    state = serializers.ChoiceField(("queued", "ready", "failed", "applied", "replaced"))
    clusters = serializers.DictField()
    profiles = serializers.DictField()

    class Meta:
        model = ProfileProposal
        fields = (
            "id", "state", "since", "until", "clusters", "profiles", "text", "requested_by",
            "created_at", "fitted_at", "applied_by", "applied_at",
        )  # fmt: skip


class FitAskSerializer(s.Strict):
    span_s = serializers.FloatField(
        min_value=60.0, max_value=proposals.LONGEST.total_seconds(), default=86_400.0
    )
    reason = serializers.CharField(**s.EMPTY_REASON)


class FitList(FleetMixin, Queried, ListAPIView):
    """Fits of a fleet's profiles, newest first."""

    query_class = queries.NewestQuery
    serializer_class = FittedSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[ProfileProposal]:
        return ProfileProposal.objects.filter(fleet=self.get_fleet().pk)

    @extend_schema(request=FitAskSerializer, responses={202: FittedSerializer})
    @once
    def post(self, request: Request, fleet: str) -> Response:
        """Fit profiles to the newest telemetry; nothing is changed until the fit is applied."""
        found = self.get_fleet()
        body = FitAskSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asked = dict(body.validated_data)
        row = proposals.ask(
            fleet=found.pk, span=timedelta(seconds=asked.pop("span_s")), **asked, **by(request)
        )
        return Response(FittedSerializer(row).data, status=status.HTTP_202_ACCEPTED)


class FitApply(FleetMixin, Queried):
    """Put a ready fit into the scenario."""

    query_class = queries.Query

    @extend_schema(request=s.NeededReasonSerializer, responses=FittedSerializer)
    @once
    def post(self, request: Request, fleet: str, fit_id: int) -> Response:
        row = get_object_or_404(ProfileProposal, pk=fit_id, fleet=self.get_fleet().pk)
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        proposals.apply(proposal=row, **body.validated_data, **by(request))
        row.refresh_from_db()
        return Response(FittedSerializer(row).data)


_FITS = "fleets/<slug:fleet>/profile-fits"
urlpatterns = [
    path(_FITS, FitList.as_view(), name="api-profile-fits"),
    path(f"{_FITS}/<int:fit_id>/apply", FitApply.as_view(), name="api-apply-profile-fit"),
]
