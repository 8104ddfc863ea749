"""REST for approvals: what waits for a second person, the word about it, the limits behind it."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import queries, rights
from routing import serializers as s
from routing.api import MAY_MATCH, FleetMixin, Newest, by, version_seen
from routing.approvals import limits_rows, proposals, rows
from routing.approvals.answers import ProposalSerializer
from routing.approvals.limits import EXPIRES_S, FIGURES
from routing.approvals.models import ApprovalLimits, Proposal
from routing.queries import Queried
from routing.rest.once import once

_FLEET = "fleets/{fleet}"
MAY_BE_PROPOSED = frozenset(
    (
        ("post", "apply"),
        ("patch", f"{_FLEET}/policy"),
        ("put", f"{_FLEET}/approval-limits"),
        ("put", f"{_FLEET}/jobs/{{name}}"),
        *(
            ("post", f"{_FLEET}/{what}")
            for what in (
                *("holds", "holds/{hold_id}/extend", "epoch", "rebalances", "breakers/reset"),
                *("maintenance", "maintenance/{maintenance_id}/extend"),
                "profile-fits/{fit_id}/apply",
                *("decisions/{decision_id}/rollback", "managed-routers/{router_id}/adopt"),
                *("managed-routers/{router_id}/override", "managed-routers/{router_id}/on-drift"),
            )
        ),
    )
)
"""Operations that answer 202 where a second person is needed."""


class ProposalQuery(queries.NewestQuery):
    fleet = serializers.CharField(required=False)
    state = serializers.ChoiceField(rows.STATES, required=False)


class BreakGlassSerializer(s.Strict):
    confirm = serializers.CharField(help_text="The fleet's name.", max_length=200)
    reason = serializers.CharField(max_length=500)


class ApprovalLimitsSerializer(serializers.ModelSerializer):
    """From which reach on a change needs a second person (docs/approvals.md); version 0: none."""

    fleet = serializers.CharField(source="name")
    limits = serializers.DictField()

    class Meta:
        model = ApprovalLimits
        fields = ("fleet", "limits", "version", "updated_at", "updated_by")
        extra_kwargs = {"updated_at": {"allow_null": True}}


class ApprovalLimitsPutSerializer(s.Strict):
    limits = serializers.DictField(
        help_text=f"Some of {', '.join(FIGURES)}, changes, expires_s ({EXPIRES_S:.0f})."
    )
    reason = serializers.CharField(**s.EMPTY_REASON)


class ProposalList(Queried, ListAPIView):
    """Proposals of the fleets that one may read, newest first."""

    query_class = ProposalQuery
    across_fleets = True
    queryset = Proposal.objects.all()
    serializer_class = ProposalSerializer
    pagination_class = Newest

    def get_queryset(self) -> QuerySet[Proposal]:
        found = rights.of(self.request.user).within("read", Proposal.objects.all())
        for name in ("fleet", "state"):
            if name in self.asked:
                found = found.filter(**{name: self.asked[name]})
        return found


class ProposalDetail(Queried):
    """One proposal."""

    query_class = queries.Query
    across_fleets = True

    @extend_schema(responses=ProposalSerializer)
    def get(self, request: Request, proposal_id: int) -> Response:
        return _answer(_opened(request, "read", proposal_id))


class ProposalApprove(APIView):
    """Carry it out now, as its second person. One that cannot be done any more ends `failed`."""

    required_scope = ("approve",)
    across_fleets = True

    @extend_schema(
        request=s.ReasonSerializer, responses={200: ProposalSerializer, 403: None, 412: None}
    )
    @once
    def post(self, request: Request, proposal_id: int) -> Response:
        _opened(request, "approve", proposal_id)
        body = s.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return _answer(
            proposals.approve(proposal_id=proposal_id, **body.validated_data, **by(request))
        )


class ProposalReject(APIView):
    """Say no."""

    required_scope = ("approve",)
    across_fleets = True

    @extend_schema(
        request=s.NeededReasonSerializer, responses={200: ProposalSerializer, 403: None, 412: None}
    )
    @once
    def post(self, request: Request, proposal_id: int) -> Response:
        _opened(request, "approve", proposal_id)
        body = s.NeededReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return _answer(
            proposals.reject(proposal_id=proposal_id, **body.validated_data, **by(request))
        )


class ProposalWithdraw(APIView):
    """Take back what one asked for."""

    required_scope = ("operate", "admin")
    across_fleets = True

    @extend_schema(
        request=s.ReasonSerializer, responses={200: ProposalSerializer, 403: None, 412: None}
    )
    @once
    def post(self, request: Request, proposal_id: int) -> Response:
        _opened(request, "operate", proposal_id)
        body = s.ReasonSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return _answer(
            proposals.withdraw(proposal_id=proposal_id, **body.validated_data, **by(request))
        )


class ProposalBreakGlass(APIView):
    """Carry it out alone, in an emergency. It is audited, and shown to everybody."""

    required_scope = ("admin",)
    across_fleets = True

    @extend_schema(
        request=BreakGlassSerializer, responses={200: ProposalSerializer, 403: None, 412: None}
    )
    @once
    def post(self, request: Request, proposal_id: int) -> Response:
        _opened(request, "admin", proposal_id)
        body = BreakGlassSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return _answer(
            proposals.break_glass(proposal_id=proposal_id, **body.validated_data, **by(request))
        )


class ApprovalLimitsView(FleetMixin, APIView):
    """From which reach on changes of a fleet need a second person; the version is the ETag."""

    @property
    def required_scope(self) -> tuple[str, ...]:
        return ("read",) if self.request.method in SAFE_METHODS else ("admin",)

    @extend_schema(responses=ApprovalLimitsSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        return _limits(limits_rows.of(self.get_fleet().pk))

    @extend_schema(
        request=ApprovalLimitsPutSerializer,
        parameters=[MAY_MATCH],
        responses={200: ApprovalLimitsSerializer, 412: None, 428: None},
    )
    @once
    def put(self, request: Request, fleet: str) -> Response:
        known = limits_rows.of(self.get_fleet().pk)
        version = version_seen(request, exists=known.version > 0, of="approval limits")
        body = ApprovalLimitsPutSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        return _limits(
            limits_rows.put(fleet=fleet, if_version=version, **body.validated_data, **by(request))
        )


def _opened(request: Request, scope: str, proposal_id: int) -> Proposal:
    """The proposal, where the scope holds in its fleet; one of several fleets is of the site."""
    return rights.opened(request.user, scope, Proposal.objects.all(), pk=proposal_id)


def _answer(row: Proposal) -> Response:
    return Response(ProposalSerializer(row).data)


def _limits(row: ApprovalLimits) -> Response:
    data: Any = ApprovalLimitsSerializer(row).data
    return Response(data, headers={"ETag": f'"{row.version}"'})


_ONE = "approvals/<int:proposal_id>"
urlpatterns = [
    path("approvals", ProposalList.as_view(), name="api-approvals"),
    path(_ONE, ProposalDetail.as_view(), name="api-approval"),
    path(f"{_ONE}/approve", ProposalApprove.as_view(), name="api-approve"),
    path(f"{_ONE}/reject", ProposalReject.as_view(), name="api-reject"),
    path(f"{_ONE}/withdraw", ProposalWithdraw.as_view(), name="api-withdraw"),
    path(f"{_ONE}/break-glass", ProposalBreakGlass.as_view(), name="api-break-glass"),
    path(
        "fleets/<slug:fleet>/approval-limits",
        ApprovalLimitsView.as_view(),
        name="api-approval-limits",
    ),
]
