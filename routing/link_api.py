"""REST for what links cost, and for what people do to them."""

from __future__ import annotations

from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import bills, link_breakers, queries
from routing import serializers as s
from routing.api import FleetMixin, Page, by
from routing.queries import Queried
from routing.rest.once import once


class BreakerReset(FleetMixin, APIView):
    """Close the breaker of one link: the next tick uses it again."""

    @extend_schema(request=s.BreakerResetSerializer, responses={204: None})
    @once
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        body = s.BreakerResetSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        link_breakers.reset(fleet=found, **body.validated_data, **by(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class BillList(FleetMixin, Queried, GenericAPIView):
    """The running month of each link: 95th percentile, time left above its cap, cost."""

    query_class = queries.PageQuery
    pagination_class = Page

    @extend_schema(responses=s.BillSerializer(many=True))
    def get(self, request: Request, fleet: str) -> Response:
        rows = bills.bills(self.get_fleet(), now_s=timezone.now().timestamp())
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(s.BillSerializer(page, many=True).data)


urlpatterns = [
    path("fleets/<slug:fleet>/bills", BillList.as_view(), name="api-bills"),
    path("fleets/<slug:fleet>/breakers/reset", BreakerReset.as_view(), name="api-reset-breaker"),
]
