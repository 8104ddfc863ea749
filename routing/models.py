"""What the loop remembers: fleets and their policy, ticks, decisions, deliveries, the audit.

`commands` is the only writer of Policy, Hold and Fleet; `scheduler` of Tick and Decision;
`delivery` of Delivery and RouterState; `rebalance` of Rebalance and RoleMove; `managed` of
ManagedRouter; `effect_checks` of EffectCheck; `backtests` of TraceFile, Backtest and BacktestRun;
`audit` of Action.
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
    """A pinned plan with owner, reason and expiry; empty cluster pins every PD cluster.

    It pins mode and t, or with an empty mode the roles of its cluster: t stays the loop's then.
    """

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="holds")
    cluster = models.CharField(max_length=100, blank=True)
    mode = models.CharField(max_length=20, blank=True)
    threshold_tokens = models.PositiveIntegerField(null=True, blank=True)
    n_prefill = models.PositiveIntegerField(null=True, blank=True)
    n_decode = models.PositiveIntegerField(null=True, blank=True)
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
    """How far one decision got with one router; its states are those of `delivery`."""

    decision = models.ForeignKey(Decision, on_delete=models.CASCADE, related_name="deliveries")
    router = models.CharField(max_length=300)
    state = models.CharField(max_length=20)
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
    override = models.JSONField(null=True, help_text="What a person on it set above plans.")
    release = models.CharField(max_length=100, blank=True, help_text="The override to be ended.")
    last_seen_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.router


class ManagedRouter(models.Model):
    """One router of a scenario: what it should list, what was last done to it, what it shows.

    `desired` is `{url: {role, status}}` of engines; `observed` the same with what else was read
    (threshold, facts, the change that others have to apply). `state` since `since`, in words in
    `findings`. `operation` is what a person asked for last and how far it got. `version` rises
    whenever what is desired or seen changes, so that nobody decides on what they have not seen.
    `last_move` is the newest RoleMove that `desired` knows of.
    """

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="managed_routers")
    cluster = models.CharField(max_length=100)
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=40)
    url = models.CharField(max_length=500)
    make_version = models.CharField(max_length=100, blank=True)
    capabilities = models.JSONField(null=True)
    desired = models.JSONField(null=True)
    desired_by = models.CharField(max_length=150, blank=True)
    desired_at = models.DateTimeField(null=True)
    last_applied = models.JSONField(null=True)
    applied_at = models.DateTimeField(null=True)
    observed = models.JSONField(null=True)
    observed_at = models.DateTimeField(null=True, help_text="Of the last reading that succeeded.")
    state = models.CharField(max_length=20)
    since = models.DateTimeField()
    findings = models.JSONField(default=list)
    cause = models.CharField(max_length=10, blank=True)
    other_writer = models.CharField(max_length=300, blank=True)
    n_drifted = models.PositiveIntegerField(default=0, help_text="Readings in a row that differ.")
    away_since = models.DateTimeField(null=True)
    on_drift = models.CharField(max_length=10, default="show")
    overridden_s = models.JSONField(default=list, help_text="When the policy overrode, lately.")
    operation = models.JSONField(null=True)
    last_move = models.BigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet", "cluster", "url"], name="one_managed_router_per_url"
            )
        ]

    def __str__(self) -> str:
        return f"{self.fleet_id}/{self.cluster}/{self.name}"


class EffectCheck(models.Model):
    """Did a plan do harm? Looked at once what came after it was seen long enough, against what was
    before `compared_at`.

    `outcome` is `pending`, `good`, `harm` or `unknown`; `evidence` the figures before and after by
    cluster (`core.harm.Evidence`), `text` the finding in one sentence, `hold` what it led to.
    """

    decision = models.OneToOneField(Decision, on_delete=models.CASCADE, related_name="effect_check")
    outcome = models.CharField(max_length=10, default="pending")
    text = models.CharField(max_length=500, blank=True)
    evidence = models.JSONField(default=dict)
    compared_at = models.DateTimeField()
    due_at = models.DateTimeField()
    checked_at = models.DateTimeField(null=True)
    hold = models.ForeignKey(Hold, on_delete=models.SET_NULL, related_name="+", null=True)

    class Meta:
        indexes = [models.Index(fields=["outcome", "due_at"], name="effect_checks_by_due")]

    def __str__(self) -> str:
        return f"{self.decision_id}: {self.outcome}"


class Rebalance(models.Model):
    """One move of a PD cluster's roles, resumable at any point: what is wanted, how far it got."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="rebalances")
    cluster = models.CharField(max_length=100)
    decision = models.ForeignKey(
        Decision, on_delete=models.SET_NULL, related_name="rebalances", null=True
    )
    hold = models.ForeignKey(Hold, on_delete=models.SET_NULL, related_name="rebalances", null=True)
    from_n_prefill = models.PositiveIntegerField()
    from_n_decode = models.PositiveIntegerField()
    to_n_prefill = models.PositiveIntegerField()
    to_n_decode = models.PositiveIntegerField()
    state = models.CharField(max_length=10, default="open")
    ends_as = models.CharField(max_length=10, blank=True, help_text="What an aborting one becomes.")
    reason = models.CharField(max_length=500, blank=True, help_text="Why it ended or aborts.")
    waiting_for = models.CharField(max_length=500, blank=True)
    requested_by = models.CharField(max_length=150)
    preflight = models.JSONField(default=dict, help_text="What was found before the newest move.")
    drain_timeout_s = models.FloatField()
    created_at = models.DateTimeField()
    deadline_at = models.DateTimeField()
    updated_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet", "cluster"],
                condition=models.Q(state__in=("open", "aborting")),
                name="one_open_rebalance_per_cluster",
            )
        ]
        indexes = [
            models.Index(fields=["fleet", "created_at"], name="rebalances_by_fleet_and_time")
        ]

    def __str__(self) -> str:
        return f"{self.fleet_id}/{self.cluster} to {self.to_n_prefill}/{self.to_n_decode}"


