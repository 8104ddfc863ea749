"""Small builders of batches, with names nobody else uses."""

from __future__ import annotations

import itertools
import time
from typing import Any

from telemetry import wire

_names = itertools.count(1)


def unique(stem: str) -> str:
    """A name no other test has used in this database: servers remember agents and sources."""
    return f"{stem}{next(_names)}-{time.time_ns():x}"


def instance(path: str, at_s: float, /, **more: Any) -> wire.InstanceSample:
    """One good reading of an engine; `signals` as a dict."""
    signals = wire.InstanceSignals(**more.pop("signals", {"requests_running": 1.0}))
    facts = {"role": "decode", "engine": "vllm", "engine_version": "0.32.0", "epoch_s": 1e9}
    return wire.InstanceSample(**{**facts, "id": path, "at_s": at_s, **more, "signals": signals})


def link(path: str, at_s: float, /, **signals: Any) -> wire.LinkSample:
    """One good reading of a link."""
    return wire.LinkSample(
        id=path, at_s=at_s, measured_layer="lab", signals=wire.LinkSignals(**signals)
    )


def router(path: str, at_s: float, /, **more: Any) -> wire.RouterSample:
    """One good reading of a gate; `signals` as a dict."""
    signals = wire.RouterSignals(**more.pop("signals", {}))
    facts = {"kind": "gate", "epoch_s": 1e9}
    return wire.RouterSample(**{**facts, "id": path, "at_s": at_s, **more, "signals": signals})


def batch(
    agent: str, *samples: Any, seq: int = 1, boot: int = 1, sent_at_s: float | None = None
) -> wire.Batch:
    """The samples sorted into one batch."""
    return wire.Batch(
        v=wire.WIRE_VERSION,
        agent=agent,
        boot=boot,
        seq=seq,
        sent_at_s=time.time() if sent_at_s is None else sent_at_s,
        instances=[s for s in samples if isinstance(s, wire.InstanceSample)],
        links=[s for s in samples if isinstance(s, wire.LinkSample)],
        routers=[s for s in samples if isinstance(s, wire.RouterSample)],
    )
