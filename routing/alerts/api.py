"""REST for alerts: rules, incidents, silences, receivers."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import queries, rights
from routing import serializers as s
from routing.alerts import incidents, receivers, rules, sending, silences, telling
from routing.alerts.messages import EVENTS, KINDS
from routing.alerts.models import AlertRule, Incident, Notification, Receiver, Silence
from routing.alerts.signals import UNITS
from routing.api import (
    IF_MATCH,
    MAY_MATCH,
    Newest,
    Page,
    by,
    version_read,
    version_seen,
)
from routing.core.alerts.rule import SEVERITIES
from routing.queries import Queried
from routing.rest.once import once

_STATES = ("waiting", "sent", "given_up", "dropped")
INCIDENT_KINDS = ("figure", "no_data")


class AlertRuleSerializer(serializers.ModelSerializer):
    """A rule; its document is described in docs/alerts.md."""

    document = serializers.JSONField()

    class Meta:
        model = AlertRule
        fields = ("name", "document", "enabled", "version", "updated_at", "updated_by")


class AlertRulePutSerializer(s.Strict):
    document = serializers.JSONField(help_text="Its `name` is the one in the address.")
    enabled = serializers.BooleanField(default=True)
    reason = serializers.CharField(**s.EMPTY_REASON)


class AlertSignalSerializer(serializers.Serializer):
    """A signal that a rule may watch. Those that end in `_total` are watched as gain a second."""

    signal = serializers.CharField()
    unit = serializers.CharField(allow_blank=True)


class MemberSerializer(serializers.Serializer):
    """A source that fires; `value` is null where nothing is measured."""

    source = serializers.CharField()
    value = serializers.FloatField(allow_null=True)
    since_s = serializers.FloatField()


class NotificationSerializer(serializers.ModelSerializer):
    """What one receiver was told, or was not, and why."""

    event = serializers.ChoiceField(EVENTS)
    state = serializers.ChoiceField(_STATES)

    class Meta:
        model = Notification
        fields = (
            "receiver", "event", "state", "attempts", "error", "created_at", "due_at", "ended_at",
        )  # fmt: skip


class IncidentSerializer(serializers.ModelSerializer):
    """What fires, or fired, of one rule in one group; `members` are the worst of `n`."""

    kind = serializers.ChoiceField(INCIDENT_KINDS)
    severity = serializers.ChoiceField(SEVERITIES)
    members = MemberSerializer(many=True)

    class Meta:
        model = Incident
        fields = (
            "id", "rule", "kind", "group", "fleet", "cluster", "severity", "signal", "sentence",
            "summary", "runbook_url", "n", "most", "members", "opened_at", "seen_at",
            "resolved_at", "ended_by", "acknowledged_at", "acknowledged_by", "note", "version",
        )  # fmt: skip


class IncidentDetailSerializer(IncidentSerializer):
    told = NotificationSerializer(many=True)

    class Meta(IncidentSerializer.Meta):
        fields = (*IncidentSerializer.Meta.fields, "told")


class NoteSerializer(s.Strict):
    note = serializers.CharField(**s.EMPTY_REASON)


class SilenceSerializer(serializers.ModelSerializer):
    """Patterns are of the shell's kind; an empty fleet is any."""

    class Meta:
        model = Silence
        fields = (
            "id", "fleet", "rule", "cluster", "source", "severity", "reason", "created_by",
            "created_at", "ends_at", "ended_by",
        )  # fmt: skip


class SilencePostSerializer(s.Strict):
    fleet = serializers.CharField(default="", allow_blank=True)
    rule = serializers.CharField(default="*")
    cluster = serializers.CharField(default="*")
    source = serializers.CharField(default="*", help_text="Of all sources of an incident.")
    severity = serializers.ChoiceField(("*", *SEVERITIES), default="*")
    reason = serializers.CharField()
    ends_at = serializers.DateTimeField()


class ReceiverSerializer(serializers.ModelSerializer):
    kind = serializers.ChoiceField(KINDS)

    class Meta:
        model = Receiver
        fields = ("name", "kind", "target", "secret_file", "version", "updated_at", "updated_by")


class ReceiverPutSerializer(s.Strict):
    kind = serializers.ChoiceField(KINDS)
    target = serializers.CharField(help_text="A URL, or e-mail addresses apart by commas.")
    secret_file = serializers.CharField(
        default="", allow_blank=True, help_text="In CONSOLE_ROUTERS_DIR."
    )
    reason = serializers.CharField(**s.EMPTY_REASON)


