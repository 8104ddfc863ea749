"""Whatever lands, every reader answers the same from the landing zone and from columns."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from telemetry import compaction, history, rollups, store, tables, wire
from tests.telemetry.batches import batch, instance, link, router, unique
from tests.telemetry.rows import clear_landing, commit, sql

pytestmark = pytest.mark.usefixtures("landing_zone")

T0 = float(int(time.time()) // 7200 * 7200 - 7200)
NUMBERS = st.one_of(
    st.none(),
    st.integers(0, 10**7).map(float),
    st.integers(0, 10**7).map(lambda n: n / 1000),
    st.floats(0.0, 1e300),
)
RATIOS = st.one_of(st.none(), st.floats(0.0, 1.0))
KEYS = st.sampled_from(["a", "b|c", "", "é\n", "x.y[0]"])
EDGES = st.sampled_from([[], [0.5], [0.1, 1.0, 10.0]])
SMALL = st.floats(0.0, 1e12)


@st.composite
def histograms(draw: st.DrawFn) -> wire.Histogram:
    edges = draw(EDGES)
    n = len(edges) + 1
    return wire.Histogram(edges, draw(st.lists(SMALL, min_size=n, max_size=n)), draw(SMALL))


def maps(values: Any) -> Any:
    return st.one_of(st.none(), st.dictionaries(KEYS, values, max_size=3))


def but_missing(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


INSTANCE = st.fixed_dictionaries(
    {
        "requests_running": NUMBERS,
        "kv_cache_usage_ratio": RATIOS,
        "prompt_tokens_total": NUMBERS,
        "requests_waiting_by_stage": maps(SMALL),
        "ttft_seconds": st.one_of(st.none(), histograms()),
    }
).map(but_missing)
LINK = st.fixed_dictionaries(
    {
        "tx_bytes_total": NUMBERS,
        "rtt_s": NUMBERS,
        "congestion_control": st.sampled_from([None, "bbr", "", "cübic"]),
        "path_state": st.sampled_from([None, "whole", "degraded"]),
    }
).map(but_missing)
ROUTER = st.fixed_dictionaries(
    {
        "requests_total": maps(SMALL),
        "requests_waiting": NUMBERS,
        "uncached_tokens": maps(histograms()),
        "ttft_seconds": maps(histograms()),
    }
).map(but_missing)
STATES = st.sampled_from([("ok", None), ("failed", "HTTP 500"), ("down", None), ("slow", "é\n")])
PLANS = st.one_of(st.none(), st.integers(0, 2**53))
EPOCHS = st.sampled_from([0.0, 1e9, 1e9 + 0.123456])


@st.composite
def rounds(draw: st.DrawFn, name: str) -> list[wire.Batch]:
    """Batches of one agent, one or two seconds apart or late, of two layouts."""
    out = []
    at_s = T0
    for seq in range(draw(st.integers(1, 12))):
        at_s += draw(st.sampled_from([1.0, 1.5, 7.0, 100.0, 700.0, -300.0]))
        at_s = max(at_s, T0) + 0.001 * seq  # no two readings of one moment
        samples: list[Any] = []
        role = draw(st.sampled_from(["prefill", "decode"]))
        for path in ("a", "b_%"):
            state, error = draw(STATES)
            if path == "b_%" and draw(st.integers(0, 5)) == 0:
                state = "gone"
            samples.append(
                instance(
                    f"{name}/pd/{path}",
                    at_s,
                    role=role,
                    epoch_s=draw(EPOCHS),
                    state=state,
                    error=error,
                    signals=draw(INSTANCE) if state == "ok" else {},
                )
            )
        samples.append(link(f"{name}->x", at_s, **draw(LINK)))
        version = draw(PLANS)
        samples.append(
            router(
                f"{name}/pd/gw",
                at_s,
                plan_epoch=version,
                plan_version=version,
                epoch_s=draw(EPOCHS),
                signals=draw(ROUTER),
            )
        )
        out.append(batch(name, *samples, seq=seq))
    return out


def plain(readings: Any) -> Any:
    """Readings with numbers of many decimals as far as they are kept, and no empty maps."""
    if isinstance(readings, dict):
        return {path: plain(found) for path, found in readings.items()}
    out = []
    for reading in readings:
        known = msgspec.structs.asdict(reading)
        signals = {}
        for name, value in msgspec.structs.asdict(known.pop("signals")).items():
            if isinstance(value, float) and not name.endswith("_total"):
                value = float(f"{value:.5e}")
            signals[name] = None if value == {} else value
        known |= {"at_s": round(reading.at_s, 5), "received_s": round(reading.received_s, 5)}
        out.append((known, signals))
    return out


def answers(name: str, until_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, prefix in (("instance", f"{name}/"), ("link", name), ("router", f"{name}/")):
        found[f"latest {kind}"] = plain(
            store.latest(kind, prefix=prefix, now_s=until_s, within_s=9000)
        )
        for bin_s in (1.0, 2.0, 15.0, 400.0):
            span = {"since_s": T0 - 10, "until_s": until_s, "bin_s": bin_s}
            found[f"window {kind} {bin_s}"] = plain(store.window(kind, prefix=prefix, **span))
    return found


def series(name: str, until_s: float, points: int) -> dict[str, Any]:
    out = {}
    for kind, signal, path in (
        ("instance", "requests_running", f"{name}/pd/a"),
        ("instance", "prompt_tokens_total", f"{name}/pd/b_%"),
        ("link", "rtt_s", f"{name}->x"),
        ("router", "requests_waiting", f"{name}/pd/gw"),
    ):
        read = history.series(
            kind, signal, paths=[path], since_s=T0, until_s=until_s, max_points=points
        )
        out[signal] = read["series"][path]
    return out


def near(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for signal, values in wanted.items():
        assert [v is None for v in found[signal]] == [v is None for v in values], signal
        for value, want in zip(found[signal], values, strict=True):
            assert want is None or value == pytest.approx(want, rel=1e-5), signal


@given(data=st.data())
@settings(
    max_examples=20,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_reader_agrees_before_and_after(data: st.DataObject) -> None:
    clear_landing()
    tables.NAMES.forget()
    name = unique("f")
    sent = data.draw(rounds(name))
    cut = data.draw(st.integers(0, len(sent)))
    until_s = T0 + 7200.0
    for part in (sent[:cut], sent[cut:]):
        if part:
            commit(*part, received_s=T0 + 7000)
    before = answers(name, until_s)
    charts = {points: series(name, until_s, points) for points in (3600,)}
    sql("TRUNCATE telemetry_landing, telemetry_batch")
    sql("UPDATE telemetry_agent SET stored = '{}'")
    for part in (sent[:cut], sent[cut:]):
        if part:
            commit(*part, received_s=T0 + 7000)
            compaction.run(at_once=True)
            rollups.run(datetime.fromtimestamp(T0 + 8000, UTC))
    for points, chart in charts.items():
        near(series(name, until_s, points), chart)
    sql("UPDATE telemetry_compaction SET floor = landed_until")
    sql("DELETE FROM telemetry_landing")
    after = answers(name, until_s)
    for question, said in before.items():
        assert after[question] == said, question