class RoleMove(models.Model):
    """One instance that changes its role: the step it is in, and what it looks like there.

    Moves of one `unit` go together. `routers` are those that listed the instance when it began, by
    URL, as each showed it last: whatever happens, each of them lists it again in the end.
    """

    rebalance = models.ForeignKey(Rebalance, on_delete=models.CASCADE, related_name="moves")
    seq = models.PositiveIntegerField()
    instance = models.CharField(max_length=300)
    url = models.CharField(max_length=500)
    from_role = models.CharField(max_length=10)
    to_role = models.CharField(max_length=10)
    unit = models.CharField(max_length=100, blank=True)
    step = models.CharField(max_length=10, default="planned")
    requests = models.PositiveIntegerField(null=True, help_text="Seen on it last.")
    error = models.CharField(max_length=500, blank=True)
    routers = models.JSONField(default=dict)
    evidence = models.JSONField(default=dict, help_text="That it was idle, and that it serves.")
    started_at = models.DateTimeField(null=True)
    step_since = models.DateTimeField(null=True)
    idle_since = models.DateTimeField(null=True, help_text="First of the looks that found nothing.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rebalance", "seq"], name="one_move_per_rebalance_and_seq"
            )
        ]

    def __str__(self) -> str:
        return f"{self.instance} {self.from_role} -> {self.to_role}: {self.step}"


class TraceFile(models.Model):
    """Recorded requests that somebody uploaded, kept gzipped; the same file is kept once."""

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="traces")
    name = models.CharField(max_length=200)
    sha256 = models.CharField(max_length=64)
    n_bytes = models.PositiveBigIntegerField(help_text="As uploaded.")
    data = models.BinaryField()
    uploaded_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet", "sha256"], name="one_trace_file_per_fleet_and_content"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Backtest(models.Model):
    """Policies on one workload in the twin: what was asked, as it stood when it was asked.

    `scenario` is the document with the changed numbers in it, `asked` everything else
    (`backtest_asked`), `recording` the recorded interval, `prepared` what the first worker found
    the workload to be. How far it is, its runs say.
    """

    fleet = models.ForeignKey(Fleet, on_delete=models.CASCADE, related_name="backtests")
    scenario = models.JSONField()
    asked = models.JSONField()
    trace = models.ForeignKey(
        TraceFile, on_delete=models.RESTRICT, related_name="backtests", null=True
    )
    recording = models.JSONField(null=True)
    prepared = models.JSONField(null=True)
    note = models.CharField(max_length=200, blank=True)
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    cancel_requested = models.BooleanField(default=False)
    cancelled_by = models.CharField(max_length=150, blank=True)

    class Meta:
        indexes = [models.Index(fields=["fleet", "created_at"], name="backtests_by_fleet_and_time")]

    def __str__(self) -> str:
        return f"{self.fleet_id} backtest {self.pk}"


class BacktestRun(models.Model):
    """One policy under one seed. `attempt` counts the workers that took it; only the newest one's
    word counts. `report` is partial until the state is `done`."""

    backtest = models.ForeignKey(Backtest, on_delete=models.CASCADE, related_name="runs")
    policy = models.CharField(max_length=40)
    seed = models.PositiveIntegerField()
    place = models.PositiveIntegerField(help_text="In the order of the policies asked for.")
    state = models.CharField(max_length=10, default="queued")
    attempt = models.PositiveIntegerField(default=0)
    progress = models.FloatField(default=0.0)
    report = models.JSONField(null=True)
    error = models.CharField(max_length=500, blank=True)
    wall_s = models.FloatField(null=True)
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["backtest", "policy", "seed"], name="one_run_per_policy_and_seed"
            )
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="backtest_runs_by_state")]

    def __str__(self) -> str:
        return f"{self.policy} seed {self.seed}: {self.state}"


class Action(models.Model):
    """One audited change: who did what, to what, from where, why.

    Rows are never changed: the database refuses it, and seals each when it is committed.
    """

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150)
    via = models.CharField(max_length=12)
    verb = models.CharField(max_length=60)
    fleet = models.CharField(max_length=100, blank=True)
    target = models.CharField(max_length=300)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["actor", "id"], name="actions_by_actor"),
            models.Index(fields=["verb", "id"], name="actions_by_verb"),
            models.Index(fields=["fleet", "id"], name="actions_by_fleet"),
            models.Index(fields=["target"], name="actions_by_target"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%F %T} {self.actor} {self.verb} {self.target}"


class ActionSeal(models.Model):
    """The digest over an action and the seal before it: a chain in the order of commits.

    Written by a trigger (migration 0006), read by `audit.verify`.
    """

    action = models.BigIntegerField(unique=True)
    digest = models.BinaryField(max_length=32)

    def __str__(self) -> str:
        return f"seal of action {self.action}"
