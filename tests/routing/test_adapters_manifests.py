"""Routers that are told by a file: what is written, when it is not, and what is told of it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routing.adapters import answers, applied, gateway, http, places
from routing.adapters.pinged import FORGETS_AFTER_S, Pinged, State, state_path
from routing.adapters.registry import surface_of
from routing.adapters.surface import Refused, Role, Surface, SurfaceError, Unheeded
from routing.adapters.vllm_router_zmq import Settings, VllmRouterZmq
from tests.routing.fake_router import D1, D2, P1, P2, FakeRouter, serving

ROLES: dict[str, Role] = {P1: "prefill", P2: "prefill", D1: "decode", D2: "decode"}
AT_S = 1_000.0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    monkeypatch.setattr(applied, "APPLIED_WITHIN_S", 0.2)
    monkeypatch.setattr(gateway, "require_answer", lambda *_, **__: None)
    found = tmp_path / "fleet.json"
    write(found, {url: {"worker_type": role} for url, role in ROLES.items()})
    return found


def write(path: Path, workers: dict[str, dict[str, Any]], **more: Any) -> None:
    listed = [{"url": url, **fields} for url, fields in workers.items()]
    path.write_text(json.dumps({"version": 1, "workers": listed, **more}))


def listed(path: Path) -> dict[str, str]:
    return {w["url"]: w["worker_type"] for w in json.loads(path.read_text())["workers"]}


class Following(FakeRouter):
    """A fake smg that looks into the file whenever it is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.follows = path, True
        self.answer = self._look

    def _look(self, method: str, path: str, body: Any) -> None:
        if self.follows:
            self.workers.clear()
            for url, role in listed(self.path).items():
                self.list(url, role)


@pytest.fixture
def router(path: Path) -> Following:
    return Following(path)


@pytest.fixture
def surface(router: Following) -> Iterator[Surface]:
    with serving(router) as url:
        settings = {"url": url, "manifest": "fleet.json", "bootstrap_port": 8998}
        yield surface_of("smg-manifest", {**settings, "check_interval_s": 0.1})


def test_the_file_is_changed_and_the_router_never_told(
    surface: Surface, router: Following, path: Path
) -> None:
    fields = {"worker_type": "prefill", "labels": {"dc": "a"}}
    others = {url: {"worker_type": ROLES[url]} for url in (P2, D1, D2)}
    write(path, {P1: fields, **others}, note="ours")
    surface.cordon(D1)
    assert listed(path) == {P1: "prefill", P2: "prefill", D2: "decode"}
    surface.list_as(D1, "prefill")
    document = json.loads(path.read_text())
    assert document["note"] == "ours"
    assert document["workers"][0] == {"url": P1, **fields}
    assert document["workers"][-1] == {"url": D1, "worker_type": "prefill", "bootstrap_port": 8998}
    assert router.changes == []
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_router_that_does_not_follow_is_caught(
    surface: Surface, router: Following, path: Path
) -> None:
    router.follows = False
    with pytest.raises(Unheeded, match=f"{D1} as draining or gone"):
        surface.cordon(D1)
    assert f"{D1} is not listed in fleet.json, and decode in the router" in " ".join(
        surface.read().findings
    )


def test_what_differs_is_a_finding(surface: Surface, router: Following, path: Path) -> None:
    router.follows = False
    del router.workers[P2]
    router.list(D1, "prefill")
    router.list(D2, "decode", status="draining")
    assert [f.partition(": ")[2] for f in surface.read().findings] == [
        f"{P2} is prefill in fleet.json, and not listed in the router",
        f"{D1} is decode in fleet.json, and prefill in the router",
        f"{D2} is decode in fleet.json, and not listed in the router",
    ]


