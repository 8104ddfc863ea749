"""Raw samples: the newest readings of one source as they landed, so that any number on any page can
be followed to where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django import forms
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import csv_cells, figures, sources
from console.opened import opened
from console.roles import readable
from console.signal_rows import number
from console.signals import MomentField
from routing.core.scenario.document import Scenario
from telemetry import chunks, raw, wire
from telemetry.models import Source

COUNTS: Final = (50, 200, 1000)
MOST_IN_CSV: Final = 5000
KINDS: Final = ("instance", "link", "router")
UNPROCESSABLE: Final = 422


@dataclass(frozen=True)
class Cell:
    """One value: in words, exactly for the hover."""

    text: str
    title: str


class SamplesForm(forms.Form):
    """Until when, how many, and of which signal alone."""

    until = MomentField(label=gettext_lazy("Until"), required=False)
    n = forms.TypedChoiceField(
        label=gettext_lazy("Rows"), coerce=int, required=False, empty_value=COUNTS[0],
        choices=[(n, str(n)) for n in COUNTS],
    )  # fmt: skip
    signal = forms.ChoiceField(label=gettext_lazy("Signal"), required=False)

    def __init__(self, data: Any, *, kind: str) -> None:
        super().__init__(data)
        names = [("", _("every signal")), *((n, n) for n in chunks.SHAPES[kind])]
        self.fields["signal"].choices = names
        for field in self.fields.values():
            field.widget.attrs["autocomplete"] = "off"


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponseBase:
    """Newest first; older ones a page at a time, all of them as CSV."""
    found, scenario = opened(request, fleet)
    kind, asked_id = request.GET.get("kind", "instance"), request.GET.get("id", "")
    source = source_of(kind, path_of(fleet, scenario, kind, asked_id))
    form = SamplesForm(request.GET, kind=kind)
    now_s = timezone.now().timestamp()
    context = {
        "fleet": found,
        "kind": kind,
        "id": asked_id,
        "source": source,
        "form": form,
        "up": up_of(kind),
    }
    if not form.is_valid():
        return render(request, "samples.html", context, status=UNPROCESSABLE)
    asked = form.cleaned_data
    until_s = asked["until"].timestamp() if asked["until"] else now_s + sources.AHEAD_S
    if request.GET.get("format") == "csv":
        rows = raw.newest(kind, source.path, until_s=until_s, n=MOST_IN_CSV)
        return _csv(rows, kind, f"{fleet}-{asked_id}-samples")
    rows = raw.newest(kind, source.path, until_s=until_s, n=asked["n"])
    names = [asked["signal"]] if asked["signal"] else told_of(rows, kind)
    context |= {
        "names": names,
        "rows": [
            {
                "raw": row,
                "at": datetime.fromtimestamp(row.reading.at_s, UTC),
                "late_s": max(row.reading.received_s - row.reading.at_s, 0.0),
                "epoch": datetime.fromtimestamp(row.reading.epoch_s, UTC)
                if row.reading.epoch_s
                else None,
                "mark": sources.read_mark(row.reading.state, row.reading.error),
                "cells": [cell(name, getattr(row.reading.signals, name)) for name in names],
            }
            for row in rows
        ],
        "older_s": rows[-1].reading.at_s - 1e-3 if len(rows) == asked["n"] else None,
        "is_past": asked["until"] is not None,
        "is_compacted": any(row.seq is None for row in rows),
        "command": "python -m telemetry.agent --config agent.toml",
    }
    return render(request, "samples.html", context)


def path_of(fleet: str, scenario: Scenario, kind: str, asked_id: str) -> str:
    """The source's own id; 404 for what is not of this fleet."""
    if kind not in KINDS or not asked_id:
        raise Http404(_("No such source."))
    if kind != "link":
        return f"{fleet}/{asked_id}"
    if asked_id not in {link.id for link in scenario.links}:
        raise Http404(_("This fleet has no such link."))
    return asked_id


def source_of(kind: str, path: str) -> Source:
    """Its row; one without a row yet where the scenario knows more than was read."""
    found = Source.objects.filter(kind=kind, path=path).first()
    if found is None and kind != "link":
        raise Http404(_("Nothing of that name ever reported."))
    return found or Source(kind=kind, path=path)


def up_of(kind: str) -> tuple[str, str, Any]:
    """The list above such a page, the page of the source itself, and what the list is called."""
    return {
        "instance": ("instances", "instance", gettext_lazy("Instances")),
        "link": ("links", "link", gettext_lazy("Links")),
        "router": ("routers", "router", gettext_lazy("Routers")),
    }[kind]


def told_of(rows: list[raw.Raw], kind: str) -> list[str]:
    """Names of the signals that any of the rows has: plain values first, in the order of the
    wire."""
    told = [
        name
        for name in chunks.SHAPES[kind]
        if any(getattr(row.reading.signals, name) not in (None, {}) for row in rows)
    ]
    return sorted(told, key=lambda name: chunks.SHAPES[kind][name] not in ("number", "text"))


def cell(name: str, value: Any) -> Cell:
    """A value in a table of many: histograms and maps in short."""
    if value is None:
        return Cell(figures.NONE, "")
    if isinstance(value, str):
        return Cell(value, value)
    if isinstance(value, wire.Histogram):
        n = figures.significant(value.count)
        return Cell(_("%(n)s seen") % {"n": n}, f"n {value.count:g}, sum {value.sum:g}")
    if isinstance(value, dict):
        words = plain(value)
        return Cell(words if len(words) < 40 else f"{words[:40]}…", words)
    return Cell(number(name, value), figures.exact(value))


def plain(value: Any) -> Any:
    """A value as one cell of a file: numbers as they are, the rest in one line of text."""
    if isinstance(value, wire.Histogram):
        return f"n {value.count:g}, sum {value.sum:g}"
    if isinstance(value, dict):
        parts = (
            f"{key} {part.count if isinstance(part, wire.Histogram) else part:g}"
            for key, part in sorted(value.items())
        )
        return ", ".join(parts)
    return value


_FACTS: Final = ("at_s", "received_s", "agent", "boot", "seq", "state", "error", "epoch_s")


def _csv(rows: list[raw.Raw], kind: str, name: str) -> HttpResponseBase:
    names = told_of(rows, kind)
    cells = (
        [
            *(row.reading.at_s, row.reading.received_s, row.agent, row.boot, row.seq),
            *(row.reading.state, row.reading.error, row.reading.epoch_s or None),
            *(plain(getattr(row.reading.signals, each)) for each in names),
        ]
        for row in rows
    )
    return csv_cells.stream(cells, [*_FACTS, *names], name)
