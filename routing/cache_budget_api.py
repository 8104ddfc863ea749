"""REST for one question: what would a larger prefix cache serve, and what is that worth."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from routing import cache_budget, queries
from routing.api import FleetMixin


class CacheBudgetQuery(queries.Query):
    trace = serializers.IntegerField(help_text="The id of an uploaded trace that holds prefixes.")
    cluster = serializers.CharField(required=False, help_text="The PD cluster to look from.")


class CountedTraceSerializer(serializers.Serializer):
    """Of `n_requests` the first `n_used` were looked at: half of them fill the cache, the other
    `n_counted` are counted."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    n_requests = serializers.IntegerField()
    n_used = serializers.IntegerField()
    n_counted = serializers.IntegerField()
    mean_prompt_tokens = serializers.FloatField()


class BudgetPointSerializer(serializers.Serializer):
    """The share of prompt tokens that a cache of this size serves, and what that would make of the
    cluster's headroom."""

    capacity_tokens = serializers.FloatField()
    hit_ratio = serializers.FloatField()
    mean_uncached_tokens = serializers.FloatField()
    headroom = serializers.FloatField(allow_null=True)


class MaybePointSerializer(serializers.Serializer):
    """The same, all null where there is none."""

    capacity_tokens = serializers.FloatField(allow_null=True)
    hit_ratio = serializers.FloatField(allow_null=True)
    mean_uncached_tokens = serializers.FloatField(allow_null=True)
    headroom = serializers.FloatField(allow_null=True)


class HeldSerializer(MaybePointSerializer):
    """What a cluster holds: `kv_capacity_tokens` of its profile times its instances, null where the
    profile does not say; its share as if the whole trace came there."""

    cluster = serializers.CharField()
    profile = serializers.CharField()
    instances = serializers.IntegerField()
    kv_capacity_tokens = serializers.FloatField(allow_null=True)


class CacheBudgetSerializer(serializers.Serializer):
    fleet = serializers.CharField()
    cluster = serializers.CharField()
    exact_state = serializers.BooleanField(
        help_text="The model's linear state serves a prefix of exactly its length only."
    )
    trace = CountedTraceSerializer()
    lengths_basis = serializers.ChoiceField(
        ("present", "whole_prompts"),
        help_text="What the scenario's lengths are taken for: what the present size leaves "
        "uncached, or whole prompts where nobody knows that size.",
    )
    headroom = serializers.FloatField(allow_null=True, help_text="Of the scenario as it is.")
    points = BudgetPointSerializer(many=True)
    unbounded = BudgetPointSerializer(help_text="Nothing is forgotten; its size is what that took.")
    enough = MaybePointSerializer(
        help_text="The smallest point with 90 % of what an unbounded cache serves; null if that is "
        "nothing."
    )
    holds = HeldSerializer(many=True)


class CacheBudgetView(FleetMixin, APIView):
    """How much of a trace's prompts prefix caches of different sizes serve.

    One cluster-wide cache, least recently used first, every request of the trace through it in
    order. Headroom is of the best plan with the scenario's lengths scaled by what is left uncached.
    """

    required_scope = ("read",)

    @extend_schema(parameters=[CacheBudgetQuery], responses=CacheBudgetSerializer)
    def get(self, request: Request, fleet: str) -> Response:
        found = self.get_fleet()
        asked = queries.parse(request, CacheBudgetQuery)
        return Response(cache_budget.answer(found, **asked))


urlpatterns = [
    path(
        "fleets/<slug:fleet>/cache-budget",
        CacheBudgetView.as_view(),
        name="api-cache-budget",
    )
]