def test_the_last_of_a_role_stays_in_the_router_and_in_the_file(
    surface: Surface, router: Following, path: Path
) -> None:
    router.follows = False
    # The file is ahead of the router: what it shows would allow it.
    write(path, {url: {"worker_type": ROLES[url]} for url in (P1, P2, D1)})
    before = path.read_bytes()
    for change in (lambda: surface.cordon(D1), lambda: surface.list_as(D1, "prefill")):
        with pytest.raises(Refused, match=r"is the last decode of fleet\.json"):
            change()
    del router.workers[D2]
    with pytest.raises(Refused, match="is the last ready decode instance"):
        surface.cordon(D1)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "fleet.json"),
        ("[]", "object"),
        ('{"workers": []}', "version"),
        ('{"version": 2, "workers": []}', "only 1 is known"),
        ('{"version": 1, "workers": [{"url": "x", "worker_type": "decode"}]}', "url"),
        (
            '{"version": 1, "workers": [{"url": "http://a", "worker_type": "both"}]}',
            r"workers\[0\]\.worker_type|enum",
        ),
        (" " * 1_000_001, "holds more than"),
    ],
)
def test_a_file_that_cannot_be_meant_is_left_as_it_is(
    surface: Surface, router: Following, path: Path, content: str, says: str
) -> None:
    router.follows = False
    path.write_text(content)
    with pytest.raises(SurfaceError, match=says):
        surface.cordon(D1)
    assert path.read_text() == content


