"""An intake and somebody who sends to it, without any network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from telemetry import exposition
from telemetry.doors import mapping
from telemetry.doors.intake import Intake, Receipt
from telemetry.doors.points import Point
from telemetry.doors.snapshot import Sample
from tests.doors.texts import RULES

T0_S = 1_795_955_300.0
TARGET = {"job": "vllm", "instance": "e0", "fleet": "f", "cluster": "pd", "role": "decode"}
PATH = "f/pd/e0"


def intake(rules: str = RULES, **more: float) -> Intake:
    return Intake(
        mapping.of(Path("doors.toml"), msgspec.toml.decode(rules, type=mapping.RulesFile)), **more
    )


class Sender:
    """Writes whole scrapes, or single samples, at `at_s` seconds after `T0_S`."""

    def __init__(self, taken: Intake, target: Mapping[str, str] = TARGET) -> None:
        self.intake, self.target = taken, target

    def write(self, name: str, value: float | None, at_s: float, /, **more: object) -> Receipt:
        """One sample; further labels by name, `start_ms` and `delta` as they are."""
        point = Point(value, round((T0_S + at_s) * 1000), int(more.pop("start_ms", 0)))  # type: ignore[call-overload]
        delta = bool(more.pop("delta", False))
        receipt = more.pop("receipt", None) or Receipt(T0_S + at_s)
        assert isinstance(receipt, Receipt)
        labels = {"__name__": name, **self.target, **{k: str(v) for k, v in more.items()}}
        series = self.intake.series(tuple(labels.items()))
        self.intake.take(series, [point], receipt, delta=delta)
        return receipt

    def scrape(self, text: str, at_s: float, *, up: float = 1.0) -> Receipt:
        """Everything in an exposition, and `up`."""
        receipt = Receipt(T0_S + at_s)
        found = exposition.parse(text)
        for name, samples in found.samples.items():
            for sample in samples:
                self.write(name, sample.value, at_s, receipt=receipt, **sample.labels)
        self.write("up", up, at_s, receipt=receipt)
        return receipt

    def samples(self, at_s: float) -> list[Sample]:
        """What has settled by then, committed."""
        due = self.intake.due(T0_S + at_s)
        for entry in due:
            self.intake.settle(entry, stored=True)
        return [entry.sample for entry in due if entry.sample is not None]
