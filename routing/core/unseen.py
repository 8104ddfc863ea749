"""Characters that nobody sees, or that turn round what stands beside them.

A reason with them reads differently from what was typed, and two names with them look the same.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_IN_SENTENCES: Final = frozenset("\t\n\r\u200c\u200d")
"""Ends of lines, and the joiners that emoji and some scripts are written with."""


def in_sentence(text: str) -> str:
    """The first such character of a sentence, as `U+202E`; empty if there is none."""
    return next((_code(c) for c in text if _is_unseen(c) and c not in _IN_SENTENCES), "")


def in_name(text: str) -> str:
    """The same of a name, in which nothing may be unseen."""
    return next((_code(c) for c in text if _is_unseen(c)), "")


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
