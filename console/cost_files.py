"""A month's report as a table's file and as a sheet to print, for people and over REST."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import exceptions
from rest_framework.request import Request

from console import cost_pdf, cost_words, csv_cells
from console.opened import opened
from console.roles import readable
from routing import queries
from routing.api import FleetMixin
from routing.costs import reports
from routing.costs.models import MonthReport
from routing.queries import Queried


@readable
def table(request: HttpRequest, fleet: str, month: str) -> HttpResponseBase:
    """Every line of a month as CSV."""
    opened(request, fleet)
    return _table(_kept(fleet, month))


@readable
def sheet(request: HttpRequest, fleet: str, month: str) -> HttpResponse:
    """The month as a PDF."""
    opened(request, fleet)
    return _sheet(_kept(fleet, month))


class ReportTable(FleetMixin, Queried):
    """Every line of a month as CSV."""

    query_class = queries.Query

    @extend_schema(responses={(200, "text/csv"): OpenApiResponse(OpenApiTypes.STR)})
    def get(self, request: Request, fleet: str, month: str) -> HttpResponseBase:
        return _table(_found(self.get_fleet().pk, month))


class ReportSheet(FleetMixin, Queried):
    """The month as a PDF of a few pages, to print or to keep."""

    query_class = queries.Query

    @extend_schema(responses={(200, "application/pdf"): OpenApiResponse(OpenApiTypes.BINARY)})
    def get(self, request: Request, fleet: str, month: str) -> HttpResponse:
        return _sheet(_found(self.get_fleet().pk, month))


def _table(row: MonthReport) -> HttpResponseBase:
    name = f"{row.fleet}-costs-{row.month}"
    return csv_cells.stream(cost_words.table_rows(row), cost_words.HEADER, name)


def _sheet(row: MonthReport) -> HttpResponse:
    name = csv_cells.file_name(f"{row.fleet}-costs-{row.month}", "pdf")
    return HttpResponse(
        cost_pdf.sheet(row),
        content_type="application/pdf",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "private, no-store",
        },
    )


def _kept(fleet: str, month: str) -> MonthReport:
    try:
        return reports.kept(fleet, month)
    except reports.NoReport as exc:
        raise Http404(str(exc)) from None


def _found(fleet: str, month: str) -> MonthReport:
    try:
        return reports.kept(fleet, month)
    except reports.NoReport as exc:
        raise exceptions.NotFound(str(exc)) from None


_MONTH = "fleets/<slug:fleet>/reports/<str:month>"
urlpatterns = [
    path(f"{_MONTH}/table", ReportTable.as_view(), name="api-report-table"),
    path(f"{_MONTH}/sheet", ReportSheet.as_view(), name="api-report-sheet"),
]
