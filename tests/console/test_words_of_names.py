"""Names of the machine's as people read them: reasons, checks, settings, limits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from django.conf import settings
from django.utils.translation import override

from console import core_words, knob_words, verdicts
from routing.core.reasons import REASONS
from routing.core.truth.finding import CHECKS
from routing.core.types import BottleneckLabel
from routing.knobs import RANGES

CORE = Path(settings.BASE_DIR, "routing", "core")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("QueuesApart", "Queues apart"),
        ("Held", "Held"),
        ("LeaseShorterThanTimeout", "Lease shorter than timeout"),
        ("SomethingElse", "SomethingElse"),
    ],
)
def test_a_reason_is_words(name: str, words: str) -> None:
    """What is none of ours stays as it was said."""
    assert core_words.reason_words(name) == words


def test_every_reason_and_check_is_translated() -> None:
    with override("ko"):
        said = [core_words.reason_words(name) for name in (*REASONS, *CHECKS)]
    assert [text for text in said if not re.search("[가-힣]", text)] == []
    assert len(set(said)) == len(said)


def test_a_setting_in_a_sentence_is_its_label_with_its_name_on_hover() -> None:
    found = knob_words.in_sentence("reached in steps: t_max_step_factor, <b>roles_mode</b>")
    assert found == (
        'reached in steps: <span title="t_max_step_factor">Largest step of t</span>, '
        '&lt;b&gt;<span title="roles_mode">Roles</span>&lt;/b&gt;'
    )
    assert knob_words.in_sentence("the objective is met") == "the objective is met"


def test_every_limit_of_the_core_has_words() -> None:
    texts = [path.read_text(encoding="utf-8") for path in CORE.rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'Clamp\(\s*"([a-z_]+)"', text)}
    assert {"t_max_step_factor", "unknown_demand"} <= names
    names |= {f"bottleneck_{label}" for label in get_args(BottleneckLabel)}
    assert {name for name in names if name not in RANGES} <= set(knob_words.LIMITS)
    assert set(verdicts._LABELS) == set(get_args(BottleneckLabel))
