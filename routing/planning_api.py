"""REST for the planner: what would this fleet do with other numbers. Changes nothing."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import planning, queries
from routing import planning_serializers as s
from routing.api import FleetMixin

_QUERY = [
    OpenApiParameter("cluster", OpenApiTypes.STR, description="The PD cluster to look from."),
    OpenApiParameter(
        "least_headroom",
        OpenApiTypes.NUMBER,
        description="What the cheapest fleet must carry, times the demand; the policy's target "
        "if not given.",
    ),
    OpenApiParameter(
        "numbers",
        {"type": "object", "additionalProperties": {"type": "string"}},
        style="form",
        explode=True,
        description="Changed numbers, each a parameter PLACE.NUMBER: `pd.rate_rps=3`, "
        "`prfaas->pd.gbps=10`, `slo.ttft_s=4`, `pd.lengths=recorded`; `pd.most_instances=20` "
        "bounds the cheapest fleet.",
    ),
]


class WhatIfView(FleetMixin, APIView):
    """The best plan of the fleet's scenario with changed numbers, and what surrounds it.

    Without numbers: of the scenario as it is. Every rate is of the model the loop plans by; waits
    and times to first token are estimates for Poisson arrivals, not a simulation.
    """

    required_scope = ("read",)

    @extend_schema(parameters=_QUERY, responses=s.WhatIfSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        repeated = [name for name, values in request.query_params.lists() if len(values) > 1]
        if repeated:
            raise ValidationError({name: ["is given twice"] for name in repeated})
        asked = planning.from_query(request.query_params.dict())
        return Response(planning.answer(found, asked))

    @extend_schema(request=s.WhatIfAskSerializer, responses=s.WhatIfSerializer)
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        queries.parse(request, queries.Query)
        body = s.WhatIfAskSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return Response(planning.answer(found, planning.Asked(**body.validated_data)))


urlpatterns = [path("fleets/<slug:fleet>/what-if", WhatIfView.as_view(), name="api-what-if")]
