"""REST for freezes, change windows and maintenance: what may change now, what may not, and why."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from routing import queries, rights
from routing import serializers as s
from routing.api import (
    IF_MATCH,
    MAY_MATCH,
    FleetMixin,
    Newest,
    Page,
    by,
    version_read,
    version_seen,
)
from routing.queries import Queried
from routing.rest.once import once
from routing.windows import in_force, maintenance, windows
from routing.windows.document import ALL, read_window
from routing.windows.frozen import following
from routing.windows.models import Maintenance, Override, Window

N_NEXT = 3


class SpanSerializer(serializers.Serializer):
    begin = serializers.DateTimeField()
    end = serializers.DateTimeField()


class WindowSerializer(serializers.ModelSerializer):
    """A freeze or a change window; its document is described in docs/windows.md. `next` are its
    span of now, if it has one, and those that follow."""

    document = serializers.JSONField()
    next = serializers.SerializerMethodField()

    class Meta:
        model = Window
        fields = (
            "name", "fleet", "document", "enabled", "next", "version", "updated_at", "updated_by",
        )  # fmt: skip

    @extend_schema_field(SpanSerializer(many=True))
    def get_next(self, row: Window) -> list[dict[str, Any]]:
        if not row.enabled:
            return []
        spans = following(read_window(row.document), timezone.now(), N_NEXT)
        return [{"begin": span.begin, "end": span.end} for span in spans]


class WindowPutSerializer(s.Strict):
    document = serializers.JSONField(help_text="Its `name` is that of the address.")
    enabled = serializers.BooleanField(default=True)
    reason = serializers.CharField(**s.EMPTY_REASON)


class FrozenSerializer(serializers.Serializer):
    """One kind of change that is forbidden now, until `until`, by the window `name`."""

    of = serializers.ChoiceField(ALL)
    name = serializers.CharField()
    why = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()


class OverrideSerializer(serializers.ModelSerializer):
    class Meta:
        model = Override
        fields = ("id", "fleet", "actor", "reason", "created_at", "ends_at")


class OverridePostSerializer(s.Strict):
    for_s = serializers.FloatField(default=900.0, help_text="Seconds, an hour at most.")
    reason = serializers.CharField(max_length=500)


class FreezesSerializer(serializers.Serializer):
    """What is frozen now, and who overrides it."""

    frozen = FrozenSerializer(many=True)
    overrides = OverrideSerializer(many=True)


class MaintenanceSerializer(serializers.ModelSerializer):
    """Work on a cluster or a link. `version` is the ETag."""

    state = serializers.SerializerMethodField()

    class Meta:
        model = Maintenance
        fields = (
            "id", "fleet", "cluster", "link", "state", "reason", "owner", "created_at",
            "starts_at", "ends_at", "ended_by", "version",
        )  # fmt: skip

    @extend_schema_field(serializers.ChoiceField(maintenance.STATES))
    def get_state(self, row: Maintenance) -> str:
        return maintenance.state_of(row, timezone.now())


class MaintenancePostSerializer(s.Strict):
    cluster = serializers.CharField(default="", allow_blank=True, max_length=100)
    link = serializers.CharField(default="", allow_blank=True, max_length=200)
    starts_at = serializers.DateTimeField(default=None, allow_null=True, help_text="null: now.")
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=500)


class MaintenanceExtendSerializer(s.Strict):
    ends_at = serializers.DateTimeField()
    reason = serializers.CharField(max_length=500)


class MaintenanceQuery(queries.NewestQuery):
    open = queries.open_field("true: planned or under way, false: those that ended.")


class WindowList(Queried, ListAPIView):
    """The windows of fleets that one may read, and those of all fleets."""

    query_class = queries.PageQuery
    across_fleets = True
    serializer_class = WindowSerializer
    pagination_class = Page

    def get_queryset(self) -> QuerySet[Window]:
        return _readable(self.request).order_by("name")


class WindowDetail(Queried):
    """One window, kept by administrators of its fleet, or of the site; its version is the ETag."""

    query_class = queries.Query
    across_fleets = True

    @extend_schema(responses=WindowSerializer)
    def get(self, request: Request, name: str) -> Response:
        return _answer(WindowSerializer, get_object_or_404(_readable(request), pk=name))

    @extend_schema(
        request=WindowPutSerializer,
        parameters=[MAY_MATCH],
        responses={200: WindowSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, name: str) -> Response:
        known = Window.objects.filter(pk=name).first()
        if known is not None:
            rights.demand(request.user, "admin", known.fleet)
        version = version_seen(request, exists=known is not None, of="window")
        body = WindowPutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        document = s.addressed(body.validated_data["document"], name=name)
        rights.demand(request.user, "admin", windows.parsed(document).fleet)
        row = windows.put(
            document=document,
            enabled=body.validated_data["enabled"],
            reason=body.validated_data["reason"],
            if_version=version,
            **by(request),
        )
        return _answer(WindowSerializer, row)

    @extend_schema(parameters=[IF_MATCH], responses={204: None, 412: None, 428: None})
    @once
    def delete(self, request: Request, name: str) -> Response:
        known = get_object_or_404(_readable(request), pk=name)
        rights.demand(request.user, "admin", known.fleet)
        version, who = version_read(request, of="window"), by(request)
        windows.delete(name=name, if_version=version, actor=who["actor"], via=who["via"], reason="")
        return Response(status=204)


class FreezeState(FleetMixin, Queried):
    """What is frozen in a fleet now."""

    query_class = queries.Query

    @extend_schema(responses=FreezesSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        now, found = timezone.now(), self.get_fleet()
        data = {
            "frozen": in_force.everything(found.pk, now).values(),
            "overrides": in_force.overrides(found.pk, now),
        }
        return Response(FreezesSerializer(data).data)


class FreezeOverride(FleetMixin, Queried):
    """Change what is frozen all the same, oneself, for a while."""

    query_class = queries.Query
    required_scope = ("admin",)

    @extend_schema(request=OverridePostSerializer, responses={201: OverrideSerializer})
    @once
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        body = OverridePostSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = windows.override(fleet=found.pk, **body.validated_data, **by(request))
        return Response(OverrideSerializer(row).data, status=201)


class MaintenanceList(FleetMixin, Queried, ListAPIView):
    """Maintenance of a fleet's clusters and links, newest first."""

    query_class = MaintenanceQuery
    serializer_class = MaintenanceSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[Maintenance]:
        rows = Maintenance.objects.filter(fleet=self.get_fleet().pk)
        if "open" in self.asked:
            ahead = Q(ends_at__gt=timezone.now())
            rows = rows.filter(ahead if self.asked["open"] else ~ahead)
        return rows

    @extend_schema(
        request=MaintenancePostSerializer,
        responses={201: MaintenanceSerializer},
    )
    @once
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        body = MaintenancePostSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = maintenance.plan(fleet=found.pk, **body.validated_data, **by(request))
        return _answer(MaintenanceSerializer, row, status=201)


