"""REST for one question: where would this request run, and why."""

from __future__ import annotations

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import explain_serializers as s
from routing import placing, queries
from routing.api import FleetMixin


class ExplainView(FleetMixin, APIView):
    """Where a request would run under the plan in force, and why. Changes nothing.

    Gates answer by the same rule. Unless `moment` says otherwise everything is up and nothing is in
    flight, so no wait decides inside a band. Seconds are of the scenario's profiles, over links as
    last read.
    """

    required_scope = ("read",)

    @extend_schema(request=s.ExplainSerializer, responses=s.PlacementSerializer)
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        queries.parse(request, queries.Query)
        body = s.ExplainSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        now_s = timezone.now().timestamp()
        return Response(placing.placed(found, now_s=now_s, **body.validated_data))


urlpatterns = [path("fleets/<slug:fleet>/explain", ExplainView.as_view(), name="api-explain")]
