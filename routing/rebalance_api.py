"""REST for moves of a cluster's roles: ask for one, look at them, give one up."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import queries, rebalance, role_commands
from routing import serializers as s
from routing.api import FleetMixin, Newest, by
from routing.models import Rebalance
from routing.queries import Queried
from routing.rest.once import once


class RolesAskedSerializer(serializers.Serializer):
    """Roles that were asked for."""

    hold = s.HoldSerializer()
    rebalance = s.RebalanceSerializer(allow_null=True, help_text="Null until the next tick.")


class RebalanceList(FleetMixin, Queried, ListAPIView):
    """Moves of roles, newest first; `?open=true` shows those under way."""

    query_class = queries.RebalanceQuery
    serializer_class = s.RebalanceSerializer
    pagination_class = Newest
    queryset = Rebalance.objects.all()

    def get_queryset(self) -> QuerySet[Rebalance]:
        rows = Rebalance.objects.filter(fleet=self.get_fleet()).prefetch_related("moves")
        under_way = Q(state__in=rebalance.ACTIVE)
        if "open" in self.asked:
            rows = rows.filter(under_way if self.asked["open"] else ~under_way)
        return rows

    @extend_schema(parameters=[queries.RebalanceQuery])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(
        request=s.RolesMoveSerializer,
        responses={201: RolesAskedSerializer, 412: None},
    )
    @once
    def post(self, request: Request, fleet: str) -> Response:
        """Move a cluster to other roles, and hold them: the next tick opens the move."""
        found = self.get_fleet()
        body = s.RolesMoveSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asked = dict(body.validated_data)
        expected = asked.pop("expected")
        done = role_commands.move_roles(
            fleet=found.pk,
            to=(asked.pop("n_prefill"), asked.pop("n_decode")),
            expected=(expected["n_prefill"], expected["n_decode"]),
            **asked,
            **by(request),
        )
        opened = done.hold.rebalances.order_by("-id").first()
        answer = {"hold": done.hold, "rebalance": opened}
        return Response(RolesAskedSerializer(answer).data, status=status.HTTP_201_CREATED)


class RebalanceDetail(FleetMixin, APIView):
    """One move of roles: each instance, the step it is in, what is waited for."""

    @extend_schema(responses=s.RebalanceSerializer)
    def get(self, request: Request, fleet: str, rebalance_id: int) -> Response:
        found = get_object_or_404(Rebalance, pk=rebalance_id, fleet=self.get_fleet())
        return Response(s.RebalanceSerializer(found).data)


class RebalanceCancel(FleetMixin, APIView):
    """Give up a move of roles; the instance under way gets its old role back."""

    @extend_schema(request=s.ReasonSerializer, responses=s.RebalanceSerializer)
    @once
    def post(self, request: Request, fleet: str, rebalance_id: int) -> Response:
        found = get_object_or_404(Rebalance, pk=rebalance_id, fleet=self.get_fleet())
        body = s.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        cancelled = role_commands.cancel_rebalance(
            fleet=fleet, rebalance_id=found.pk, **body.validated_data, **by(request)
        )
        return Response(s.RebalanceSerializer(cancelled).data)


_REBALANCES = "fleets/<slug:fleet>/rebalances"
_ONE = f"{_REBALANCES}/<int:rebalance_id>"
urlpatterns = [
    path(_REBALANCES, RebalanceList.as_view(), name="api-rebalances"),
    path(_ONE, RebalanceDetail.as_view(), name="api-rebalance"),
    path(f"{_ONE}/cancel", RebalanceCancel.as_view(), name="api-cancel-rebalance"),
]
