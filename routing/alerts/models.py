"""What alerts remember. `rules` is the only writer of AlertRule, `passes` of AlertTracks,
`incidents` of Incident, `silences` of Silence, `receivers` of Receiver, `telling` of Notification.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q


class AlertRule(models.Model):
    """One rule as people wrote it (`core.alerts.rule`). `version` rises with each change."""

    name = models.SlugField(max_length=80, primary_key=True)
    document = models.JSONField()
    enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class AlertTracks(models.Model):
    """Where a rule stands with each of its sources that is not well.

    `states` is `{kind: {source: [phase, since_s, well_s]}}` (`core.alerts.track`).
    """

    rule = models.OneToOneField(
        AlertRule, on_delete=models.CASCADE, primary_key=True, related_name="tracks"
    )
    states = models.JSONField(default=dict)

    def __str__(self) -> str:
        return self.rule_id


class Incident(models.Model):
    """What fires of one rule in one group, from the first alert to the last.

    `kind` is `figure` or `no_data`. `members` are the worst sources, `n` how many there are now,
    `most` the most there were. A rule that was deleted leaves its incidents.
    """

    rule = models.CharField(max_length=80)
    kind = models.CharField(max_length=10)
    group = models.CharField(max_length=300)
    fleet = models.CharField(max_length=100)
    cluster = models.CharField(max_length=100, blank=True)
    severity = models.CharField(max_length=10)
    sentence = models.CharField(max_length=800)
    summary = models.CharField(max_length=500, blank=True)
    runbook_url = models.CharField(max_length=500, blank=True)
    signal = models.CharField(max_length=100)
    n = models.PositiveIntegerField()
    most = models.PositiveIntegerField()
    members = models.JSONField()
    opened_at = models.DateTimeField(db_index=True)
    seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=300, blank=True, help_text="Why, if not by itself.")
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    note = models.CharField(max_length=500, blank=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "kind", "group"],
                condition=Q(resolved_at=None),
                name="one_open_incident_per_rule_and_group",
            )
        ]
        indexes = [models.Index(fields=["fleet", "-opened_at"], name="incidents_by_fleet")]

    def __str__(self) -> str:
        return f"{self.rule} {self.group}"


class Silence(models.Model):
    """Nobody is told of incidents that all its patterns match, until it ends.

    An incident of several sources is matched by `source` if all of them are.
    """

    fleet = models.CharField(max_length=100, blank=True)
    rule = models.CharField(max_length=200, default="*")
    cluster = models.CharField(max_length=200, default="*")
    source = models.CharField(max_length=200, default="*")
    severity = models.CharField(max_length=10, default="*")
    reason = models.CharField(max_length=500)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_by = models.CharField(max_length=150, blank=True)

    def __str__(self) -> str:
        return f"{self.rule} until {self.ends_at:%F %T}"


class Receiver(models.Model):
    """Where incidents are told: an address, and how it is spoken to (`messages.KINDS`).

    `target` is a URL, or e-mail addresses apart by commas. `secret_file` names the file with what
    signs a webhook, or is PagerDuty's routing key; the key itself is never in the database.
    """

    name = models.SlugField(max_length=80, primary_key=True)
    kind = models.CharField(max_length=20)
    target = models.CharField(max_length=1000)
    secret_file = models.CharField(max_length=100, blank=True)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class Notification(models.Model):
    """One thing to tell one receiver, and how far it got: `waiting`, `sent`, `given_up`, or
    `dropped` for what there was no more to tell of. `error` is of the last attempt."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="told")
    receiver = models.CharField(max_length=80)
    event = models.CharField(max_length=20)
    state = models.CharField(max_length=10, default="waiting")
    attempts = models.PositiveSmallIntegerField(default=0)
    error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(
                fields=["due_at"], condition=Q(state="waiting"), name="notifications_waiting"
            )
        ]

    def __str__(self) -> str:
        return f"{self.event} to {self.receiver}: {self.state}"
