"""The REST API of fleets, policy and decisions: parse, call one function, format.

Rights are decided by the permission class of the settings from each view's `required_scope`.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KT
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import exceptions, status
from rest_framework.generics import GenericAPIView, ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import (
    commands,
    delivery,
    fleets,
    queries,
    readings,
    rights,
    router_states,
    scheduler,
    series,
)
from routing import serializers as s
from routing.models import Action, Decision, Fleet, Hold, Tick
from routing.paging import Newest, NewestTick, Page
from routing.queries import Queried
from routing.rest.once import once


class PreconditionRequired(exceptions.APIException):
    status_code = status.HTTP_428_PRECONDITION_REQUIRED
    default_detail = "send If-Match with the version you read, so that nobody's change is lost"


class PreconditionFailed(exceptions.APIException):
    status_code = status.HTTP_412_PRECONDITION_FAILED


IF_MATCH = OpenApiParameter("If-Match", OpenApiTypes.STR, OpenApiParameter.HEADER, required=True)
MAY_MATCH = OpenApiParameter(
    "If-Match",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="The version that was read; needed unless it is new.",
)
NO_BODY: dict[int, Any] = {304: None}
ROUTERS_LISTED = 10
"""Of each decision of a list: a page of 50 with 200 gates each would be two megabytes."""


class FleetMixin:
    """Views below /fleets/{fleet}."""

    kwargs: dict[str, Any]

    def get_fleet(self) -> Fleet:
        return get_object_or_404(Fleet.objects.select_related("policy"), pk=self.kwargs["fleet"])


def version_read(request: Request, *, of: str) -> int:
    """The version that If-Match names. Raises PreconditionRequired, and PreconditionFailed."""
    seen = request.headers.get("If-Match")
    if seen is None:
        raise PreconditionRequired
    version = whole_number(seen.strip().strip('"'))
    if version is None:
        raise PreconditionFailed(f"If-Match {seen:.80} names no version of the {of}")
    return version


def version_seen(request: Request, *, exists: bool, of: str) -> int:
    """The version of what a PUT changes; 0 for what is new. Raises as `version_read` does."""
    if "If-Match" in request.headers or exists:
        return version_read(request, of=of)
    return 0


def by(request: Request) -> dict[str, Any]:
    """Who changes something through this door, for the audit."""
    return {"actor": request.user.get_username(), "via": "rest", "now": timezone.now()}


class FleetList(Queried, ListAPIView):
    """Every fleet that one may read, with its mode."""

    query_class = queries.PageQuery
    across_fleets = True
    queryset = Fleet.objects.select_related("policy").order_by("name")
    serializer_class = s.FleetSerializer
    pagination_class = Page

    def get_queryset(self) -> QuerySet[Fleet]:
        return rights.of(self.request.user).within("read", super().get_queryset(), by="name")


class FleetDetail(FleetMixin, APIView):
    """One fleet: scenario, mode, the plan in force, the newest tick."""

    @extend_schema(responses=s.FleetDetailSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        in_force = fleets.newest_adopted(found)
        tick = fleets.newest_tick(found)
        context = {
            "plan": in_force and delivery.document(in_force),
            "tick": tick and scheduler.tick_message(tick, in_force),
        }
        return Response(s.FleetDetailSerializer(found, context=context).data)


def whole_number(text: str) -> int | None:
    """A whole number of at most 18 digits (it fits the database), else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


class PolicyView(FleetMixin, APIView):
    """What people want of the loop. Change it with If-Match: the version that was read."""

    @extend_schema(responses=s.PolicySerializer)
    def get(self, request: Request, fleet: str) -> Response:
        return self._answer(self.get_fleet())

    @extend_schema(
        request=s.PolicyPatchSerializer,
        parameters=[IF_MATCH],
        responses={200: s.PolicySerializer, 412: None, 428: None},
    )
    @once
    def patch(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        version = version_read(request, of="policy")
        body = s.PolicyPatchSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        changes = dict(body.validated_data)
        reason = changes.pop("reason")
        commands.set_policy(
            fleet=found.pk,
            changes=changes,
            if_version=version,
            reason=reason,
            **by(request),
        )
        return self._answer(self.get_fleet())

    def _answer(self, fleet: Fleet) -> Response:
        data = s.PolicySerializer(fleet.policy, context={"now": timezone.now()}).data
        return Response(data, headers={"ETag": f'"{fleet.policy.version}"'})


class HoldList(FleetMixin, Queried, ListAPIView):
    """Holds, newest first; `?open=true` shows those in force."""

    query_class = queries.HoldQuery
    serializer_class = s.HoldSerializer
    pagination_class = Newest
    queryset = Hold.objects.all()

    def get_queryset(self) -> QuerySet[Hold]:
        holds = Hold.objects.filter(fleet=self.get_fleet())
        in_force = Q(released_at=None, expires_at__gt=timezone.now())
        if "open" in self.asked:
            holds = holds.filter(in_force if self.asked["open"] else ~in_force)
        return holds

    @extend_schema(parameters=[queries.HoldQuery])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)

    @extend_schema(request=s.HoldPlaceSerializer, responses={201: s.HoldSerializer})
    @once
    def post(self, request: Request, fleet: str) -> Response:
        """Pin a plan until `expires_at` (at most 7 days)."""
        found = self.get_fleet()
        body = s.HoldPlaceSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        who = by(request)
        hold = commands.place_hold(
            fleet=found.pk, **{"owner": who["actor"], **body.validated_data}, **who
        )
        return Response(s.HoldSerializer(hold).data, status=status.HTTP_201_CREATED)


