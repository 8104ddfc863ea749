"""TLS in front of the gate and behind it, with and without certificates of clients."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import pytest

from routing.gate.config import ConfigError, load_config
from routing.gate.tls import load_trust
from tests.gate.certificates import Authority, needs_openssl
from tests.gate.peers import (
    TOKEN,
    Console,
    Upstream,
    gate_config,
    gate_running,
    plan,
    serving,
    until,
)

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("others"), "others")


@pytest.fixture(scope="module")
def gate_pair(ours: Authority) -> tuple[Path, Path]:
    return ours.issue("gate")


def tls(pair: tuple[Path, Path], **more: str) -> dict[str, str]:
    return {"cert_file": str(pair[0]), "key_file": str(pair[1]), **more}


async def test_the_listener_shows_its_certificate(
    local: Upstream, ours: Authority, others: Authority, gate_pair: tuple[Path, Path]
) -> None:
    config = gate_config(local.url, tls=tls(gate_pair))
    async with gate_running(config, client_ssl=ours.client()) as gate:
        assert gate.url.startswith("https://")
        for stream in (False, True):
            response, body = await gate.complete([1], stream=stream)
            assert response.status == 200
        assert body == b"".join(local.stream) + b"data: [DONE]\n\n"
        connector = aiohttp.TCPConnector(ssl=others.client())
        async with aiohttp.ClientSession(connector=connector) as stranger:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await stranger.get(gate.url + "/healthz")


async def test_clients_without_a_certificate_of_its_authority_are_turned_away(
    local: Upstream, ours: Authority, others: Authority, gate_pair: tuple[Path, Path]
) -> None:
    config = gate_config(local.url, tls=tls(gate_pair, client_ca_file=str(ours.cert)))
    known = ours.client(ours.issue("client"))
    async with gate_running(config, client_ssl=known) as gate:
        response, _ = await gate.complete([1])
        assert response.status == 200
        stranger = ours.client()
        stranger.load_cert_chain(*others.issue("stranger"))
        for context in (ours.client(), stranger):
            connector = aiohttp.TCPConnector(ssl=context)
            async with aiohttp.ClientSession(connector=connector) as session:
                with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                    await session.get(gate.url + "/healthz")
        assert len(local.requests) == 1


async def test_an_upstream_is_believed_by_its_authority_and_shown_who_asks(
    ours: Authority, others: Authority
) -> None:
    upstream = Upstream()
    server = ours.server(ours.issue("engine"), asks_clients=True)
    asks = ours.issue("asking-gate")
    async with serving(upstream.app(), ssl_context=server) as url:
        good = {
            "url": url,
            "ca_file": str(ours.cert),
            "cert_file": str(asks[0]),
            "key_file": str(asks[1]),
        }
        for settings, is_served in (
            (good, True),
            ({**good, "ca_file": str(others.cert)}, False),
            ({"url": url, "ca_file": str(ours.cert)}, False),
            ({"url": url}, False),
        ):
            config = gate_config("", upstreams={"local": [settings]}, health_interval_s=600.0)
            async with gate_running(config) as gate:
                response, body = await gate.complete([1])
                assert response.status == (200 if is_served else 502)
                if not is_served:
                    assert json.loads(body)["error"]["code"] == "upstream_unavailable"
        assert len(upstream.requests) == 1


async def test_the_console_too(local: Upstream, ours: Authority) -> None:
    console = Console(plan(3, 4))
    server = ours.server(ours.issue("console"))
    async with serving(console.app(), ssl_context=server) as url:
        config = gate_config(
            local.url, console_url=url, token=TOKEN, console_ca_file=str(ours.cert)
        )
        async with gate_running(config) as gate:
            await until(lambda: console.last_ack.get("version_running") == 4)
            assert gate.gate.client.contact == "socket"


async def test_half_a_handshake_holds_nobody_up(
    local: Upstream, ours: Authority, gate_pair: tuple[Path, Path]
) -> None:
    config = gate_config(local.url, tls=tls(gate_pair))
    async with gate_running(config, client_ssl=ours.client()) as gate:
        port = int(gate.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        response, _ = await gate.complete([1])
        assert response.status == 200
        writer.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tls]\ncert_file = "gate.pem"\nkey_file = "other.key"', ["tls.cert_file = ", "no certificate with its key"]),
        ('[tls]\ncert_file = "gate.pem"\nkey_file = "none"', ["tls.key_file = 'none'", "no such file"]),
        ('[tls]\ncert_file = "gate.pem"\nkey_file = "gate.key"\nclient_ca_file = "gate.key"', ["tls.client_ca_file = ", "holds no certificates"]),
        ('[[upstreams.remote.far]]\nurl = "https://x"\nca_file = "gate.key"', ["upstreams", "far", "ca_file"]),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(
    tmp_path: Path, ours: Authority, text: str, words: list[str]
) -> None:
    cert, key = ours.issue("gate")
    _, other = ours.issue("other")
    for path in (cert, key, other):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "gate.toml"
    file.write_text(f'router = "F/pd/g1"\n[upstreams.local]\nurl = "http://x"\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        load_trust(load_config(file), file)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    for word in words:
        assert word in message
