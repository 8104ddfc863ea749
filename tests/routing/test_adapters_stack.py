"""Our own stacks behind the surface that every router has, over lab engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routing.adapters import applied, engines
from routing.adapters.registry import surface_of
from routing.adapters.stack import Stack
from routing.adapters.surface import Actual, CannotDo, Refused, Surface, SurfaceError
from tests.routing.lab_stack import LabStack, lab_stack


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabStack]:
    with lab_stack(tmp_path) as stack:
        yield stack


@pytest.fixture
def surface(lab: LabStack) -> Surface:
    return surface_of("stack", {"url": lab.controls[1], "lease_s": 20.0})


def url_of(surface: Surface, name: str) -> str:
    return next(u for u, w in surface.read().workers.items() if w.key.endswith(f"/{name}"))


def test_a_role_is_changed_and_read_back(lab: LabStack, surface: Surface) -> None:
    url = url_of(surface, "slow-3")
    surface.cordon(url)
    assert lab.listed()[1]["slow-3"] == ("decode", "draining")
    engines.switch(url, "prefill")
    surface.list_as(url, "prefill")
    assert lab.listed()[1]["slow-3"] == ("prefill", "ready")
    assert lab.listed()[0]["slow-3"] == ("decode", "ready")


def test_a_held_drain_lasts_and_one_that_is_over_is_not_begun_again(
    lab: LabStack, surface: Surface
) -> None:
    url, worker = url_of(surface, "slow-3"), lab.worker(1, "slow-3")
    surface.cordon(url)
    lab.call(lambda: worker.lease(0.5))
    surface.hold(url)
    assert lab.call(lambda: worker.lease_s or 0.0) > 10.0
    lab.call(worker.ready)
    surface.hold(url)
    assert lab.listed()[1]["slow-3"] == ("decode", "ready")


def test_a_drain_that_lapses_as_it_is_looked_at_is_begun_anew(
    lab: LabStack, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, worker = url_of(surface, "slow-3"), lab.worker(1, "slow-3")
    surface.cordon(url)
    read = Stack.read

    def lapsing(self: Stack) -> Actual:
        actual = read(self)
        monkeypatch.setattr(Stack, "read", read)
        lab.call(worker.ready)
        return actual

    monkeypatch.setattr(Stack, "read", lapsing)
    surface.cordon(url)
    assert lab.listed()[1]["slow-3"] == ("decode", "draining")


def test_a_ready_one_of_another_role_is_drained_for_the_change(
    lab: LabStack, surface: Surface
) -> None:
    url = url_of(surface, "slow-3")
    surface.list_as(url, "prefill")
    surface.list_as(url, "prefill")
    assert applied.is_listed(surface.read(), url, "prefill")


def test_the_last_of_a_role_in_its_own_cluster_is_kept(lab: LabStack) -> None:
    # This stack lists the instances of a far cluster too, which prefill and are no spare here.
    surface = surface_of("stack", {"url": lab.controls[0]})
    surface.cordon(url_of(surface, "slow-1"))
    url = url_of(surface, "slow-2")
    for change in (lambda: surface.cordon(url), lambda: surface.list_as(url, "decode")):
        with pytest.raises(Refused, match=f"{url} is the last ready prefill"):
            change()


def test_an_instance_it_does_not_list_cannot_be_added(surface: Surface) -> None:
    surface.cordon("http://10.9.9.9:1")
    with pytest.raises(CannotDo, match="takes no new instance"):
        surface.list_as("http://10.9.9.9:1", "decode")


def test_one_that_is_not_there_is_an_error_of_the_surface(lab: LabStack) -> None:
    gone = surface_of("stack", {"url": "http://127.0.0.1:9/clusters/pd"})
    with pytest.raises(SurfaceError, match="does not answer"):
        gone.read()
    wrong = surface_of("stack", {"url": lab.controls[0] + "x"})
    with pytest.raises(Refused, match="answers 404"):
        wrong.read()