class SentSerializer(serializers.Serializer):
    """Whether a test message was taken, and why not."""

    sent = serializers.BooleanField()
    error = serializers.CharField(allow_blank=True)


class IncidentQuery(queries.NewestQuery):
    open = queries.open_field("true: those that fire, false: those that are over.")
    fleet = serializers.CharField(required=False)
    rule = serializers.CharField(required=False)


class _Edited(APIView):
    """GET for readers; what changes it as `changed_by` says."""

    changed_by: ClassVar[tuple[str, ...]] = ("operate",)

    @property
    def required_scope(self) -> tuple[str, ...]:
        return ("read",) if self.request.method in SAFE_METHODS else self.changed_by


class AlertSignals(Queried):
    """All signals that a rule may watch, with their units."""

    query_class = queries.Query
    across_fleets = True

    @extend_schema(responses=AlertSignalSerializer(many=True))
    def get(self, request: Request) -> Response:
        return Response([{"signal": name, "unit": unit} for name, unit in UNITS.items()])


class AlertRuleList(Queried, ListAPIView):
    """The alert rules of fleets that one may read, and those of all fleets."""

    query_class = queries.PageQuery
    across_fleets = True
    queryset = AlertRule.objects.order_by("name")
    serializer_class = AlertRuleSerializer
    pagination_class = Page

    def get_queryset(self) -> QuerySet[AlertRule]:
        return rules.readable(rights.of(self.request.user))


