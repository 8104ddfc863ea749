"""Rows of the telemetry app that people and code look up; samples live in landing partitions.

The three sample tables (`telemetry_instance_sample`, `telemetry_link_sample`,
`telemetry_router_sample`) and `telemetry_batch` are raw SQL, written by binary COPY in `ingest`
and read in `store`: one ORM row per value would cost a hundred times more.
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
