"""`manage.py canonical METRICS.txt`: what a /metrics text means, and from which series."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from telemetry import canonical, exposition
from telemetry.canonical import Canonical
from telemetry.engine_maps import MAPS
from telemetry.signals import Signal

MAX_SHOWN_UNMATCHED = 20


class Command(BaseCommand):
    help = "Show the canonical signals in a /metrics text: value, state, unit and source series."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("metrics", metavar="METRICS.txt", help="a saved text; - reads stdin")
        parser.add_argument(
            "--engine", default="auto", metavar="|".join(("auto", *MAPS)), help="default: auto"
        )
        parser.add_argument(
            "--engine-version",
            default="",
            metavar="VERSION",
            help="where the text does not say it; some names changed their meaning",
        )
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")

    def handle(self, *args: Any, **options: Any) -> None:
        engine = options["engine"]
        if engine not in ("auto", *MAPS):
            known = ", ".join(("auto", *MAPS))
            raise CommandError(f"--engine={engine!r}: must be one of {known}", returncode=2)
        read = canonical.canonicalise(
            exposition.parse(_text(options["metrics"])),
            engine,
            version=options["engine_version"],
        )
        if options["json"]:
            self.stdout.write(json.dumps(read.to_json(), allow_nan=False))
        else:
            self.stdout.write(_table(read))


def _text(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as exc:
        raise CommandError(f"{name}: {exc.strerror}", returncode=2) from None
    return raw.decode("utf-8", errors="replace")


def _table(read: Canonical) -> str:
    rows = [
        (name, signal.state, _shown(signal), signal.unit, _why(signal))
        for name, signal in sorted(read.signals.items(), key=lambda item: _is_missing(item[1]))
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [_headline(read)]
    for *cells, last in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{line}  {last}".rstrip())
    if read.n_unmatched:
        names = ", ".join(read.unmatched[:MAX_SHOWN_UNMATCHED])
        more = read.n_unmatched - MAX_SHOWN_UNMATCHED
        lines.append(f"no signal: {names}" + (f" and {more} more" if more > 0 else ""))
    lines += [f"warning: {warning}" for warning in read.warnings]
    return "\n".join(lines)


def _headline(read: Canonical) -> str:
    parts = [f"engine {read.engine} {read.engine_version}".rstrip()]
    if read.addons:
        parts.append(f"with {', '.join(read.addons)}")
    parts.append(f"{read.n_series} series")
    if read.n_bad_lines:
        parts.append(f"{read.n_bad_lines} lines that cannot be read")
    return ", ".join(parts)


def _is_missing(signal: Signal) -> bool:
    return signal.state == "missing"


def _shown(signal: Signal) -> str:
    if signal.state == "missing":
        return "-"
    parts = [f"{signal.value:.10g}"] if signal.value is not None else []
    if signal.maximum is not None:
        parts.append(f"max {signal.maximum:.10g}")
    if signal.count is not None:
        parts.append(f"count {signal.count:.10g}")
    if signal.sum is not None:
        parts.append(f"sum {signal.sum:.10g}")
    parts += [f"{key}={value:.10g}" for key, value in signal.by.items()]
    return " ".join(parts)


def _why(signal: Signal) -> str:
    return signal.reason if signal.reason is not None else ", ".join(signal.source)
