"""The signals page's figures of every source as a table: what a chart of thousands cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import numpy as np
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _

from console import csv_cells, ranked_series, signals
from console.roles import readable
from routing.models import Fleet
from telemetry import history
from telemetry.columns import Matrix
from telemetry.store import QueryError

HEADER: Final = ("time_utc", "source", "signal", "value", "unit")
_UNPROCESSABLE: Final = 422


@readable
def table(request: HttpRequest, fleet: str) -> HttpResponse:
    """The signal that the address names, as the page reads it: a row for each source and bin."""
    found = get_object_or_404(Fleet, pk=fleet)
    now = timezone.now()
    form = signals.SignalsForm(signals.asked(request.GET.dict()), fleet=found, now=now)
    if not form.is_valid() or form.asked.is_histogram:
        words = [f"{name}: {error}" for name, errors in form.errors.items() for error in errors]
        return _refused(
            "\n".join(words) or f"signal: {_('a histogram has no one value for a table')}"
        )
    since_s, until_s = signals.span_of(form, now)
    signal = form.asked
    paths = list(form.sources.values_list("path", flat=True))
    try:
        read = {
            name: history.read(
                signal.kind,
                name,
                paths=paths,
                since_s=since_s,
                until_s=until_s,
                max_points=1,
                bin_s=signals.bin_s(until_s - since_s),
            )
            for name in (signal.name, signal.over)
            if name
        }
    except QueryError as exc:
        return _refused(f"{exc.field}: {exc.error}")
    whole = read[signal.name]
    values = ranked_series.rates(whole.values, whole.bin_s, whole.start_s, until_s, signal.name)
    if signal.over:
        values = ranked_series.shares(values, read[signal.over].values)
    rows = _rows(whole, values * signal.scale, signal.label, signal.shown_unit)
    begun = datetime.fromtimestamp(since_s, UTC)
    return csv_cells.stream(rows, HEADER, f"{fleet}-{signal.label}-{begun:%Y-%m-%dT%H%M%S}")


def _rows(
    whole: history.History, values: Matrix, label: str, unit: str
) -> Iterator[tuple[str, str, str, float, str]]:
    """By time, then by source; where nothing was measured there is no row."""
    for at_s, row in zip(whole.times_s.tolist(), values, strict=True):
        at = f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"
        for i in np.flatnonzero(~np.isnan(row)).tolist():
            yield at, whole.paths[i], label, float(row[i]), unit


def _refused(words: str) -> HttpResponse:
    return HttpResponse(
        f"{words}\n", status=_UNPROCESSABLE, content_type="text/plain; charset=utf-8"
    )