class HoldRelease(FleetMixin, APIView):
    """End a hold before its time."""

    @extend_schema(request=s.ReasonSerializer, responses=s.HoldSerializer)
    @once
    def post(self, request: Request, fleet: str, hold_id: int) -> Response:
        hold = get_object_or_404(Hold, pk=hold_id, fleet=self.get_fleet())
        hold = commands.release_hold(hold_id=hold.pk, reason=_reason(request), **by(request))
        return Response(s.HoldSerializer(hold).data)


class HoldExtend(FleetMixin, APIView):
    """Let a hold end at another moment than it would."""

    @extend_schema(request=s.HoldExtendSerializer, responses=s.HoldSerializer)
    @once
    def post(self, request: Request, fleet: str, hold_id: int) -> Response:
        hold = get_object_or_404(Hold, pk=hold_id, fleet=self.get_fleet())
        body = s.HoldExtendSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        hold = commands.extend_hold(hold_id=hold.pk, **body.validated_data, **by(request))
        return Response(s.HoldSerializer(hold).data)


class TickList(FleetMixin, Queried, ListAPIView):
    """Passes of the loop, newest first, also those that changed nothing."""

    query_class = queries.NewestQuery
    serializer_class = s.TickSerializer
    pagination_class = NewestTick
    queryset = Tick.objects.all()

    def get_queryset(self) -> QuerySet[Tick]:
        return _described(Tick.objects.filter(fleet=self.get_fleet()).defer("observed", "verdict"))


class TickDetail(FleetMixin, APIView):
    """One pass with its inputs, its verdict, its clamps and what it remembers."""

    @extend_schema(responses=s.TickDetailSerializer)
    def get(self, request: Request, fleet: str, seq: int) -> Response:
        ticks = _described(Tick.objects.filter(fleet=self.get_fleet()))
        return Response(s.TickDetailSerializer(get_object_or_404(ticks, seq=seq)).data)


def _described(ticks: QuerySet[Tick]) -> QuerySet[Tick]:
    return ticks.annotate(
        message=KT("verdict__message"), next_action_at_s=KT("verdict__next_action_at_s")
    )


class DecisionList(FleetMixin, Queried, ListAPIView):
    """Plan versions and advice, newest first, with how far each got."""

    query_class = queries.NewestQuery
    serializer_class = s.DecisionSerializer
    pagination_class = Newest
    queryset = Decision.objects.all()

    def get_queryset(self) -> QuerySet[Decision]:
        return Decision.objects.filter(fleet=self.get_fleet())

    @extend_schema(responses=s.DecisionSerializer(many=True))
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        context = {"deliveries": delivery.summaries(page, most_routers=ROUTERS_LISTED)}
        return self.get_paginated_response(
            s.DecisionSerializer(page, many=True, context=context).data
        )


class DecisionDetail(FleetMixin, APIView):
    """One decision: plan before and after, the whole verdict, delivery by router."""

    @extend_schema(responses=s.DecisionDetailSerializer)
    def get(self, request: Request, fleet: str, decision_id: int) -> Response:
        decision = get_object_or_404(Decision, pk=decision_id, fleet=self.get_fleet())
        context = {
            "deliveries": delivery.summaries([decision]),
            "tick": _described(Tick.objects.filter(pk=decision.tick_id)).first(),
        }
        return Response(s.DecisionDetailSerializer(decision, context=context).data)


class RouterList(FleetMixin, Queried, GenericAPIView):
    """Routers: the version each runs, by its ack and by its metrics, and what is wrong."""

    query_class = queries.PageQuery
    pagination_class = Page
    page_key = ("router",)

    @extend_schema(responses=s.RouterSerializer(many=True))
    def get(self, request: Request, fleet: str) -> Response:
        page = self.paginate_queryset(router_states.routers(self.get_fleet(), timezone.now()))
        return self.get_paginated_response(s.RouterSerializer(page, many=True).data)


