"""smg, sglang-router and vllm-router when they lie, fail, or answer what nobody can mean."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.adapters import applied, gateway, http, places, smg
from routing.adapters.registry import SettingsError, surface_of
from routing.adapters.surface import (
    CannotDo,
    Refused,
    Surface,
    SurfaceError,
    Unheeded,
)
from tests.routing.fake_router import D1, D2, P1, P2, FakeRouter, serving

SETTINGS: dict[str, dict[str, Any]] = {
    "smg": {"bootstrap_port": 8998},
    "sglang-router": {"version": "0.3.2", "bootstrap_port": 8998},
    "vllm-router": {"version": "0.1.17"},
}
NEW = "http://10.0.0.15:8000"


@pytest.fixture
def router() -> FakeRouter:
    return FakeRouter()


@pytest.fixture
def url(router: FakeRouter) -> Iterator[str]:
    with serving(router) as served:
        yield served


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applied, "APPLIED_WITHIN_S", 0.3)


@pytest.fixture(params=list(SETTINGS))
def surface(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Surface:
    # Engines of these tests are not there to be asked.
    monkeypatch.setattr(gateway, "require_answer", lambda *_, **__: None)
    return surface_of(request.param, {"url": url, **SETTINGS[request.param]})


def test_what_is_listed_is_read(surface: Surface, router: FakeRouter) -> None:
    router.list(D2, "decode", is_healthy=False, load=3)
    router.list(NEW, "regular")
    actual = surface.read()
    assert actual.ready("prefill") == [P1, P2]
    assert actual.ready("decode") == [D1]
    assert (actual.workers[D2].status, actual.workers[D2].requests) == ("failed", 3)
    assert actual.workers[NEW].role is None
    assert surface.capabilities(actual).roles in ("live", "replace")


def test_an_instance_is_taken_out_and_put_in_as_another_role(
    surface: Surface, router: FakeRouter
) -> None:
    surface.cordon(f"{D1}/")
    assert router.role(D1) is None
    surface.list_as(D1, "prefill")
    assert router.role(D1) == "prefill"
    assert router.role(D2) == "decode"


@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_where_a_role_is_not_changed_in_place_the_instance_leaves_first(
    kind: str, url: str, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "require_answer", lambda *_, **__: None)
    surface_of(kind, {"url": url, **SETTINGS[kind]}).list_as(P1, "decode")
    assert [method for method, _, _ in router.changes] == ["DELETE", "POST"]
    assert router.role(P1) == "decode"


def test_nothing_is_sent_for_what_is_so_already(surface: Surface, router: FakeRouter) -> None:
    surface.list_as(D1, "decode")
    surface.cordon(NEW)
    assert router.changes == []


def test_a_yes_that_is_not_done_is_told(surface: Surface, router: FakeRouter) -> None:
    router.heeds = False
    with pytest.raises(Unheeded, match=f"{D1} as"):
        surface.cordon(D1)
    with pytest.raises(Unheeded, match=f"{NEW} as a ready prefill"):
        surface.list_as(NEW, "prefill")
    assert len(router.changes) == 2


def test_the_last_one_is_refused_before_anything_is_sent(
    surface: Surface, router: FakeRouter
) -> None:
    router.list(D2, "decode", is_healthy=False)
    for change in (lambda: surface.cordon(D1), lambda: surface.list_as(D1, "prefill")):
        with pytest.raises(Refused, match=f"{D1} is the last ready decode instance"):
            change()
    # One that serves nobody may go.
    surface.cordon(D2)
    assert [path for _, path, _ in router.changes] == [router.changes[0][1]]


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (500, b"it broke", SurfaceError, "answers 500: it broke"),
        (503, b"", SurfaceError, "answers 503"),
        (401, b"no key", Refused, "answers 401: no key"),
        (403, b'{"error": "not yours"}', Refused, "answers 403: not yours"),
        (302, b"", SurfaceError, "answers 302"),
        (200, b"<html>", SurfaceError, "answers what it should not"),
        (200, b"\xff\xfe", SurfaceError, "answers what it should not"),
        (200, b'{"workers": [{"url": "ftp://x", "worker_type": "decode"}]}', SurfaceError, "url"),
        (200, b" " * (gateway.MAX_LISTING_BYTES + 1), SurfaceError, "answers more than"),
    ],
)
def test_an_answer_that_cannot_be_meant(
    surface: Surface, router: FakeRouter, status: int, body: bytes, kind: type[Any], says: str
) -> None:
    router.answer = lambda *_: (status, body)
    for ask in (surface.read, lambda: surface.cordon(D1), lambda: surface.list_as(D1, "prefill")):
        with pytest.raises(SurfaceError, match=says) as raised:
            ask()
        assert type(raised.value) is kind
    assert router.changes == []


def test_a_url_that_is_listed_twice_is_no_list(surface: Surface, router: FakeRouter) -> None:
    router.workers["again"] = router.workers[D1]
    with pytest.raises(SurfaceError, match=f"{D1} is listed twice"):
        surface.read()


def test_one_that_answers_late_is_not_waited_for(
    surface: Surface, router: FakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "TIMEOUT_S", 0.05)
    go_on = threading.Event()
    router.answer = lambda *_: (go_on.wait(20), (200, b""))[1]
    try:
        with pytest.raises(SurfaceError, match="needs more than"):
            surface.read()
    finally:
        go_on.set()


def test_a_refused_change_is_told_as_it_was_said(surface: Surface, router: FakeRouter) -> None:
    def refuse(method: str, path: str, body: Any) -> tuple[int, bytes] | None:
        return None if method == "GET" else (400, b'{"error": "not in this mode"}')

    router.answer = refuse
    with pytest.raises(Refused, match="not in this mode"):
        surface.list_as(NEW, "decode")


def test_a_reading_that_fails_meanwhile_is_read_again(surface: Surface, router: FakeRouter) -> None:
    failing = iter([False, True, True])

    def sometimes(method: str, path: str, body: Any) -> tuple[int, bytes] | None:
        fails = method == "GET" and path == "/workers" and router.changes and next(failing, False)
        return (500, b"busy") if fails else None

    router.answer = sometimes
    surface.cordon(D1)
    assert router.role(D1) is None


def test_smg_waits_for_a_removal_to_be_over_and_then_adds(
    router: FakeRouter, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "require_answer", lambda *_, **__: None)
    surface = surface_of("smg", {"url": url, "bootstrap_ports": {D1: 9151}})
    router.list(D1, "decode", status="draining")
    n_read = 0

    def leaves(method: str, path: str, body: Any) -> None:
        nonlocal n_read
        n_read += method == "GET" and path == "/workers"
        if n_read == 3:
            router.workers.pop(D1, None)

    router.answer = leaves
    surface.list_as(D1, "prefill")
    assert router.changes == [
        ("POST", "/workers", {"url": D1, "worker_type": "prefill", "bootstrap_port": 9151})
    ]
    router.list(D1, "prefill", status="draining")
    router.answer = lambda *_: None
    monkeypatch.setattr(smg, "LEAVES_WITHIN_S", 0.2)
    with pytest.raises(Unheeded, match="as gone after its removal"):
        surface.list_as(D1, "decode")
    assert len(router.changes) == 1


def test_smg_changes_a_role_in_place_with_what_the_scenario_says_of_it(
    router: FakeRouter, url: str
) -> None:
    surface = surface_of(
        "smg", {"url": url, "worker": {"priority": 70, "labels": {"dc": "a"}}, "bootstrap_port": 1}
    )
    key = router.workers[P1]["id"]
    surface.list_as(P1, "decode")
    entry = {"url": P1, "worker_type": "decode", "priority": 70, "labels": {"dc": "a"}}
    assert router.changes == [("PUT", f"/workers/{key}", entry)]


@pytest.mark.parametrize(
    ("kind", "settings", "why"),
    [
        ("sglang-router", {}, "does not say its version"),
        ("sglang-router", {"version": "0.4.0"}, "version 0.4.0 was not tried"),
        ("vllm-router", {"version": "0.2.0"}, "version 0.2.0 was not tried"),
    ],
)
def test_an_unknown_version_is_only_read(
    router: FakeRouter, url: str, kind: str, settings: dict[str, Any], why: str
) -> None:
    surface = surface_of(kind, {"url": url, **settings})
    can = surface.capabilities(surface.read())
    assert (can.roles, can.threshold) == ("none", "none")
    assert why in can.why
    with pytest.raises(CannotDo, match=why):
        surface.cordon(D1)
    with pytest.raises(CannotDo, match=why):
        surface.list_as(D1, "prefill")
    assert router.changes == []


def test_an_unknown_smg_is_only_read(router: FakeRouter, url: str) -> None:
    router.answer = lambda method, path, body: (
        (200, b'{"version": "smg-2.0.0"}') if path == "/get_loads" else None
    )
    surface = surface_of("smg", {"url": url})
    with pytest.raises(CannotDo, match=r"version 2\.0\.0 was not tried"):
        surface.cordon(D1)


def test_a_router_that_can_only_remove_is_left_alone(router: FakeRouter, url: str) -> None:
    router.stats = {"prefill_count": 2, "decode_count": 2}
    surface = surface_of("vllm-router", {"url": url, "version": "0.1.17"})
    actual = surface.read()
    assert surface.capabilities(actual).roles == "none"
    assert "never be put back" in actual.findings[0]
    with pytest.raises(CannotDo, match="without --enable-igw"):
        surface.cordon(D1)
    assert router.changes == []


@pytest.mark.parametrize("kind", list(SETTINGS))
def test_a_dead_engine_is_not_put_into_a_router_that_would_believe_it_or_wait(
    kind: str, router: FakeRouter, url: str
) -> None:
    surface = surface_of(kind, {"url": url, **SETTINGS[kind]})
    with pytest.raises(SurfaceError, match="is not told of it"):
        surface.list_as("http://127.0.0.1:9", "decode")
    assert router.changes == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../key", "a/b", "..", ".hidden", "a\n"])
def test_a_key_is_only_ever_in_the_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    with pytest.raises(SurfaceError, match="must be the name of a file"):
        places.bearer(name, router="http://router")


def test_a_key_is_read_at_each_call(
    router: FakeRouter, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    surface = surface_of("smg", {"url": url, "token_file": "smg.key"})
    monkeypatch.delenv(places.FOLDER_SETTING, raising=False)
    with pytest.raises(SurfaceError, match="CONSOLE_ROUTERS_DIR is not set"):
        surface.read()
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    with pytest.raises(SurfaceError, match=r"token_file='smg\.key': No such file"):
        surface.read()
    for content, says in (("\n", "holds no key"), ("a\nb", "holds no key")):
        (tmp_path / "smg.key").write_text(content)
        with pytest.raises(SurfaceError, match=says):
            surface.read()
    assert router.asked == []
    for key in ("first", "second"):
        (tmp_path / "smg.key").write_text(f"{key}\n")
        surface.read()
        assert set(router.keys[-2:]) == {f"Bearer {key}"}


@pytest.mark.parametrize("spelled", ["http://GPU-1:8000/", "http://gpu-1:8000//"])
def test_one_engine_is_one_instance_however_it_is_spelled(
    surface: Surface, router: FakeRouter, spelled: str
) -> None:
    router.list(spelled, "decode")
    assert surface.read().workers["http://gpu-1:8000"].url == spelled
    surface.list_as("HTTP://gpu-1:8000", "decode")
    assert router.changes == []
    surface.cordon("http://Gpu-1:8000")
    assert router.role(spelled) is None, "it is told in the router's own spelling"
    router.list(spelled, "decode")
    surface.list_as("http://gpu-1:8000", "prefill")
    roles = [w["worker_type"] for url, w in router.workers.items() if "gpu" in url.lower()]
    assert roles == ["prefill"], "nothing is listed twice"
    router.list("http://gPu-1:8000", "decode")
    router.list("http://GPU-1:8000/", "decode")
    with pytest.raises(SurfaceError, match="is listed twice"):
        surface.read()


def test_bootstrap_ports_are_of_an_engine_however_it_is_spelled(
    router: FakeRouter, url: str
) -> None:
    surface = surface_of("smg", {"url": url, "bootstrap_ports": {f"{D1}/": 9151}})
    surface.list_as(D1, "prefill")
    assert router.changes[0][2]["bootstrap_port"] == 9151
    with pytest.raises(SettingsError):
        surface_of("smg", {"url": url, "bootstrap_ports": {"gpu-1:8000": 9151}})


def test_the_other_of_the_last_two_may_go_at_the_same_moment(
    surface: Surface, router: FakeRouter
) -> None:
    """Taken out by another console after we have looked, or dead."""

    def another(method: str, path: str, body: Any) -> None:
        if method == "DELETE":
            router.workers.pop(D2, None)

    router.answer = another
    with pytest.raises(Refused, match=f"with {D1} the last ready decode .* put back"):
        surface.cordon(D1)
    assert router.role(D1) == "decode"


def test_one_that_another_console_has_taken_out_meanwhile_is_out(
    surface: Surface, router: FakeRouter
) -> None:
    def another(method: str, path: str, body: Any) -> tuple[int, bytes] | None:
        if method != "DELETE":
            return None
        router.workers.pop(D1, None)
        return 404, b"no such worker"

    router.answer = another
    surface.cordon(D1)
    assert router.role(D1) is None


def test_what_was_taken_is_not_refused_because_it_cannot_be_read_back(
    surface: Surface, router: FakeRouter
) -> None:
    """A proxy that answers 404 while the router starts anew is no no."""

    def away(method: str, path: str, body: Any) -> tuple[int, bytes] | None:
        return (404, b"no backend") if router.changes and method == "GET" else None

    router.answer = away
    with pytest.raises(SurfaceError, match=r"cannot be read back: .* 404") as raised:
        surface.cordon(D1)
    assert type(raised.value) is SurfaceError


def test_what_contradicts_itself_or_is_not_said_is_not_counted_on(
    surface: Surface, router: FakeRouter
) -> None:
    router.list(D2, "decode", status="ready", is_healthy=False)
    router.list(NEW, "decode", status="resting")
    del router.workers[D1]["load"]
    workers = surface.read().workers
    assert workers[D2].status == workers[NEW].status == "failed"
    assert workers[D1].requests is None, "missing is not zero"
    with pytest.raises(Refused, match="is the last ready decode"):
        surface.cordon(D1)


def test_an_engine_that_speaks_grpc_hides_no_other(surface: Surface, router: FakeRouter) -> None:
    router.list("grpc://10.0.0.15:50051", "decode")
    assert surface.read().ready("decode") == [D1, D2, "grpc://10.0.0.15:50051"]


@pytest.mark.parametrize("kind", ["smg", "sglang-router"])
@pytest.mark.parametrize("id", ["", ".", ".."])
def test_a_worker_without_a_name_is_not_the_whole_list(
    kind: str, id: str, router: FakeRouter, url: str
) -> None:
    router.workers[D1]["id"] = id
    with pytest.raises(SurfaceError, match="cannot be named"):
        surface_of(kind, {"url": url, **SETTINGS[kind]}).cordon(D1)
    assert router.changes == []


def test_a_key_is_not_repeated_after_whoever_repeats_it(
    router: FakeRouter, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    (tmp_path / "smg.key").write_text("very-secret-key-of-ours\n")
    surface = surface_of("smg", {"url": url, "token_file": "smg.key"})
    for answer in ("no such key: {}", "x" * 185 + "{}", '{{"error": "Bearer {}"}}'):
        router.answer = lambda *_, said=answer: (
            (401, said.format("very-secret-key-of-ours").encode())
        )
        with pytest.raises(Refused, match="answers 401") as raised:
            surface.read()
        assert "very-sec" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"k" * 9_000, "holds more than"), (b"\xff\xfe", "is not text"), (None, "is not a file")],
)
def test_a_key_that_cannot_be_one(
    content: bytes | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    if content is None:
        os.mkfifo(tmp_path / "smg.key")
    else:
        (tmp_path / "smg.key").write_bytes(content)
    with pytest.raises(SurfaceError, match=says):
        places.bearer("smg.key", router="http://router")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\nrunning 0", "ends 81 bytes before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nrun", "does not answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "answers|ends|not"),
        (b"\x1b[2J<b>\r\n\r\n", "does not answer"),
        (b"HTTP/1.1 500 \x1b[31mno\r\n\r\n", "answers 500"),
    ],
)
def test_half_an_answer_is_none_and_says_nothing_to_a_terminal(raw: bytes, says: str) -> None:
    """Half of an engine's metrics would show it idle."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                peer.recv(65_536)
                peer.sendall(raw)
                peer.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(http.HttpError, match=says) as raised:
                http.ask("GET", f"http://127.0.0.1:{server.getsockname()[1]}/metrics").read_as(dict)
        finally:
            thread.join()
    assert str(raised.value).isprintable()
