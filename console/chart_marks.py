"""What charts mark: decisions with who took them, spans of holds, rebalances and maintenance."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import F, Q
from django.db.models.functions import Coalesce, Least
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from console import timeline
from routing import queries
from routing.api import FleetMixin
from routing.models import Decision, Fleet, Hold, Rebalance
from routing.series import LATEST_S, MAX_RANGE_S, changes
from routing.windows.models import Maintenance

MOST_DECISIONS: Final = 500
MOST_SPANS: Final = 100
_RANGE_S: Final = 900.0


class MarksQuery(queries.Query):
    """From when to when."""

    since = serializers.FloatField(required=False, help_text="Epoch seconds; default 15 min ago.")
    until = serializers.FloatField(required=False, help_text="Epoch seconds; default now.")


class DecisionMarkSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    at_s = serializers.FloatField()
    epoch = serializers.IntegerField()
    version = serializers.IntegerField(allow_null=True, help_text="Null: advised, never pushed.")
    reason = serializers.CharField()
    message = serializers.CharField()
    who = serializers.CharField(help_text="`loop`, or the person it was done for.")
    changes = serializers.DictField(help_text="cluster -> field -> [before, after]")


class SpanMarkSerializer(serializers.Serializer):
    kind = serializers.ChoiceField(("hold", "rebalance", "maintenance"))
    id = serializers.IntegerField()
    cluster = serializers.CharField(allow_blank=True, help_text="Empty: every cluster.")
    since_s = serializers.FloatField()
    until_s = serializers.FloatField(allow_null=True, help_text="Null: not over.")
    who = serializers.CharField()
    reason = serializers.CharField(allow_blank=True)
    before = serializers.CharField(allow_blank=True, help_text="Of a rebalance, roles as 3/5.")
    after = serializers.CharField(allow_blank=True)


class MarksSerializer(serializers.Serializer):
    decisions = DecisionMarkSerializer(many=True)
    n_left_out = serializers.IntegerField(help_text="Older decisions of the range that are not in.")
    spans = SpanMarkSerializer(many=True)


class MarksView(FleetMixin, APIView):
    """Decisions, holds, rebalances and maintenance of a range, ascending."""

    @extend_schema(parameters=[MarksQuery], responses=MarksSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        asked = queries.parse(request, MarksQuery)
        now = timezone.now()
        until_s = asked.get("until", now.timestamp())
        since_s = asked.get("since", until_s - _RANGE_S)
        for name, value in (("since", since_s), ("until", until_s)):
            if not 0.0 <= value <= LATEST_S:
                raise ValidationError({name: ["must be epoch seconds up to the year 3000"]})
        if not 0.0 < until_s - since_s <= MAX_RANGE_S:
            raise ValidationError({"until": ["must be after since, by at most 31 days"]})
        since, until = (datetime.fromtimestamp(s, UTC) for s in (since_s, until_s))
        return Response(marks(found, since, until, now))


def marks(fleet: Fleet, since: datetime, until: datetime, now: datetime) -> dict[str, Any]:
    """Of decisions the newest `MOST_DECISIONS`."""
    made = Decision.objects.filter(fleet=fleet, created_at__gte=since, created_at__lte=until)
    newest = list(made.order_by("-created_at", "-id")[:MOST_DECISIONS])
    n_left_out = made.count() - len(newest) if len(newest) == MOST_DECISIONS else 0
    spans = [
        *_holds(fleet, since, until, now),
        *_rebalances(fleet, since, until),
        *_maintenance(fleet, since, until, now),
    ]
    return {
        "decisions": [_decision(row) for row in reversed(newest)],
        "n_left_out": n_left_out,
        "spans": sorted(spans, key=lambda span: float(span["since_s"])),
    }


def _decision(row: Decision) -> dict[str, Any]:
    return {
        "id": row.pk,
        "at_s": row.created_at.timestamp(),
        "epoch": row.epoch,
        "version": row.version,
        "reason": row.reason,
        "message": row.message,
        "who": timeline.who(row.reason, row.message),
        "changes": changes(row),
    }


def _holds(fleet: Fleet, since: datetime, until: datetime, now: datetime) -> list[dict[str, Any]]:
    ended = Least(F("expires_at"), Coalesce(F("released_at"), F("expires_at")))
    rows = Hold.objects.filter(fleet=fleet, created_at__lte=until).annotate(ended_at=ended)
    rows = rows.filter(ended_at__gte=since).order_by("-created_at")[:MOST_SPANS]
    return [
        {
            "kind": "hold",
            "id": row.pk,
            "cluster": row.cluster,
            "since_s": row.created_at.timestamp(),
            "until_s": row.ended_at.timestamp() if row.ended_at <= now else None,
            "who": row.owner,
            "reason": row.reason,
            "before": "",
            "after": "",
        }
        for row in rows
    ]


def _rebalances(fleet: Fleet, since: datetime, until: datetime) -> list[dict[str, Any]]:
    rows = Rebalance.objects.filter(fleet=fleet, created_at__lte=until)
    rows = rows.filter(Q(finished_at__isnull=True) | Q(finished_at__gte=since))
    return [
        {
            "kind": "rebalance",
            "id": row.pk,
            "cluster": row.cluster,
            "since_s": row.created_at.timestamp(),
            "until_s": row.finished_at.timestamp() if row.finished_at else None,
            "who": row.requested_by,
            "reason": row.reason or row.waiting_for,
            "before": f"{row.from_n_prefill}/{row.from_n_decode}",
            "after": f"{row.to_n_prefill}/{row.to_n_decode}",
        }
        for row in rows.order_by("-created_at")[:MOST_SPANS]
    ]


def _maintenance(
    fleet: Fleet, since: datetime, until: datetime, now: datetime
) -> list[dict[str, Any]]:
    """What was worked on; its `cluster` may be a link."""
    rows = Maintenance.objects.filter(fleet=fleet.pk, starts_at__lte=min(until, now))
    return [
        {
            "kind": "maintenance",
            "id": row.pk,
            "cluster": row.cluster or row.link,
            "since_s": row.starts_at.timestamp(),
            "until_s": row.ends_at.timestamp() if row.ends_at <= now else None,
            "who": row.owner,
            "reason": row.reason,
            "before": "",
            "after": "",
        }
        for row in rows.filter(ends_at__gte=since).order_by("-starts_at")[:MOST_SPANS]
    ]


urlpatterns = [path("fleets/<slug:fleet>/marks", MarksView.as_view(), name="api-marks")]
