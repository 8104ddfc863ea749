"""REST for jobs: what is done at a time, its runs, and to do it now."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
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
from routing.jobs import jobs, runs
from routing.jobs.document import read_job
from routing.jobs.models import Job, JobRun
from routing.jobs.when import upcoming
from routing.queries import Queried
from routing.rest.once import once

N_NEXT = 3


class JobSerializer(serializers.ModelSerializer):
    """A job; its document is described in docs/jobs.md. `next_due_at` are its next due times."""

    document = serializers.JSONField()
    next_due_at = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = (
            "name", "fleet", "document", "enabled", "next_due_at", "version", "updated_at",
            "updated_by",
        )  # fmt: skip

    @extend_schema_field(serializers.ListField(child=serializers.DateTimeField()))
    def get_next_due_at(self, row: Job) -> list[Any]:
        return upcoming(read_job(row.document).when, timezone.now(), N_NEXT) if row.enabled else []


class JobPutSerializer(s.Strict):
    document = serializers.JSONField(help_text="Its `name` and `fleet` are those of the address.")
    enabled = serializers.BooleanField(default=True)
    reason = serializers.CharField(**s.EMPTY_REASON)


class JobRunSerializer(serializers.ModelSerializer):
    """One due time of a job and what became of it."""

    state = serializers.ChoiceField((*runs.OPEN, *runs.ENDED))

    class Meta:
        model = JobRun
        fields = (
            "id", "job", "fleet", "due_at", "state", "text", "asked_by", "hold", "proposal",
            "began_at", "ended_at",
        )  # fmt: skip


class JobRunQuery(queries.NewestQuery):
    job = serializers.CharField(required=False)


class JobList(FleetMixin, Queried, ListAPIView):
    """All jobs of a fleet."""

    query_class = queries.PageQuery
    serializer_class = JobSerializer
    pagination_class = Page

    def get_queryset(self) -> QuerySet[Job]:
        return Job.objects.filter(fleet=self.get_fleet().pk).order_by("name")


class JobDetail(FleetMixin, Queried):
    """One job; its version is the ETag."""

    query_class = queries.Query

    @extend_schema(responses=JobSerializer)
    def get(self, request: Request, fleet: str, name: str) -> Response:
        return _answer(get_object_or_404(Job, pk=name, fleet=self.get_fleet().pk))

    @extend_schema(
        request=JobPutSerializer,
        parameters=[MAY_MATCH],
        responses={200: JobSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, fleet: str, name: str) -> Response:
        self.get_fleet()
        known = Job.objects.filter(pk=name).first()
        if known is not None and known.fleet != fleet:
            may_know = rights.of(request.user).may("read", known.fleet)
            whose = f"fleet {known.fleet}" if may_know else "another fleet"
            raise serializers.ValidationError({"name": [f"is a job of {whose}"]})
        version = version_seen(request, exists=known is not None, of="job")
        body = JobPutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        document = s.addressed(body.validated_data["document"], name=name, fleet=fleet)
        row = jobs.put(
            document=document,
            enabled=body.validated_data["enabled"],
            reason=body.validated_data["reason"],
            if_version=version,
            **by(request),
        )
        return _answer(row)

    @extend_schema(parameters=[IF_MATCH], responses={204: None, 412: None, 428: None})
    @once
    def delete(self, request: Request, fleet: str, name: str) -> Response:
        get_object_or_404(Job, pk=name, fleet=self.get_fleet().pk)
        version, who = version_read(request, of="job"), by(request)
        jobs.delete(name=name, if_version=version, actor=who["actor"], via=who["via"], reason="")
        return Response(status=204)


class JobRunNow(FleetMixin, Queried):
    """Do it now as well; the next pass of jobs takes it up."""

    query_class = queries.Query

    @extend_schema(request=s.NeededReasonSerializer, responses={201: JobRunSerializer})
    @once
    def post(self, request: Request, fleet: str, name: str) -> Response:
        get_object_or_404(Job, pk=name, fleet=self.get_fleet().pk)
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        row = runs.run_now(name=name, **body.validated_data, **by(request))
        return Response(JobRunSerializer(row).data, status=201)


class JobRunList(FleetMixin, Queried, ListAPIView):
    """Runs of a fleet's jobs, newest first."""

    query_class = JobRunQuery
    serializer_class = JobRunSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[JobRun]:
        rows = JobRun.objects.filter(fleet=self.get_fleet().pk)
        return rows.filter(job=self.asked["job"]) if "job" in self.asked else rows


def _answer(row: Job) -> Response:
    return Response(JobSerializer(row).data, headers={"ETag": f'"{row.version}"'})


_JOBS = "fleets/<slug:fleet>/jobs"
urlpatterns = [
    path(_JOBS, JobList.as_view(), name="api-jobs"),
    path(f"{_JOBS}/<slug:name>", JobDetail.as_view(), name="api-job"),
    path(f"{_JOBS}/<slug:name>/run", JobRunNow.as_view(), name="api-run-job"),
    path("fleets/<slug:fleet>/job-runs", JobRunList.as_view(), name="api-job-runs"),
]
