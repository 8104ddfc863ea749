"""Fixed sentences of the core, which speaks English only: pages translate them at their edge."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from django.utils.functional import lazy
from django.utils.translation import gettext

from routing.core import reasons, truth
from routing.core.links.state import ASKS, FORBIDS
from routing.core.placement import sides
from routing.core.truth.finding import CHECKS, GRADES


def texts() -> Iterator[str]:
    """Each of them; `manage.py makemessages` adds them to what it finds."""
    for words in (reasons.REASONS, sides.REASONS, CHECKS, GRADES, ASKS, FORBIDS):
        yield from filter(None, words.values())
    for names in (reasons.REASONS, CHECKS):
        yield from map(spaced, names)
    yield from GRADES
    for module in sorted(Path(truth.__file__).parent.glob("*.py")):
        yield from _sentences(module)


def _sentences(module: Path) -> Iterator[str]:
    """Sentences without figures that a module of findings says, in its order."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) for part in getattr(node, "values", ())}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in parts | docs:
            continue
        if isinstance(node.value, str) and re.search(r"[a-z]{2,} [a-z]", node.value):
            yield node.value


def spoken(text: str) -> str:
    """A sentence in the reader's language; one with figures in it as the core says it."""
    return gettext(text) if text else ""


def spaced(name: str) -> str:
    """A CamelCase name as words: `QueuesApart` is `Queues apart`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def reason_words(name: str) -> str:
    """A reason of the loop, or a check of what is claimed, as people read it."""
    is_ours = name in reasons.REASONS or name in CHECKS
    return gettext(spaced(name)) if is_ours else name


reason_lazily = lazy(reason_words, str)


def reason_help(reason: str) -> str:
    """What a reason of the loop means; empty where it is none."""
    help_text = reasons.REASONS.get(reason, "")
    return gettext(help_text) if help_text else ""
