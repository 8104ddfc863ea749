"""One run of vllm-sr-sim on requests of a file, in its own environment: `twin_speed` starts it.

    peer_fleet.py REQUESTS.npz N_SHORT N_LONG SPEED

Its two pools take the two sides of the case study: a step takes 25 ms whatever the batch, and a
prompt as many steps as the prefill of an H20 (short) or an H200 (long) would. Prints one JSON line.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from fleet_sim.core import Fleet, FleetConfig, PoolConfig, Request
from fleet_sim.gpu_profiles.profiles import CUSTOM

THRESHOLD = 19_417 + 1024
"""Its router compares prompt and answer together: the same requests go to either side."""
MAX_TOKENS = 131_072 + 1024
STEP_S = 0.025
SLOTS = {"short": 3, "long": 4}
CHUNK_TOKENS = {"short": 161, "long": 421}
"""10,224 tokens in 1.83 s, and 27,486 in 1.63."""


def pool(name: str, n: int, max_tokens: int) -> PoolConfig:
    gpu = CUSTOM(
        name,
        W=STEP_S,
        H=0.0,
        chunk=CHUNK_TOKENS[name],
        max_slots=SLOTS[name],
        calibration_ctx=max_tokens,
        total_kv_blks=10**6,
    )
    return PoolConfig(name, gpu, n, max_tokens)


def main() -> None:
    path, n_short, n_long, speed = sys.argv[1:]
    columns = np.load(path)
    at_s = (columns["at_s"] / float(speed)).tolist()
    prompts, outputs = columns["prompt_tokens"].tolist(), columns["output_tokens"].tolist()
    arrivals = [
        (at, Request(i, at, prompts[i], outputs[i]))  # what its own workloads make
        for i, at in enumerate(at_s)
    ]
    pools = [pool("short", int(n_short), THRESHOLD), pool("long", int(n_long), MAX_TOKENS)]
    fleet = Fleet(FleetConfig(pools, "LengthRouter", {"threshold": THRESHOLD}))
    found = fleet.run(arrivals).summary(10_000.0)
    busy = {name: found[f"{name}_util"] for name in ("short", "long")}
    print(json.dumps({"requests": found["total_completed"], "busy": busy}))


if __name__ == "__main__":
    main()
