"""The `[profiles.NAME]` tables of a scenario.

    prefill = [[tokens, s], ...]  |  { points = [[tokens, s], ...] }  |  { fit = [a, b, c] }
    prefix = [[cached_tokens, uncached_tokens, s], ...]
    decode = { batch, step_s }  |  { table = [[batch, context_tokens, s], ...] }

`file = ` stands in a file only: who reads the file puts the numbers in its place (inline.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from routing.core.model.decode_table import DecodeTable
from routing.core.model.profiles import DecodeProfile, PrefillProfile, Profile, ProfileError
from routing.core.scenario.tables import Table, is_number

_QUANTITIES = ("gpus_per_instance", "kv_capacity_tokens", "cost_per_hour")
_PROFILE_FACTS = (
    *("gpu", "model", "engine", "engine_version", "parallelism", "measured_on"),
    *_QUANTITIES,
)
PROFILE_KEYS = ("prefill", "prefix", "decode", *_PROFILE_FACTS)
_INLINED = "is read where the scenario file is read; here the numbers themselves must stand"


@dataclass(frozen=True)
class Described:
    """A profile, and the table that its decode has to be taken from once the workload is known."""

    profile: Profile
    table: DecodeTable | None

    @property
    def kv_capacity_tokens(self) -> float | None:
        known = self.profile.facts.get("kv_capacity_tokens")
        return None if known is None else float(known)


def read_profile(name: str, table: Table) -> Described:
    facts = {key: table.take(key) for key in _PROFILE_FACTS if key in table.data}
    for key, value in facts.items():
        if key in _QUANTITIES:
            table.number(key, low=0, inclusive=key == "cost_per_hour")
        elif not is_number(value) and not isinstance(value, str):
            raise table.error(key, "must be a text or a finite number")
    prefill = _prefill(table, facts)
    decode, steps = _decode(table, facts)
    return Described(Profile(name=name, prefill=prefill, decode=decode, facts=facts), steps)


def _prefill(table: Table, facts: dict[str, str | float]) -> PrefillProfile:
    try:
        if isinstance(table.take("prefill"), dict):
            form = table.table("prefill", ("points", "fit", "range_tokens", "source", "file"))
            _keep_source(form, "prefill", facts)
            prefill = _fit(form) if "fit" in form.data else _through(form, "points")
        else:
            prefill = _through(table, "prefill")
    except ProfileError as exc:
        raise table.error("prefill", str(exc)) from None
    if "prefix" not in table.data:
        return prefill
    if isinstance(table.take("prefix"), dict):
        raise table.table("prefix", ("file",)).error("file", _INLINED)
    try:
        return prefill.behind_prefix([(a, b, c) for a, b, c in table.rows("prefix", 3)])
    except ProfileError as exc:
        raise table.error("prefix", str(exc)) from None


def _through(table: Table, key: str) -> PrefillProfile:
    knots = table.pairs(key)
    return PrefillProfile.through([tokens for tokens, _ in knots], [s for _, s in knots])


def _fit(form: Table) -> PrefillProfile:
    if "points" in form.data:
        raise form.error("points", "stands beside fit: give one of them")
    span = form.numbers("range_tokens", 2) if "range_tokens" in form.data else None
    a, b, c = form.numbers("fit", 3)
    return PrefillProfile.fitted(a, b, c, range_tokens=None if span is None else (span[0], span[1]))


def _decode(
    table: Table, facts: dict[str, str | float]
) -> tuple[DecodeProfile, DecodeTable | None]:
    form = table.table("decode", ("batch", "step_s", "table", "source", "file"))
    _keep_source(form, "decode", facts)
    if "table" not in form.data:
        return DecodeProfile(form.number("batch", low=0), form.number("step_s", low=0)), None
    for key in ("batch", "step_s"):
        if key in form.data:
            raise form.error(key, "stands beside table: give one of them")
    try:
        steps = DecodeTable.of(form.rows("table", 3))
    except ProfileError as exc:
        raise form.error("table", str(exc)) from None
    # What a cluster that only prefills keeps; others get the context of their workload.
    return steps.at(steps.contexts[0], longest_step_s=float("inf")), steps


def _keep_source(form: Table, key: str, facts: dict[str, str | float]) -> None:
    if "file" in form.data:
        raise form.error("file", _INLINED)
    if "source" in form.data:
        facts[f"{key}_source"] = form.text("source")
