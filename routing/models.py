"""What the loop remembers: fleets and their policy, ticks, decisions, deliveries, the audit.

`commands` is the only writer of Policy, Hold and Fleet; `scheduler` of Tick and Decision;
`delivery` of Delivery and RouterState; `audit` of Action.
"""

from __future__ import annotations

from django.db import models


class Fleet(models.Model):
    """One model served by PD clusters and PrfaaS clusters, described by a scenario document."""

    name = models.SlugField(max_length=100, primary_key=True)
    epoch = models.PositiveIntegerField(default=1)
    scenario = models.JSONField(help_text="The scenario document (docs/contracts.md, Scenario).")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Policy(models.Model):
    """What people want of the loop. `version` rises with each change and is the ETag."""

    fleet = models.OneToOneField(Fleet, on_delete=models.CASCADE, related_name="policy")
    mode = models.CharField(max_length=10, default="advisory")
    knobs = models.JSONField(default=dict, help_text="core Params fields that differ from default.")
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField(auto_now=True)
    updated_by = models.CharField(max_length=150, default="system")

    def __str__(self) -> str:
        return f"{self.fleet_id} {self.mode}"


class Hold(models.Model):
    """A pinned plan with owner, reason and expiry; empty cluster pins every PD cluster."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="holds")
    cluster = models.CharField(max_length=100, blank=True)
    mode = models.CharField(max_length=20)
    threshold_tokens = models.PositiveIntegerField(null=True, blank=True)
    owner = models.CharField(max_length=150)
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True, blank=True)
    released_by = models.CharField(max_length=150, blank=True)

    def __str__(self) -> str:
        return f"{self.fleet_id} held by {self.owner}"


class Tick(models.Model):
    """One pass of the loop: its inputs, its verdict, what the dampers remember."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="ticks")
    seq = models.BigIntegerField()
    at = models.DateTimeField(db_index=True)
    observed = models.JSONField()
    verdict = models.JSONField()
    mode = models.CharField(max_length=10)
    action = models.CharField(max_length=10)
    reason = models.CharField(max_length=40)
    duration_ms = models.FloatField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["fleet", "seq"], name="one_tick_per_fleet_and_seq")
        ]
        indexes = [models.Index(fields=["fleet", "at"], name="ticks_by_fleet_and_time")]

    def __str__(self) -> str:
        return f"{self.fleet_id} tick {self.seq}"


class Decision(models.Model):
    """A plan version with its verdict. Advised ones were never pushed and have no version."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="decisions")
    epoch = models.PositiveIntegerField()
    version = models.PositiveIntegerField(null=True)
    tick = models.OneToOneField(Tick, on_delete=models.PROTECT, related_name="decision", null=True)
    kind = models.CharField(max_length=10, default="adopted")
    plan = models.JSONField()
    previous = models.JSONField(null=True)
    reason = models.CharField(max_length=40)
    message = models.CharField(max_length=500)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet", "epoch", "version"], name="one_decision_per_plan_version"
            )
        ]
        indexes = [models.Index(fields=["fleet", "created_at"], name="decisions_by_fleet_and_time")]

    def __str__(self) -> str:
        return f"{self.fleet_id} v{self.epoch}.{self.version}"


class Delivery(models.Model):
    """How far one decision got with one router: sent, accepted, applied, failed, superseded."""

    decision = models.ForeignKey(Decision, on_delete=models.CASCADE, related_name="deliveries")
    router = models.CharField(max_length=300)
    state = models.CharField(max_length=12)
    error = models.CharField(max_length=500, blank=True)
    sent_at = models.DateTimeField(null=True)
    applied_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["decision", "router"], name="one_delivery_per_decision_and_router"
            )
        ]

    def __str__(self) -> str:
        return f"{self.decision_id} -> {self.router}: {self.state}"


class RouterState(models.Model):
    """What a router last said it runs: its ack and heartbeat."""

    router = models.CharField(max_length=300, primary_key=True)
    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="routers")
    cluster = models.CharField(max_length=100)
    epoch_running = models.PositiveIntegerField(null=True)
    version_running = models.PositiveIntegerField(null=True)
    state = models.CharField(max_length=20)
    error = models.CharField(max_length=500, blank=True)
    transport = models.CharField(max_length=10)
    last_seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.router


class Action(models.Model):
    """One audited change: who did what, to what, from where, why. Rows are never changed."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150)
    via = models.CharField(max_length=12)
    verb = models.CharField(max_length=60)
    fleet = models.CharField(max_length=100, blank=True)
    target = models.CharField(max_length=300)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.actor} {self.verb} {self.target}"
