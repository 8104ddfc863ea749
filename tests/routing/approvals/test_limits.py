"""How far a change reaches, and which limits that passes. Nothing here needs a database."""

from __future__ import annotations

from typing import Any

import pytest

from routing.approvals.limits import (
    CHANGES,
    Beyond,
    Limits,
    Reach,
    beyond,
    loosens,
    reach_of,
    read_limits,
    total,
    words,
)
from routing.core.scenario.tables import ScenarioError

ROLES = ({"n_prefill": 3, "n_decode": 5}, {"n_prefill": 5, "n_decode": 3})


def passed(limits: dict[str, Any], verb: str, before: Any, after: Any, **measured: float) -> list:
    return [
        each.limit for each in beyond(read_limits(limits), reach_of(verb, before, after, measured))
    ]


@pytest.mark.parametrize(
    ("most", "beyond_it"),
    [({"instances_moved": 2}, False), ({"instances_moved": 1}, True),
     ({"share_moved": 0.25}, False), ({"share_moved": 0.24}, True),
     ({"hold_s": 60.0}, False), ({"hold_s": 59.9}, True)],
)  # fmt: skip
def test_a_figure_at_its_limit_is_within_it(most: dict[str, float], beyond_it: bool) -> None:
    assert bool(passed(most, "roles.move", *ROLES, hold_s=60.0)) is beyond_it


def test_without_limits_nothing_is_beyond_them() -> None:
    nothing = read_limits({})
    assert nothing.is_empty
    for verb in ("policy.change", "epoch.raise", "breaker.reset", "router.override"):
        before = {"mode": "paused", "knobs": {}, "scenario": {}}
        after = {"mode": "active", "knobs": {"t_dwell_s": 1}, "scenario": {"x": 1}}
        assert beyond(nothing, reach_of(verb, before, after, {"hold_s": 1e9})) == ()


@pytest.mark.parametrize(
    ("was", "now", "needs"),
    [("paused", "active", True), ("paused", "advisory", True), ("advisory", "active", True),
     ("active", "advisory", False), ("active", "paused", False), ("advisory", "paused", False)],
)  # fmt: skip
def test_the_kill_switch_never_needs_anybody(was: str, now: str, needs: bool) -> None:
    everything = {"changes": list(CHANGES), "hold_s": 0, "instances_moved": 0}
    before, after = {"mode": was, "knobs": {}}, {"mode": now, "knobs": {}}
    assert passed(everything, "policy.change", before, after) == (["activate"] if needs else [])


@pytest.mark.parametrize(
    "verb", ["hold.release", "hold.expire", "rebalance.cancel", "delivery.cancel", "job.delete",
             "gate.release", "token.revoke", "incident.acknowledge"],
)  # fmt: skip
def test_what_makes_it_safer_is_not_judged(verb: str) -> None:
    assert reach_of(verb, {"expires_at_s": 1.0}, {"expires_at_s": 9.0}, {"hold_s": 1e9}) == Reach()


def test_a_hold_that_ends_sooner_is_safer() -> None:
    before, after = {"expires_at_s": 100.0}, {"expires_at_s": 50.0, "mode": "always_remote"}
    everything = {"changes": ["always_remote"], "hold_s": 0}
    assert passed(everything, "hold.extend", before, after, hold_s=50.0) == []
    assert passed(everything, "hold.extend", after, before | {"mode": ""}, hold_s=50.0) == [
        "hold_s"
    ]


@pytest.mark.parametrize(
    ("do", "kinds"),
    [({"kind": "mode", "mode": "active"}, {"jobs", "activate"}),
     ({"kind": "mode", "mode": "paused"}, {"jobs"}),
     ({"kind": "plan", "mode": "always_remote", "for_s": 60}, {"jobs", "always_remote"}),
     ({"kind": "roles", "for_s": 60}, {"jobs"})],
)  # fmt: skip
def test_a_job_is_judged_by_what_it_does(do: dict[str, Any], kinds: set[str]) -> None:
    after = {"enabled": True, "document": {"do": do}}
    assert reach_of("job.create", None, after, {}).kinds == kinds
    assert reach_of("job.update", None, after | {"enabled": False}, {}) == Reach()
    dry = {"enabled": True, "document": {"do": do, "dry_run": True}}
    assert reach_of("job.create", None, dry, {}) == Reach()


def test_of_several_changes_instances_add_up_and_spans_do_not() -> None:
    one = Reach(frozenset({"policy"}), {"instances_moved": 2.0, "hold_s": 60.0})
    two = Reach(frozenset(), {"instances_moved": 3.0, "hold_s": 30.0, "gates_switched": 1.0})
    assert total([one, two]) == Reach(
        frozenset({"policy"}), {"instances_moved": 5.0, "hold_s": 60.0, "gates_switched": 1.0}
    )


@pytest.mark.parametrize(
    ("was", "now", "is_looser"),
    [({}, {"hold_s": 60}, False), ({"hold_s": 60}, {}, True),
     ({"hold_s": 60}, {"hold_s": 61}, True),
     ({"hold_s": 60}, {"hold_s": 59}, False), ({"changes": ["jobs"]}, {"hold_s": 1}, True),
     ({"changes": ["jobs"]}, {"changes": ["jobs", "epoch"]}, False)],
)  # fmt: skip
def test_limits_are_tightened_alone_and_loosened_by_two(
    was: dict[str, Any], now: dict[str, Any], is_looser: bool
) -> None:
    assert loosens(read_limits(was), read_limits(now)) is is_looser
    found = passed({}, "approval_limits.update", {"limits": was}, {"limits": now})
    assert found == (["approvals"] if is_looser else [])
    # Limits that are deleted are as loose as can be.
    gone = passed({}, "approval_limits.delete", {"limits": was}, None)
    assert gone == (["approvals"] if was else [])


@pytest.mark.parametrize(
    ("document", "field"),
    [({"hold": 3}, "limits.hold"), ({"share_moved": 1.1}, "limits.share_moved"),
     ({"share_moved": -0.1}, "limits.share_moved"), ({"instances_moved": 1.5}, "limits.instances"),
     ({"hold_s": "1"}, "limits.hold_s"), ({"hold_s": float("inf")}, "limits.hold_s"),
     ({"changes": "policy"}, "limits.changes"), ({"changes": ["approvals"]}, "limits.changes"),
     ({"changes": [[]]}, "limits.changes"), ({"expires_s": 59}, "limits.expires_s"),
     ({"expires_s": 700_000}, "limits.expires_s"), ([], "limits")],
)  # fmt: skip
def test_limits_that_cannot_be_meant_are_named(document: Any, field: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_limits(document)
    assert refused.value.field.startswith(field)


def test_each_kind_and_figure_has_words() -> None:
    found = [Beyond(kind) for kind in (*CHANGES, "approvals")]
    found += [Beyond(name, 0.5, 0.25) for name in ("share_moved", "hold_s", "gates_switched")]
    said = words(found)
    assert len(set(said)) == len(found)
    assert "it moves 50% of a cluster's instances at once, over 25%" in said
    assert Limits(expires_s=60.0).is_empty
