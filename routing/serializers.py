"""The API's documents, in and out. Bodies refuse fields they do not know."""

from __future__ import annotations

from typing import Any, get_args

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from routing import commands, knobs
from routing.core.types import LinkLabel
from routing.models import Action, Decision, Fleet, Hold, Policy, Rebalance, RoleMove, Tick
from routing.series import changes
from telemetry.models import ApiToken
from telemetry.tokens import SCOPES

SIGNAL_STATES = ("value", "idle", "missing", "failed")
READING_STATES = ("ok", "failed", "down", "slow", "missing")
EMPTY_REASON = {"required": False, "allow_blank": True, "default": "", "max_length": 500}


class Strict(serializers.Serializer):
    """A body in which a misspelt field is an error, not a silence; errors name the value."""

    part = "body"

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return super().to_internal_value(data)
        unknown = sorted(data.keys() - self.fields.keys())
        if unknown:
            fields = ", ".join(self.fields) or "none"
            known = f"is not a field of this {self.part}, which has {fields}"
            raise serializers.ValidationError({name: [known] for name in unknown})
        if wrong := self._not_words(data):
            raise serializers.ValidationError(wrong)
        try:
            return super().to_internal_value(data)
        except serializers.ValidationError as exc:
            detail = {name: _valued(found, data.get(name)) for name, found in exc.detail.items()}
            raise serializers.ValidationError(detail) from None

    def _not_words(self, data: dict[str, Any]) -> dict[str, list[str]]:
        """Numbers where words belong, which DRF takes for their digits."""
        return {
            name: [f"Not a valid string. (got {data[name]!r:.80})"]
            for name, field in self.fields.items()
            if type(field) is serializers.CharField and type(data.get(name)) in (int, float)
        }


def _valued(messages: Any, value: Any) -> Any:
    """DRF's messages on a field, with the value where that is a word or a number."""
    if not isinstance(messages, list) or not isinstance(value, str | int | float):
        return messages
    shown = f"{value!r:.80}"
    return [text if shown.strip("'") in text else f"{text} (got {shown})" for text in messages]


def addressed(document: Any, **address: str) -> Any:
    """A document with what its address says of it. Raises ValidationError where it says other."""
    if not isinstance(document, dict):
        return document
    for name, value in address.items():
        if document.get(name, value) != value:
            said = f"{name} is {document[name]!r:.80}, and {value} in the address"
            raise serializers.ValidationError({"document": [said]})
    return {**document, **address}


class HoldSerializer(serializers.ModelSerializer):
    """A pinned plan; an empty cluster pins every PD cluster. Empty mode: it pins roles alone."""

    class Meta:
        model = Hold
        fields = (
            "id", "cluster", "mode", "threshold_tokens", "n_prefill", "n_decode", "owner", "reason",
            "created_at", "expires_at", "released_at", "released_by",
        )  # fmt: skip


class HoldPlaceSerializer(Strict):
    cluster = serializers.CharField(required=False, allow_blank=True, default="")
    mode = serializers.ChoiceField(commands.PLAN_MODES)
    threshold_tokens = serializers.IntegerField(required=False, allow_null=True, default=None)
    owner = serializers.CharField(required=False, help_text="Default: whoever asks.")
    reason = serializers.CharField(max_length=500)
    expires_at = serializers.DateTimeField()


class HoldExtendSerializer(Strict):
    expires_at = serializers.DateTimeField(help_text="Earlier or later; at most 7 days from now.")
    reason = serializers.CharField(max_length=500)


class AskedRolesSerializer(Strict):
    n_prefill = serializers.IntegerField(min_value=0, max_value=100_000)
    n_decode = serializers.IntegerField(min_value=0, max_value=100_000)


class RolesMoveSerializer(AskedRolesSerializer):
    """Roles to move a PD cluster to, and to hold until `expires_at`."""

    cluster = serializers.CharField(max_length=100)
    expected = AskedRolesSerializer(
        help_text="The roles you decided on; 412 where they are others."
    )
    expires_at = serializers.DateTimeField(help_text="At most 7 days from now.")
    reason = serializers.CharField(max_length=500)


class RollBackSerializer(Strict):
    owner = serializers.CharField(required=False, help_text="Default: whoever asks.")
    reason = serializers.CharField(max_length=commands.MAX_ROLL_BACK_REASON)
    expires_at = serializers.DateTimeField()


