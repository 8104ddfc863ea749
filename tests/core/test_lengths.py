"""How well buckets know lengths: coarse engine bounds and the gates' own, against exact lengths."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from routing.core.model.curves import Array
from routing.core.model.histograms import Counted, tally
from routing.core.model.lengths import BucketLengths, from_histogram
from routing.core.model.profiles import PrefillProfile
from routing.core.placement.token_edges import TOKEN_EDGES
from routing.core.types import LengthHistogram
from tests.core.cases import mean_below

TRACES = Path(__file__).parents[2] / "../shared/data/traces"
H20 = PrefillProfile.through((10224, 27486, 62410), (1.829, 4.265, 9.73))
GRID = np.geomspace(256, 131_072, 80)

VLLM = (1.0, 2.0, 5.0, *(m * 10.0**k for k in range(1, 5) for m in (1, 2, 5)), 1e5, 2e5)
"""vllm:request_prompt_tokens of an engine for 200K tokens."""
SGLANG = (
    *(100.0, 300.0, 500.0, 700.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0, 7000.0),
    *(8000.0, 9000.0, 10_000.0, 12_000.0, 15_000.0, 20_000.0, 22_000.0, 25_000.0, 30_000.0),
    *(35_000.0, 40_000.0, 66_000.0, 99_000.0, 132_000.0, 300_000.0, 600_000.0, 900_000.0, 1.1e6),
)
"""sglang:prompt_tokens_histogram."""
GATE = tuple(map(float, TOKEN_EDGES))


@dataclass(frozen=True)
class Error:
    """p(t) is off by `p` on the mean and E[T(L); L <= t] by `below` of E[T(L)], over t from 256 to
    131,072; E[T(L)] itself by the share `whole`."""

    p: float
    below: float
    whole: float


def counted(tokens: Array, edges: tuple[float, ...]) -> Array:
    return np.bincount(np.searchsorted(edges, tokens), minlength=len(edges) + 1).astype(float)


def as_read(tokens: Array, edges: tuple[float, ...]) -> BucketLengths:
    """What the loop makes of them."""
    read = tally([Counted(0.0, edges, counted(tokens, edges).tolist())], tau_s=300.0).read(n_seen=1)
    assert read is not None
    return from_histogram(read)


def as_counted(tokens: Array, edges: tuple[float, ...]) -> BucketLengths:
    """The same without cutting wide buckets."""
    counts = tuple(counted(tokens, edges).tolist())
    return from_histogram(LengthHistogram(edges, counts, 1.0, 1.0))


def error(lengths: BucketLengths, tokens: Array) -> Error:
    held = np.sort(tokens)
    n_below = np.searchsorted(held, GRID, side="right")
    seconds = np.concatenate([[0.0], np.cumsum(H20.prefill_s(held))])
    found = mean_below(lengths, H20.curve, [*GRID, np.inf]) * len(held) / seconds[-1]
    return Error(
        p=float(np.abs(lengths.cdf(GRID) - n_below / len(held)).mean()),
        below=float(np.abs(found[:-1] - seconds[n_below] / seconds[-1]).mean()),
        whole=abs(float(found[-1]) - 1.0),
    )


def log_normal() -> Array:
    drawn = np.exp(np.random.default_rng(1).normal(9.9, 1.0, 50_000))
    return drawn[(drawn >= 128) & (drawn <= 131_072)]


def two_kinds() -> Array:
    """Chats of some 300 tokens and documents of some 40,000, nothing between."""
    rng = np.random.default_rng(2)
    return np.exp(np.concatenate([rng.normal(5.7, 0.4, 30_000), rng.normal(10.6, 0.3, 20_000)]))


def column(file: str, name: str) -> Callable[[], Array]:
    def read() -> Array:
        with gzip.open(TRACES / file, "rt") as lines:
            return np.array([float(row[name]) for row in csv.DictReader(lines)])

    return read


def mooncake() -> Array:
    with gzip.open(TRACES / "mooncake_conversation_trace.jsonl.gz", "rt") as lines:
        return np.array([float(json.loads(line)["input_length"]) for line in lines])


def agentic() -> Array:
    """Whole prompts of coding sessions, half of them above 100,000 tokens."""

    def prompts(requests: list[dict]) -> Iterator[float]:
        for request in requests:
            if request.get("in", 0) > 0:
                yield float(request["in"])
            yield from prompts(request.get("requests", []))

    with gzip.open(TRACES / "weka_agentic_sessions_odd.jsonl.gz", "rt") as lines:
        return np.array([n for line in lines for n in prompts(json.loads(line)["requests"])])


HERE = {"log-normal": log_normal, "two kinds": two_kinds}
RECORDED = {
    "mooncake": mooncake,
    "azure": column("azure2023_conv.csv.gz", "ContextTokens"),
    "deepseek-r1": column("servegen_deepseek-r1_sampled_peak2h.csv.gz", "input_tokens"),
    "arxiv": column("vidur_arxiv_summarization.csv.gz", "num_prefill_tokens"),
    "agentic": agentic,
}
BOUNDS = {
    # How wrong at most, of any of these kinds of traffic (docs/algorithms.md, Lengths).
    "vLLM": (VLLM, Error(p=0.027, below=0.029, whole=0.05)),
    "SGLang": (SGLANG, Error(p=0.011, below=0.02, whole=0.025)),
    "gate": (GATE, Error(p=0.003, below=0.004, whole=0.003)),
}


def within(found: Error, limit: Error) -> bool:
    return found.p <= limit.p and found.below <= limit.below and found.whole <= limit.whole


@pytest.mark.parametrize("engine", BOUNDS)
@pytest.mark.parametrize("kind", [*HERE, *RECORDED])
def test_buckets_know_p_and_prefill_time_to_a_stated_error(engine: str, kind: str) -> None:
    if kind in RECORDED and not TRACES.exists():
        pytest.skip("the traces are not beside this checkout")
    edges, limit = BOUNDS[engine]
    if (engine, kind) == ("gate", "agentic"):
        # Half of its work is above 131,072 tokens, where the gates' last bucket is x8 wide.
        limit = Error(p=limit.p, below=limit.below, whole=0.16)
    tokens = (HERE | RECORDED)[kind]()
    found = error(as_read(tokens, edges), tokens)
    assert within(found, limit), (found, limit)


@pytest.mark.parametrize("kind", [*HERE, *RECORDED])
def test_cutting_wide_buckets_by_a_curve_earns_its_place(kind: str) -> None:
    """Mean error of p(t) and of E[T(L); L <= t] over both engines, against log-uniform buckets."""
    if kind in RECORDED and not TRACES.exists():
        pytest.skip("the traces are not beside this checkout")
    tokens = (HERE | RECORDED)[kind]()
    curved, straight = (
        np.sum(
            [
                (found.p, found.below)
                for edges in (VLLM, SGLANG)
                for found in [error(read(tokens, edges), tokens)]
            ],
            axis=0,
        )
        for read in (as_read, as_counted)
    )
    assert curved[0] <= 1.03 * straight[0], "p"
    assert curved[1] <= straight[1], "prefill time"


def test_the_last_bucket_of_the_gates_is_not_taken_for_a_flat_one() -> None:
    """A tail that falls off above 131,072: most of what is there is near its lower bound."""
    drawn = np.exp(np.random.default_rng(3).normal(11.0, 0.7, 50_000))
    straight, curved = (error(read(drawn, GATE), drawn).whole for read in (as_counted, as_read))
    assert curved < 0.17
    assert straight > 2.0 * curved
