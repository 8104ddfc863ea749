"""What counts as a URL in a configuration file."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http(url: str) -> bool:
    """Whether `url` is an absolute http(s) URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
