"""Every make of router there is a file for, by the name that a scenario calls it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from routing.adapters import (
    aibrix,
    base,
    dynamo,
    gateway,
    kubernetes_patch,
    llmd,
    production_stack,
    sglang_router,
    smg,
    smg_manifest,
    stack,
    vllm_router,
    vllm_router_zmq,
)
from routing.adapters.surface import Surface

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


class SettingsError(ValueError):
    """A router described as cannot be meant: `field`, and the `value` that stood there."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


@dataclass(frozen=True)
class Make:
    """`settings`: the keys a scenario may give; `build` makes the surface from them."""

    settings: type[Any]
    build: Callable[[Any], Surface]


KINDS: dict[str, Make] = {
    "stack": Make(stack.Settings, stack.Stack),
    "smg": Make(gateway.Settings, smg.Smg),
    "smg-manifest": Make(smg_manifest.Settings, smg_manifest.SmgManifest),
    "sglang-router": Make(sglang_router.Settings, sglang_router.SglangRouter),
    "vllm-router": Make(vllm_router.Settings, vllm_router.VllmRouter),
    "vllm-router-zmq": Make(vllm_router_zmq.Settings, vllm_router_zmq.VllmRouterZmq),
    "dynamo": Make(dynamo.Settings, dynamo.Dynamo),
    "llm-d": Make(llmd.Settings, llmd.Llmd),
    "aibrix": Make(aibrix.Settings, aibrix.Aibrix),
    "kubernetes": Make(kubernetes_patch.Settings, kubernetes_patch.Kubernetes),
    "production-stack": Make(base.Settings, production_stack.ProductionStack),
}


def surface_of(kind: str, settings: Mapping[str, Any]) -> Surface:
    """The router of that make; no key of `settings` is `kind`. Nothing is asked of it yet.

    Raises SettingsError.
    """
    if kind not in KINDS:
        raise SettingsError("kind", kind, f"must be one of {', '.join(sorted(KINDS))}")
    make = KINDS[kind]
    given = {key: _unslashed(value) for key, value in settings.items()}
    try:
        return make.build(msgspec.convert(given, make.settings))
    except msgspec.ValidationError as exc:
        raise _named(exc, given) from None


def _unslashed(value: Any) -> Any:
    """Paths are put behind each URL, which therefore ends without a slash."""
    is_url = isinstance(value, str) and value.startswith(("http://", "https://"))
    return value.rstrip("/") if is_url else value


def _named(exc: msgspec.ValidationError, given: dict[str, Any]) -> SettingsError:
    why, _, steps = str(exc).partition(" - at `$")
    steps = steps.rstrip("`")
    if unknown := _UNKNOWN.search(why):
        why, steps = "unknown key", f"{steps}.{unknown[1]}"
    elif missing := _MISSING.search(why):
        why, steps = "is missing", f"{steps}.{missing[1]}"
    value: Any = given
    for step in _STEP.finditer(steps):
        name, index = step.groups()
        try:
            value = value[name] if name is not None else value[int(index)]
        except (KeyError, IndexError, TypeError):
            value = None
    return SettingsError(steps.lstrip(".") or "settings", value, why)
