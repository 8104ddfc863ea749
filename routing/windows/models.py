"""What windows remember. `windows` is the only writer of Window and Override, `maintenance` of
Maintenance."""

from __future__ import annotations

from django.db import models


class Window(models.Model):
    """One freeze or change window as people wrote it (`document`), of a fleet or of all (empty).

    `ends_at` is when its last span ends, None of one that recurs. `version` is the ETag.
    """

    name = models.SlugField(max_length=80, primary_key=True)
    fleet = models.CharField(max_length=100, blank=True, db_index=True)
    document = models.JSONField()
    enabled = models.BooleanField(default=True)
    ends_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class Override(models.Model):
    """One administrator may change what a freeze of the fleet forbids, until `ends_at`."""

    fleet = models.CharField(max_length=100)
    actor = models.CharField(max_length=150)
    reason = models.CharField(max_length=500)
    created_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["fleet", "ends_at"], name="overrides_by_fleet")]

    def __str__(self) -> str:
        return f"{self.actor} in {self.fleet} until {self.ends_at:%F %T}"


class Maintenance(models.Model):
    """People work on a cluster, or on a link: no traffic for it, and nobody is told of its alerts.

    It lasts from `starts_at` to `ends_at`, whoever runs or does not. `silences` are those that
    stand for it; `began_at` and `over_at` are when a pass found that it had begun, and ended.
    """

    fleet = models.CharField(max_length=100)
    cluster = models.CharField(max_length=100, blank=True)
    link = models.CharField(max_length=200, blank=True)
    reason = models.CharField(max_length=500)
    owner = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    ended_by = models.CharField(max_length=150, blank=True, help_text="Who ended it early.")
    silences = models.JSONField(default=list)
    began_at = models.DateTimeField(null=True)
    over_at = models.DateTimeField(null=True)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        indexes = [
            models.Index(fields=["fleet", "ends_at"], name="maintenance_by_fleet"),
            models.Index(
                fields=["ends_at"], condition=models.Q(over_at=None), name="maintenance_not_over"
            ),
        ]

    def __str__(self) -> str:
        return f"maintenance {self.pk} of {self.link or self.cluster}"
