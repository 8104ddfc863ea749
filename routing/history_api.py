"""Any plain signal of any sources over time: as series, as percentile bands, as a heat map.

Answers are arrays, one value a bin; a gap is null. What is older than this console keeps is read
back from where it was forwarded to (`CONSOLE_HISTORY_URL`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import path
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request

from routing import queries
from routing.models import Fleet
from routing.queries import Queried
from telemetry import chunks, distributions, history, partitions, quantiles
from telemetry.columns import Matrix
from telemetry.doors import history as forwarded
from telemetry.doors import promql
from telemetry.doors import service as doors
from telemetry.models import Source
from telemetry.store import QueryError

MAX_PATHS: Final = 20_000
MAX_LEVELS: Final = 60
DEFAULT_QUANTILES: Final = (0.1, 0.5, 0.9, 1.0)
DEFAULT_SHARES: Final = (0.5, 0.9, 0.99)
_RANGE_S: Final = 3600.0
_LATEST_S: Final = 32_503_680_000.0


class HistoryQuery(queries.Query):
    """Which signal of which sources, from when to when."""

    kind = serializers.ChoiceField(choices=("instance", "link", "router"), default="instance")
    signal = serializers.CharField(help_text="A plain signal, e.g. requests_waiting.")
    prefix = serializers.CharField(
        required=False, default="", allow_blank=True, help_text="Of the sources' ids."
    )
    role = serializers.ChoiceField(
        choices=("prefill", "decode", "both"), required=False, help_text="Of instances, the newest."
    )
    paths = serializers.CharField(required=False, help_text="Ids, comma separated.")
    start_s = serializers.FloatField(required=False, help_text="Epoch seconds; default 1 h ago.")
    end_s = serializers.FloatField(required=False, help_text="Epoch seconds; default now.")
    points = serializers.IntegerField(
        required=False, default=300, min_value=1, max_value=10_000, help_text="At most so many."
    )
    bin_s = serializers.FloatField(
        required=False, help_text="Width of the bins instead; multiples of 10 s and of 60 s answer"
        " from roll-ups."
    )  # fmt: skip


class BandsQuery(HistoryQuery):
    """Which quantiles over the sources, bin by bin."""

    quantiles = serializers.CharField(
        required=False, help_text="In 0..1, comma separated; default 0.1,0.5,0.9,1."
    )


class KeyQuery(HistoryQuery):
    """Of a labelled histogram, which of its keys."""

    key = serializers.CharField(
        required=False, default="", allow_blank=True, help_text="What the label's key begins with."
    )


class QuantilesQuery(KeyQuery, BandsQuery):
    """Which quantiles of which observations."""


class HeatQuery(KeyQuery):
    """Into how many levels of value the sources of each bin are counted."""

    levels = serializers.IntegerField(required=False, default=20, min_value=2, max_value=MAX_LEVELS)


class SignalSeriesSerializer(serializers.Serializer):
    t = serializers.ListField(child=serializers.FloatField(), help_text="Start of each bin.")
    bin_s = serializers.FloatField()
    series = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True))
    )


class SignalBandsSerializer(serializers.Serializer):
    t = serializers.ListField(child=serializers.FloatField())
    bin_s = serializers.FloatField()
    n = serializers.ListField(child=serializers.IntegerField(), help_text="Sources in each bin.")
    bands = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True))
    )


class SignalQuantilesSerializer(serializers.Serializer):
    t = serializers.ListField(child=serializers.FloatField())
    bin_s = serializers.FloatField()
    n = serializers.ListField(child=serializers.FloatField(), help_text="Observations in each bin.")
    n_left_out = serializers.FloatField(help_text="Observations in other buckets than most.")
    largest_bound = serializers.FloatField(allow_null=True)
    quantiles = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True))
    )
    above = serializers.DictField(
        child=serializers.ListField(child=serializers.BooleanField()),
        help_text="True where a quantile is above the largest bound, nobody knows how far.",
    )


class SignalHeatSerializer(serializers.Serializer):
    t = serializers.ListField(child=serializers.FloatField())
    bin_s = serializers.FloatField()
    edges = serializers.ListField(child=serializers.FloatField(), help_text="Of the levels.")
    counts = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()),
        help_text="By level, then by bin: how many sources.",
    )


class NoHistory(APIException):
    """What the forwarded history answered is of no use."""

    status_code = 502


class _View(Queried):
    """Reads the signal; a view says how it is folded."""

    query_class = HistoryQuery

    def span(self, fleet: str | None) -> tuple[float, float, float]:
        """(from, to, width of a bin). Raises ValidationError, or Http404 for an unknown fleet."""
        asked = self.asked
        if fleet is not None:
            get_object_or_404(Fleet, pk=fleet)
        until_s = asked.get("end_s", timezone.now().timestamp())
        since_s = asked.get("start_s", until_s - _RANGE_S)
        for name, value in (("start_s", since_s), ("end_s", until_s)):
            if not 0.0 <= value <= _LATEST_S:
                raise ValidationError({name: ["must be epoch seconds"]})
        bin_s = asked.get("bin_s")
        if bin_s is None:
            bin_s = history.nice_bin_s(max(until_s - since_s, 0.0) / asked["points"])
        return since_s, until_s, bin_s

    def found(self, fleet: str | None) -> history.History:
        """The plain signal asked for. Raises ValidationError."""
        asked = self.asked
        since_s, until_s, bin_s = self.span(fleet)
        try:
            paths = self._paths(fleet)
            if older := self._forwarded(paths, since_s, until_s, bin_s):
                return older
            return history.read(
                asked["kind"],
                asked["signal"],
                paths=paths,
                since_s=since_s,
                until_s=until_s,
                max_points=asked["points"],
                bin_s=bin_s,
            )
        except QueryError as exc:
            raise _refused(exc) from None

    def _paths(self, fleet: str | None) -> list[str]:
        asked = self.asked
        if "paths" in asked:
            paths = list(dict.fromkeys(p for p in asked["paths"].split(",") if p))
            strange = [p for p in paths if fleet and not p.startswith(f"{fleet}/")]
            if strange:
                raise ValidationError({"paths": [f"{strange[0]} is not of fleet {fleet}"]})
        else:
            sources = Source.objects.filter(kind=asked["kind"], path__startswith=asked["prefix"])
            if fleet is not None:
                sources = sources.filter(path__startswith=f"{fleet}/")
            if "role" in asked:
                sources = sources.filter(role=asked["role"])
            paths = list(sources.order_by("path").values_list("path", flat=True)[: MAX_PATHS + 1])
        if len(paths) > MAX_PATHS:
            raise ValidationError({"prefix": [f"more than {MAX_PATHS} sources: narrow it"]})
        return paths

    def _forwarded(
        self, paths: list[str], since_s: float, until_s: float, bin_s: float
    ) -> history.History | None:
        """The range from where history is forwarded to, if it begins before what is kept here."""
        client = doors.history()
        kept = partitions.retention()
        table = next(
            (kept_for for width, kept_for in (
                (60.0, kept.rollup_1m), (10.0, kept.rollup_10s), (0.0, kept.raw)
            ) if bin_s >= width and (width == 0.0 or bin_s % width == 0)),
            kept.raw,
        )  # fmt: skip
        oldest_s = timezone.now().timestamp() - table.total_seconds()
        if client is None or not paths or not since_s < oldest_s or not until_s > since_s:
            return None
        try:
            said = forwarded.series(
                client,
                self.asked["kind"],
                self.asked["signal"],
                paths=paths,
                since_s=since_s,
                until_s=until_s,
                bin_s=bin_s,
            )
        except promql.QueryFailed as exc:
            raise NoHistory(f"the forwarded history does not answer: {exc}") from None
        rows = [said["series"][p] for p in paths]
        values = np.array(rows, dtype=np.float64).T.reshape(len(said["t"]), len(paths))
        return history.History(said["t"][0], said["bin_s"], tuple(paths), values)


class _Folded(_View):
    """A view that can also read histograms."""

    def distribution(self, fleet: str | None) -> distributions.Distribution:
        """The histogram signal asked for. Raises ValidationError."""
        asked = self.asked
        since_s, until_s, bin_s = self.span(fleet)
        try:
            return distributions.read(
                asked["kind"],
                asked["signal"],
                paths=self._paths(fleet),
                since_s=since_s,
                until_s=until_s,
                max_points=asked["points"],
                bin_s=bin_s,
                key=asked.get("key", ""),
            )
        except QueryError as exc:
            raise _refused(exc) from None


class SignalSeries(_View):
    """One plain signal of many sources, one array a source."""

    @extend_schema(parameters=[HistoryQuery], responses=SignalSeriesSerializer)
    def get(self, request: Request, fleet: str | None = None) -> HttpResponse:
        found = self.found(fleet)
        values = _short(found.values, self.asked["signal"])
        series = {p: np.ascontiguousarray(values[:, i]) for i, p in enumerate(found.paths)}
        return _json({"t": found.times_s, "bin_s": found.bin_s, "series": series})


class SignalBands(_View):
    """Quantiles over the sources in each bin: how a fleet is doing, whatever its size."""

    query_class = BandsQuery

    @extend_schema(parameters=[BandsQuery], responses=SignalBandsSerializer)
    def get(self, request: Request, fleet: str | None = None) -> HttpResponse:
        shares = _quantiles(self.asked.get("quantiles"), DEFAULT_QUANTILES)
        found = self.found(fleet)
        n_known = np.count_nonzero(~np.isnan(found.values), axis=1)
        bands = np.full((len(shares), len(found.values)), np.nan)
        some = n_known > 0
        if some.any():
            bands[:, some] = np.nanquantile(found.values[some], shares, axis=1)
        said = {f"{q:g}": bands[i] for i, q in enumerate(shares)}
        return _json({"t": found.times_s, "bin_s": found.bin_s, "n": n_known, "bands": said})


class SignalQuantiles(_Folded):
    """Quantiles of a histogram signal in each bin, over all observations of all sources.

    `above` says where a quantile lies beyond the largest bound, which is then shown in its place.
    """

    query_class = QuantilesQuery

    @extend_schema(parameters=[QuantilesQuery], responses=SignalQuantilesSerializer)
    def get(self, request: Request, fleet: str | None = None) -> HttpResponse:
        shares = _quantiles(self.asked.get("quantiles"), DEFAULT_SHARES)
        found = self.distribution(fleet)
        rows = found.counts.tolist()
        said = {f"{q:g}": [quantiles.quantile(found.edges, row, q) for row in rows] for q in shares}
        return _json(
            {
                **_axis(found.start_s, found.bin_s, len(rows)),
                "n": [sum(row) for row in rows],
                "n_left_out": found.n_left_out,
                "largest_bound": found.edges[-1] if found.edges else None,
                "quantiles": {q: [each.value for each in row] for q, row in said.items()},
                "above": {q: [each.is_above for each in row] for q, row in said.items()},
            }
        )


class SignalHeat(_Folded):
    """How many sources were at which level in each bin; of a histogram, how many observations in
    which bucket."""

    query_class = HeatQuery

    @extend_schema(parameters=[HeatQuery], responses=SignalHeatSerializer)
    def get(self, request: Request, fleet: str | None = None) -> HttpResponse:
        if chunks.SHAPES[self.asked["kind"]].get(self.asked["signal"], "").endswith("histogram"):
            spread = self.distribution(fleet)
            axis = _axis(spread.start_s, spread.bin_s, len(spread.counts))
            return _json(
                {**axis, "edges": [0.0, *spread.edges], "counts": spread.counts.T.tolist()}
            )
        found = self.found(fleet)
        edges, counts = heat(found.values, self.asked["levels"], self.asked["signal"])
        return _json({"t": found.times_s, "bin_s": found.bin_s, "edges": edges, "counts": counts})


def heat(values: Matrix, n_levels: int, signal: str) -> tuple[Matrix, Matrix]:
    """(edges of n_levels + 1, counts of shape (n_levels, n_bins)); a ratio's levels span 0..1."""
    known = ~np.isnan(values)
    top = 1.0 if signal.endswith("_ratio") else float(values[known].max()) if known.any() else 1.0
    edges = np.linspace(0.0, top or 1.0, n_levels + 1)
    levels = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, n_levels - 1)
    bins = np.broadcast_to(np.arange(len(values))[:, None], values.shape)
    flat = levels[known] * len(values) + bins[known]
    counts = np.bincount(flat, minlength=n_levels * len(values))
    return edges, counts.reshape(n_levels, len(values))


