"""What goes over the wire compressed: pages each time, scripts and styles once a process.

A first view of a page is two megabytes of scripts, most of it Plotly, and 500 KB compressed. Files
whose name holds a version are kept by browsers for good; all others are asked for again after a
minute and then cost a 304, so that nobody runs old scripts on new pages for longer.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import brotli
from django.conf import settings
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.middleware.gzip import GZipMiddleware

_TEXTS: Final = (".js", ".css", ".svg")
_MINUTE: Final = "max-age=60, public"
_FOR_GOOD: Final = "max-age=31536000, public, immutable"
_VERSIONED: Final = re.compile(r"/vendor/[^/]*\d+\.\d+\.\d+[^/]*$")
_CODERS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "br": lambda raw: brotli.compress(raw, quality=9),
    "gzip": lambda raw: gzip.compress(raw, compresslevel=9, mtime=0),
}
"""The better one first; browsers take Brotli over TLS and on this machine only."""

View = Callable[[HttpRequest], HttpResponse]


@dataclass(frozen=True)
class _File:
    """A file as it is sent; `state` is what the disk said of it (time and size)."""

    state: tuple[int, int]
    body: bytes
    etag: str


def static_files(get_response: View) -> View:
    """Answer for scripts and styles before whoever serves files uncompressed."""
    kept: dict[tuple[str, str], _File] = {}

    def served(request: HttpRequest) -> HttpResponse:
        path = request.path_info
        name = path.removeprefix(settings.STATIC_URL)
        if name == path or request.method not in ("GET", "HEAD") or not name.endswith(_TEXTS):
            return get_response(request)
        accepted = request.headers.get("Accept-Encoding", "")
        coding = next((each for each in _CODERS if each in accepted), None)
        found = finders.find(name) if coding else None
        if coding is None or not isinstance(found, str):
            return get_response(request)
        stat = os.stat(found)
        state = (stat.st_mtime_ns, stat.st_size)
        file = kept.get((name, coding))
        if file is None or file.state != state:
            file = kept[name, coding] = _compressed(found, state, coding)
        return _answer(request, file, coding)

    return served


def _compressed(path: str, state: tuple[int, int], coding: str) -> _File:
    with open(path, "rb") as file:
        body = _CODERS[coding](file.read())
    return _File(state, body, f'"{hashlib.sha256(body).hexdigest()[:24]}"')


def _answer(request: HttpRequest, file: _File, coding: str) -> HttpResponse:
    if request.headers.get("If-None-Match") == file.etag:
        response: HttpResponse = HttpResponseNotModified()
    else:
        kind = mimetypes.guess_type(request.path_info)[0] or "text/plain"
        response = HttpResponse(file.body, content_type=f"{kind}; charset=utf-8")
        response.headers["Content-Encoding"] = coding
    response.headers["ETag"] = file.etag
    response.headers["Vary"] = "Accept-Encoding"
    is_versioned = _VERSIONED.search(request.path_info) is not None
    response.headers["Cache-Control"] = _FOR_GOOD if is_versioned else _MINUTE
    return response


class Pages(GZipMiddleware):
    """Pages and what their scripts ask for. An ETag of an API names a version and must reach its
    reader as it is, so what has one is left alone unless it is a page."""

    def process_response(self, request: HttpRequest, response: Any) -> Any:
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        is_data = kind == "application/json" and not response.has_header("ETag")
        if kind == "text/html" or (is_data and request.method == "GET"):
            return super().process_response(request, response)
        return response