def test_what_a_person_writes_meanwhile_is_not_lost(
    surface: Surface, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor knows of no lock: it saves between our reading and our writing."""
    saved, mkstemp = json.dumps({"version": 1, "workers": []}), tempfile.mkstemp

    def slowly(**more: Any) -> Any:
        path.write_text(saved)
        return mkstemp(**more)

    monkeypatch.setattr(tempfile, "mkstemp", slowly)
    with pytest.raises(SurfaceError, match="somebody else has changed it meanwhile"):
        surface.cordon(D1)
    assert path.read_text() == saved
    assert [each.name for each in path.parent.glob(".fleet.json.*")] == [".fleet.json.lock"]


def test_what_is_so_already_is_not_written(surface: Surface, path: Path) -> None:
    stands = path.stat().st_ino
    surface.list_as(f"{D1}/", "decode")
    assert path.stat().st_ino == stands


def test_permissions_and_a_link_stay_and_so_does_what_else_is_said(
    surface: Surface, path: Path
) -> None:
    real = path.with_name("real.json")
    path.rename(real)
    path.symlink_to(real)
    fields = {"worker_type": "decode", "labels": {"dc": "a"}, "api_key": "k"}
    spelled = D1.upper().replace("HTTP", "http") + "/"
    others = {url: {"worker_type": role} for url, role in ROLES.items() if url != D1}
    write(real, {spelled: fields} | others)
    real.chmod(0o640)
    surface.list_as(D1, "prefill")
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    changed = {"url": spelled, "bootstrap_port": 8998} | fields | {"worker_type": "prefill"}
    assert json.loads(real.read_text())["workers"][0] == changed
    surface.list_as(D1, "decode")
    assert json.loads(real.read_text())["workers"][0] == {"url": spelled} | fields


def test_a_place_that_is_no_file_is_not_waited_for(
    surface: Surface, router: Following, path: Path
) -> None:
    router.follows = False
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SurfaceError, match="is not a file"):
        surface.read()
    path.unlink()
    path.mkdir()
    with pytest.raises(SurfaceError, match="Is a directory"):
        surface.cordon(D1)


def test_another_process_that_does_not_end_its_change_is_not_waited_for(
    surface: Surface, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "LOCKED_WITHIN_S", 0.05)
    with places.changing(path), pytest.raises(SurfaceError, match="another process has been"):
        surface.cordon(D1)
    surface.cordon(D1)


def test_changes_at_once_are_made_one_after_the_other(
    surface: Surface, router: Following, path: Path
) -> None:
    threads = [
        threading.Thread(target=surface.list_as, args=(f"http://10.0.1.{i}:8000", "decode"))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listed(path)) == len(ROLES) + 8


def pinged(state: State, wanted: dict[str, Role], seconds: float) -> State:
    """`seconds` later, when whatever may be pinged was."""
    steady_s = state.steady_s + seconds
    return state.after(state.due(wanted), at_s=state.at_s + seconds, steady_s=steady_s)


def test_another_role_is_pinged_when_the_first_is_forgotten() -> None:
    state = pinged(State(AT_S, 0.0, {}), {P1: "prefill", D1: "decode"}, 1.0)
    for _ in range(6):
        state = pinged(state, {P1: "decode", D1: "decode"}, 1.0)
        assert P1 not in state.pinged or state.pinged[P1].worker_type == "prefill"
        assert state.pinged[D1].last_s == state.steady_s
    assert P1 not in state.pinged
    state = pinged(state, {P1: "decode"}, 1.0)
    assert state.pinged[P1] == Pinged("decode", 8.0)


def test_what_a_process_that_died_had_pinged_is_not_forgotten_with_it() -> None:
    state = pinged(State(AT_S, 5_000.0, {}), {P1: "prefill"}, 1.0)
    # A machine that has started anew counts from 0.
    state = state.taken_over(at_s=AT_S + 2.0, steady_s=3.0)
    state = pinged(state, {P1: "decode"}, FORGETS_AFTER_S - 0.1)
    assert state.pinged[P1].worker_type == "prefill"
    state = pinged(state, {P1: "decode"}, 0.2)
    state = pinged(state, {P1: "decode"}, 1.0)
    assert state.pinged[P1].worker_type == "decode"


class Clock:
    """Each reading is a second on, and has been pinged for by then. `set_s`: by how much the time
    of day is set at each of the next ones, which the steady clock does not see."""

    def __init__(self, path: Path) -> None:
        self.path, self.state, self.pings = path, State(AT_S, 50.0, {}), True
        self.set_s: list[float] = []
        self()

    def __call__(self) -> float:
        if not self.pings:
            return self.state.at_s + 1.0
        due = self.state.due(dict(listed(self.path)))  # type: ignore[arg-type]
        steady_s = self.state.steady_s + 1.0
        at_s = self.state.at_s + 1.0 + (self.set_s.pop(0) if self.set_s else 0.0)
        self.state = self.state.after(due, at_s=at_s, steady_s=steady_s)
        state_path(self.path).write_bytes(msgspec.json.encode(self.state))
        return at_s


@pytest.fixture
def clock(path: Path) -> Clock:
    return Clock(path)


@pytest.fixture
def zmq(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> VllmRouterZmq:
    monkeypatch.setattr(applied, "_READ_EACH_S", 0.001)
    settings = Settings(url="http://router", manifest="fleet.json", version="0.1.17")
    return VllmRouterZmq(settings, clock)


def test_what_is_pinged_is_told_and_that_it_is_only_that(zmq: VllmRouterZmq) -> None:
    actual = zmq.read()
    assert {url: w.role for url, w in actual.workers.items()} == ROLES
    assert {w.status for w in actual.workers.values()} == {"ready"}
    can = zmq.capabilities(actual)
    assert not can.is_readable
    assert "a request is the proof" in can.why


def roles_over_time(zmq: VllmRouterZmq, clock: Clock, act: Any) -> list[str]:
    """As which D1 was pinged each second while `act` went on; `-`: not at all."""
    seen, after = [], State.after

    def noted(state: State, sent: dict[str, Role], **more: Any) -> State:
        seen.append(sent.get(D1, "-"))
        return after(state, sent, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(State, "after", noted)
        act()
    return seen


@pytest.mark.parametrize("set_s", [0.0, 7_200.0, -7_200.0])
def test_a_cordon_lasts_until_the_router_has_forgotten(
    zmq: VllmRouterZmq, clock: Clock, set_s: float
) -> None:
    """Whatever the time of day does meanwhile."""

    def cordon() -> None:
        clock.set_s = [0.0, set_s]
        zmq.cordon(D1)

    assert roles_over_time(zmq, clock, cordon).count("-") > 5
    assert D1 not in zmq.read().workers
    zmq.list_as(D1, "prefill")
    assert applied.is_listed(zmq.read(), D1, "prefill")


def test_what_the_router_may_still_have_is_not_told_as_cordoned(
    zmq: VllmRouterZmq, path: Path
) -> None:
    write(path, {url: {"worker_type": role} for url, role in ROLES.items() if url != D1})
    for _ in range(5):
        assert not applied.is_cordoned(zmq.read(), D1)


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_role_is_never_changed_without_a_pause(
    zmq: VllmRouterZmq, clock: Clock, path: Path, by_hand: bool
) -> None:
    def change() -> None:
        if by_hand:
            write(path, {url: {"worker_type": r} for url, r in (ROLES | {D1: "prefill"}).items()})
            applied.until_shown(zmq, lambda a: applied.is_listed(a, D1, "prefill"), what="it")
        else:
            zmq.list_as(D1, "prefill")

    roles = roles_over_time(zmq, clock, change)
    assert "-" * 6 in "".join(role[0] for role in roles)
    assert roles[-1] == "prefill"


def test_one_that_is_still_known_is_put_back_in_the_file(zmq: VllmRouterZmq, path: Path) -> None:
    write(path, {url: {"worker_type": role} for url, role in ROLES.items() if url != D1})
    zmq.list_as(D1, "decode")
    assert listed(path) == ROLES


def test_the_last_one_pinged_is_kept(zmq: VllmRouterZmq, path: Path) -> None:
    zmq.cordon(D1)
    for change in (lambda: zmq.cordon(D2), lambda: zmq.list_as(D2, "prefill")):
        with pytest.raises(Refused, match=f"{D2} is the last"):
            change()
    assert listed(path)[D2] == "decode"


def test_nobody_pinging_is_not_an_empty_fleet(zmq: VllmRouterZmq, clock: Clock, path: Path) -> None:
    clock.pings = False
    for since_s in (6.0, -3_600.0):
        clock.state = State(AT_S + since_s, 0.0, {})
        with pytest.raises(SurfaceError, match="nobody has pinged for"):
            zmq.read()
    for content, says in ((b"{}", "at_s"), (b"\xff", "pinged")):
        state_path(path).write_bytes(content)
        with pytest.raises(SurfaceError, match=says):
            zmq.read()
    state_path(path).unlink()
    with pytest.raises(SurfaceError, match="No such file"):
        zmq.read()


def test_what_is_so_is_not_asked_of_the_engine_again(
    zmq: VllmRouterZmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*_: Any, **__: Any) -> None:
        raise SurfaceError("does not answer")

    monkeypatch.setattr(gateway, "require_answer", dead)
    zmq.list_as(D1, "decode")
    with pytest.raises(SurfaceError, match="does not answer"):
        zmq.list_as(D1, "prefill")


def test_a_count_that_is_none_stops_no_reading(
    zmq: VllmRouterZmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, labels = "vllm_router_pd_active_decode_requests", 'rank="aggregate"'
    text = "".join(
        f'{name}{{worker="{url}",{labels}}} {value}\n'
        for url, value in ((f"{D1}/", "NaN"), (D2, "2"))
    )
    page = http.Answer("http://metrics", 200, text.encode())
    monkeypatch.setattr(answers, "call", lambda *_, **__: page)
    settings = msgspec.structs.replace(zmq.settings, metrics_url="http://metrics")
    workers = VllmRouterZmq(settings, zmq.clock).read().workers
    assert (workers[D1].requests, workers[D2].requests) == (None, 2)


def test_the_other_of_the_last_two_may_fail_at_the_same_moment(
    surface: Surface, router: Following, path: Path
) -> None:
    def look(method: str, at: str, body: Any) -> None:
        router._look(method, at, body)
        if D1 not in router.workers and D2 in router.workers:
            router.workers[D2]["is_healthy"] = False

    router.answer = look
    with pytest.raises(Refused, match=f"with {D1} the last ready decode"):
        surface.cordon(D1)
    assert listed(path)[D1] == "decode"
