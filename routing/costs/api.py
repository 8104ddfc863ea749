"""REST for costs: prices, months, and what a month's decisions were worth."""

from __future__ import annotations

from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import exceptions, serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from routing import audit, queries
from routing import serializers as s
from routing.api import (
    IF_MATCH,
    MAY_MATCH,
    FleetMixin,
    Page,
    by,
    version_read,
    version_seen,
)
from routing.costs import months, prices, reports, tasks, values
from routing.costs.models import DecisionValue, MonthReport, PriceTable
from routing.costs.months import Month
from routing.models import Fleet
from routing.queries import Queried
from routing.rest.once import once


class PriceTableSerializer(serializers.ModelSerializer):
    """What hours and links cost; the document is described in docs/costs.md."""

    document = serializers.JSONField()

    class Meta:
        model = PriceTable
        fields = ("document", "version", "updated_at", "updated_by")


class PricePutSerializer(s.Strict):
    document = serializers.JSONField()
    reason = serializers.CharField(**s.EMPTY_REASON)


class MonthRowSerializer(serializers.ModelSerializer):
    """A month of which there is a report."""

    class Meta:
        model = MonthReport
        fields = ("month", "closed", "made_at")


class MonthReportSerializer(MonthRowSerializer):
    """A month's report; `report` is described in docs/costs.md. Money is text, never a fraction."""

    report = serializers.DictField()

    class Meta(MonthRowSerializer.Meta):
        fields = ("month", "closed", "made_at", "report")


class ValueSerializer(serializers.ModelSerializer):
    """What a month's decisions were worth, as far as it is. `result` by the baseline compared with;
    docs/costs.md says what it holds."""

    state = serializers.ChoiceField(("queued", "running", "done", "failed"))
    progress_ratio = serializers.SerializerMethodField()
    n_hours = serializers.SerializerMethodField()
    result = serializers.DictField(allow_null=True)

    class Meta:
        model = DecisionValue
        fields = (
            "id", "month", "state", "progress_ratio", "n_hours", "text", "result", "requested_by",
            "created_at", "finished_at",
        )  # fmt: skip

    def get_progress_ratio(self, row: DecisionValue) -> float:
        return len(row.found) / len(row.hours) if row.hours else 0.0

    def get_n_hours(self, row: DecisionValue) -> int:
        return len(row.hours)


class PricesView(FleetMixin, Queried):
    """What hours and links of a fleet cost; its version is the ETag."""

    query_class = queries.Query

    @extend_schema(responses=PriceTableSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        return _answer(get_object_or_404(PriceTable, pk=self.get_fleet().pk))

    @extend_schema(
        request=PricePutSerializer,
        parameters=[MAY_MATCH],
        responses={200: PriceTableSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        known = PriceTable.objects.filter(pk=found.pk).exists()
        version = version_seen(request, exists=known, of="price table")
        body = PricePutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = prices.put(fleet=found.pk, if_version=version, **body.validated_data, **by(request))
        return _answer(row)

    @extend_schema(parameters=[IF_MATCH], responses={204: None, 412: None, 428: None})
    @once
    def delete(self, request: Request, fleet: str) -> Response:
        found = get_object_or_404(PriceTable, pk=self.get_fleet().pk)
        version, who = version_read(request, of="price table"), by(request)
        prices.delete(
            fleet=found.pk, if_version=version, actor=who["actor"], via=who["via"], reason=""
        )
        return Response(status=204)


class ReportList(FleetMixin, Queried, GenericAPIView):
    """The months of which there is a report, newest first."""

    query_class = queries.PageQuery
    pagination_class = Page
    serializer_class = MonthRowSerializer

    @extend_schema(responses=MonthRowSerializer(many=True))
    def get(self, request: Request, fleet: str) -> Response:
        rows = MonthReport.objects.filter(fleet=self.get_fleet().pk).order_by("-month")
        page = self.paginate_queryset(rows.defer("report"))
        return self.get_paginated_response(MonthRowSerializer(page, many=True).data)


class ReportDetail(FleetMixin, Queried):
    """A month: hours by role, egress by link, money where there are prices."""

    query_class = queries.Query

    @extend_schema(responses=MonthReportSerializer)
    def get(self, request: Request, fleet: str, month: str) -> Response:
        return Response(MonthReportSerializer(_kept(self.get_fleet().pk, month)).data)

    @extend_schema(request=s.NeededReasonSerializer, responses=MonthReportSerializer)
    @once
    def post(self, request: Request, fleet: str, month: str) -> Response:
        """Put the month together again, with the prices of now: also one that is closed."""
        found = self.get_fleet()
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        who = by(request)
        row = reports.make(found, _month(found, month), who["now"])
        if row is None:
            raise exceptions.NotFound(f"nothing of {found.pk} was recorded in {month:.20}")
        audit.record(
            actor=who["actor"],
            via=who["via"],
            verb="report.make",
            fleet=found.pk,
            target=f"report {row.month}",
            reason=body.validated_data["reason"],
        )
        return Response(MonthReportSerializer(row).data)


class ValueView(FleetMixin, Queried):
    """What a month's decisions were worth, by the twin: asked for, then watched here."""

    query_class = queries.Query

    @extend_schema(responses=ValueSerializer)
    def get(self, request: Request, fleet: str, month: str) -> Response:
        found = self.get_fleet()
        row = values.newest(found.pk, _month(found, month).name)
        if row is None:
            raise exceptions.NotFound(f"nobody asked what decisions of {month:.20} were worth")
        return Response(ValueSerializer(row).data)

    @extend_schema(
        request=s.ReasonSerializer,
        responses={status.HTTP_202_ACCEPTED: ValueSerializer},
    )
    @once
    def post(self, request: Request, fleet: str, month: str) -> Response:
        """Replay recorded hours of the month; GET says how far that is."""
        found = self.get_fleet()
        body = s.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = values.ask(
            fleet=found,
            month=_month(found, month),
            **body.validated_data,
            **by(request),
        )
        tasks.wake()
        return Response(ValueSerializer(row).data, status=status.HTTP_202_ACCEPTED)


def _answer(row: PriceTable) -> Response:
    return Response(PriceTableSerializer(row).data, headers={"ETag": f'"{row.version}"'})


def _kept(fleet: str, month: str) -> MonthReport:
    try:
        return reports.kept(fleet, month)
    except reports.NoReport as exc:
        raise exceptions.NotFound(str(exc)) from None


def _month(fleet: Fleet, name: str) -> Month:
    _, read = prices.of(fleet.pk)
    try:
        return months.month_of(name, prices.zone_of(read))
    except months.NoMonth as exc:
        raise exceptions.NotFound(str(exc)) from None


_MONTH = "fleets/<slug:fleet>/reports/<str:month>"
urlpatterns = [
    path("fleets/<slug:fleet>/prices", PricesView.as_view(), name="api-prices"),
    path("fleets/<slug:fleet>/reports", ReportList.as_view(), name="api-reports"),
    path(_MONTH, ReportDetail.as_view(), name="api-report"),
    path(f"{_MONTH}/value", ValueView.as_view(), name="api-report-value"),
]
