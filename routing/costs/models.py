"""What is kept of costs. `usage` is the only writer of UsageDay, `recordings` of RecordedHour,
`prices` of PriceTable, `reports` of MonthReport, `values` of DecisionValue."""

from __future__ import annotations

from django.db import models


class UsageDay(models.Model):
    """One UTC day of a fleet in half hours (`core.costs.usage`), folded before ticks are forgotten.

    `until` is when it was folded: what came later is not in it.
    """

    fleet = models.CharField(max_length=100)
    day = models.DateField()
    usage = models.JSONField()
    until = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["fleet", "day"], name="one_usage_per_fleet_and_day")
        ]

    def __str__(self) -> str:
        return f"{self.fleet} {self.day}"


class RecordedHour(models.Model):
    """An hour of a fleet's own traffic, ready for the twin (`backtest_recordings`).

    `recording` is None where the hour could not be recorded; `text` says why.
    """

    fleet = models.CharField(max_length=100)
    at = models.DateTimeField()
    recording = models.JSONField(null=True)
    text = models.CharField(max_length=300, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["fleet", "at"], name="one_recording_per_fleet_and_hour")
        ]

    def __str__(self) -> str:
        return f"{self.fleet} {self.at:%F %H:%M}"


class PriceTable(models.Model):
    """What a fleet's hours and links cost, as people wrote it; its name is the fleet's. `version`
    is the ETag."""

    name = models.CharField(max_length=100, primary_key=True)
    document = models.JSONField()
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class MonthReport(models.Model):
    """A month of a fleet as it was last put together; `closed` months are not made again by
    themselves."""

    fleet = models.CharField(max_length=100)
    month = models.CharField(max_length=7)
    report = models.JSONField()
    closed = models.BooleanField(default=False)
    made_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["fleet", "month"], name="one_report_per_fleet_and_month"
            )
        ]

    def __str__(self) -> str:
        return f"{self.fleet} {self.month}"


class DecisionValue(models.Model):
    """What a month's decisions were worth in the twin: asked, how far it is, and what came of it.

    `plan` is the static plan compared with, `hours` the recorded hours that are replayed (their
    keys), `found` a row for each that is done. `heartbeat_at` names the worker that is at it.
    """

    fleet = models.CharField(max_length=100)
    month = models.CharField(max_length=7)
    state = models.CharField(max_length=10, default="queued")
    plan = models.JSONField()
    hours = models.JSONField()
    found = models.JSONField(default=list)
    result = models.JSONField(null=True)
    text = models.CharField(max_length=500, blank=True)
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["fleet", "month", "-id"], name="values_by_fleet_month")]

    def __str__(self) -> str:
        return f"{self.fleet} {self.month}: {self.state}"
