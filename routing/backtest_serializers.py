"""The documents of backtests, in and out."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from routing import backtest_asked as asking
from routing.backtest_asked import Asked
from routing.backtest_results import state_of
from routing.models import Backtest, TraceFile
from routing.serializers import Strict

_DEFAULTS = Asked("scenario")
STATES = ("queued", "running", "cancelling", "done", "failed", "cancelled")


class TraceFileSerializer(serializers.ModelSerializer):
    """An uploaded trace."""

    class Meta:
        model = TraceFile
        fields = ("id", "name", "sha256", "n_bytes", "uploaded_by", "created_at")


class BacktestAskSerializer(Strict):
    """What to run; everything but the workload has a default."""

    workload = serializers.ChoiceField(asking.WORKLOADS)
    trace = serializers.IntegerField(
        required=False, allow_null=True, help_text="The id of an uploaded one."
    )
    since = serializers.DateTimeField(required=False, help_text="Of a recorded interval.")
    until = serializers.DateTimeField(required=False)
    policies = serializers.ListField(
        required=False,
        child=serializers.CharField(max_length=40),
        help_text=f"Of {', '.join(asking.OFFERED)}, static:T with T in tokens, and "
        f"{asking.LIVED} of a recorded interval; at most {asking.MOST_POLICIES}.",
    )
    seeds = serializers.IntegerField(required=False, default=_DEFAULTS.seeds)
    baseline = serializers.CharField(
        required=False, allow_blank=True, help_text="The policy that others are compared with."
    )
    scale = serializers.ChoiceField(
        asking.SCALES,
        required=False,
        help_text="factor: the workload's own rate times scale_value. load: scale_value times "
        "what the best plan carries. load_thinned: the same by leaving conversations out.",
    )
    scale_value = serializers.FloatField(required=False)
    duration_s = serializers.FloatField(
        required=False, help_text="Of the scenario's own traffic; others are as long as they are."
    )
    warmup_ratio = serializers.FloatField(required=False)
    plan_for = serializers.ChoiceField(asking.PLAN_FOR, required=False)
    cache = serializers.ChoiceField(
        asking.CACHES, required=False, help_text="Default: cluster for a trace, else scenario."
    )
    cache_capacity = serializers.CharField(
        required=False, help_text="unbounded, profile, or tokens per cluster (or instance)."
    )
    numbers = serializers.DictField(
        required=False,
        child=serializers.JSONField(),
        help_text="Changed numbers of the scenario, as in what-if: pd.instances, "
        "prfaas->pd.gbps, slo.ttft_s.",
    )
    note = serializers.CharField(required=False, allow_blank=True, max_length=200)


class RunCountsSerializer(serializers.Serializer):
    queued = serializers.IntegerField()
    running = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    cancelled = serializers.IntegerField()


class BacktestSerializer(serializers.ModelSerializer):
    """A backtest and how many of its runs are in which state."""

    asked = serializers.JSONField()
    prepared = serializers.JSONField(allow_null=True)
    trace = TraceFileSerializer(allow_null=True)
    state = serializers.SerializerMethodField()
    runs = serializers.SerializerMethodField()

    class Meta:
        model = Backtest
        fields = (
            "id", "state", "runs", "asked", "trace", "prepared", "note", "requested_by",
            "created_at", "cancel_requested", "cancelled_by",
        )  # fmt: skip

    def get_state(self, row: Any) -> str:
        return state_of(counts(row), cancel_requested=row.cancel_requested)

    def get_runs(self, row: Any) -> RunCountsSerializer:
        return counts(row)  # type: ignore[return-value]


class IntervalSerializer(serializers.Serializer):
    """A mean over seeds with its 95 % interval."""

    n = serializers.IntegerField()
    mean = serializers.FloatField(allow_null=True)
    low = serializers.FloatField(allow_null=True)
    high = serializers.FloatField(allow_null=True)


class ComparedSerializer(IntervalSerializer):
    difference = IntervalSerializer(allow_null=True, help_text="Policy minus baseline, paired.")
    ratio = IntervalSerializer(allow_null=True)
    says = serializers.CharField(allow_null=True, help_text="better, worse, unclear, or null.")


class MetricSerializer(serializers.Serializer):
    better = serializers.CharField(allow_null=True, help_text="higher, lower, or null.")
    policies = serializers.DictField(child=ComparedSerializer())


class ComparisonSerializer(serializers.Serializer):
    baseline = serializers.CharField()
    confidence = serializers.FloatField()
    seeds = serializers.DictField(child=serializers.ListField(child=serializers.IntegerField()))
    metrics = serializers.DictField(child=MetricSerializer())


class PolicyProgressSerializer(serializers.Serializer):
    policy = serializers.CharField()
    progress = serializers.FloatField()
    runs = RunCountsSerializer()
    errors = serializers.ListField(child=serializers.CharField())


class DriftSerializer(serializers.Serializer):
    """Twin beside live, in the mean of the interval."""

    policy = serializers.CharField()
    what = serializers.CharField()
    where = serializers.CharField(allow_blank=True)
    live = serializers.FloatField(allow_null=True)
    twin = serializers.FloatField(allow_null=True)
    apart = serializers.FloatField(allow_null=True)
    allowed = serializers.FloatField()
    agrees = serializers.BooleanField(allow_null=True)


class ResultsSerializer(serializers.Serializer):
    """How far a backtest is, and what came of it so far."""

    id = serializers.IntegerField()
    state = serializers.CharField(help_text=f"One of {', '.join(STATES)}.")
    progress = serializers.FloatField()
    runs = RunCountsSerializer()
    baseline = serializers.CharField()
    policies = PolicyProgressSerializer(many=True)
    comparison = ComparisonSerializer()
    series = serializers.DictField(
        child=serializers.JSONField(allow_null=True),
        help_text="By policy: columns of rows of row_s, the mean over seeds.",
    )
    live = serializers.JSONField(allow_null=True)
    drift = DriftSerializer(many=True, allow_null=True)


class BacktestDetailSerializer(serializers.Serializer):
    backtest = BacktestSerializer()
    results = ResultsSerializer()


def counts(row: Any) -> dict[str, int]:
    """Of a row of `backtests.counted`."""
    return {state: getattr(row, f"n_{state}") for state in RunCountsSerializer().fields}
