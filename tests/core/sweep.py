"""`python -m tests.core.sweep FIRST LAST`: the closed loop over many seeds, by hand.

Prints one line per seed and, at the end, how many keep 96 % of the best capacity from minute 10 on.
"""

from __future__ import annotations

import sys

from tests.core.cases import demo_scenario
from tests.core.loop import capacity_share, changes, run


def main(first: int, last: int) -> None:
    scenario = demo_scenario()
    shares, counts = [], []
    for seed in range(first, last):
        passed = run(scenario, seed=seed, duration_s=900.0, rate_rps=2.5)
        shares.append(capacity_share(passed, from_s=600.0))
        counts.append(len(changes(passed)))
        print(
            f"seed {seed}: {shares[-1]:.3f} of the best capacity, {counts[-1]} changes", flush=True
        )
    good = sum(share >= 0.96 for share in shares) / len(shares)
    calm = sum(count <= 8 for count in counts) / len(counts)
    print(
        f"{len(shares)} seeds: {good:.1%} keep 96 % from minute 10 on, {calm:.1%} make at most 8 "
        f"changes (mean {sum(counts) / len(counts):.2f}, most {max(counts)}), "
        f"mean share {sum(shares) / len(shares):.3f}, least {min(shares):.3f}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
