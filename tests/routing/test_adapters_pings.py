"""The process that pings for a manifest, against a socket as a router has it."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import zmq

from routing.adapters import pinged, pings, places
from routing.adapters.pinged import State, state_path
from tests.peers.programs import wait_for

P, D = "http://10.0.0.11:8000", "http://10.0.0.12:8000"


def write(path: Path, roles: dict[str, str]) -> None:
    workers = [{"url": url, "worker_type": role} for url, role in roles.items()]
    path.write_text(json.dumps({"version": 1, "workers": workers}))


def state(path: Path) -> State:
    try:
        return msgspec.json.decode(state_path(path).read_bytes(), type=State)
    except FileNotFoundError:
        return State(at_s=0.0, steady_s=0.0, pinged={})


@contextmanager
def pinging(path: Path, router: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=pings.follow, args=(path, router, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_each_instance_is_pinged_in_the_role_that_the_file_says(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pings, "EACH_S", 0.02)
    path = tmp_path / "pd.json"
    write(path, {P: "prefill", D: "decode"})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")

        def heard() -> tuple[str, str]:
            assert router.poll(10_000), "no ping"
            ping = msgspec.msgpack.decode(router.recv_multipart()[-1])
            assert ping["zmq_address"] == ping["http_address"]
            return ping["http_address"], ping["type"]

        def all_heard(expected: set[tuple[str, str]]) -> bool:
            return {heard() for _ in range(6)} == expected

        with pinging(path, f"127.0.0.1:{port}"):
            wait_for(
                lambda: all_heard({("10.0.0.11:8000", "P"), ("10.0.0.12:8000", "D")}), within_s=20
            )
            wait_for(lambda: set(state(path).pinged) == {P, D}, within_s=10)
            monkeypatch.setattr(pinged, "FORGETS_AFTER_S", 0.1)
            write(path, {P: "decode"})
            wait_for(lambda: all_heard({("10.0.0.11:8000", "D")}), within_s=20)
            assert state(path).pinged[P].worker_type == "decode"
            # A file that cannot be meant takes nobody out.
            path.write_text("{")
            wait_for(lambda: "pd.json" in state(path).error, within_s=10)
            assert all_heard({("10.0.0.11:8000", "D")})
            found = state(path)
            assert found.pinged[P].last_s == found.steady_s


def test_a_router_that_is_not_there_is_not_taken_as_pinged(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pings, "EACH_S", 0.02)
    path = tmp_path / "pd.json"
    write(path, {P: "prefill"})
    with pinging(path, "127.0.0.1:9"):
        wait_for(lambda: "takes no pings" in state(path).error, within_s=10)
        assert state(path).pinged == {}


def test_a_full_disk_takes_nobody_out_of_the_router(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pings, "EACH_S", 0.02)
    path = tmp_path / "pd.json"
    write(path, {P: "prefill"})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with pinging(path, f"127.0.0.1:{port}"):
            wait_for(lambda: set(state(path).pinged) == {P}, within_s=10)
            monkeypatch.setattr(places, "replace_file", full)
            while router.poll(0):
                router.recv_multipart()
            for _ in range(3):
                assert router.poll(10_000), "it pings no more"
                router.recv_multipart()


def test_a_new_process_goes_on_where_the_old_one_ended(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pings, "EACH_S", 0.02)
    path = tmp_path / "pd.json"
    write(path, {D: "decode"})
    old = State(1.0, 1e9, {P: pinged.Pinged("prefill", 1e9)})
    state_path(path).write_bytes(msgspec.json.encode(old))
    with pinging(path, "127.0.0.1:9"):
        wait_for(lambda: state(path).at_s > 2.0, within_s=10)
        found = state(path)
        assert found.steady_s - found.pinged[P].last_s < 5.0


def test_an_address_has_its_port_and_a_router_must_have_one(tmp_path: Path, capsys) -> None:
    path = tmp_path / "pd.json"
    write(path, {"http://[FD00::1]": "prefill"})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with pinging(path, f"127.0.0.1:{port}"):
            assert router.poll(10_000), "no ping"
            ping = msgspec.msgpack.decode(router.recv_multipart()[-1])
    assert ping["http_address"] == "[fd00::1]:80"
    assert pings.main(["--manifest", str(path), "--router", "nowhere"]) == 2
    assert "--router nowhere" in capsys.readouterr().err
