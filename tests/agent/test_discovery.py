"""Instances that are found: by a watched file, by DNS; and what is shipped when they go."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from telemetry.agent import dns
from telemetry.agent.config import load
from telemetry.agent.discovery import (
    Discover,
    DiscoveryError,
    Target,
    instances_of,
    read_file,
    split_port,
)
from telemetry.agent.dns import DnsFinder, Service
from telemetry.strict_toml import TomlError
from tests.agent.site import Eventually, Site, samples

BY_FILE = Discover(source="file", id="f/pd/{name}", role="decode", path="targets.json")


def test_a_template_makes_instances_of_targets() -> None:
    discover = Discover(
        source="file",
        id="f/pd/{name}",
        role="both",
        url="http://{host}:{port}/m",
        port=9000,
        role_label="role",
        group_label="node",
        path="x",
    )
    targets = [
        Target("b", "10.0.0.2", 8000, {"role": "prefill", "node": "n1"}),
        Target("a", "fd00::1"),
        Target("wrong", "10.0.0.3", None, {"role": "draft"}),
        Target("a", "10.0.0.9"),
        Target("c/d", "10.0.0.4"),
    ]
    instances, left_out = instances_of(discover, targets)
    assert [(i.id, i.role, i.url, i.group) for i in instances] == [
        ("f/pd/a", "both", "http://10.0.0.9:9000/m", None),
        ("f/pd/b", "prefill", "http://10.0.0.2:8000/m", "n1"),
    ]
    said = "\n".join(left_out)
    assert "f/pd/a is found twice, fd00::1 is left out" in said
    assert "role='draft' is no role" in said
    assert "c/d: id='f/pd/c/d': an id is FLEET/CLUSTER/NAME" in said


def test_an_ipv6_target_stands_in_brackets_and_a_target_needs_a_port() -> None:
    [v6], _ = instances_of(BY_FILE, [Target("a", "fd00::1", 8000)])
    assert v6.url == "http://[fd00::1]:8000/metrics"
    assert instances_of(BY_FILE, [Target("a", "h")]) == ((), ("a: nobody says its port",))


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ("h:80", ("h", 80)),
        ("h", ("h", None)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("fd00::1", ("fd00::1", None)),
        ("[fd00::1]", ("fd00::1", None)),
    ],
)
def test_a_target_is_a_host_with_or_without_a_port(written: str, want: tuple[str, Any]) -> None:
    assert split_port(written) == want


def test_a_targets_file_is_json_as_prometheus_has_it_or_toml(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(
        '[{"targets": ["a:1", "b:2"], "labels": {"role": "prefill"}},'
        ' {"targets": ["c:3"], "labels": {"name": "p9"}}]'
    )
    want = (
        Target("a:1", "a", 1, {"role": "prefill"}),
        Target("b:2", "b", 2, {"role": "prefill"}),
        Target("p9", "c", 3, {"name": "p9"}),
    )
    assert read_file(path) == want
    toml = tmp_path / "targets.toml"
    toml.write_text(
        '[[targets]]\ntargets = ["a:1", "b:2"]\nlabels = { role = "prefill" }\n'
        '[[targets]]\ntargets = ["c:3"]\nlabels = { name = "p9" }\n'
    )
    assert read_file(toml) == want
    path.write_text("[]")
    assert read_file(path) == ()


@pytest.mark.parametrize(
    "text", ["", "[{", '[{"target": ["a"]}]', '{"a": 1}', '[{"targets": [1]}]']
)
def test_a_targets_file_that_cannot_be_read_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "targets.json"
    path.write_text(text)
    with pytest.raises(DiscoveryError, match=r"targets\.json"):
        read_file(path)
    with pytest.raises(DiscoveryError, match="No such file"):
        read_file(tmp_path / "none.json")


BAD = [
    ({"id": "f/pd/p"}, "discover[0].id='f/pd/p': needs {name} or {host}"),
    ({"id": "f/{name}"}, "discover[0].id='f/{name}': an id is FLEET/CLUSTER/NAME"),
    ({"id": "f/pd/{pod}"}, "{pod} is none of {name}, {host}, {port}"),
    ({"url": "{host}:{port}"}, "discover[0].url='{host}:{port}': must be an http(s) URL"),
    ({"source": "dns"}, "discover[0].names=(): dns needs it"),
    ({"source": "kubernetes"}, "discover[0].selector='': kubernetes needs it"),
    ({"path": ""}, "discover[0].path='': file needs it"),
    ({"port": 0}, "discover[0].port=0"),
    ({"refresh_s": 0.0}, "discover[0].refresh_s=0.0"),
    ({"engine": "banana"}, "discover[0].engine='banana'"),
    ({"timeout_s": 0.0}, "discover[0].timeout_s=0.0"),
    ({"labels": "x"}, "discover[0].labels='x': unknown key"),
]


@pytest.mark.parametrize(("change", "want"), BAD, ids=[str(c) for c, _ in BAD])
def test_a_mistake_in_discover_is_named(site: Site, change: dict[str, Any], want: str) -> None:
    site.add(
        "discover", **{"source": "file", "id": "f/pd/{name}", "role": "both", "path": "t"} | change
    )
    with pytest.raises(TomlError) as caught:
        load(site.write())
    assert want in str(caught.value)


async def test_s20_instances_come_and_go_with_the_file_and_going_is_said(
    site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """Nothing but the last sample of one that left: the others are read on without a break."""
    path = site.folder / "targets.json"

    def targets(*names: str) -> None:
        host = engine.url.removeprefix("http://")
        new = path.with_suffix(".new")
        groups = [{"targets": [host], "labels": {"name": name}} for name in names]
        new.write_text(json.dumps(groups))
        new.replace(path)

    targets("a", "b")
    site.add(
        "discover", source="file", id="f/pd/{name}", role="decode", path=path.name, refresh_s=1
    )
    async with site.running():
        await eventually(lambda: samples(console, "f/pd/a") and samples(console, "f/pd/b"))
        path.write_text("[{")
        await eventually(lambda: any("told last" in w for w in warnings(console)))
        assert samples(console, "f/pd/b")[-1].state == "ok", "a bad file changes nothing"
        targets("a", "c")
        await eventually(lambda: samples(console, "f/pd/b")[-1].state == "gone")
        await eventually(lambda: samples(console, "f/pd/c"))
        n = len(samples(console, "f/pd/a"))
        await eventually(lambda: len(samples(console, "f/pd/a")) > n + 3)
    b = samples(console, "f/pd/b")
    assert [sample.state for sample in b].count("gone") == 1
    assert b[-1].error == "left the agent's configuration or discovery"
    assert b[-1].at_s >= b[-2].at_s
    assert {sample.state for sample in samples(console, "f/pd/a")} == {"ok"}
    rates = [s.signals.prompt_tokens_per_s for s in samples(console, "f/pd/a")]
    assert rates.count(None) == 1, "a source that stays keeps its last reading"


def warnings(console: Any) -> list[str]:
    return [text for batch in console.batches if batch.report for text in batch.report.warnings]


async def test_discovery_that_has_not_answered_takes_nothing_away(
    site: Site, console: Any, engine: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-20's other side: not knowing is not absence."""
    site.engine(engine.url, "listed")
    site.add("discover", source="file", id="f/pd/{name}", role="decode", path="none.json")
    async with site.running():
        await eventually(lambda: len(samples(console, "f/pd/listed")) > 3)
        await eventually(lambda: any("told nothing yet" in text for text in warnings(console)))
    assert {sample.state for sample in samples(console, "f/pd/listed")} == {"ok"}


