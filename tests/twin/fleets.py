"""Small fleets that tests of the twin's workloads describe things of."""

from __future__ import annotations

import tomllib
from typing import Any

ONE_PD = """
[fleet]
name = "f"
slo = { tokens_per_s = 40.0, ttft_s = 10.0 }
[model]
bytes_per_token = 17280
state_bytes = 1000000
[profiles.gpu]
prefill = [[1024, 0.5], [131072, 8.0]]
decode = { batch = 20, step_s = 0.025 }
[[clusters]]
name = "far"
kind = "prefill"
profile = "gpu"
instances = 2
[[clusters]]
name = "pd"
kind = "pd"
profile = "gpu"
instances = 4
[[links]]
from = "far"
to = "pd"
gbps = 10.0
"""
WORKLOAD = """
[workload]
rate_rps = 4.0
output_tokens = 200
lengths = { kind = "lognormal", mu = 8.0, sigma = 1.0, min = 100, max = 20000 }
"""
TWO_PD = (
    ONE_PD
    + """
[[clusters]]
name = "pd2"
kind = "pd"
profile = "gpu"
instances = 4
[[workloads]]
cluster = "pd2"
rate_rps = 1.0
output_tokens = { kind = "lognormal", mu = 5.0, sigma = 0.5, min = 1, max = 1000 }
lengths = { kind = "empirical", buckets = [[100, 1.0], [1000, 3.0]] }
[[workloads]]
cluster = "pd"
rate_rps = 3.0
output_tokens = 200
lengths = { kind = "lognormal", mu = 8.0, sigma = 1.0, min = 100, max = 20000 }
"""
)


def document(extra: str = "", *, fleet: str = ONE_PD + WORKLOAD) -> dict[str, Any]:
    return tomllib.loads(fleet + extra)
