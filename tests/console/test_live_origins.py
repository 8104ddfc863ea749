"""Which handshakes are refused before anything is accepted (S-60)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from console.origins import Guard, refusal

HOST = "console.example:8443"
GOOD = "https://console.example:8443"


def verdict(
    *headers: tuple[str, str],
    scheme: str = "wss",
    trusted: tuple[str, ...] = (),
    machine: bool = False,
) -> str | None:
    return refusal(
        [(name.encode(), value.encode("latin-1")) for name, value in headers],
        scheme=scheme,
        allowed_hosts=["console.example", "127.0.0.1", "[::1]"],
        trusted_origins=trusted,
        bearer_needs_no_origin=machine,
    )


@pytest.mark.parametrize(
    ("origin", "host", "scheme"),
    [
        (GOOD, HOST, "wss"),
        ("HTTPS://Console.Example:8443", HOST, "wss"),
        ("http://console.example", "console.example", "ws"),
        ("http://console.example", "console.example:80", "ws"),
        ("http://console.example:80", "console.example", "ws"),
        ("https://console.example:443", "console.example", "wss"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "ws"),
        ("http://[::1]:8000", "[::1]:8000", "ws"),
    ],
)
def test_our_own_pages_may_connect(origin: str, host: str, scheme: str) -> None:
    assert verdict(("host", host), ("origin", origin), scheme=scheme) is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://console.example",
        "https://console.example:8444",
        "http://console.example:8443",
        "https://console.example.evil.example:8443",
        "https://evil.example/https://console.example:8443",
        "https://console.example:8443@evil.example",
        "https://console.example:8443/",
        "https://console.example:8443?x",
        "https://console.example:8443#x",
        "https://console.example:8443\\@evil.example",
        "https://user@console.example:8443",
        "https://console.example:08443",
        "https://console.example:",
        "https://",
        "//console.example:8443",
        "console.example:8443",
        "null",
        "",
        "file://",
        "chrome-extension://abcdef",
        "wss://console.example:8443",
        "https://console.example:8443, https://evil.example",
        "https://consolé.example:8443",
    ],
)
@pytest.mark.parametrize("machine", [False, True])
def test_every_other_origin_is_refused(origin: str, machine: bool) -> None:
    bearer = (("authorization", "Bearer pf_a_b"),) if machine else ()
    assert verdict(("host", HOST), ("origin", origin), *bearer, machine=machine) is not None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8443",
        "console.example.evil.example:8443",
        "console.example:8443@evil.example",
        "console.example:port",
        "console.example:8443:8443",
        "console example:8443",
        "console.example/:8443",
        "",
        "[::1",
    ],
)
def test_an_odd_host_is_refused_even_with_the_same_origin(host: str) -> None:
    assert verdict(("host", host), ("origin", f"https://{host}")) is not None
    bearer = ("authorization", "Bearer pf_a_b")
    assert verdict(("host", host), bearer, machine=True) is not None


@pytest.mark.parametrize(
    "headers",
    [
        (("host", HOST),),
        (("origin", GOOD),),
        (("host", HOST), ("host", HOST), ("origin", GOOD)),
        (("host", HOST), ("origin", GOOD), ("origin", GOOD)),
        (("host", HOST), ("origin", GOOD), ("Origin", "https://evil.example")),
    ],
    ids=["no origin", "no host", "two hosts", "two origins", "two origins, differently spelt"],
)
def test_headers_that_are_missing_or_doubled_are_refused(
    headers: tuple[tuple[str, str], ...],
) -> None:
    assert verdict(*headers) is not None


@pytest.mark.parametrize(
    ("authorization", "machine", "accepted"),
    [
        ("Bearer pf_a_b", True, True),
        ("Bearer pf_a_b", False, False),
        ("Bearer ", True, False),
        ("Basic cm9vdDpyb290", True, False),
        ("", True, False),
    ],
)
def test_only_a_bearer_may_leave_the_origin_out_and_only_on_machine_routes(
    authorization: str, machine: bool, accepted: bool
) -> None:
    found = verdict(("host", HOST), ("authorization", authorization), machine=machine)
    assert (found is None) is accepted


@pytest.mark.parametrize(
    ("origin", "accepted"),
    [
        ("https://portal.example", True),
        ("https://portal.example:443", True),
        ("http://portal.example", False),
        ("https://a.wide.example", True),
        ("https://a.b.wide.example", True),
        ("https://notwide.example", False),
        ("https://wide.example.evil.example", False),
    ],
)
def test_trusted_origins(origin: str, accepted: bool) -> None:
    trusted = ("https://portal.example", "https://*.wide.example")
    found = verdict(("host", HOST), ("origin", origin), trusted=trusted)
    assert (found is None) is accepted


def test_a_trusted_origin_does_not_excuse_the_host() -> None:
    assert (
        verdict(
            ("host", "evil.example"),
            ("origin", "https://portal.example"),
            trusted=("https://portal.example",),
        )
        is not None
    )


@pytest.mark.parametrize("path", ["/ws/live", "/ws/plan"])
def test_a_null_character_in_the_query_is_refused_before_a_route_sees_it(path: str) -> None:
    async def forbidden(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("let through")

    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "websocket",
        "path": path,
        "scheme": "ws",
        "query_string": b"fleet=%00",
        "headers": [(b"host", b"127.0.0.1:8000"), (b"origin", b"http://127.0.0.1:8000")],
    }
    asyncio.run(Guard(forbidden, machine_paths={"/ws/plan"})(scope, receive, send))
    assert sent == [{"type": "websocket.close", "code": 4403}]
