"""One spelling for the base URL of an engine, whoever wrote it down."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


def base_url(url: str) -> str:
    """`url` with scheme and host in small letters, without the scheme's own port and a trailing
    slash, an IPv6 address in its short form. Saying it twice is saying it once.

    Two names of one host stay two: nothing is resolved. What is no URL with a host is left alone
    but for the slash.
    """
    bare = url.rstrip("/")
    try:
        parts = urlsplit(bare)
        host, port = parts.hostname, parts.port
    except ValueError:
        return bare
    if not host or "@" in parts.netloc:
        return bare
    if ":" in host:
        try:
            host = f"[{ipaddress.IPv6Address(host)}]"
        except ValueError:
            return bare
    shown = "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
    return f"{parts.scheme}://{host}{shown}{parts.path}"
