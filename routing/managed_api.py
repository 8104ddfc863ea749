"""REST for routers of every make: what each should list, was told, shows; adopt or override."""

from __future__ import annotations

from typing import Any

from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import effect_checks, managed, queries, router_commands
from routing import serializers as s
from routing.api import IF_MATCH, FleetMixin, Page, by, version_read
from routing.models import EffectCheck, ManagedRouter
from routing.queries import Queried
from routing.rest.once import once

_STATES = (
    *("unread", "sync", "drifted", "applying", "pending_restart", "read_only", "unreachable"),
)


class ListedSerializer(serializers.Serializer):
    """One engine as a router lists it, or should."""

    role = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(("ready", "draining", "starting", "failed"))
    requests = serializers.IntegerField(required=False, allow_null=True)
    key = serializers.CharField(required=False, allow_blank=True, help_text="The router's name.")


class OperationSerializer(serializers.Serializer):
    """What was asked of a router last, and how far it got."""

    verb = serializers.CharField()
    state = serializers.ChoiceField(
        (*managed.OPEN, "applied", "failed", "expired", "cancelled", "superseded")
    )
    by = serializers.CharField()
    reason = serializers.CharField()
    key = serializers.CharField(allow_blank=True)
    asked_at_s = serializers.FloatField()
    deadline_at_s = serializers.FloatField()
    ended_at_s = serializers.FloatField(allow_null=True)
    claimed_until_s = serializers.FloatField(allow_null=True)
    error = serializers.CharField(allow_blank=True)
    done = serializers.ListField(child=serializers.CharField())


class ManagedRouterSerializer(serializers.ModelSerializer):
    """Desired, last applied and observed, side by side; maps are by base URL of an engine."""

    router = serializers.SerializerMethodField()
    state = serializers.ChoiceField(_STATES)
    on_drift = serializers.ChoiceField(managed.ON_DRIFT)
    capabilities = serializers.JSONField(allow_null=True)
    desired = serializers.SerializerMethodField()
    last_applied = serializers.SerializerMethodField()
    observed = serializers.SerializerMethodField()
    facts = serializers.SerializerMethodField()
    threshold = serializers.SerializerMethodField()
    rendered = serializers.SerializerMethodField()
    decided = serializers.SerializerMethodField()
    findings = serializers.ListField(child=serializers.CharField())
    operation = OperationSerializer(allow_null=True)

    class Meta:
        model = ManagedRouter
        fields = (
            "id", "router", "cluster", "name", "kind", "url", "make_version", "capabilities",
            "desired", "desired_by", "desired_at", "last_applied", "applied_at", "observed",
            "observed_at", "facts", "threshold", "rendered", "decided", "state", "since",
            "findings", "cause", "other_writer", "on_drift", "operation", "version",
        )  # fmt: skip

    def get_router(self, row: ManagedRouter) -> str:
        return str(row)

    @extend_schema_field(serializers.DictField(child=ListedSerializer(), allow_null=True))
    def get_desired(self, row: ManagedRouter) -> Any:
        return row.desired

    @extend_schema_field(serializers.DictField(child=ListedSerializer(), allow_null=True))
    def get_last_applied(self, row: ManagedRouter) -> Any:
        return row.last_applied

    @extend_schema_field(serializers.DictField(child=ListedSerializer(), allow_null=True))
    def get_observed(self, row: ManagedRouter) -> Any:
        return row.observed and row.observed["workers"]

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_facts(self, row: ManagedRouter) -> Any:
        return row.observed and row.observed["facts"]

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_threshold(self, row: ManagedRouter) -> Any:
        return row.observed and row.observed["threshold"]

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_rendered(self, row: ManagedRouter) -> Any:
        return row.observed and row.observed["rendered"]

    @extend_schema_field(serializers.JSONField(allow_null=True))
    def get_decided(self, row: ManagedRouter) -> Any:
        """What its own planner waits for that others have to do, as `rendered`."""
        return row.observed and row.observed.get("decided")


class DoneSerializer(serializers.Serializer):
    """A router after a command."""

    router = ManagedRouterSerializer()


class OnDriftSerializer(s.Strict):
    on_drift = serializers.ChoiceField(managed.ON_DRIFT)
    reason = serializers.CharField(max_length=500)


class EffectCheckSerializer(serializers.ModelSerializer):
    """Whether a plan did harm, by what gates counted before and after it."""

    outcome = serializers.ChoiceField(("pending", "good", "harm", "unknown"))
    evidence = serializers.JSONField()

    class Meta:
        model = EffectCheck
        fields = (
            "decision", "outcome", "text", "evidence", "compared_at", "due_at", "checked_at",
            "hold",
        )  # fmt: skip


