"""The twin says what the lab did: the same arrivals, and the plans that ran, at full length.

`python -m tests.live.fidelity demo` (and `mooncake`) makes the same run and writes its table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import fidelity, twin_of_lab
from tests.live.fidelity import ADAPTIVE, LIVE, SCRIPTED, TRACE
from tests.live.harness import say

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    "what",
    [
        "demo",
        pytest.param(
            "mooncake",
            marks=pytest.mark.skipif(
                not TRACE.exists(), reason="the trace is not beside this checkout"
            ),
        ),
    ],
)
def test_the_twin_is_as_far_from_the_lab_as_it_may_be(state: Path, what: str) -> None:
    lab = fidelity.RUNS[what](state)
    found = fidelity.beside(lab)
    say(what, requests=len(lab.requests), **{name: vars(f) for name, f in found.items()})
    say("off", **{n: twin_of_lab.apart(found[LIVE], found[n]) for n in (SCRIPTED, ADAPTIVE)})
    assert all(row["completed"] for row in lab.requests)
    assert not twin_of_lab.beyond(found[LIVE], found[SCRIPTED])
