"""The bucket bounds that prompt lengths are counted on, by every gate and by the core.

Upper bounds in tokens: 128 to 131,072 in 80 steps of x1.09 (docs/contracts.md: at most x1.1), then
1,048,576. A module of its own without imports, because the gate runs without numpy.
"""

from __future__ import annotations

TOKEN_EDGES = (*(round(128 * 1024 ** (i / 80)) for i in range(81)), 1_048_576)