class AlertRuleDetail(_Edited):
    """One rule; its version is the ETag."""

    across_fleets = True

    @extend_schema(responses=AlertRuleSerializer)
    def get(self, request: Request, name: str) -> Response:
        rows = rules.readable(rights.of(request.user))
        return _with_etag(AlertRuleSerializer, get_object_or_404(rows, pk=name))

    @extend_schema(
        request=AlertRulePutSerializer,
        parameters=[MAY_MATCH],
        responses={200: AlertRuleSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, name: str) -> Response:
        known = AlertRule.objects.filter(pk=name).first()
        if known is not None:
            rights.demand(request.user, "operate", known.document.get("fleet", ""))
        version = version_seen(request, exists=known is not None, of="rule")
        body = AlertRulePutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        document = s.addressed(body.validated_data["document"], name=name)
        rights.demand(request.user, "operate", rules.parsed(document).fleet)
        row = rules.put(
            document=document,
            enabled=body.validated_data["enabled"],
            reason=body.validated_data["reason"],
            if_version=version,
            **by(request),
        )
        return _with_etag(AlertRuleSerializer, row)

    @extend_schema(parameters=[IF_MATCH], responses={204: None, 412: None, 428: None})
    @once
    def delete(self, request: Request, name: str) -> Response:
        known = get_object_or_404(rules.readable(rights.of(request.user)), pk=name)
        rights.demand(request.user, "operate", known.document.get("fleet", ""))
        version = version_read(request, of="rule")
        rules.delete(name=name, if_version=version, reason="", **by(request))
        return Response(status=204)


class IncidentList(Queried, ListAPIView):
    """Incidents of the fleets that one may read, newest first."""

    query_class = IncidentQuery
    across_fleets = True
    serializer_class = IncidentSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[Incident]:
        rows = rights.of(self.request.user).within("read", Incident.objects.all())
        for name in ("fleet", "rule"):
            if name in self.asked:
                rows = rows.filter(**{name: self.asked[name]})
        if "open" in self.asked:
            rows = rows.filter(resolved_at__isnull=self.asked["open"])
        return rows


class IncidentDetail(APIView):
    """One incident with what was told of it; its version is the ETag."""

    across_fleets = True

    @extend_schema(responses=IncidentDetailSerializer)
    def get(self, request: Request, incident_id: int) -> Response:
        rows = Incident.objects.prefetch_related("told")
        row = rights.opened(request.user, "read", rows, pk=incident_id)
        return _with_etag(IncidentDetailSerializer, row)


class IncidentAcknowledge(APIView):
    """Somebody is at it: nobody is told again."""

    across_fleets = True

    @extend_schema(
        request=NoteSerializer,
        parameters=[IF_MATCH],
        responses={200: IncidentSerializer, 412: None, 428: None},
    )
    @once
    def post(self, request: Request, incident_id: int) -> Response:
        rights.opened(request.user, "operate", Incident.objects.all(), pk=incident_id)
        version = version_read(request, of="incident")
        body = NoteSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = incidents.acknowledge(
            incident_id=incident_id, if_version=version, **body.validated_data, **by(request)
        )
        return _with_etag(IncidentSerializer, row)


class SilenceList(Queried, ListAPIView):
    """Silences, newest first, those that ended too: of fleets that one may read, and of all."""

    query_class = queries.NewestQuery
    across_fleets = True
    queryset = Silence.objects.all()
    serializer_class = SilenceSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[Silence]:
        return rights.of(self.request.user).within_or_site("read", super().get_queryset())

    @extend_schema(request=SilencePostSerializer, responses={201: SilenceSerializer})
    @once
    def post(self, request: Request) -> Response:
        body = SilencePostSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        rights.demand(request.user, "operate", body.validated_data["fleet"])
        row = silences.begin(**body.validated_data, **by(request))
        return Response(SilenceSerializer(row).data, status=201)


class SilenceEnd(APIView):
    """End a silence now."""

    across_fleets = True

    @extend_schema(request=s.NeededReasonSerializer, responses=SilenceSerializer)
    @once
    def post(self, request: Request, silence_id: int) -> Response:
        rows = rights.of(request.user).within_or_site("read", Silence.objects.all())
        rights.demand(request.user, "operate", get_object_or_404(rows, pk=silence_id).fleet)
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = silences.end(silence_id=silence_id, **body.validated_data, **by(request))
        return Response(SilenceSerializer(row).data)


class ReceiverList(Queried, ListAPIView):
    """Where incidents can be told."""

    query_class = queries.PageQuery
    queryset = Receiver.objects.order_by("name")
    serializer_class = ReceiverSerializer
    pagination_class = Page


class ReceiverDetail(_Edited):
    """One receiver, changed by admins only: it sends from within the site."""

    changed_by = ("admin",)

    @extend_schema(responses=ReceiverSerializer)
    def get(self, request: Request, name: str) -> Response:
        return _with_etag(ReceiverSerializer, get_object_or_404(Receiver, pk=name))

    @extend_schema(
        request=ReceiverPutSerializer,
        parameters=[MAY_MATCH],
        responses={200: ReceiverSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, name: str) -> Response:
        exists = Receiver.objects.filter(pk=name).exists()
        version = version_seen(request, exists=exists, of="receiver")
        body = ReceiverPutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = receivers.put(name=name, if_version=version, **body.validated_data, **by(request))
        return _with_etag(ReceiverSerializer, row)

    @extend_schema(responses={204: None})
    @once
    def delete(self, request: Request, name: str) -> Response:
        get_object_or_404(Receiver, pk=name)
        who = by(request)
        receivers.delete(name=name, actor=who["actor"], via=who["via"], reason="")
        return Response(status=204)


class ReceiverTest(APIView):
    """Send a message that says it is a test, now."""

    required_scope = ("admin",)

    @extend_schema(request=None, responses=SentSerializer)
    @once
    def post(self, request: Request, name: str) -> Response:
        row = get_object_or_404(Receiver, pk=name)
        try:
            sending.send(row, telling.test_message(at=timezone.now()))
        except sending.NotSent as exc:
            return Response({"sent": False, "error": str(exc)})
        return Response({"sent": True, "error": ""})


def _with_etag(serializer: Any, row: Any) -> Response:
    return Response(serializer(row).data, headers={"ETag": f'"{row.version}"'})


urlpatterns = [
    path("alert-signals", AlertSignals.as_view(), name="api-alert-signals"),
    path("alert-rules", AlertRuleList.as_view(), name="api-alert-rules"),
    path("alert-rules/<slug:name>", AlertRuleDetail.as_view(), name="api-alert-rule"),
    path("incidents", IncidentList.as_view(), name="api-incidents"),
    path("incidents/<int:incident_id>", IncidentDetail.as_view(), name="api-incident"),
    path(
        "incidents/<int:incident_id>/acknowledge",
        IncidentAcknowledge.as_view(),
        name="api-acknowledge",
    ),
    path("silences", SilenceList.as_view(), name="api-silences"),
    path("silences/<int:silence_id>/end", SilenceEnd.as_view(), name="api-end-silence"),
    path("receivers", ReceiverList.as_view(), name="api-receivers"),
    path("receivers/<slug:name>", ReceiverDetail.as_view(), name="api-receiver"),
    path("receivers/<slug:name>/test", ReceiverTest.as_view(), name="api-receiver-test"),
]
