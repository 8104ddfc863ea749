"""Whatever a router lists: an override ends in what is desired, and breaks no limit on its way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from routing.managed_steps import Limits, differences, override

URLS = tuple(f"http://127.0.0.1:{9000 + i}" for i in range(6))
LIMITS = Limits(min_prefill=1, min_decode=2, instances=6)


def a_list(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    found = {}
    for url in URLS:
        if rng.random() < 0.85:
            role = ("prefill", "decode")[int(rng.random() < 0.6)]
            found[url] = {"role": role, "status": "ready" if rng.random() < 0.85 else "draining"}
    return found


def ready(seen: dict[str, dict[str, Any]], role: str) -> int:
    return sum((e["role"], e["status"]) == (role, "ready") for e in seen.values())


@pytest.mark.parametrize("seed", range(100))
def test_it_ends_as_desired_and_no_role_falls_below_its_floor(seed: int) -> None:
    rng = np.random.default_rng(seed)
    desired, seen = a_list(rng), a_list(rng)
    began = {role: ready(seen, role) for role in ("prefill", "decode")}
    planned = override(desired, seen, moving=(), limits=LIMITS, engines={})
    if isinstance(planned, str):
        assert "below" in planned or "of 6 there are" in planned
        return
    for step in planned:
        if step.role is None:
            seen.pop(step.url)
        else:
            seen[step.url] = {"role": step.role, "status": "ready"}
        assert ready(seen, "prefill") >= min(1, began["prefill"])
        assert ready(seen, "decode") >= min(2, began["decode"])
        assert len(seen) <= 6
    assert differences(desired, seen, moving=()) == ()
    assert override(desired, seen, moving=(), limits=LIMITS, engines={}) == ()


def test_some_are_done_and_some_refused() -> None:
    """Else the test above would prove nothing."""
    outcomes = {True: 0, False: 0}
    for seed in range(100):
        rng = np.random.default_rng(seed)
        planned = override(a_list(rng), a_list(rng), moving=(), limits=LIMITS, engines={})
        outcomes[isinstance(planned, str)] += 1
    assert min(outcomes.values()) > 10


def test_an_engine_is_never_listed_as_what_it_is_not() -> None:
    desired = {URLS[0]: {"role": "decode", "status": "ready"}}
    seen = {URLS[0]: {"role": "prefill", "status": "ready"}}
    limits = Limits(0, 0, 6)
    refused = override(desired, seen, moving=(), limits=limits, engines={URLS[0]: "prefill"})
    assert refused == (
        f"{URLS[0]} is desired as decode and its engine runs prefill: that takes a move of roles, "
        "or adopting what is there"
    )
    steps = override(desired, seen, moving=(), limits=limits, engines={URLS[0]: "decode"})
    assert not isinstance(steps, str)
    assert [step.words for step in steps] == [f"list {URLS[0]} as decode"]


def test_what_a_rebalance_holds_and_what_starts_or_fails_is_no_difference() -> None:
    desired = {url: {"role": "decode", "status": "ready"} for url in URLS[:3]}
    seen = {
        URLS[0]: {"role": "prefill", "status": "draining"},
        URLS[1]: {"role": "decode", "status": "starting"},
        URLS[2]: {"role": "decode", "status": "failed"},
    }
    assert differences(desired, seen, moving={URLS[0]}) == ()
    [one] = differences(desired, seen, moving=())
    assert (one.url, one.kind) == (URLS[0], "role")


def test_an_instance_taken_off_the_list_is_cordoned_as_desired() -> None:
    desired = {URLS[0]: {"role": "decode", "status": "draining"}}
    assert differences(desired, {}, moving=()) == ()
    [one] = differences(desired, {URLS[0]: {"role": "decode", "status": "ready"}}, moving=())
    assert one.kind == "opened"
