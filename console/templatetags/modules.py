"""Script modules of a page, and all that they import asked for at once.

A browser learns what a module imports only when it has the module: four levels of imports would be
four round trips before anything runs.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from django import template
from django.templatetags.static import static
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

register = template.Library()
_SCRIPTS = Path(__file__).parents[1] / "static" / "console"
_IMPORT = re.compile(r'\b(?:from|import)\s+"\./(\w+\.js)"')
_FRAME = "frame.js"
"""Every page of a fleet has it (base.html)."""


@functools.cache
def imported(*names: str) -> tuple[str, ...]:
    """These modules and whatever they import, near ones first."""
    found = list(names)
    for name in found:
        text = Path(f"{_SCRIPTS}/{name}").read_text()
        found += [other for other in dict.fromkeys(_IMPORT.findall(text)) if other not in found]
    return tuple(found)


@register.simple_tag
def modules(*names: str) -> SafeString:
    """The scripts of a page about a fleet."""
    links = format_html_join(
        "\n",
        '<link rel="modulepreload" href="{}">',
        ((static(f"console/{name}"),) for name in imported(*names, _FRAME)),
    )
    scripts = format_html_join(
        "\n",
        '<script type="module" src="{}"></script>',
        ((static(f"console/{name}"),) for name in names),
    )
    return SafeString(f"{links}\n{scripts}")
