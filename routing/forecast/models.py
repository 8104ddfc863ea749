"""What forecasts are kept. `forecasts` is the only writer of Forecast."""

from __future__ import annotations

from django.db import models


class Forecast(models.Model):
    """The newest forecast of a fleet (docs/forecast.md), and how such ones were judged."""

    fleet = models.CharField(max_length=100, primary_key=True)
    found = models.JSONField()
    made_at = models.DateTimeField()
    judged = models.JSONField(null=True)
    judged_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.fleet} of {self.made_at:%F %H:%M}"
