"""REST for taking something back: an earlier plan, the wait for a router."""

from __future__ import annotations

from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import delivery, router_commands
from routing import serializers as s
from routing.api import FleetMixin, by
from routing.models import Decision
from routing.rest.once import once


class RollBackView(FleetMixin, APIView):
    """Hold every PD cluster at an earlier plan's mode and t until `expires_at` (at most 7 days)."""

    @extend_schema(request=s.RollBackSerializer, responses={201: s.HoldSerializer(many=True)})
    @once
    def post(self, request: Request, fleet: str, decision_id: int) -> Response:
        decision = get_object_or_404(Decision, pk=decision_id, fleet=self.get_fleet())
        body = s.RollBackSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        who = by(request)
        asked = {"owner": who["actor"], **body.validated_data, **who, "decision_id": decision.pk}
        holds = router_commands.roll_back(**asked)
        data = s.HoldSerializer(holds, many=True).data
        return Response(data, status=status.HTTP_201_CREATED)


class DeliveryCancel(FleetMixin, APIView):
    """Stop waiting for one router to run a plan; when it returns it is sent the newest."""

    @extend_schema(request=s.DeliveryCancelSerializer, responses=s.DeliverySerializer)
    @once
    def post(self, request: Request, fleet: str, decision_id: int) -> Response:
        decision = get_object_or_404(Decision, pk=decision_id, fleet=self.get_fleet())
        body = s.DeliveryCancelSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        delivery.cancel(decision, **body.validated_data, **by(request))
        return Response(s.DeliverySerializer(delivery.summaries([decision])[decision.pk]).data)


_DECISION = "fleets/<slug:fleet>/decisions/<int:decision_id>"
urlpatterns = [
    path(f"{_DECISION}/rollback", RollBackView.as_view(), name="api-roll-back"),
    path(f"{_DECISION}/deliveries/cancel", DeliveryCancel.as_view(), name="api-cancel-delivery"),
]
