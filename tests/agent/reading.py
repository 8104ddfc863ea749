"""What the tests of engine families share: a text read as the agent reads it, as plain numbers."""

from __future__ import annotations

from telemetry import canonical, exposition, wire
from telemetry.canonical import Canonical

Number = float | str | None | dict[str, float] | tuple[float, float]


def read(text: str, engine: str = "auto", **more: str) -> Canonical:
    return canonical.canonicalise(exposition.parse(text), engine, **more)


def plain(found: Canonical) -> dict[str, Number]:
    """Each signal that is not missing: value, (count, sum) of a histogram, or a split by label."""
    out: dict[str, Number] = {}
    for name, signal in found.signals.items():
        if signal.state == "missing":
            continue
        if signal.kind == "histogram" and signal.labelled:
            out[name] = {key: group.count for key, group in signal.groups.items()}
        elif signal.kind == "histogram":
            assert signal.count is not None
            out[name] = (signal.count, -1.0 if signal.sum is None else signal.sum)
        elif signal.labelled:
            out[name] = dict(signal.by)
        else:
            out[name] = "idle" if signal.state == "idle" else signal.value
    return out


def on_wire(found: Canonical) -> wire.InstanceSignals | wire.RouterSignals:
    """What a batch carries of it, through the door's own checks."""
    samples: dict[str, list[wire.InstanceSample]] | dict[str, list[wire.RouterSample]]
    if found.kind == "router":
        router = canonical.to_router_signals(found)
        sample = wire.RouterSample(id="f/c/r", kind="x", at_s=1.7e9, signals=router)
        samples = {"routers": [sample]}
    else:
        instance = canonical.to_instance_signals(found)
        samples = {
            "instances": [
                wire.InstanceSample(
                    id="f/c/i", role="both", engine=found.engine, at_s=1.7e9, signals=instance
                )
            ]
        }
    batch = wire.Batch(v=1, agent="a", boot=1, seq=1, sent_at_s=1.7e9, **samples)  # type: ignore[arg-type]
    assert wire.decode(wire.encode(batch)) == batch
    return router if found.kind == "router" else instance
