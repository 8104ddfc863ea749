"""REST for backtests: upload a trace, start, look, cancel, take away."""

from __future__ import annotations

import csv
import io
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.generics import ListAPIView
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import backtest_results, backtests, planning, queries
from routing import backtest_serializers as s
from routing import serializers as common
from routing.api import FleetMixin, Newest, by
from routing.backtest_asked import Asked
from routing.models import Backtest, BacktestRun, TraceFile
from routing.queries import NewestQuery, Queried, Query
from routing.rest.once import once
from routing.tasks import TWIN_PROCESSES, wake_twin


class RawBody(BaseParser):
    """A file as it is, read no further than one byte beyond what is taken."""

    media_type = "application/octet-stream"

    def parse(self, stream: Any, *args: Any, **kwargs: Any) -> bytes:
        found: bytes = stream.read(backtests.MOST_TRACE_BYTES + 1)
        return found


class UploadQuery(Query):
    name = serializers.CharField(max_length=200, help_text="What errors call it.")


class ResultsQuery(Query):
    baseline = serializers.CharField(
        required=False, help_text="Compare with another policy than was asked for."
    )


class TraceList(FleetMixin, Queried, ListAPIView):
    """Uploaded traces, newest first."""

    query_class = NewestQuery
    serializer_class = s.TraceFileSerializer
    pagination_class = Newest
    parser_classes = [RawBody]
    queryset = TraceFile.objects.all()

    def get_queryset(self) -> QuerySet[TraceFile]:
        return TraceFile.objects.filter(fleet=self.get_fleet()).defer("data")

    @extend_schema(
        parameters=[UploadQuery],
        request={"application/octet-stream": OpenApiTypes.BINARY},
        responses={201: s.TraceFileSerializer},
    )
    def post(self, request: Request, fleet: str) -> Response:
        """Keep a trace file, plain or gzipped: Mooncake's jsonl, agentic sessions, csv of Azure,
        BurstGPT or ServeGen, or an export. The same file is kept once."""
        found = self.get_fleet()
        asked = queries.parse(request, UploadQuery)
        if not request.data:
            raise ValidationError({"body": ["is empty: send the file's bytes"]})
        trace = backtests.store_trace(fleet=found, data=request.data, **asked, **by(request))
        return Response(s.TraceFileSerializer(trace).data, status=status.HTTP_201_CREATED)


class BacktestList(FleetMixin, Queried, ListAPIView):
    """Backtests, newest first."""

    query_class = NewestQuery
    serializer_class = s.BacktestSerializer
    pagination_class = Newest
    queryset = Backtest.objects.all()

    def get_queryset(self) -> QuerySet[Backtest]:
        rows = Backtest.objects.filter(fleet=self.get_fleet())
        return backtests.counted(rows.defer("scenario", "recording", "trace__data")).select_related(
            "trace"
        )

    @extend_schema(request=s.BacktestAskSerializer, responses={201: s.BacktestSerializer})
    @once
    def post(self, request: Request, fleet: str) -> Response:
        """Start one: a run for each policy and seed, over the same requests at the same seed."""
        found = self.get_fleet()
        body = s.BacktestAskSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        asked = dict(body.validated_data)
        trace_id = asked.pop("trace", None)
        trace = None
        if trace_id is not None:
            trace = TraceFile.objects.filter(fleet=found, pk=trace_id).defer("data").first()
            if trace is None:
                raise ValidationError({"trace": [f"there is no trace {trace_id} of this fleet"]})
        rest = {name: asked.pop(name) for name in ("since", "until", "note") if name in asked}
        if "policies" in asked:
            asked["policies"] = tuple(asked["policies"])
        asked.setdefault("cache", "cluster" if asked["workload"] == "trace" else "scenario")
        made = backtests.create(
            fleet=found,
            asked=Asked(**asked),
            trace=trace,
            lengths={name: pd.lengths for name, pd in planning.recorded(found).pd.items()},
            **rest,
            **by(request),
        )
        transaction.on_commit(partial(wake_twin, TWIN_PROCESSES))
        row = backtests.counted(Backtest.objects.filter(pk=made.pk)).get()
        return Response(s.BacktestSerializer(row).data, status=status.HTTP_201_CREATED)


class OneBacktest(FleetMixin, APIView):
    """Views of one backtest."""

    def get_backtest(self) -> Backtest:
        rows = backtests.counted(Backtest.objects.filter(fleet=self.get_fleet()))
        rows = rows.select_related("trace").defer("trace__data")
        return get_object_or_404(rows, pk=self.kwargs["backtest_id"])

    def runs(self, backtest: Backtest) -> list[BacktestRun]:
        return list(backtest.runs.order_by("place", "seed"))


class BacktestDetail(OneBacktest):
    """How far it is, and what came of it so far: policies side by side, minute by minute."""

    @extend_schema(parameters=[ResultsQuery], responses=s.BacktestDetailSerializer)
    def get(self, request: Request, fleet: str, backtest_id: int) -> Response:
        found = self.get_backtest()
        asked = queries.parse(request, ResultsQuery)
        if asked.get("baseline", found.asked["baseline"]) not in found.asked["policies"]:
            known = ", ".join(found.asked["policies"])
            raise ValidationError({"baseline": [f"is not among its policies, {known}"]})
        results = backtest_results.results(found, self.runs(found), **asked)
        return Response({"backtest": s.BacktestSerializer(found).data, "results": results})


class BacktestCancel(OneBacktest):
    """Give it up. What is done stays; what runs stops as soon as it looks up."""

    @extend_schema(request=common.ReasonSerializer, responses=s.BacktestSerializer)
    @once
    def post(self, request: Request, fleet: str, backtest_id: int) -> Response:
        found = self.get_backtest()
        body = common.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        backtests.cancel(backtest=found, **body.validated_data, **by(request))
        return Response(s.BacktestSerializer(self.get_backtest()).data)


class BacktestExport(OneBacktest):
    """All of it as one JSON document: what was asked, the scenario, every report."""

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, fleet: str, backtest_id: int) -> Response:
        queries.parse(request, Query)
        found = self.get_backtest()
        body = backtest_results.exported(found, self.runs(found))
        name = f'attachment; filename="backtest-{found.pk}.json"'
        return Response(body, headers={"Content-Disposition": name})


class BacktestTable(OneBacktest):
    """A row of figures for each run, as CSV."""

    @extend_schema(responses={(200, "text/csv"): OpenApiResponse(OpenApiTypes.STR)})
    def get(self, request: Request, fleet: str, backtest_id: int) -> HttpResponse:
        queries.parse(request, Query)
        found = self.get_backtest()
        header, rows = backtest_results.rows_of(self.runs(found))
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(header)
        writer.writerows(rows)
        name = f'attachment; filename="backtest-{found.pk}.csv"'
        return HttpResponse(
            text.getvalue(),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": name},
        )


_BACKTESTS = "fleets/<slug:fleet>/backtests"
_ONE = f"{_BACKTESTS}/<int:backtest_id>"
urlpatterns = [
    path("fleets/<slug:fleet>/traces", TraceList.as_view(), name="api-traces"),
    path(_BACKTESTS, BacktestList.as_view(), name="api-backtests"),
    path(_ONE, BacktestDetail.as_view(), name="api-backtest"),
    path(f"{_ONE}/cancel", BacktestCancel.as_view(), name="api-cancel-backtest"),
    path(f"{_ONE}/export.json", BacktestExport.as_view(), name="api-backtest-json"),
    path(f"{_ONE}/export.csv", BacktestTable.as_view(), name="api-backtest-csv"),
]