def _refused(exc: QueryError) -> ValidationError:
    names = {"field": "signal", "until": "end_s"}
    return ValidationError({names.get(exc.field, exc.field): [exc.error]})


def _axis(start_s: float, bin_s: float, n_bins: int) -> dict[str, Any]:
    return {"t": [start_s + i * bin_s for i in range(n_bins)], "bin_s": bin_s}


def _quantiles(text: str | None, default: Sequence[float]) -> list[float]:
    if text is None:
        return list(default)
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not 1 <= len(found) <= 20 or not all(0.0 <= q <= 1.0 for q in found):
        raise ValidationError({"quantiles": ["give 1..20 numbers in 0..1, comma separated"]})
    return found


def _short(values: Matrix, signal: str) -> Any:
    """Numbers as a chart needs them: gauges to a hundred-thousandth of the largest.

    Most of the time of a large answer is writing and sending digits that no pixel shows.
    """
    if chunks.is_counter(signal) or np.isnan(values).all():
        return values
    largest = float(np.nanmax(values))
    n_decimals = 5 - math.floor(math.log10(largest)) - 1 if largest > 0.0 else 0
    return np.round(values, n_decimals).astype(np.float32 if n_decimals >= 0 else np.float64)


def _json(body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(
        orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY), content_type="application/json"
    )


urlpatterns = [
    path(f"{prefix}telemetry/{name}", view.as_view(), name=f"api-{kind}{label}")
    for prefix, kind in (("", ""), ("fleets/<slug:fleet>/", "fleet-"))
    for name, view, label in (
        ("series", SignalSeries, "signal-series"),
        ("series/bands", SignalBands, "signal-bands"),
        ("series/quantiles", SignalQuantiles, "signal-quantiles"),
        ("series/heat", SignalHeat, "signal-heat"),
    )
]
