"""What is kept of fits. `proposals` is the only writer of ProfileProposal."""

from __future__ import annotations

from django.db import models


class ProfileProposal(models.Model):
    """Profiles of a fleet as telemetry of a span shows them, beside those of its scenario.

    `queued`, then `ready`, or `failed` where no cluster could be fitted; `applied` when a person
    put it into the scenario, `replaced` by a newer one. `profiles` holds, by name, what stands in
    the scenario (`before`) and what would (`after`); `clusters` how each was fitted or why not.
    """

    fleet = models.CharField(max_length=100)
    state = models.CharField(max_length=10, default="queued")
    since = models.DateTimeField()
    until = models.DateTimeField()
    clusters = models.JSONField(default=dict)
    profiles = models.JSONField(default=dict)
    text = models.CharField(max_length=500, blank=True)
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    fitted_at = models.DateTimeField(null=True)
    applied_by = models.CharField(max_length=150, blank=True)
    applied_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["fleet", "-id"], name="fits_by_fleet")]

    def __str__(self) -> str:
        return f"{self.fleet} {self.since:%F %H:%M}: {self.state}"
