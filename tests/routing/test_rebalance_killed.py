"""A worker killed at any moment of a rebalance: another one takes it to its end.

A moment is right before a side effect, right after one, or right after a commit; its kind is which
effect, or the step the commit left. What runs by default takes a sample: of every kind one moment
at every site, which of them by `SEED`. What is marked `slow` takes every moment there is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from routing.models import Fleet, Rebalance
from tests.routing import swapping_router
from tests.routing.lab_stack import LabStack, fleet_of, lab_stack
from tests.routing.mortal_workers import Workers
from tests.routing.rebalancing import STEPS, cancel, open_for, steps_of, verbs_of, walk
from tests.routing.swapping_router import SwappingRouter

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.fault]

START_S = 1.0
RESUME_S = 100.0
SEED = 7
SITES = ("stacks", "mixed", "group")
COMMITS = {f"commit:{step}" for step in (*STEPS, "done")}
GIVEN_UP = {"commit:restore", "commit:restored"}


@dataclass
class Site:
    """Routers over the lab, and the roles that a rebalance moves it between."""

    lab: LabStack
    routers: list[dict[str, Any]]
    targets: tuple[tuple[int, int], tuple[int, int]]
    moved: tuple[str, ...]
    swapping: SwappingRouter | None = None
    cluster: dict[str, Any] = field(default_factory=dict)

    def fleet(self) -> Fleet:
        instances = len(self.lab.engines)
        return fleet_of((), routers=self.routers, instances=instances, **self.cluster)

    def settled(self) -> bool:
        """Every router lists every engine as what it is."""
        lists = [self.swapping.roles() == self.lab.roles()] if self.swapping else []
        return all([self.lab.settled(), *lists])

    def check(self) -> None:
        """At every moment: who is out is out for one unit, and no role is without anybody."""
        assert len(self.lab.roles()) == len(self.lab.engines)
        for stack in self.lab.listed():
            out = [name for name, (_, status) in stack.items() if status == "draining"]
            assert set(out) <= set(self.moved)
            ready = {role for role, status in stack.values() if status == "ready"}
            assert ready == {"prefill", "decode"}
        if self.swapping is not None:
            assert not self.swapping.broken
            assert len(self.lab.engines) - len(self.swapping.workers) <= len(self.moved)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """`stacks`: two of ours; `mixed`: one, and one that takes out and puts in; `group`: both of
    them with two instances that go together."""
    kind = request.param
    n_instances = 6 if kind == "group" else 4
    with swapping_router.registered(), lab_stack(tmp_path, instances=n_instances) as lab:
        for name in ("slow-5", "slow-6") if kind == "group" else ():
            lab.engines[name].role = "prefill"
            lab.worker(0, name).worker_type = "prefill"
        if kind == "stacks":
            yield Site(lab, lab.routers(), ((1, 3), (2, 2)), ("slow-1",))
            return
        swapping = SwappingRouter(lab, lab.roles())
        # The second stack hears of nothing: it is no router of this fleet.
        routers = [lab.routers()[0], swapping.entry()]
        lab.listings = (lab.listings[0], lab.listings[0])
        if kind == "mixed":
            yield Site(lab, routers, ((1, 3), (2, 2)), ("slow-1",), swapping)
            return
        pair = ("slow-1", "slow-2")
        cluster = {"groups": {"pair": list(pair)}}
        yield Site(lab, routers, ((2, 4), (4, 2)), pair, swapping, cluster)


@pytest.fixture(scope="module")
def workers(django_db_setup: None) -> Iterator[Workers]:
    running = Workers()
    yield running
    running.stop()


def around(*effects: str) -> set[str]:
    """The kinds of moments that these effects make."""
    return {f"{side}:{effect}" for side in ("before", "after") for effect in effects}


def one_of_each(moments: list[str], kinds: set[str]) -> list[tuple[str, int]]:
    """Each kind with which of its moments was drawn, from 1. These kinds, and no other, came."""
    counted = Counter(moments)
    assert set(counted) == kinds
    drawn = random.Random(SEED)
    return [(kind, drawn.randint(1, counted[kind])) for kind in sorted(counted)]


def goes_on(site: Site, workers: Workers, row: Rebalance, died: object) -> None:
    """Another worker takes it to its target, and each step is told once."""
    target = (row.to_n_prefill, row.to_n_decode)
    site.check()
    assert not workers.drive(row, at_s=RESUME_S)
    assert (row.state, site.lab.counts()) == ("done", target), (died, row.reason)
    assert site.settled(), died
    for name in site.moved:
        assert steps_of(row, name) == [*STEPS, "done"], died
    assert len(steps_of(row)) == len(site.moved) * (len(STEPS) + 1)
    assert verbs_of(row) == ["rebalance.start", "rebalance.end"]
    site.check()


@pytest.mark.parametrize("site", SITES, indirect=True)
def test_killed_at_each_kind_of_moment_another_worker_goes_on(site: Site, workers: Workers) -> None:
    """The sample: before and after each side effect, and after a commit in each step."""
    fleet = site.fleet()
    assert not workers.drive(open_for(fleet, site.targets[0]), at_s=START_S)
    kinds = around("cordon", "switch", "list_as", "canary") | COMMITS
    for n, (kind, dies_at) in enumerate(one_of_each(workers.moments, kinds), start=1):
        row = open_for(fleet, site.targets[n % 2], at_s=-n)
        assert workers.drive(row, at_s=START_S, dies_at=dies_at, kind=kind), (kind, dies_at)
        goes_on(site, workers, row, (kind, dies_at))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site", "part", "parts"),
    [
        *(("stacks", part, 3) for part in range(3)),
        *(("mixed", part, 3) for part in range(3)),
        *(("group", part, 6) for part in range(6)),
    ],
    indirect=["site"],
)
def test_killed_at_any_moment_another_worker_goes_on(
    site: Site, workers: Workers, part: int, parts: int
) -> None:
    """Every moment: all parts together are all of them."""
    fleet = site.fleet()
    seen: set[str] = set()
    n, dies_at = 0, 1 + part
    while True:
        row = open_for(fleet, site.targets[n % 2], at_s=-dies_at)
        if not workers.drive(row, at_s=START_S, dies_at=dies_at):
            site.check()
            break
        if row.state == "open":
            seen.update(row.moves.values_list("step", flat=True))
        goes_on(site, workers, row, dies_at)
        n, dies_at = n + 1, dies_at + parts
    # All parts together die in each step several times; a step may have fewer moments than parts.
    assert len(seen & set(STEPS)) >= len(STEPS) - 1
    assert dies_at > 4 * len(STEPS)


@dataclass
class GivingUp:
    """Rebalances that are cancelled once they are in a step, and the worker that then dies."""

    site: Site
    workers: Workers
    step: str

    def __post_init__(self) -> None:
        self._fleet, self._before, self._n = self.site.fleet(), self.site.lab.counts(), 0

    def dies(self, dies_at: int, kind: str = "") -> bool:
        """Did it come to that moment? Then another worker restored what was before."""
        self._n += 1
        row = open_for(self._fleet, self.site.targets[0], at_s=-self._n)
        at_s = walk(row, START_S, lambda: row.moves.filter(step=self.step).exists())
        cancel(row, at_s)
        killed = self.workers.drive(row, at_s=at_s, dies_at=dies_at, kind=kind)
        self.site.check()
        if killed:
            assert not self.workers.drive(row, at_s=RESUME_S)
        settled = self.site.settled()
        assert (row.state, self.site.lab.counts(), settled) == ("cancelled", self._before, True)
        for name in self.site.moved:
            assert steps_of(row, name)[-2:] == ["restore", "restored"]
        assert verbs_of(row) == ["rebalance.start", "rebalance.cancel", "rebalance.end"]
        return killed


@pytest.mark.parametrize("site", SITES, indirect=True)
@pytest.mark.parametrize(
    ("step", "effects"), [("drain", ["list_as"]), ("verify", ["switch", "list_as"])]
)
def test_killed_at_each_kind_of_moment_of_giving_up_another_worker_restores(
    site: Site, workers: Workers, step: str, effects: list[str]
) -> None:
    """The sample: before and after each side effect that undoes, after a commit of each step."""
    giving_up = GivingUp(site, workers, step)
    assert not giving_up.dies(0)
    for kind, dies_at in one_of_each(workers.moments, around(*effects) | GIVEN_UP):
        assert giving_up.dies(dies_at, kind), (kind, dies_at)


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES, indirect=True)
@pytest.mark.parametrize("step", ["drain", "verify"])
def test_killed_while_it_gives_up_another_worker_restores(
    site: Site, workers: Workers, step: str
) -> None:
    """Every moment."""
    giving_up = GivingUp(site, workers, step)
    dies_at = 1
    while giving_up.dies(dies_at):
        dies_at += 1
    assert dies_at > 4
