"""Rows of a profile file that belong to one profile: which GPU, model, engine and parallelism.

A csv holds one measurement a row. Columns that say what was measured are compared with the facts of
the profile (`gpu`, `model`, `engine`, `engine_version`, `parallelism`); what is left must be of one
kind, else nobody knows which hardware a plan would be made for. Rows that do not fit GPU memory
were computed, not run, and are left out.

A json holds quadratic fits by model and tensor parallelism (DistServe's layout), in ms:
{model: {tp: {"prefill": [a, b, c]}}}.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ALIASES = {
    "gpu": ("gpu", "system"),
    "model": ("model",),
    "engine": ("engine", "backend"),
    "engine_version": ("engine_version", "version"),
}
_DEGREES = ("tp", "pp", "ep", "dp")
_KIND = (*(name for names in _ALIASES.values() for name in names), *_DEGREES, "db_mode", "osl")
"""Columns that say what was measured, not what came out: one profile has one value of each."""
_TOKENS = ("isl", "tokens", "uncached_tokens")
_SECONDS = ("ttft_ms", "t_prefill_ms", "prefill_ms", "prefill_s", "seconds")
_STEP = ("tpot_ms", "step_ms", "step_s")
_SHOWN = 6


class FileError(ValueError):
    """A file that does not give what a scenario asks of it; the text says why."""


@dataclass(frozen=True)
class Chosen:
    """Numbers of a file, and in words which of its rows they are. Rows are in rising order."""

    rows: list[list[float]]
    source: str


def prefill_points(text: str, facts: Mapping[str, Any]) -> Chosen:
    """[uncached tokens, seconds] of single prompts. Raises FileError."""
    table, source = _select(text, facts)
    # More than one prompt at a time is not the time of a prompt.
    single = [row for row in table if row.get("batch", "1") == "1"]
    tokens, seconds = _column(single, _TOKENS), _column(single, _SECONDS)
    return Chosen(_rising([tokens, seconds]), source)


def prefix_points(text: str, facts: Mapping[str, Any]) -> Chosen:
    """[cached tokens, uncached tokens, seconds]; `isl` is the whole prompt. Raises FileError."""
    table, source = _select(text, facts)
    cached = _column(table, ("prefix", "cached_tokens"))
    uncached = _column(table, _TOKENS)
    if table and "isl" in table[0]:
        uncached = [whole - held for whole, held in zip(uncached, cached, strict=True)]
    return Chosen(_rising([cached, uncached, _column(table, _SECONDS)]), source)


def decode_rows(text: str, facts: Mapping[str, Any]) -> Chosen:
    """[batch, context tokens, step seconds]. Raises FileError."""
    table, source = _select(text, facts)
    batch = _column(table, ("batch",))
    context = _column(table, ("context", "context_tokens"))
    return Chosen(_rising([batch, context, _column(table, _STEP)]), source)


def prefill_fit(text: str, facts: Mapping[str, Any]) -> Chosen:
    """One row [a, b, c] in s from a json of fits by model and tp. Raises FileError."""
    try:
        models = json.loads(text)
        found = {
            (model, degree): fits["prefill"]
            for model, degrees in models.items()
            for degree, fits in degrees.items()
        }
    except (ValueError, AttributeError, KeyError, TypeError) as exc:
        raise FileError(f"is no json of prefill fits by model and tp: {exc!r}") from None
    wanted = _degrees(facts)
    kept = {
        key: fit
        for key, fit in found.items()
        if ("model" not in facts or _same("model", facts["model"], key[0]))
        and ("tp" not in wanted or wanted["tp"] == key[1])
    }
    if not kept:
        models, degrees = zip(*found, strict=True) if found else ((), ())
        raise FileError(_nothing({"model": models, "tp": degrees}))
    if len(kept) > 1:
        raise FileError(_several([f"model={model} tp={degree}" for model, degree in kept]))
    (model, degree), fit = next(iter(kept.items()))
    if not isinstance(fit, list) or len(fit) != 3:
        raise FileError(f"the prefill fit of {model} at tp {degree} is not [a, b, c]")
    return Chosen([[_number(part, "prefill") / 1e3 for part in fit]], f"model={model} tp={degree}")


def _select(text: str, facts: Mapping[str, Any]) -> tuple[list[dict[str, str]], str]:
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or []
    kinds = [name for name in _KIND if name in columns]
    everything = [row for row in reader if None not in row and None not in row.values()]
    if not everything:
        raise FileError("holds no row under a line of column names")
    kept = [row for row in everything if _matches(row, facts)]
    if not kept:
        raise FileError(_nothing({name: [row[name] for row in everything] for name in kinds}))
    groups = _groups(kept, kinds)
    if len(groups) > 1:
        raise FileError(_several(groups))
    fitting = [row for row in kept if _fits(row)]
    if not fitting:
        raise FileError(f"none of the {len(kept)} rows of {groups[0]} fits GPU memory")
    source = groups[0] or "all rows"
    if len(fitting) < len(kept):
        source += f", less {len(kept) - len(fitting)} rows that do not fit GPU memory"
    return fitting, source


def _matches(row: Mapping[str, str], facts: Mapping[str, Any]) -> bool:
    for fact, names in _ALIASES.items():
        for name in names:
            if fact in facts and name in row and not _same(fact, facts[fact], row[name]):
                return False
    degrees = _degrees(facts)
    return all(row.get(name, degree) == degree for name, degree in degrees.items())


def _same(fact: str, value: Any, cell: str) -> bool:
    """Whether a cell means what a profile says: the H200 of `h200_sxm`, a model by its own name."""
    said, cell = str(value).strip().casefold(), cell.strip().casefold()
    if fact == "gpu":
        said = re.sub(r"[\s-]+", "_", said).removeprefix("nvidia_")
        return said in (cell, cell.split("_")[0])
    if fact == "model":
        return said in (cell, cell.rsplit("/", 1)[-1])
    return said == cell


def _degrees(facts: Mapping[str, Any]) -> dict[str, str]:
    """`TP8 EP8` as {"tp": "8", "ep": "8"}."""
    if "parallelism" not in facts:
        return {}
    text = str(facts["parallelism"]).casefold()
    degrees = dict(re.findall(r"(tp|pp|ep|dp)\s*=?\s*(\d+)", text))
    if not degrees:
        raise FileError(f"parallelism {text!r} names no tp, pp, ep or dp to choose rows by")
    return degrees


def _groups(rows: Sequence[Mapping[str, str]], kinds: Sequence[str]) -> list[str]:
    said = (" ".join(f"{k}={row[k]}" for k in kinds if row[k]) for row in rows)
    return list(dict.fromkeys(said))


def _several(groups: Sequence[str]) -> str:
    return (
        f"gpu, model, engine and parallelism leave {len(groups)} kinds of rows: "
        f"{_some(groups, '; ')}"
    )


def _nothing(found: Mapping[str, Sequence[str]]) -> str:
    kinds = (f"{name} {_some(list(dict.fromkeys(cells)), ', ')}" for name, cells in found.items())
    return f"has no row of this gpu, model, engine and parallelism; it has {'; '.join(kinds)}"


def _some(words: Sequence[str], between: str) -> str:
    shown = [word for word in words if word][:_SHOWN]
    return between.join([*shown, "..."] if len(words) > _SHOWN else shown)


def _fits(row: Mapping[str, str]) -> bool:
    said = row.get("fits_gpu_mem", "yes")
    if said not in ("yes", "no"):
        raise FileError(f"fits_gpu_mem = {said!r} is neither yes nor no")
    return said == "yes"


def _column(rows: Sequence[Mapping[str, str]], names: Sequence[str]) -> list[float]:
    """The first of `names` that the file has; `_ms` become seconds."""
    name = next((name for name in names if rows and name in rows[0]), None)
    if name is None:
        raise FileError(f"has no column {' or '.join(names)}")
    unit = 1e3 if name.endswith("_ms") else 1.0
    return [_number(row[name], name) / unit for row in rows]


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise FileError(f"{name} = {value!r} is not a finite number")
    return number


def _rising(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    return sorted(list(row) for row in zip(*columns, strict=True))
