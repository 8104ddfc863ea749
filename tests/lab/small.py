"""A small fleet with round numbers, built without files or ports."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from routing.lab.config import StackConfig, load_config
from routing.lab.engine import Job
from routing.lab.prompt import Prompt, of_ids

BLOCK_TOKENS = 4
MB = 10**6

SCENARIO = """
    [fleet]
    name = "small"
    [model]
    bytes_per_token = 1000000
    state_bytes = 20000000
    [profiles.fast]
    prefill = [[0, 0.0], [100, {prefill_s}]]
    decode = {{ batch = 2, step_s = {step_s} }}
    [profiles.slow]
    prefill = [[0, 0.0], [100, {slow_prefill_s}]]
    decode = {{ batch = 2, step_s = {step_s} }}
    [[clusters]]
    name = "far"
    kind = "prefill"
    profile = "fast"
    instances = 2
    [[clusters]]
    name = "pd"
    kind = "pd"
    profile = "slow"
    instances = 4
    start = {{ n_prefill = 2 }}
    [[links]]
    from = "far"
    to = "pd"
    gbps = {gbps}
    rtt_ms = {rtt_ms}
    [workload]
    rate_rps = 50.0
    output_tokens = 3
    lengths = {{ kind = "lognormal", mu = 3.0, sigma = 0.5, min = 4, max = 60 }}
"""


def write_config(
    folder: Path,
    *,
    extra: str = "",
    prefill_s: float = 10.0,
    slow_prefill_s: float = 20.0,
    step_s: float = 0.5,
    gbps: float = 0.8,
    rtt_ms: float = 0.0,
) -> Path:
    """`stack.toml` beside its scenario. A prompt of 100 tokens takes 10 s far away and 20 s in the
    PD cluster, its KV is 120 MB = 1.2 s of the link; 2 prefill and 2 decode instances of 2 slots.
    """
    scenario = SCENARIO.format(
        prefill_s=prefill_s, slow_prefill_s=slow_prefill_s, step_s=step_s, gbps=gbps, rtt_ms=rtt_ms
    )
    (folder / "scenario.toml").write_text(dedent(scenario))
    path = folder / "stack.toml"
    path.write_text(
        f'scenario = "scenario.toml"\nblock_tokens = {BLOCK_TOKENS}\nlayers = 10\n'
        f"stream_interval_tokens = 2\n{dedent(extra)}"
    )
    return path


def small_config(folder: Path, **options: Any) -> StackConfig:
    return load_config(write_config(folder, **options))


def prompt(n_tokens: int, first: int = 0) -> Prompt:
    """Ids first, first + 1, ...: prompts of the same `first` share prefixes."""
    return of_ids(range(first, first + n_tokens), block_tokens=BLOCK_TOKENS)


def job(n_tokens: int, first: int = 0, *, output_tokens: int = 3, id: str = "r") -> Job:
    return Job(id, prompt(n_tokens, first), output_tokens)