# -- DNS -------------------------------------------------------------------------------------


def encoded(name: str) -> bytes:
    return dns.written_name(name)


def srv_answer(question: bytes, services: list[tuple[str, int]], *, code: int = 0) -> bytes:
    """What a name server answers; hosts end in a pointer to the question's name."""
    number = question[:2]
    body = question[12:]
    records = b""
    for host, port in services:
        target = bytes([len(host)]) + host.encode() + b"\xc0\x0c" if host else b"\0"
        data = struct.pack(">HHH", 0, 10, port) + target
        records += b"\xc0\x0c" + struct.pack(">HHIH", 33, 1, 30, len(data)) + data
    # A record of another kind in between is read past.
    records += b"\xc0\x0c" + struct.pack(">HHIH", 5, 1, 30, 2) + b"\xc0\x0c"
    head = number + struct.pack(">HHHHH", 0x8180 | code, 1, len(services) + 1, 0, 0)
    return head + body + records


Answer = Callable[[bytes], bytes | None]


@asynccontextmanager
async def name_server(by_udp: Answer, by_tcp: Answer | None = None) -> AsyncIterator[str]:
    class Server(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, addr: Any) -> None:
            answer = by_udp(data)
            if answer is not None:
                self.transport.sendto(answer, addr)  # type: ignore[attr-defined]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        assert by_tcp is not None
        answer = by_tcp(await reader.readexactly(length)) or b""
        writer.write(struct.pack(">H", len(answer)) + answer)
        writer.close()

    loop = asyncio.get_running_loop()
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_datagram_endpoint(Server, local_addr=("127.0.0.1", port))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        transport.close()
        server.close()


