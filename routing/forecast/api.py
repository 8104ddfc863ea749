"""REST for forecasts: what the next hours will want, and how often that was right."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries
from routing.api import FleetMixin
from routing.forecast.models import Forecast
from routing.queries import Queried


class ForecastSerializer(serializers.ModelSerializer):
    """Advice only. `found` and `judged` are described in docs/forecast.md; `found.state` is `known`
    or `unknown`, with `why`."""

    found = serializers.DictField()
    judged = serializers.DictField(allow_null=True)

    class Meta:
        model = Forecast
        fields = ("fleet", "made_at", "found", "judged", "judged_at")


class ForecastView(FleetMixin, Queried):
    """The newest forecast of a fleet, made every half hour."""

    query_class = queries.Query

    @extend_schema(responses=ForecastSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        row = Forecast.objects.filter(pk=self.get_fleet().pk).first()
        if row is None:
            raise exceptions.NotFound(f"no forecast of {fleet} was made yet: one is due soon")
        return Response(ForecastSerializer(row).data)


urlpatterns = [path("fleets/<slug:fleet>/forecast", ForecastView.as_view(), name="api-forecast")]
