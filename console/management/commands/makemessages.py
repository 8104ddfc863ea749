"""Django's `makemessages`, which also knows our own markers of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.commands import makemessages

from console import core_words

_MARKERS = {
    "django": ("_lazy", "lazy", "say", "said", "said_n:1,2"),
    "djangojs": ("n_:1,2",),
}
"""Names under which the code marks texts, beside gettext's own."""


class Command(makemessages.Command):
    """`n_` of i18n.js and `said` of console/phrases.py mark texts too; positions are left out.

    Line numbers in the .po would change with every edit of any page.
    """

    msgmerge_options = [*makemessages.Command.msgmerge_options, "--no-fuzzy-matching"]

    def handle(self, *args: Any, **options: Any) -> None:
        options |= {
            "no_location": True,
            "no_obsolete": True,
            "no_wrap": True,
            "ignore_patterns": [
                *options["ignore_patterns"],
                *(".venv/*", ".data/*", "tests/*", "docs/*", "*/vendor/*"),
            ],
        }
        markers = (f"--keyword={marker}" for marker in _MARKERS[options["domain"]])
        self.xgettext_options = [*makemessages.Command.xgettext_options, *markers]
        # The core marks nothing: its sentences stand in a file for as long as texts are looked for.
        listing = Path(settings.BASE_DIR, "core_texts.py")
        lines = (f"_({json.dumps(text)})" for text in dict.fromkeys(core_words.texts()))
        listing.write_text("\n".join(lines))
        try:
            super().handle(*args, **options)
        finally:
            listing.unlink()
