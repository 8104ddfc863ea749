"""What is asked of and answered by `explain`: where would this request run, and why."""

from __future__ import annotations

import math
from typing import Any

from rest_framework import serializers

from routing.serializers import Strict

MOST_TOKENS = 10**9
MOST_SECONDS = 1e6


class FiniteField(serializers.FloatField):
    """`nan` lies in every range."""

    def to_internal_value(self, data: Any) -> float:
        value: float = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value


class CachedTokensSerializer(Strict):
    """Tokens of the prompt that each side's cache holds; 0 is a number, absent is an error."""

    local = serializers.IntegerField(min_value=0, max_value=MOST_TOKENS)
    remote = serializers.IntegerField(min_value=0, max_value=MOST_TOKENS)


class WaitsSerializer(Strict):
    """Expected seconds to the first byte on each side, as the gate measures; only a band asks."""

    local = FiniteField(min_value=0.0, max_value=MOST_SECONDS)
    remote = FiniteField(min_value=0.0, max_value=MOST_SECONDS)


class MomentSerializer(Strict):
    """What besides the plan decides at a gate. As it stands: all up, nothing in flight."""

    remote_in_flight = serializers.IntegerField(required=False, min_value=0, max_value=10**6)
    local_up = serializers.BooleanField(required=False)
    admissible = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        max_length=1000,
        help_text="The remotes that may take a request now; by default all that the plan names.",
    )
    waits_s = WaitsSerializer(required=False)


class ExplainSerializer(Strict):
    """A request: its length, and what of it the caches hold."""

    cluster = serializers.CharField(max_length=200, help_text="The PD cluster it arrives at.")
    total_tokens = serializers.IntegerField(min_value=0, max_value=MOST_TOKENS)
    cached_tokens = CachedTokensSerializer()
    decision = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=2**63 - 1,
        help_text="By the plan of this decision, not by the one in force.",
    )
    free_ratio = FiniteField(
        required=False,
        min_value=0.0,
        max_value=1.0,
        help_text="Of a link, what a transfer is given; by default what the policy keeps free.",
    )
    moment = MomentSerializer(required=False)


class BySideSerializer(serializers.Serializer):
    local = serializers.FloatField(allow_null=True)
    remote = serializers.FloatField(allow_null=True)


class ShipmentSerializer(serializers.Serializer):
    """KV that crosses a link: a moved `prefix`, or the `kv` of a remote prefill."""

    link = serializers.CharField()
    what = serializers.CharField()
    tokens = serializers.IntegerField()
    bytes = serializers.FloatField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)


class LongerPrefixSerializer(serializers.Serializer):
    """What one side's cache holds beyond the other's: to move it against to compute it."""

    link = serializers.CharField()
    to = serializers.CharField()
    tokens = serializers.IntegerField()
    least_tokens = serializers.IntegerField(allow_null=True)
    moved = serializers.BooleanField()
    why = serializers.CharField()
    transfer_s = serializers.FloatField(allow_null=True)
    recompute_s = serializers.FloatField(allow_null=True)


class PlacementSerializer(serializers.Serializer):
    """Where a request runs and why. `uncached_tokens` was compared with `threshold_tokens`; `plan`
    is null before the first one."""

    cluster = serializers.CharField()
    plan = serializers.CharField(allow_null=True, help_text="epoch.version; null: only advised")
    decision = serializers.IntegerField(allow_null=True, help_text="Which brought that plan.")
    side = serializers.ChoiceField(["local", "remote"])
    reason = serializers.CharField()
    sentence = serializers.CharField()
    decided_by = serializers.CharField()
    remote = serializers.CharField(allow_null=True)
    uncached_tokens = serializers.IntegerField()
    threshold_tokens = serializers.IntegerField(allow_null=True)
    holder = serializers.CharField(help_text="Whose cached prefix counted.")
    compute_tokens = BySideSerializer()
    compute_s = BySideSerializer()
    shipments = ShipmentSerializer(many=True)
    longer_prefix = LongerPrefixSerializer(allow_null=True)
    ttft_s = BySideSerializer(help_text="What each side takes when it stands idle; null: cannot.")
