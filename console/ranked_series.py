"""One signal of many sources, the highest first: a few lines and a band of the rest, or a page of
rows of a heat map. The console chooses, so that a page gets what it shows and no more.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from routing import fleets, history_api
from routing.models import Fleet
from telemetry import chunks
from telemetry.columns import Matrix

MOST_ROWS: Final = 60
BANDS: Final = (0.1, 0.5, 0.9)


class RankedQuery(history_api.HistoryQuery):
    """Which rows of the ranking."""

    rows = serializers.IntegerField(
        required=False, default=5, min_value=0, max_value=MOST_ROWS, help_text="So many at most."
    )
    offset = serializers.IntegerField(
        required=False, default=0, min_value=0, help_text="Rows to leave out first."
    )
    over = serializers.CharField(
        required=False, help_text="Divide by this signal of the same source, e.g. capacity_gbps."
    )


class RankedRowSerializer(serializers.Serializer):
    path = serializers.CharField()
    mean = serializers.FloatField(allow_null=True, help_text="What it is ranked by.")
    values = serializers.ListField(child=serializers.FloatField(allow_null=True))


class RankedRestSerializer(serializers.Serializer):
    n = serializers.ListField(child=serializers.IntegerField(), help_text="Sources in each bin.")
    bands = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True))
    )


class RankedSerializer(serializers.Serializer):
    t = serializers.ListField(child=serializers.FloatField(), help_text="Start of each bin.")
    bin_s = serializers.FloatField()
    n_sources = serializers.IntegerField()
    offset = serializers.IntegerField()
    rows = RankedRowSerializer(many=True)
    rest = RankedRestSerializer(help_text="Quantiles over the sources that are not in `rows`.")


class RankedSeries(history_api.SignalSeries):
    """Sources by their mean over the range, the highest first; counters as rates. The last rows
    are those of which nothing was measured."""

    query_class = RankedQuery

    @extend_schema(parameters=[RankedQuery], responses=RankedSerializer)
    def get(self, request: Request, fleet: str | None = None) -> HttpResponse:
        asked = self.asked
        found = self.found(fleet)
        _, until_s, _ = self.span(fleet)
        values = rates(found.values, found.bin_s, found.start_s, until_s, asked["signal"])
        if over := asked.get("over"):
            self.asked = {**asked, "signal": over}
            under = self.found(fleet).values
            self.asked = asked
            values = shares(values, under)
        body = ranked(values, found.paths, n_rows=asked["rows"], offset=asked["offset"])
        axis = {"t": found.times_s, "bin_s": found.bin_s, "offset": asked["offset"]}
        return HttpResponse(
            orjson.dumps({**axis, **body}, option=orjson.OPT_SERIALIZE_NUMPY),
            content_type="application/json",
        )

    def _paths(self, fleet: str | None) -> list[str]:
        # Links are named after their clusters, not after a fleet.
        if fleet is None or self.asked["kind"] != "link":
            return super()._paths(fleet)
        known = [link.id for link in fleets.scenario_of(get_object_or_404(Fleet, pk=fleet)).links]
        if "paths" not in self.asked:
            return [path for path in known if path.startswith(self.asked["prefix"])]
        paths = list(dict.fromkeys(p for p in self.asked["paths"].split(",") if p))
        if strange := [p for p in paths if p not in known]:
            raise ValidationError({"paths": [f"{strange[0]:.200} is no link of fleet {fleet}"]})
        return paths


def rates(values: Matrix, bin_s: float, start_s: float, until_s: float, signal: str) -> Matrix:
    """Of a counter what it gained a second from one bin to the next; others as they are.

    Not known without the bin before, where a process began anew, and of a bin that is not over.
    """
    if not chunks.is_counter(signal):
        return values
    gained = np.diff(values, axis=0, prepend=np.full((1, values.shape[1]), np.nan))
    gained[gained < 0] = np.nan
    ends_s = start_s + bin_s * np.arange(1, len(values) + 1)
    gained[ends_s > until_s] = np.nan
    return gained / bin_s


def shares(values: Matrix, whole: Matrix) -> Matrix:
    """Of each value its part of another; not known without that."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, values / whole, np.nan)


def ranked(values: Matrix, paths: tuple[str, ...], *, n_rows: int, offset: int) -> dict[str, Any]:
    """`values` has shape (n_bins, n_paths): rows by mean, ties by name, and the rest as bands."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    order = sorted(
        range(len(paths)), key=lambda i: (count[i] == 0, -mean[i] if count[i] else 0.0, paths[i])
    )
    chosen = order[offset : offset + n_rows]
    rest = np.delete(values, chosen, axis=1)
    n_rest = (~np.isnan(rest)).sum(axis=1)
    bands = np.full((len(BANDS), len(values)), np.nan)
    if (some := n_rest > 0).any():
        bands[:, some] = np.nanquantile(rest[some], BANDS, axis=1)
    return {
        "n_sources": len(paths),
        "rows": [
            {
                "path": paths[i],
                "mean": mean[i],
                "values": np.ascontiguousarray(_short(values[:, i])),
            }
            for i in chosen
        ],
        "rest": {"n": n_rest, "bands": {f"{q:g}": _short(bands[k]) for k, q in enumerate(BANDS)}},
    }


def _short(values: Matrix) -> Any:
    """Six digits: no chart shows more."""
    return values.astype(np.float32)


urlpatterns = [
    path(
        "fleets/<slug:fleet>/telemetry/series/ranked",
        RankedSeries.as_view(),
        name="api-fleet-signal-ranked",
    )
]
