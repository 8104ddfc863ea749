"""Sentences that are put together now and spoken later, in the language of whoever reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.conf import settings
from django.utils.functional import lazy
from django.utils.translation import gettext, ngettext, override
from django.utils.translation import gettext as _


def _said(msgid: str, values: dict[str, Any]) -> str:
    return gettext(msgid) % values


def _said_n(singular: str, plural: str, n: int, values: dict[str, Any]) -> str:
    return ngettext(singular, plural, n) % (values | {"n": n})


def _joined(separator: str, parts: tuple[str, ...]) -> str:
    return separator.join(str(part) for part in parts)


_lazily = lazy(_said, str)
_lazily_n = lazy(_said_n, str)
_join = lazy(_joined, str)


def said(msgid: str, **values: Any) -> str:
    """`msgid` with its `%(name)s` filled in: a string in the language in which it is read."""
    return _lazily(msgid, values)


def said_n(singular: str, plural: str, n: int, **values: Any) -> str:
    """The same by number; `%(n)s` is the count."""
    return _lazily_n(singular, plural, n, values)


def kind_word(kind: str) -> str:
    """A kind of source as people call it."""
    return {"instance": _("instance"), "router": _("gate"), "link": _("link")}.get(kind, kind)


def kinds_word(kind: str) -> str:
    """Several of a kind of source."""
    return {"instance": _("instances"), "router": _("gates"), "link": _("links")}.get(kind, kind)


def counted(kind: str, n: int) -> str:
    """So many of a kind of source: `3 gates`."""
    words = {
        "instance": ngettext("%(n)s instance", "%(n)s instances", n),
        "router": ngettext("%(n)s gate", "%(n)s gates", n),
        "link": ngettext("%(n)s link", "%(n)s links", n),
    }
    return words[kind] % {"n": f"{n:,}"}


def joined(separator: str, parts: Iterable[str]) -> str:
    """Phrases in a row, spoken when they are read."""
    return _join(separator, tuple(parts))


def listed(names: Sequence[str], most: int) -> str:
    """The first few by name, the others by number."""
    if len(names) <= most:
        return ", ".join(names)
    return said("%(some)s and %(n)s more", some=", ".join(names[:most]), n=len(names) - most)


def in_other_languages(**phrases: str) -> dict[str, dict[str, str]]:
    """The same phrases by language, for what is sent to pages of any; English stands beside."""
    found = {}
    for language, _name in settings.LANGUAGES:
        if language != settings.LANGUAGE_CODE:
            with override(language):
                found[language] = {name: str(phrase) for name, phrase in phrases.items()}
    return found
