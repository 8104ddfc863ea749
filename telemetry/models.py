"""Rows of the telemetry app that people and code look up; readings live in tables of raw SQL.

Migration 0004 makes these: batches land as they came (`landing`) and become columns (`compaction`,
`rollups`), which `store` and `history` read. One ORM row per value would cost a thousand times
more.
"""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models


class ApiToken(models.Model):
    """A machine's key. Only its SHA-256 is kept; `prefix` lets people recognise it."""

    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.BinaryField(max_length=32, unique=True)
    scopes = ArrayField(models.CharField(max_length=20))
    fleet = models.CharField(max_length=100, blank=True, help_text="Empty: every fleet.")
    created_by = models.CharField(max_length=150)
    owner = models.CharField(max_length=150, blank=True, help_text="The person behind it.")
    replaces = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replaced_by"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Agent(models.Model):
    """The newest boot and sequence an agent committed, and how far its clock is from ours."""

    name = models.CharField(max_length=200, primary_key=True)
    boot = models.BigIntegerField()
    last_seq = models.BigIntegerField()
    first_seen_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField()
    skew_s = models.FloatField(default=0.0, help_text="Its sent_at_s minus our receive time.")

    def __str__(self) -> str:
        return self.name


class Source(models.Model):
    """Everything that ever reported: instance, link or router, by its id path."""

    kind = models.CharField(max_length=10)
    path = models.CharField(max_length=300)
    role = models.CharField(max_length=10, blank=True)
    engine = models.CharField(max_length=60, blank=True)
    engine_version = models.CharField(max_length=60, blank=True)
    agent = models.CharField(max_length=200)
    first_seen_at = models.DateTimeField(auto_now_add=True)
    last_seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["kind", "path"], name="one_source_per_kind_and_path")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


class StoredReport(models.Model):
    """The newest wire.AgentReport of an agent, as msgpack; beside `Agent`, which is read all the
    time and must stay small. Written and read in `reports`."""

    agent = models.CharField(max_length=200, primary_key=True)
    report = models.BinaryField()
    reported_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"report of {self.agent}"


class Refusal(models.Model):
    """How often one kind of batch was refused: by whom, with which status, at which field."""

    agent = models.CharField(max_length=200, blank=True)
    token = models.CharField(max_length=12, blank=True, help_text="The prefix of its token.")
    status = models.PositiveSmallIntegerField()
    field = models.CharField(max_length=300, blank=True)
    count = models.BigIntegerField()
    error = models.CharField(max_length=500)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["agent", "token", "status", "field"], name="one_refusal_per_kind"
            )
        ]

    def __str__(self) -> str:
        return f"{self.status} of {self.agent or self.token or 'nobody known'}"
