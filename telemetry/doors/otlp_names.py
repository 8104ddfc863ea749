"""What Prometheus calls an OpenTelemetry metric, so that one alias map reads both.

Rules: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

import re
from functools import lru_cache

# Colons are allowed in metric names; engines use them (`vllm:...`).
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_:]+")
_NOT_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_ANNOTATION = re.compile(r"\{[^}]*\}")
_MANY = re.compile(r"_{2,}")

_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds",
    "us": "microseconds", "ns": "nanoseconds",
    "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tebibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes",
    "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams",
    "Cel": "celsius", "Hz": "hertz", "%": "percent",
}  # fmt: skip
_PER = {
    "s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year",
}  # fmt: skip


@lru_cache(maxsize=2_000)
def metric_name(name: str, unit: str, *, monotonic: bool, gauge: bool) -> str:
    """The Prometheus name: cleaned, with its unit, and `_total` behind a monotonic sum.

    A suffix that the name already carries is not added again.
    """
    clean = _MANY.sub("_", _NOT_NAME.sub("_", name)).strip("_")
    for suffix in _unit_suffixes(unit, gauge=gauge):
        stem = clean.removesuffix("_total")
        if suffix not in stem.split("_") and not stem.endswith(suffix):
            clean = f"{stem}_{suffix}"
    if monotonic:
        clean = f"{clean.removesuffix('_total')}_total"
    return f"_{clean}" if clean[:1].isdigit() else clean


def _unit_suffixes(unit: str, *, gauge: bool) -> list[str]:
    unit = _ANNOTATION.sub("", unit).strip()
    if unit == "1":
        return ["ratio"] if gauge else []
    main, _, per = unit.partition("/")
    suffixes = []
    if word := _UNITS.get(main, main):
        suffixes.append(_clean(word))
    if per:
        suffixes.append(f"per_{_clean(_PER.get(per, per))}")
    return [suffix for suffix in suffixes if suffix]


def _clean(word: str) -> str:
    return _MANY.sub("_", _NOT_NAME.sub("_", word)).strip("_")


@lru_cache(maxsize=2_000)
def label_name(key: str) -> str:
    """An attribute's key as a label name."""
    clean = _NOT_LABEL.sub("_", key)
    return f"key_{clean}" if clean[:1].isdigit() else clean
