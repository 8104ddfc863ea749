"""What jobs remember. `jobs` is the only writer of Job, `runs` of JobRun."""

from __future__ import annotations

from django.db import models


class Job(models.Model):
    """One job as people wrote it (`document`). `since` is from when on it is due; `version` is the
    ETag."""

    name = models.SlugField(max_length=80, primary_key=True)
    fleet = models.CharField(max_length=100, db_index=True)
    document = models.JSONField()
    enabled = models.BooleanField(default=True)
    since = models.DateTimeField()
    version = models.PositiveIntegerField(default=1)
    updated_at = models.DateTimeField()
    updated_by = models.CharField(max_length=150)

    def __str__(self) -> str:
        return self.name


class JobRun(models.Model):
    """One due time of a job and what became of it.

    `due`, then `asking` while a second person has not decided, then `moving` while instances change
    roles, then `done`, `failed` or `skipped`. A run by hand is due when it was asked for.
    """

    job = models.CharField(max_length=80)
    fleet = models.CharField(max_length=100)
    due_at = models.DateTimeField()
    state = models.CharField(max_length=10, default="due")
    text = models.CharField(max_length=500, blank=True)
    asked_by = models.CharField(max_length=150, blank=True)
    hold = models.BigIntegerField(null=True, help_text="The hold that it placed.")
    proposal = models.BigIntegerField(null=True, help_text="What a second person decides on.")
    began_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "due_at"], name="one_run_per_job_and_due_time")
        ]
        indexes = [
            models.Index(fields=["state", "due_at"], name="job_runs_by_state"),
            models.Index(fields=["fleet", "-due_at"], name="job_runs_by_fleet"),
        ]

    def __str__(self) -> str:
        return f"{self.job} due {self.due_at:%F %T}: {self.state}"