class DeliveryCancelSerializer(Strict):
    router = serializers.CharField(max_length=300)
    reason = serializers.CharField(max_length=500)


class ReasonSerializer(Strict):
    reason = serializers.CharField(**EMPTY_REASON)


class NeededReasonSerializer(Strict):
    reason = serializers.CharField(max_length=500)


class BreakerResetSerializer(Strict):
    """Which link's breaker to close; its id is `A->B`."""

    link = serializers.CharField(max_length=200)
    reason = serializers.CharField(max_length=500)


class PolicySerializer(serializers.ModelSerializer):
    """What people want of the loop. `version` is the ETag; `knobs` shows every knob's value."""

    knobs = serializers.SerializerMethodField()
    changed_knobs = serializers.JSONField(source="knobs", help_text="Those not at their default.")
    holds = serializers.SerializerMethodField()

    class Meta:
        model = Policy
        fields = (
            "mode", "version", "knobs", "changed_knobs", "holds", "updated_at", "updated_by",
        )  # fmt: skip

    def get_knobs(self, policy: Policy) -> dict[str, Any]:
        return knobs.effective(policy.knobs)

    @extend_schema_field(HoldSerializer(many=True))
    def get_holds(self, policy: Policy) -> Any:
        open_now = commands.open_holds(policy.fleet, self.context["now"])
        return HoldSerializer(open_now, many=True).data


class PolicyPatchSerializer(Strict):
    mode = serializers.ChoiceField(commands.MODES, required=False)
    knobs = serializers.DictField(
        child=serializers.JSONField(allow_null=True),
        required=False,
        help_text="Single knobs by name; null returns one to its default.",
    )
    reason = serializers.CharField(**EMPTY_REASON)


class FleetSerializer(serializers.ModelSerializer):
    mode = serializers.CharField(source="policy.mode")

    class Meta:
        model = Fleet
        fields = ("name", "epoch", "mode", "created_at")


class FleetDetailSerializer(FleetSerializer):
    """The fleet with its scenario, the plan in force and the newest tick."""

    plan = serializers.SerializerMethodField()
    tick = serializers.SerializerMethodField()

    class Meta(FleetSerializer.Meta):
        fields = (*FleetSerializer.Meta.fields, "scenario", "plan", "tick")

    def get_plan(self, fleet: Fleet) -> dict[str, Any] | None:
        return self.context["plan"]

    def get_tick(self, fleet: Fleet) -> dict[str, Any] | None:
        return self.context["tick"]


class ClusterPlanSerializer(serializers.Serializer):
    """What one PD cluster runs (docs/contracts.md, Plan)."""

    mode = serializers.ChoiceField(commands.PLAN_MODES)
    threshold_tokens = serializers.IntegerField(allow_null=True)
    band = serializers.ListField(child=serializers.IntegerField(), allow_null=True)
    cache_mode = serializers.CharField()
    moves = serializers.DictField(child=serializers.IntegerField())
    remote = serializers.DictField(child=serializers.FloatField())
    max_remote_in_flight = serializers.IntegerField(allow_null=True)
    n_prefill = serializers.IntegerField()
    n_decode = serializers.IntegerField()
    transport = serializers.DictField(child=serializers.JSONField())


class PlanSerializer(serializers.Serializer):
    """The plan as routers read it."""

    fleet = serializers.CharField()
    epoch = serializers.IntegerField()
    version = serializers.IntegerField()
    issued_at_s = serializers.FloatField()
    reason = serializers.CharField()
    clusters = serializers.DictField(child=ClusterPlanSerializer())


class TickSerializer(serializers.ModelSerializer):
    message = serializers.CharField()
    next_action_at_s = serializers.FloatField(allow_null=True)

    class Meta:
        model = Tick
        fields = (
            "seq", "at", "mode", "action", "reason", "message", "next_action_at_s", "duration_ms",
        )  # fmt: skip


class TickDetailSerializer(TickSerializer):
    """One pass with everything it saw and concluded."""

    class Meta(TickSerializer.Meta):
        fields = (*TickSerializer.Meta.fields, "observed", "verdict")


