"""Whatever an engine answers, reading it neither raises nor makes a batch the console refuses."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from telemetry.engine_maps import MAPS
from tests.agent import fuzz_exposition

SECONDS = 600
NUMBERS = [
    *(
        "0",
        "1",
        "-1",
        "0.5",
        "2",
        "1e999",
        "-1e999",
        "NaN",
        "+Inf",
        "-Inf",
        "1e308",
        "1e24",
        "1e-320",
    ),
    *("9" * 400, "4294967296", "9223372036854775807", "9223372036854775794", "0x10", "1_000", ""),
]
LABELS = [
    *('engine="0"', 'engine="1"', 'dp_rank="0",tp_rank="1"', 'le="0.5"', 'le="+Inf"', 'le="NaN"'),
    *('le="-1"', 'le="1e999"', 'side="local",reason="x"', 'stage="in_progress"', 'device="eth0"'),
    *(
        'kv_cache_block_type="max"',
        'num_gpu_blocks="1e300",block_size="1e300"',
        'm="a,b{}\\n"',
        'm="',
    ),
]
WORDS = fuzz_exposition.words()


@st.composite
def lines(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=40))
    name = draw(st.sampled_from(WORDS))
    block = ",".join(draw(st.lists(st.sampled_from(LABELS), max_size=3, unique=True)))
    number = draw(st.one_of(st.sampled_from(NUMBERS), st.floats().map(repr)))
    tail = draw(st.sampled_from(["", "", "", " 1795955263170", ' # {trace_id="x"} 1', "\r"]))
    return f"{name}{{{block}}} {number}{tail}" if block else f"{name} {number}{tail}"


@st.composite
def one_family(draw: st.DrawFn) -> str:
    """Several series of each signal of one family: what a hostile engine would answer."""
    engine_map = MAPS[draw(st.sampled_from(list(MAPS)))]
    prefix = draw(st.sampled_from(engine_map.prefixes))
    names = st.sampled_from(sorted(engine_map.series_names()))
    ends = st.sampled_from(["", "", "_sum", "_count", "_bucket"])
    number = st.one_of(st.sampled_from(NUMBERS), st.floats(allow_nan=False).map(repr))
    out = []
    for name in draw(st.lists(names, max_size=20)):
        block = ",".join(draw(st.lists(st.sampled_from(LABELS), max_size=3, unique=True)))
        out.append(f"{prefix}{name}{draw(ends)}{{{block}}} {draw(number)}")
    return "\n".join(out)


TEXTS = st.one_of(st.lists(lines(), max_size=30).map("\n".join), one_family())
HOW = {
    "text": TEXTS,
    "engine": st.sampled_from(["auto", "auto", "auto", *MAPS]),
    "kind": st.sampled_from(fuzz_exposition.KINDS),
    "dialect": st.sampled_from(fuzz_exposition.DIALECTS),
}


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(**HOW)
def test_any_text(text: str, engine: str, kind: str | None, dialect: bool | None) -> None:
    fuzz_exposition.check(text, engine=engine, kind=kind, dialect=dialect)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    fuzz_exposition.one_input(data)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS * 2)
def test_ten_minutes_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    n_texts = 0

    def one(text: str, engine: str, kind: str | None, dialect: bool | None) -> None:
        nonlocal n_texts
        n_texts += 1
        fuzz_exposition.check(text, engine=engine, kind=kind, dialect=dialect)

    end, n_rounds = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        n_rounds += 1
        round_of = settings(
            max_examples=1000,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        round_of(seed(n_rounds)(given(**HOW)(one)))()
    with capsys.disabled():
        print(f"{n_texts} texts")
    assert n_texts > 0
