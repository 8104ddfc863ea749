"""The Dynamo adapter against a real frontend with emulated workers, by real requests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from routing.adapters.dynamo import Busy, Dynamo, Settings
from routing.adapters.rendered import Wanted
from routing.adapters.surface import CannotDo, Refused, SurfaceError
from tests import servers
from tests.peers import etcd_server
from tests.peers.dynamo_fleet import MODEL, Fleet, prompt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PREFIX = 320
"""Tokens, in whole blocks, that the decode worker holds of a prompt that is asked about."""
# The emulated decode worker publishes no KV events, so the router is told to remember for itself
# what it has sent there.
REMEMBER = {"DYN_ROUTER_PREDICTED_TTL_SECS": "600"}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("CONSOLE_ROUTERS_DIR", str(tmp_path))
    fleet = Fleet(tmp_path)
    try:
        fleet.worker("prefill")
        yield fleet
    finally:
        fleet.close()


def surface_of(fleet: Fleet) -> Dynamo:
    return Dynamo(Settings(url=fleet.url, store=fleet.store.name))


def environ(wanted: Wanted, surface: Dynamo) -> dict[str, str]:
    """What the adapter says that the decode workers must be started with."""
    lines = surface.rendered(wanted, surface.read()).content.splitlines()
    return dict(line.split("=", 1) for line in lines)


def remote_of(fleet: Fleet, uncached: list[int], *, seed: int) -> list[bool]:
    """Whether prompts went remote, of which all but so many tokens are cached on decode."""
    held = prompt(PREFIX, seed)
    for _ in range(2):
        fleet.ask(held)
    time.sleep(0.3)
    return [fleet.went_remote(held + prompt(n, seed + 100 + n)) for n in uncached]


def test_the_threshold_is_rolled_with_the_frontend_up(fleet: Fleet) -> None:
    fleet.wait(lambda: _answers(fleet), "the frontend answers")
    surface = surface_of(fleet)
    first, second = Wanted("threshold", 100), Wanted("threshold", 40)
    old = fleet.worker("decode", environ(first, surface) | REMEMBER)
    fleet.wait(fleet.serves, "requests come through")

    actual = surface.read()
    assert actual.version == "1.6.1"
    assert surface.capabilities(actual).threshold == "roll"
    assert sorted(w.role or "" for w in actual.workers.values()) == ["decode", "prefill"]
    assert (actual.threshold and actual.threshold.tokens, actual.findings) == (100, ())
    assert surface.runs(first, actual)
    assert remote_of(fleet, [99, 100, 101], seed=1) == [False, False, True]
    assert fleet.went_remote(prompt(20, 900)), "of a cold prompt nothing is cached"

    new = fleet.worker("decode", environ(second, surface) | REMEMBER)
    fleet.wait(lambda: len(surface.read().workers) == 3, "the new decode worker is listed")
    between = surface.read()
    assert surface.runs(second, between) is None
    assert "keeps to the one it saw first" in between.findings[0]
    assert remote_of(fleet, [40, 41, 100, 101], seed=2) == [False, False, False, True]

    servers.end(old)
    fleet.wait(lambda: surface.runs(second, surface.read()) is True, "the new threshold shows")
    fleet.wait(fleet.serves, "the new decode worker serves")
    assert remote_of(fleet, [39, 40, 41], seed=3) == [False, False, True]
    assert fleet.frontend.poll() is None
    assert new.poll() is None


def test_a_threshold_of_0_keeps_only_what_is_wholly_cached(fleet: Fleet) -> None:
    fleet.wait(lambda: _answers(fleet), "the frontend answers")
    surface = surface_of(fleet)
    fleet.worker("decode", environ(Wanted("threshold", 0), surface) | REMEMBER)
    fleet.wait(fleet.serves, "requests come through")
    assert surface.runs(Wanted("threshold", 0), surface.read())
    assert remote_of(fleet, [0, 1], seed=4) == [False, True]


def test_always_remote_and_what_its_counters_say(fleet: Fleet) -> None:
    fleet.wait(lambda: _answers(fleet), "the frontend answers")
    surface = surface_of(fleet)
    fleet.worker("decode", environ(Wanted("always_remote"), surface) | REMEMBER)
    fleet.wait(fleet.serves, "requests come through")
    before = surface.read()
    assert surface.runs(Wanted("always_remote"), before)
    assert not surface.runs(Wanted("threshold", 100), before)
    assert remote_of(fleet, [0, 1, 100], seed=5) == [True, True, True]
    after = surface.read()
    grown = [
        after.facts[name] - before.facts[name]  # type: ignore[operator]
        for name in ("requests_total", "remote_requests_total")
    ]
    assert grown == [5, 5]
    with pytest.raises(CannotDo, match="goes remote whatever"):
        surface.rendered(Wanted("always_local"), after)


def test_without_kv_events_it_says_that_nothing_is_ever_local(fleet: Fleet) -> None:
    fleet.wait(lambda: _answers(fleet), "the frontend answers")
    surface = surface_of(fleet)
    fleet.worker("decode", environ(Wanted("threshold", 100), surface))
    fleet.wait(fleet.serves, "requests come through")
    assert "1 of 1 decode workers publish no KV events" in surface.read().findings[0]
    assert remote_of(fleet, [0, 10, 100], seed=6) == [True, True, True]


def test_busy_thresholds_are_set_live_and_read_back(fleet: Fleet) -> None:
    fleet.wait(lambda: _answers(fleet), "the frontend answers")
    surface = surface_of(fleet)
    fleet.worker("decode")
    fleet.wait(fleet.serves, "requests come through")
    assert surface.busy_thresholds() == [Busy(MODEL)]
    shown = surface.set_busy(Busy(MODEL, active_decode_blocks_threshold=0.85))
    assert shown == Busy(MODEL, active_decode_blocks_threshold=0.85)
    both = surface.set_busy(Busy(MODEL, active_prefill_tokens_threshold=4096))
    assert both == Busy(MODEL, 0.85, 4096)
    assert surface.read().facts["busy_thresholds"] == [
        {
            "model": MODEL,
            "active_decode_blocks_threshold": 0.85,
            "active_prefill_tokens_threshold": 4096,
            "active_prefill_tokens_threshold_frac": None,
        }
    ]
    with pytest.raises(Refused, match="404"):
        surface.set_busy(Busy("another", active_decode_blocks_threshold=0.5))
    with pytest.raises(Refused, match="must be between"):
        surface.set_busy(Busy(MODEL, active_decode_blocks_threshold=1.5))
    with pytest.raises(Refused, match="cannot be unset"):
        surface.set_busy(Busy(MODEL))


def test_cards_are_read_from_etcd_as_well(tmp_path: Path) -> None:
    with etcd_server.serving(tmp_path) as store, closing(Fleet(tmp_path, etcd_url=store)) as fleet:
        fleet.worker("prefill")
        surface = Dynamo(Settings(url=fleet.url, etcd_url=store))
        fleet.wait(lambda: _answers(fleet, surface), "the frontend answers")
        wanted = Wanted("threshold", 100)
        decode = fleet.worker("decode", environ(wanted, surface) | REMEMBER)
        fleet.wait(fleet.serves, "requests come through")
        actual = surface.read()
        assert surface.runs(wanted, actual) is True
        assert sorted(w.role or "" for w in actual.workers.values()) == ["decode", "prefill"]
        servers.end(decode)
        fleet.wait(lambda: len(surface.read().workers) == 1, "the decode worker is gone")
        assert surface.runs(wanted, surface.read()) is None


def _answers(fleet: Fleet, surface: Dynamo | None = None) -> bool:
    try:
        (surface or surface_of(fleet)).read()
    except SurfaceError:
        return False
    return True