class RoleMoveSerializer(serializers.ModelSerializer):
    """One instance that changes its role. `requests` was last seen on it; null: not looked yet."""

    class Meta:
        model = RoleMove
        fields = (
            "seq", "instance", "url", "from_role", "to_role", "unit", "step", "requests", "error",
            "routers", "evidence", "started_at", "step_since", "finished_at",
        )  # fmt: skip


class RebalanceSerializer(serializers.ModelSerializer):
    """A move of a PD cluster's roles, from what, to what, and how far each instance is."""

    moves = serializers.SerializerMethodField()

    class Meta:
        model = Rebalance
        fields = (
            "id", "cluster", "decision", "from_n_prefill", "from_n_decode", "to_n_prefill",
            "to_n_decode", "state", "ends_as", "reason", "waiting_for", "requested_by", "preflight",
            "drain_timeout_s", "created_at", "deadline_at", "updated_at", "finished_at", "moves",
        )  # fmt: skip

    @extend_schema_field(RoleMoveSerializer(many=True))
    def get_moves(self, rebalance: Rebalance) -> Any:
        moves = sorted(rebalance.moves.all(), key=lambda move: move.seq)
        return RoleMoveSerializer(moves, many=True).data


class RouterDeliverySerializer(serializers.Serializer):
    router = serializers.CharField()
    state = serializers.CharField()
    error = serializers.CharField(allow_null=True)
    sent_at = serializers.DateTimeField(allow_null=True)
    applied_at = serializers.DateTimeField(allow_null=True)
    deadline_at = serializers.DateTimeField(
        allow_null=True, help_text="When it is given up; null where nobody waits for a deadline."
    )


class DeliverySerializer(serializers.Serializer):
    """How far a decision got.

    advised, refused (not issued: no gate could run it), unclaimed, sent, accepted, applied, failed,
    pending_restart, superseded, expired or cancelled: the state of the router that is furthest from
    running it. `routers` are all of them where one decision is asked for; in lists the first 10,
    those that do not run it first.
    """

    state = serializers.CharField()
    n_applied = serializers.IntegerField()
    n_routers = serializers.IntegerField()
    routers = RouterDeliverySerializer(many=True)


class DecisionSerializer(serializers.ModelSerializer):
    changes = serializers.SerializerMethodField(help_text="cluster -> field -> [before, after]")
    delivery = serializers.SerializerMethodField()

    class Meta:
        model = Decision
        fields = (
            "id", "epoch", "version", "kind", "reason", "message", "created_at", "changes",
            "delivery",
        )  # fmt: skip

    def get_changes(self, decision: Decision) -> dict[str, dict[str, list[Any]]]:
        return changes(decision)

    @extend_schema_field(DeliverySerializer)
    def get_delivery(self, decision: Decision) -> Any:
        return DeliverySerializer(self.context["deliveries"][decision.pk]).data


class DecisionDetailSerializer(DecisionSerializer):
    """A decision with its plan, the one before it, and the tick that took it."""

    tick = serializers.SerializerMethodField()

    class Meta(DecisionSerializer.Meta):
        fields = (*DecisionSerializer.Meta.fields, "plan", "previous", "tick")

    @extend_schema_field(TickDetailSerializer)
    def get_tick(self, decision: Decision) -> Any:
        return TickDetailSerializer(self.context["tick"]).data


class ScrapedSerializer(serializers.Serializer):
    epoch = serializers.IntegerField(allow_null=True)
    version = serializers.IntegerField(allow_null=True)
    state = serializers.CharField()
    age_s = serializers.FloatField()


class RouterSerializer(serializers.Serializer):
    """A router: what it acked, what its metrics say, and sentences about what is wrong."""

    router = serializers.CharField()
    cluster = serializers.CharField()
    state = serializers.CharField()
    error = serializers.CharField(allow_null=True)
    epoch_running = serializers.IntegerField(allow_null=True)
    version_running = serializers.IntegerField(allow_null=True)
    transport = serializers.CharField(allow_null=True)
    override = serializers.JSONField(
        allow_null=True, help_text="What a person on the gate itself put above the plan."
    )
    last_seen_at = serializers.DateTimeField(allow_null=True)
    age_s = serializers.FloatField(allow_null=True)
    scraped = ScrapedSerializer(allow_null=True)
    findings = serializers.ListField(child=serializers.CharField())


