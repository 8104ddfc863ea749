"""`python -m tests.core.fit_sweep`: how far wild rows move a profile's fit (docs/algorithms.md).

Each line: 600 requests of the tests' hardware with 8 % noise, 200 seeds; a share of them takes some
times as long. The error is the worst over 300 to 80,000 tokens.
"""

from __future__ import annotations

import numpy as np

from routing.core.model.profile_fit import Fit, fit_prefill
from tests.core.test_profile_fit import requests, worst_error

_SEEDS = 200
_CASES = ((0.0, 1.0), *((wild, by) for by in (5.0, 2.0, 1.5, 0.05) for wild in (0.2, 0.3, 0.4)))


def main() -> None:
    print("wild  x times  error: median  95 of 100  refused")
    for wild, by in _CASES:
        fits = [
            fit_prefill(requests(seed, wild=wild, by=by), warmup_s=120.0) for seed in range(_SEEDS)
        ]
        errors = [worst_error(fit) for fit in fits if isinstance(fit, Fit)]
        refused = f"{1 - len(errors) / _SEEDS:7.1%}"
        middle, high = np.percentile(errors, [50, 95]) if errors else (np.nan, np.nan)
        print(f"{wild:4.0%}  {by:7g}  {middle:13.1%}  {high:9.1%}  {refused}")


if __name__ == "__main__":
    main()
