"""How REST tells of a proposal, also where it is the answer to what was asked for."""

from __future__ import annotations

from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from routing.approvals import limits, rows
from routing.approvals.limits import CHANGES, FIGURES, LOOSENED
from routing.approvals.models import Proposal


class ProposedChangeSerializer(serializers.Serializer):
    """One change that it would make, as the audit will tell it."""

    verb = serializers.CharField()
    fleet = serializers.CharField(allow_blank=True)
    target = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ReachSerializer(serializers.Serializer):
    """How far it goes."""

    kinds = serializers.ListField(child=serializers.ChoiceField((*CHANGES, LOOSENED)))
    figures = serializers.DictField(child=serializers.FloatField(), help_text=", ".join(FIGURES))


class BeyondSerializer(serializers.Serializer):
    """A limit that it goes beyond; a kind of change has no figures."""

    limit = serializers.CharField()
    value = serializers.FloatField(allow_null=True)
    most = serializers.FloatField(allow_null=True)


class ProposalSerializer(serializers.ModelSerializer):
    """A change that waits for a second person, or what became of it. `needs` says why it does."""

    arguments = serializers.DictField()
    changes = ProposedChangeSerializer(many=True)
    reach = ReachSerializer()
    beyond = BeyondSerializer(many=True)
    needs = serializers.SerializerMethodField()
    state = serializers.ChoiceField(rows.STATES)
    result = serializers.JSONField(allow_null=True)

    class Meta:
        model = Proposal
        fields = (
            "id", "fleet", "command", "arguments", "changes", "reach", "beyond", "needs",
            "asked_by", "via", "reason", "asked_at", "expires_at", "state", "ended_at", "ended_by",
            "ended_reason", "text", "result", "broke_glass",
        )  # fmt: skip

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_needs(self, row: Proposal) -> list[str]:
        return limits.words(rows.beyond_of(row))


def proposed(row: Proposal) -> Response:
    """No error: nothing was changed, and a second person is to decide about it."""
    headers = {"Location": reverse("api-approval", args=[row.pk])}
    return Response(ProposalSerializer(row).data, status=202, headers=headers)
