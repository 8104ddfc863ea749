"""What approvals remember: `limits_rows` alone writes ApprovalLimits, `rows` alone Proposal."""

from __future__ import annotations

from django.db import models


class ApprovalLimits(models.Model):
    """From which reach on a change of the fleet (`name`) needs a second person; no row, or empty
    limits: never. `version` is the ETag."""

    name = models.SlugField(max_length=100, primary_key=True)
    limits = models.JSONField(default=dict)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class Proposal(models.Model):
    """A change that was asked for and not made: a command, its arguments, and how far it reaches.

    `changes` are the audit rows that it would write, `reach` what they amount to and `beyond` the
    limits that forbid it alone; `seen` is what it was decided on besides their `before`. Its state
    is `open` until it ends once, as `rows.ENDED` says. Empty fleet: it changes several.
    """

    fleet = models.CharField(max_length=100, blank=True)
    command = models.CharField(max_length=60)
    arguments = models.JSONField()
    changes = models.JSONField()
    reach = models.JSONField()
    beyond = models.JSONField()
    seen = models.JSONField()
    digest = models.CharField(max_length=64)
    asked_by = models.CharField(max_length=150)
    via = models.CharField(max_length=12)
    reason = models.CharField(max_length=500, blank=True)
    asked_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    state = models.CharField(max_length=10, default="open")
    ended_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=150, blank=True)
    ended_reason = models.CharField(max_length=500, blank=True)
    text = models.CharField(max_length=500, blank=True, help_text="Why it could not be done.")
    result = models.JSONField(null=True)
    broke_glass = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["digest"],
                condition=models.Q(state="open"),
                name="one_open_proposal_of_a_kind",
            )
        ]
        indexes = [
            models.Index(fields=["state", "expires_at"], name="proposals_by_state"),
            models.Index(fields=["fleet", "-asked_at"], name="proposals_by_fleet"),
        ]

    def __str__(self) -> str:
        return f"proposal {self.pk}: {self.command} of {self.fleet or 'several fleets'}"