class SignalSerializer(serializers.Serializer):
    """One signal: value, idle, missing and failed are four different facts."""

    state = serializers.ChoiceField(SIGNAL_STATES)
    value = serializers.JSONField(allow_null=True)


class ReadingSerializer(serializers.Serializer):
    """The newest reading of one instance or link. Ages count from when the console received it."""

    id = serializers.CharField()
    at_s = serializers.FloatField(allow_null=True)
    received_s = serializers.FloatField(allow_null=True)
    age_s = serializers.FloatField(allow_null=True)
    state = serializers.ChoiceField(READING_STATES)
    error = serializers.CharField(allow_null=True)
    signals = serializers.DictField(child=SignalSerializer())


class InstanceSerializer(ReadingSerializer):
    cluster = serializers.CharField()
    role = serializers.CharField()
    engine = serializers.CharField()
    engine_version = serializers.CharField()


class LinkSerializer(ReadingSerializer):
    configured_gbps = serializers.FloatField()
    measured_layer = serializers.CharField(allow_null=True)
    label = serializers.ChoiceField(get_args(LinkLabel))
    signs = serializers.CharField(help_text="What speaks for the label, in words.")
    events = serializers.ListField(child=serializers.CharField())
    breaker = serializers.ChoiceField(("closed", "open", "half_open"))


class BillSerializer(serializers.Serializer):
    """One link's running month. Samples are means of five minutes; missing ones are not counted."""

    id = serializers.CharField()
    month = serializers.CharField()
    counts = serializers.ChoiceField(("out", "max"))
    cap_gbps = serializers.FloatField(allow_null=True)
    billed_gbps = serializers.FloatField(allow_null=True)
    n_measured = serializers.IntegerField()
    n_missing = serializers.IntegerField()
    over_cap = serializers.IntegerField(allow_null=True)
    burst_left_s = serializers.FloatField(allow_null=True)
    cost = serializers.FloatField(allow_null=True)


class SeriesDecisionSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    at_s = serializers.FloatField()
    epoch = serializers.IntegerField()
    version = serializers.IntegerField(allow_null=True)
    kind = serializers.CharField()
    reason = serializers.CharField()
    message = serializers.CharField()
    changes = serializers.JSONField()


class SeriesSerializer(serializers.Serializer):
    """Columns on one time axis (bin starts, epoch seconds); null is a gap."""

    t = serializers.ListField(child=serializers.FloatField())
    bin_s = serializers.FloatField()
    series = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True))
    )
    decisions = SeriesDecisionSerializer(many=True)


class ActionSerializer(serializers.ModelSerializer):
    class Meta:
        model = Action
        fields = (
            "id", "at", "actor", "via", "verb", "fleet", "target", "before", "after", "reason",
            "request_id",
        )  # fmt: skip


class TokenSerializer(serializers.ModelSerializer):
    class Meta:
        model = ApiToken
        fields = (
            "id", "name", "prefix", "scopes", "fleet", "created_by", "owner", "replaces",
            "created_at", "expires_at", "revoked_at", "last_used_at",
        )  # fmt: skip


class IssuedTokenSerializer(TokenSerializer):
    """A new token. `secret` is shown this once."""

    secret = serializers.SerializerMethodField()

    class Meta(TokenSerializer.Meta):
        fields = (*TokenSerializer.Meta.fields, "secret")

    def get_secret(self, token: ApiToken) -> str:
        return self.context["secret"]


class TokenRotateSerializer(Strict):
    grace_s = serializers.IntegerField(
        default=86_400,
        min_value=0,
        max_value=2_592_000,
        help_text="So long the old secret stays good.",
    )
    reason = serializers.CharField(**EMPTY_REASON)


class MeSerializer(serializers.Serializer):
    """Whoever asks: a person, or a token and the person behind it."""

    name = serializers.CharField()
    person = serializers.CharField()
    scopes = serializers.ListField(
        child=serializers.CharField(), help_text="In every fleet and for the whole site."
    )
    fleets = serializers.DictField(child=serializers.ListField(child=serializers.CharField()))
    expires_at = serializers.DateTimeField(allow_null=True)


class TokenIssueSerializer(Strict):
    name = serializers.CharField(max_length=120)
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), allow_empty=False)
    fleet = serializers.CharField(required=False, allow_blank=True, default="")
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    reason = serializers.CharField(**EMPTY_REASON)
