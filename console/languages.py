"""Which language a page speaks, and the catalogue its scripts read.

A person's cookie decides, then the browser's Accept-Language, then English. What programs read
(the API, health, metrics) is a contract and speaks English always; so do stored messages, audit
rows and logs, whoever caused them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.cache import patch_vary_headers
from django.utils.decorators import method_decorator
from django.utils.translation import get_language_from_request, override
from django.views.decorators.cache import cache_control
from django.views.i18n import JavaScriptCatalog, set_language

CONTRACTS = ("/api/v1/", "/healthz", "/readyz", "/metrics")
"""Addresses that programs read."""


def in_their_language(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Django's LocaleMiddleware, but contracts stay English and nothing outlives the request."""

    def spoken(request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith(CONTRACTS):
            with override(settings.LANGUAGE_CODE):
                return get_response(request)
        language = get_language_from_request(request)
        with override(language):
            response = get_response(request)
        patch_vary_headers(response, ("Accept-Language", "Cookie"))
        response.headers.setdefault("Content-Language", language)
        return response

    return spoken


@cache
def catalogue_version(language: str) -> str:
    """A hash of what the scripts' catalogue is made of: a new one is a new address."""
    compiled = Path(settings.LOCALE_PATHS[0], language, "LC_MESSAGES", "djangojs.mo")
    return hashlib.sha256(compiled.read_bytes()).hexdigest()[:12]


def catalogue_url(language: str | None) -> str:
    """Where scripts find the catalogue of a language; nothing for English, which is in them."""
    if language is None or language == settings.LANGUAGE_CODE:
        return ""
    version = catalogue_version(language)
    return reverse("catalogue", kwargs={"language": language, "version": version})


@method_decorator(
    [login_not_required, cache_control(public=True, max_age=31_536_000, immutable=True)],
    name="dispatch",
)
class Catalogue(JavaScriptCatalog):
    """The scripts' messages of one language: the same for everybody, for ever."""

    packages = ["console"]

    def get(self, request: HttpRequest, *args: Any, language: str, **kwargs: Any) -> HttpResponse:
        with override(language):
            return super().get(request, *args, **kwargs)


urlpatterns = [
    path("i18n/setlang/", login_not_required(set_language), name="set_language"),
    path("i18n/<slug:language>-<slug:version>.js", Catalogue.as_view(), name="catalogue"),
]