class LastKnownGoodSerializer(serializers.Serializer):
    """The newest plan that ran everywhere and did no harm; null before there was one."""

    decision = serializers.IntegerField(allow_null=True)
    epoch = serializers.IntegerField(allow_null=True)
    version = serializers.IntegerField(allow_null=True)
    checks = EffectCheckSerializer(many=True, help_text="The newest ten of the fleet.")


class ManagedRouterList(FleetMixin, Queried, GenericAPIView):
    """Routers that the scenario names, gates aside (`routers`)."""

    query_class = queries.PageQuery
    pagination_class = Page

    @extend_schema(responses=ManagedRouterSerializer(many=True))
    def get(self, request: Request, fleet: str) -> Response:
        rows = ManagedRouter.objects.filter(fleet=self.get_fleet()).order_by("cluster", "name")
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(ManagedRouterSerializer(page, many=True).data)


class ManagedRouterDetail(FleetMixin, APIView):
    """One router; its version is the ETag."""

    @extend_schema(responses=ManagedRouterSerializer)
    def get(self, request: Request, fleet: str, router_id: int) -> Response:
        row = get_object_or_404(ManagedRouter, pk=router_id, fleet=self.get_fleet())
        return _answer(row)


class _Acts(FleetMixin, APIView):
    """A command on a router as it was seen (If-Match), done once under an Idempotency-Key."""

    command: Any

    @extend_schema(
        request=s.NeededReasonSerializer,
        parameters=[IF_MATCH],
        responses={200: DoneSerializer, 412: None, 428: None},
    )
    @once
    def post(self, request: Request, fleet: str, router_id: int) -> Response:
        get_object_or_404(ManagedRouter, pk=router_id, fleet=self.get_fleet())
        version = version_read(request, of="router")
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        done = self.command(
            fleet=fleet,
            router_id=router_id,
            if_version=version,
            **body.validated_data,
            **by(request),
        )
        return Response(DoneSerializer(done).data, headers={"ETag": f'"{done.router.version}"'})


class ManagedRouterAdopt(_Acts):
    """What the router lists is what it should list from now on."""

    command = staticmethod(router_commands.adopt)


class ManagedRouterOverride(_Acts):
    """Have the router list again what it should, within floors and budget."""

    command = staticmethod(router_commands.override)


class ManagedRouterCancel(FleetMixin, APIView):
    """Stop what is being done to the router; what was done stays."""

    @extend_schema(request=s.NeededReasonSerializer, responses=ManagedRouterSerializer)
    @once
    def post(self, request: Request, fleet: str, router_id: int) -> Response:
        get_object_or_404(ManagedRouter, pk=router_id, fleet=self.get_fleet())
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = router_commands.cancel(
            fleet=fleet, router_id=router_id, **body.validated_data, **by(request)
        )
        return _answer(row)


class ManagedRouterOnDrift(FleetMixin, APIView):
    """What is done about drift of this router by itself."""

    @extend_schema(request=OnDriftSerializer, responses=ManagedRouterSerializer)
    @once
    def post(self, request: Request, fleet: str, router_id: int) -> Response:
        get_object_or_404(ManagedRouter, pk=router_id, fleet=self.get_fleet())
        body = OnDriftSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = router_commands.set_on_drift(
            fleet=fleet, router_id=router_id, **body.validated_data, **by(request)
        )
        return _answer(row)


class LastKnownGoodView(FleetMixin, APIView):
    """The plan to fall back to, and what the newest plans did."""

    @extend_schema(responses=LastKnownGoodSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        good = effect_checks.last_known_good(found)
        checks = EffectCheck.objects.filter(decision__fleet=found).order_by("-decision_id")[:10]
        return Response(
            {
                "decision": good and good.pk,
                "epoch": good and good.epoch,
                "version": good and good.version,
                "checks": EffectCheckSerializer(checks, many=True).data,
            }
        )


def _answer(row: ManagedRouter) -> Response:
    return Response(ManagedRouterSerializer(row).data, headers={"ETag": f'"{row.version}"'})


_ROUTERS = "fleets/<slug:fleet>/managed-routers"
_ONE = f"{_ROUTERS}/<int:router_id>"
urlpatterns = [
    path(_ROUTERS, ManagedRouterList.as_view(), name="api-managed-routers"),
    path(_ONE, ManagedRouterDetail.as_view(), name="api-managed-router"),
    path(f"{_ONE}/adopt", ManagedRouterAdopt.as_view(), name="api-managed-adopt"),
    path(f"{_ONE}/override", ManagedRouterOverride.as_view(), name="api-managed-override"),
    path(f"{_ONE}/cancel", ManagedRouterCancel.as_view(), name="api-managed-cancel"),
    path(f"{_ONE}/on-drift", ManagedRouterOnDrift.as_view(), name="api-managed-on-drift"),
    path("fleets/<slug:fleet>/last-known-good", LastKnownGoodView.as_view(), name="api-last-good"),
]
