"""What is wrong with a batch, in words: the field, the value that stood there, and why not.

The types of `wire` carry most rules, and msgspec checks those while it decodes; this turns its
errors into ours. Nothing here decides, it only explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

_NAMED_FIELD: Final = re.compile(r"(?:unknown|required) field `(.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length <= (\d+)")
_LENGTHS: Final = {"str": "characters", "array": "edges", "object": "entries"}


class WireError(ValueError):
    """A batch that cannot be accepted. `field` is a dotted path, `value` what stood there."""

    def __init__(self, error: str, *, field: str, value: Any = None) -> None:
        super().__init__(f"{error} (at {field or 'batch'})")
        self.error, self.field, self.value = error, field, value


def of(
    exc: msgspec.ValidationError, document: Any, *, choices: Mapping[str, Sequence[str]]
) -> WireError:
    """Our error for msgspec's about a plain `document`; `choices` are the words a field allows."""
    message, inside_key, field = _parted(str(exc))
    if named := _NAMED_FIELD.search(message):
        field = f"{field}.{named[1]}".lstrip(".")
    if "[...]" in field or inside_key:
        return _in_map(message, field, document, inside_key)
    value = _lookup(field, document)
    if _LENGTH.search(message) and isinstance(value, list | dict):
        value = len(value)
    if field.endswith("at_s") and isinstance(value, float):
        value = str(value)  # a time in another unit is best seen as text
    return WireError(_words(message, field, value, choices), field=field, value=_shown(value))


def _parted(text: str) -> tuple[str, bool, str]:
    """(what is wrong, whether with a key of a map, where) of an error of msgspec."""
    message, _, path = text.partition(" - at `")
    inside_key = path.startswith("key` in `")
    return message, inside_key, path.removeprefix("key` in `").rstrip("`").lstrip("$.")


def _words(message: str, field: str, value: Any, choices: Mapping[str, Sequence[str]]) -> str:
    name = re.sub(r"\[\d+\]$", "", field).rpartition(".")[2]
    if name in ("at_s", "sent_at_s") and message.startswith("Expected `float` "):
        return "must be epoch seconds"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if length := _LENGTH.search(message):
        return f"at most {length[2]} {_LENGTHS.get(length[1], 'entries')}"
    if message.startswith("Invalid enum value") and name in choices:
        return f"must be one of {', '.join(choices[name])}"
    if name == "error" and "regex" in message:
        return "must not contain a zero character"
    if not number or not message.startswith("Expected `"):
        return message
    if name == "epoch_s":
        return "must be epoch seconds, or 0"
    if name in ("boot", "seq", "plan_epoch", "plan_version"):
        return "must be in 0..2^63-1"
    if not math.isfinite(value) or "e+" in message:
        return "must be finite"
    if name.endswith("_ratio"):
        return "a ratio is in 0..1"
    return "must not be negative" if value < 0 else message


def _in_map(message: str, field: str, document: Any, inside_key: bool) -> WireError:
    """msgspec does not say which key of a map it is about: find it."""
    place, _, rest = field.partition("[...]")
    found = _lookup(place, document)
    entries: dict[Any, Any] = found if isinstance(found, dict) else {}
    if inside_key or "`str` of length" in message:
        longest = max((key for key in entries if isinstance(key, str)), key=len, default="")
        limit = _LENGTH.search(message)
        most = limit[2] if limit else "200"
        return WireError(f"a key has at most {most} characters", field=place, value=longest)
    for key, value in entries.items():
        inner = _lookup(rest.lstrip("."), value) if rest else value
        if _is_refused(inner):
            where = f"{place}.{key}{rest}"
            return WireError(_words(message, where, inner, {}), field=where, value=_shown(inner))
    return WireError(message, field=place)


def _is_refused(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return not isinstance(value, dict | list)
    return not 0.0 <= value <= 1e300


def _lookup(field: str, found: Any) -> Any:
    """What a document has at a dotted path; None where it cannot be told."""
    try:
        for index, name in _STEP.findall(field):
            found = found[int(index)] if index else found[name]
    except (LookupError, TypeError):
        return None
    return found


def _shown(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return "{…}" if isinstance(value, dict) else "[…]" if isinstance(value, list) else None
