"""A scenario document with the files it names replaced by what they say.

A fleet is stored, sent and replayed as one document, so files are read once, where the scenario
file is read, and what they said is kept: a profile measured again changes no recorded decision.
The caller brings the reader; nothing here opens a file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from routing.core.kvsize.config import KvSizeError
from routing.core.kvsize.size import size_of
from routing.core.scenario.length_files import length_buckets
from routing.core.scenario.profile_files import (
    FileError,
    decode_rows,
    prefill_fit,
    prefill_points,
    prefix_points,
)
from routing.core.scenario.tables import ScenarioError

Reader = Callable[[str], str]
"""The text of a file by the name in the document. Raises FileError saying why it cannot."""


def inlined(document: dict[str, Any], read: Reader) -> dict[str, Any]:
    """A copy of `document` without files. Raises ScenarioError naming field, file and reason.

    Replaced are `model.config`, `file` of a profile's `prefill`, `prefix` and `decode`, and of
    `lengths` and `output_tokens`. What is not a scenario is left to `parse_scenario` to refuse.
    """
    root = copy.deepcopy(document)
    model = _table(root, "model")
    if isinstance(model.get("config"), str):
        root["model"] = _with_kv_size(model, read)
    profiles = _table(root, "profiles")
    for name in profiles:
        _inline_profile(_table(profiles, name), f"profiles.{name}", read)
    for key in ("workload", "workloads"):
        found = root.get(key)
        for i, workload in enumerate(found if isinstance(found, list) else [found]):
            path = f"{key}[{i}]" if isinstance(found, list) else key
            if isinstance(workload, dict):
                _inline_lengths(workload, path, read)
    return root


def _table(parent: dict[str, Any], key: str) -> dict[str, Any]:
    table = parent.get(key)
    return table if isinstance(table, dict) else {}


def _with_kv_size(model: dict[str, Any], read: Reader) -> dict[str, Any]:
    name = model["config"]
    for key in ("bytes_per_token", "state_bytes", "windows"):
        if key in model:
            raise ScenarioError(f"model.{key}", model[key], "stands beside config: give one")
    try:
        kv = size_of(json.loads(read(name))).model()
    except KvSizeError as exc:
        raise ScenarioError("model.config", name, str(exc)) from None
    except FileError as exc:
        raise ScenarioError("model.config", name, str(exc)) from None
    except ValueError as exc:
        raise ScenarioError("model.config", name, f"is not JSON: {exc}") from None
    rest = {key: value for key, value in model.items() if key != "config"}
    windows = [[window.window_tokens, window.bytes_per_token] for window in kv.windows]
    size = {"bytes_per_token": kv.bytes_per_token, "state_bytes": kv.state_bytes}
    return rest | size | ({"windows": windows} if windows else {})


def _inline_profile(profile: dict[str, Any], path: str, read: Reader) -> None:
    for key in ("prefill", "prefix", "decode"):
        form = profile.get(key)
        if not isinstance(form, dict) or "file" not in form:
            continue
        field, name = f"{path}.{key}.file", form["file"]
        if len(form) > 1 or not isinstance(name, str):
            raise ScenarioError(field, name, "must be a file's name and stand alone")
        try:
            profile[key] = _numbers(key, read(name), name, profile)
        except FileError as exc:
            raise ScenarioError(field, name, str(exc)) from None


def _numbers(key: str, text: str, name: str, facts: dict[str, Any]) -> Any:
    if key == "prefix":
        return prefix_points(text, facts).rows
    if key == "decode":
        rows = decode_rows(text, facts)
        return {"table": rows.rows, "source": f"{name}: {rows.source}"}
    if name.endswith(".json"):
        fit = prefill_fit(text, facts)
        return {"fit": fit.rows[0], "source": f"{name}: {fit.source}"}
    points = prefill_points(text, facts)
    return {"points": points.rows, "source": f"{name}: {points.source}"}


def _inline_lengths(workload: dict[str, Any], path: str, read: Reader) -> None:
    for key in ("lengths", "output_tokens"):
        table = workload.get(key)
        if not isinstance(table, dict) or "file" not in table:
            continue
        name, column = table["file"], table.get("column")
        if not isinstance(name, str) or not isinstance(column, str | None):
            raise ScenarioError(f"{path}.{key}.file", name, "file and column must be texts")
        if "buckets" in table:
            raise ScenarioError(f"{path}.{key}.file", name, "stands beside buckets: give one")
        try:
            table["buckets"] = length_buckets(read(name), name=name, column=column)
        except FileError as exc:
            raise ScenarioError(f"{path}.{key}.file", name, str(exc)) from None
        del table["file"]
        table.pop("column", None)