class _One(FleetMixin, Queried):
    query_class = queries.Query

    def get_row(self, maintenance_id: int) -> Maintenance:
        return get_object_or_404(Maintenance, pk=maintenance_id, fleet=self.get_fleet().pk)


class MaintenanceDetail(_One):
    """One maintenance; its version is the ETag."""

    @extend_schema(responses=MaintenanceSerializer)
    def get(self, request: Request, fleet: str, maintenance_id: int) -> Response:
        return _answer(MaintenanceSerializer, self.get_row(maintenance_id))


class MaintenanceExtend(_One):
    """Let it end at another moment."""

    @extend_schema(
        request=MaintenanceExtendSerializer,
        parameters=[IF_MATCH],
        responses={200: MaintenanceSerializer, 412: None, 428: None},
    )
    @once
    def post(self, request: Request, fleet: str, maintenance_id: int) -> Response:
        row = self.get_row(maintenance_id)
        version = version_read(request, of="maintenance")
        body = MaintenanceExtendSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = maintenance.extend(
            maintenance_id=row.pk, if_version=version, **body.validated_data, **by(request)
        )
        return _answer(MaintenanceSerializer, row)


class MaintenanceEnd(_One):
    """End it now, or call it off."""

    @extend_schema(
        request=s.NeededReasonSerializer,
        parameters=[IF_MATCH],
        responses={200: MaintenanceSerializer, 412: None, 428: None},
    )
    @once
    def post(self, request: Request, fleet: str, maintenance_id: int) -> Response:
        row = self.get_row(maintenance_id)
        version = version_read(request, of="maintenance")
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = maintenance.end(
            maintenance_id=row.pk, if_version=version, **body.validated_data, **by(request)
        )
        return _answer(MaintenanceSerializer, row)


def _readable(request: Request) -> QuerySet[Window]:
    return rights.of(request.user).within_or_site("read", Window.objects.all())


def _answer(serializer: Any, row: Any, status: int = 200) -> Response:
    headers = {"ETag": f'"{row.version}"'}
    return Response(serializer(row).data, status=status, headers=headers)


_FLEET = "fleets/<slug:fleet>"
_ONE = f"{_FLEET}/maintenance/<int:maintenance_id>"
urlpatterns = [
    path("windows", WindowList.as_view(), name="api-windows"),
    path("windows/<slug:name>", WindowDetail.as_view(), name="api-window"),
    path(f"{_FLEET}/freezes", FreezeState.as_view(), name="api-freezes"),
    path(f"{_FLEET}/freezes/override", FreezeOverride.as_view(), name="api-override-freezes"),
    path(f"{_FLEET}/maintenance", MaintenanceList.as_view(), name="api-maintenance"),
    path(_ONE, MaintenanceDetail.as_view(), name="api-one-maintenance"),
    path(f"{_ONE}/extend", MaintenanceExtend.as_view(), name="api-extend-maintenance"),
    path(f"{_ONE}/end", MaintenanceEnd.as_view(), name="api-end-maintenance"),
]
