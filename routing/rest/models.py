"""What the API remembers for its callers. Triggers of the database write Event, as the last thing
of what it tells of; `once` is the only writer of Answer."""

from __future__ import annotations

from django.db import models


class Event(models.Model):
    """Something that happened, for whoever listens or comes back (`events`).

    `transaction` is the number of the one that it happened in. Rows are read in order of it, and
    only once every transaction of a lower number is over: none appears behind a reader's back.
    """

    transaction = models.BigIntegerField()
    at = models.DateTimeField(db_index=True)
    fleet = models.CharField(max_length=100, blank=True)
    kind = models.CharField(max_length=20)
    change = models.CharField(max_length=20)
    subject = models.BigIntegerField(help_text="The id of what it happened to.")
    data = models.JSONField()

    class Meta:
        indexes = [models.Index(fields=["transaction", "id"], name="events_in_order")]

    def __str__(self) -> str:
        return f"{self.transaction}-{self.pk} {self.kind} {self.change}"


class Answer(models.Model):
    """What was answered to a request with an Idempotency-Key, written in its own transaction.

    `asked` is a digest of the request. No `body`: it must not be given twice.
    """

    holder = models.CharField(max_length=60)
    key = models.CharField(max_length=100)
    asked = models.CharField(max_length=64)
    at = models.DateTimeField(db_index=True)
    status = models.PositiveSmallIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.TextField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["holder", "key"], name="one_answer_per_holder_and_key")
        ]

    def __str__(self) -> str:
        return f"{self.holder} {self.key}: {self.status}"
