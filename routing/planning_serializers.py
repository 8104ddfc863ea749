"""The planner's documents, in and out."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from routing.serializers import Strict

_NUMBER = serializers.FloatField


def _numbers(**options: Any) -> serializers.ListField:
    return serializers.ListField(child=_NUMBER(**options))


class WhatIfAskSerializer(Strict):
    """What to change and where to look from; all of it optional."""

    numbers = serializers.DictField(
        required=False,
        child=serializers.JSONField(),
        help_text="By name PLACE.NUMBER: pd.rate_rps, pd.mu, pd.sigma, pd.lengths (scenario, "
        "lognormal or recorded), pd.output_tokens, pd.instances, prfaas->pd.gbps, "
        "slo.tokens_per_s, slo.ttft_s.",
    )
    cluster = serializers.CharField(required=False, allow_null=True, max_length=200)
    least_headroom = serializers.FloatField(required=False, allow_null=True)
    most_instances = serializers.DictField(required=False, child=serializers.IntegerField())


class ChangedNumberSerializer(serializers.Serializer):
    scenario = serializers.JSONField(allow_null=True)
    asked = serializers.JSONField()


class RecordedClusterSerializer(serializers.Serializer):
    demand_rps = _NUMBER(allow_null=True)
    n_requests = _NUMBER(allow_null=True, help_text="Effective number behind the lengths.")


class RecordedSerializer(serializers.Serializer):
    """What the newest tick saw."""

    at_s = _NUMBER(allow_null=True)
    clusters = serializers.DictField(child=RecordedClusterSerializer())


class SloSerializer(serializers.Serializer):
    tokens_per_s = _NUMBER()
    ttft_s = _NUMBER()


class PlannedClusterSerializer(serializers.Serializer):
    mode = serializers.CharField()
    threshold_tokens = serializers.IntegerField(allow_null=True)
    n_prefill = serializers.IntegerField()
    n_decode = serializers.IntegerField()
    remote_fraction = _NUMBER()
    remote = serializers.DictField(child=_NUMBER())
    theta_remote_rps = _NUMBER()
    theta_prefill_rps = _NUMBER()
    theta_decode_rps = _NUMBER()
    extrapolated = serializers.DictField(child=_NUMBER())


class PlannedLinkSerializer(serializers.Serializer):
    """At lambda_max."""

    egress_gbps = _NUMBER()
    utilisation = _NUMBER()
    planned_gbps = _NUMBER()


class BaselineSerializer(serializers.Serializer):
    lambda_max_rps = _NUMBER()
    n_prefill = serializers.IntegerField()
    n_decode = serializers.IntegerField()


class SameCostSerializer(BaselineSerializer):
    """One PD profile only, for the same money, or as many instances where not all have a price."""

    basis = serializers.ChoiceField(("cost_per_hour", "instances"))
    profile = serializers.CharField()
    instances = serializers.IntegerField()


class OptimumSerializer(serializers.Serializer):
    """What `manage.py plan --json` answers."""

    fleet = serializers.CharField()
    method = serializers.CharField()
    headroom = _NUMBER()
    lambda_max_rps = _NUMBER()
    bottleneck = serializers.CharField()
    binding = serializers.ListField(child=serializers.CharField())
    clusters = serializers.DictField(child=PlannedClusterSerializer())
    links = serializers.DictField(child=PlannedLinkSerializer())
    stages_rps = serializers.DictField(child=_NUMBER())
    left_out = serializers.DictField(child=_NUMBER())
    baselines = serializers.DictField(child=BaselineSerializer())


class StageSerializer(serializers.Serializer):
    """Capacity in whole requests, and how full it is at the asked demand."""

    name = serializers.CharField()
    capacity_rps = _NUMBER()
    utilisation_ratio = _NUMBER(allow_null=True)


class RolesSerializer(serializers.Serializer):
    threshold_tokens = serializers.IntegerField(allow_null=True)
    n_prefill = serializers.IntegerField()
    n_decode = serializers.IntegerField()


class RunningClusterSerializer(RolesSerializer):
    mode = serializers.CharField()


class RunningSerializer(serializers.Serializer):
    """The plan in force under the asked numbers; `best_t_tokens` is the best t of its roles."""

    clusters = serializers.DictField(child=RunningClusterSerializer())
    why_not = serializers.CharField(allow_blank=True)
    headroom = _NUMBER(allow_null=True)
    stages = StageSerializer(many=True)
    best_headroom = _NUMBER(required=False)
    best_t_tokens = serializers.DictField(
        required=False, child=serializers.IntegerField(allow_null=True)
    )


class DistributionSerializer(serializers.Serializer):
    edges_tokens = _numbers()
    share = _numbers()
    mean_tokens = _NUMBER()


class HeatSerializer(serializers.Serializer):
    """`lambda_rps` has a row per `n_prefill` and a column per `t_tokens`."""

    t_tokens = serializers.ListField(child=serializers.IntegerField())
    n_prefill = serializers.ListField(child=serializers.IntegerField())
    lambda_rps = serializers.ListField(child=_numbers())


class SensitivityRowSerializer(serializers.Serializer):
    """Headroom after each change: with the plan kept, and with the best plan again."""

    kind = serializers.CharField()
    place = serializers.CharField()
    kept = _numbers()
    followed = _numbers(allow_null=True)


class SensitivitySerializer(serializers.Serializer):
    changes = _numbers()
    rows = SensitivityRowSerializer(many=True)


class SizedFleetSerializer(serializers.Serializer):
    counts = serializers.DictField(child=serializers.IntegerField())
    cost = _NUMBER(help_text="An hour, or instances: see basis.")
    headroom = _NUMBER()
    ttft_s = _NUMBER(allow_null=True)
    will_do = serializers.BooleanField()
    clusters = serializers.DictField(child=RolesSerializer())


class CheapestSerializer(serializers.Serializer):
    """`largest` is the fleet at its bounds, where not even that will do."""

    basis = serializers.ChoiceField(("cost_per_hour", "instances"))
    least_headroom = _NUMBER()
    slo_ttft_s = _NUMBER()
    searched = serializers.DictField(
        child=serializers.ListField(child=serializers.IntegerField(), min_length=2, max_length=2)
    )
    fixed = serializers.ListField(child=serializers.CharField())
    proven = serializers.BooleanField()
    now = SizedFleetSerializer()
    found = SizedFleetSerializer(allow_null=True)
    others = SizedFleetSerializer(many=True)
    largest = SizedFleetSerializer(allow_null=True)
    why_not = serializers.CharField(allow_blank=True)


class SweptStageSerializer(serializers.Serializer):
    name = serializers.CharField()
    utilisation = _numbers()
    wait_s = serializers.ListField(child=_NUMBER(allow_null=True), allow_null=True)


class SweepSerializer(serializers.Serializer):
    """Over the load of one cluster: an estimate for Poisson arrivals, no simulation."""

    load_rps = _numbers()
    demand_rps = _NUMBER()
    most_rps = _NUMBER()
    stages = SweptStageSerializer(many=True)
    ttft_s = serializers.ListField(child=_NUMBER(allow_null=True))
    ttft_now_s = _NUMBER(allow_null=True)
    service_s = _NUMBER()
    knee_rps = _NUMBER()
    slo_rps = _NUMBER(allow_null=True)


class WhatIfSerializer(serializers.Serializer):
    fleet = serializers.CharField()
    plan = serializers.CharField(allow_null=True, help_text="epoch.version in force.")
    changed = serializers.DictField(child=ChangedNumberSerializer())
    recorded = RecordedSerializer()
    cluster = serializers.CharField()
    clusters = serializers.ListField(child=serializers.CharField())
    demand_rps = serializers.DictField(child=_NUMBER())
    slo = SloSerializer()
    optimum = OptimumSerializer()
    stages = StageSerializer(many=True)
    running = RunningSerializer()
    lengths = DistributionSerializer()
    heat = HeatSerializer(allow_null=True)
    sensitivity = SensitivitySerializer()
    same_cost = SameCostSerializer()
    cheapest = CheapestSerializer()
    sweep = SweepSerializer()
