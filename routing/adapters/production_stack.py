"""vLLM production-stack router: read only. Its live configuration loses prefill and decode.

Measured with its source of 2026-08-05 (a6c01db): every reload of `--dynamic-config-json`, of which
the first comes 10 s after the start, drops the model labels that tell prefill from decode. From
then on each request is answered 503 (PREFILL_SERVICE_UNAVAILABLE), while `/health` says healthy and
repeats the configuration that was wanted. So nothing is ever written for it, and what it repeats is
not taken for what it does.
"""

from __future__ import annotations

from typing import Final

import msgspec

from routing.adapters import answers, applied, base
from routing.adapters.surface import Actual, Capabilities, Listed, Role, SurfaceError

TRIED_VERSIONS: Final = ("a6c01db",)
DISAGGREGATED: Final = "disaggregated_prefill_orchestrated"
WHY: Final = (
    "its reload of a changed configuration drops the labels of prefill and decode, and every "
    "request is then answered 503 while it calls itself healthy: it is read, and never changed"
)


class _Config(msgspec.Struct, frozen=True):
    routing_logic: str | None = None
    static_backends: str | None = None
    static_model_labels: str | None = None
    prefill_model_labels: str | None = None
    decode_model_labels: str | None = None


class _Health(msgspec.Struct, frozen=True):
    status: str
    dynamic_config: _Config | None = None


class ProductionStack(base.Unchanged[base.Settings]):
    kind = "production-stack"
    _why_not = WHY

    def capabilities(self, actual: Actual) -> Capabilities:
        return Capabilities(
            threshold="none",
            roles="none",
            drain="none",
            has_auth=False,
            is_readable=actual.facts.get("has_dynamic_config") is True,
            tried_versions=TRIED_VERSIONS,
            threshold_means="It has none for prefill and decode apart: all prompts go remote.",
            why=WHY,
        )

    def read(self) -> Actual:
        health = answers.get(f"{self.url}/health", _Health)
        config = health.dynamic_config
        if config is None:
            return Actual(None, {}, facts={"has_dynamic_config": False})
        findings: tuple[str, ...] = ()
        if config.routing_logic == DISAGGREGATED:
            findings = (
                f"It runs {DISAGGREGATED} with a dynamic configuration, whose first reload after "
                "10 s drops prefill and decode: expect 503 PREFILL_SERVICE_UNAVAILABLE for every "
                "request, whatever /health says. Start it without --dynamic-config-json.",
            )
        return Actual(
            None,
            _wanted(self.url, config),
            findings=findings,
            facts={"has_dynamic_config": True, "routing_logic": config.routing_logic},
        )


def _wanted(router: str, config: _Config) -> dict[str, Listed]:
    """The configuration it repeats. Nothing of it shows what is served, so nothing is `ready`."""
    urls = _split(config.static_backends)
    labels = _split(config.static_model_labels)
    if labels and len(labels) != len(urls):
        raise SurfaceError(
            f"{router}: dynamic_config.static_model_labels has {len(labels)} entries for "
            f"{len(urls)} static_backends"
        )
    roles: dict[str, Role] = {
        **dict.fromkeys(_split(config.prefill_model_labels), "prefill"),
        **dict.fromkeys(_split(config.decode_model_labels), "decode"),
    }
    workers = [
        Listed(url, roles.get(label), "starting")
        for url, label in zip(urls, labels or [""] * len(urls), strict=True)
    ]
    return applied.by_url(workers, router=router)


def _split(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