class InstanceList(FleetMixin, Queried, GenericAPIView):
    """Engines with their newest reading; `?cluster=` and `?role=` narrow it."""

    query_class = queries.InstanceQuery
    pagination_class = Page

    @extend_schema(
        parameters=[queries.InstanceQuery],
        responses=s.InstanceSerializer(many=True),
    )
    def get(self, request: Request, fleet: str) -> Response:
        rows = readings.instances(
            self.get_fleet(),
            cluster=self.asked.get("cluster"),
            role=self.asked.get("role"),
            now_s=timezone.now().timestamp(),
        )
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(s.InstanceSerializer(page, many=True).data)


class LinkList(FleetMixin, Queried, GenericAPIView):
    """The fleet's directed links with their newest reading."""

    query_class = queries.PageQuery
    pagination_class = Page

    @extend_schema(responses=s.LinkSerializer(many=True))
    def get(self, request: Request, fleet: str) -> Response:
        rows = readings.links(self.get_fleet(), now_s=timezone.now().timestamp())
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(s.LinkSerializer(page, many=True).data)


class SeriesView(FleetMixin, APIView):
    """History for charts: `link:A->B:FIELD`, `pool:CLUSTER/ROLE:FIELD`, `loop:VALUE[:CLUSTER]`."""

    @extend_schema(parameters=[queries.SeriesQuery], responses=s.SeriesSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        asked = queries.parse(request, queries.SeriesQuery)
        now_s = timezone.now().timestamp()
        until_s = asked.get("until", now_s)
        try:
            data = series.read(
                found,
                [name for name in asked["names"].split(",") if name],
                since_s=asked.get("since", until_s - 900.0),
                until_s=until_s,
                points=asked["points"],
                now_s=now_s,
                tick_s=settings.ENV["CONSOLE_TICK_S"],
            )
        except series.SeriesError as exc:
            raise exceptions.ValidationError({exc.field: [exc.message]}) from None
        return Response(data)


class EpochView(FleetMixin, APIView):
    """Raise the plan epoch after a restore from backup."""

    required_scope = ("admin",)

    @extend_schema(request=s.NeededReasonSerializer, responses=s.FleetSerializer)
    @once
    def post(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        commands.raise_epoch(fleet=found.pk, **body.validated_data, **by(request))
        return Response(s.FleetSerializer(self.get_fleet()).data)


class AuditList(Queried, ListAPIView):
    """Every change in the fleets that one may read, newest first; `?fleet=` narrows it."""

    query_class = queries.AuditQuery
    across_fleets = True
    serializer_class = s.ActionSerializer
    pagination_class = Newest
    queryset = Action.objects.all()

    def get_queryset(self) -> QuerySet[Action]:
        rows = rights.of(self.request.user).within("read", Action.objects.all())
        return rows.filter(fleet=self.asked["fleet"]) if "fleet" in self.asked else rows

    @extend_schema(parameters=[queries.AuditQuery])
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return super().get(request, *args, **kwargs)


def _reason(request: Request) -> str:
    body = s.ReasonSerializer(data=request.data)
    body.is_valid(raise_exception=True)
    return body.validated_data["reason"]


_FLEET = "fleets/<slug:fleet>"
urlpatterns = [
    path("fleets", FleetList.as_view(), name="api-fleets"),
    path(_FLEET, FleetDetail.as_view(), name="api-fleet"),
    path(f"{_FLEET}/policy", PolicyView.as_view(), name="api-policy"),
    path(f"{_FLEET}/holds", HoldList.as_view(), name="api-holds"),
    path(f"{_FLEET}/holds/<int:hold_id>/release", HoldRelease.as_view(), name="api-release"),
    path(f"{_FLEET}/holds/<int:hold_id>/extend", HoldExtend.as_view(), name="api-extend"),
    path(f"{_FLEET}/ticks", TickList.as_view(), name="api-ticks"),
    path(f"{_FLEET}/ticks/<int:seq>", TickDetail.as_view(), name="api-tick"),
    path(f"{_FLEET}/decisions", DecisionList.as_view(), name="api-decisions"),
    path(f"{_FLEET}/decisions/<int:decision_id>", DecisionDetail.as_view(), name="api-decision"),
    path(f"{_FLEET}/routers", RouterList.as_view(), name="api-routers"),
    path(f"{_FLEET}/instances", InstanceList.as_view(), name="api-instances"),
    path(f"{_FLEET}/links", LinkList.as_view(), name="api-links"),
    path(f"{_FLEET}/series", SeriesView.as_view(), name="api-series"),
    path(f"{_FLEET}/epoch", EpochView.as_view(), name="api-epoch"),
    path("audit", AuditList.as_view(), name="api-audit"),
]