NAME = "_metrics._tcp.vllm.example"


async def test_srv_records_are_one_instance_each() -> None:
    def answer(question: bytes) -> bytes:
        return srv_answer(question, [("pod-1", 8000), ("pod-0", 8001), ("", 1)])

    async with name_server(answer) as nameserver:
        found = await dns.services(NAME, nameserver=nameserver, rng=random.Random(1))
    assert found == [Service(f"pod-0.{NAME}", 8001), Service(f"pod-1.{NAME}", 8000)]


async def test_an_answer_that_was_cut_short_is_asked_again_by_tcp() -> None:
    def cut(question: bytes) -> bytes:
        return question[:2] + struct.pack(">HHHHH", 0x8380, 1, 0, 0, 0) + question[12:]

    def whole(question: bytes) -> bytes:
        return srv_answer(question, [(f"pod-{i}", 8000) for i in range(40)])

    async with name_server(cut, whole) as nameserver:
        found = await dns.services(NAME, nameserver=nameserver, rng=random.Random(1))
    assert len(found) == 40


def targets_of(published: list[list[Target]]) -> list[list[str]]:
    return [[target.name for target in targets] for targets in published]


async def test_a_pool_empties_only_when_two_answers_in_a_row_say_so() -> None:
    services = [("pod-0", 8000)]
    code = [0]

    def answer(question: bytes) -> bytes:
        return srv_answer(question, services, code=code[0])

    published: list[list[Target]] = []
    async with name_server(answer) as nameserver:
        finder = DnsFinder([NAME], "SRV", nameserver=nameserver, refresh_s=1, rng=random.Random(1))

        async def ask() -> str | None:
            await finder.ask(lambda targets: published.append(list(targets)))
            return finder.problem

        assert await ask() is None
        services.clear()
        code[0] = 3
        assert await ask() is None
        assert targets_of(published) == [["pod-0"]]
        code[0] = 2
        assert "answers with error 2" in (await ask() or "")
        code[0] = 3
        assert await ask() is None
    assert targets_of(published) == [["pod-0"], []]


async def test_a_name_server_that_is_silent_or_lies_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dns, "TIMEOUT_S", 0.2)
    lies: list[Answer] = [
        lambda question: None,
        lambda question: b"\0",
        lambda question: b"\xff\xff" + srv_answer(question, [])[2:],
        lambda question: srv_answer(question, [("a", 1)])[:-30],
    ]
    for lie in lies:
        published: list[Any] = []
        async with name_server(lie) as nameserver:
            finder = DnsFinder(
                [NAME], "SRV", nameserver=nameserver, refresh_s=1, rng=random.Random(1)
            )
            await finder.ask(published.append)
        assert finder.problem
        assert published == []


def test_no_answer_makes_the_reader_hang_or_raise_anything_else() -> None:
    """Cut at every byte, and with seeded bytes changed: pointers to themselves among them."""
    question = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + encoded(NAME) + b"\0\x21\0\x01"
    whole = srv_answer(question, [("pod-0", 8000), ("pod-1", 8001)])
    rng = random.Random(6)
    bad = [whole[:n] for n in range(len(whole))]
    for _ in range(3000):
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(2, len(changed))] = rng.randrange(256)
        bad.append(bytes(changed))
    n_refused = 0
    for message in bad:
        try:
            dns.read_answer(message, 7)
        except DiscoveryError:
            n_refused += 1
    assert n_refused > len(whole) / 2


async def test_an_address_record_is_one_instance_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(name: str, port: Any, *, family: int, type: int) -> list[Any]:
        if name == "none":
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        if name == "away":
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        assert family == socket.AF_INET
        return [(family, type, 6, "", (address, 0)) for address in ("10.0.0.2", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    published: list[list[Target]] = []

    async def problem_of(name: str) -> str | None:
        finder = DnsFinder([name], "A", nameserver="", refresh_s=1, rng=random.Random(1))
        await finder.ask(lambda targets: published.append(list(targets)))
        return finder.problem

    assert await problem_of("vllm") is None
    assert await problem_of("none") is None
    assert "try again" in (await problem_of("away") or "")
    assert published == [[Target("10.0.0.1", "10.0.0.1"), Target("10.0.0.2", "10.0.0.2")]]
