"""Characters that nobody sees, or that turn text round, in sentences and in names."""

from __future__ import annotations

import pytest

from routing.core import unseen
from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from tests.routing.cases import SCENARIO


@pytest.mark.parametrize(
    ("text", "in_sentence", "in_name"),
    [
        ("link maintenance", "", ""),
        ("점검, עברית, مرحبا, 点検\u3000です", "", ""),
        ("two lines\nand a\ttab", "", "U+000A"),
        ("\U0001f469\u200d\U0001f469 family", "", "U+200D"),
        ("turned\u202eround", "U+202E", "U+202E"),
        ("isolated\u2066text\u2069", "U+2066", "U+2066"),
        ("zero\u200bwidth", "U+200B", "U+200B"),
        ("\ufeffmarked", "U+FEFF", "U+FEFF"),
        ("bell\x07", "U+0007", "U+0007"),
    ],
)
def test_what_is_not_seen(text: str, in_sentence: str, in_name: str) -> None:
    assert (unseen.in_sentence(text), unseen.in_name(text)) == (in_sentence, in_name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pd/1", "must hold neither / nor ->"),
        ("a->b", "must hold neither / nor ->"),
        ("pd\u202e", "holds U+202E"),
        ("p\u200bd", "holds U+200B"),
        (" pd", "must not begin or end with a space"),
    ],
)
def test_a_cluster_cannot_be_called_so(name: str, says: str) -> None:
    clusters = [one if one["kind"] == "prefill" else one | {"name": name} for one in _clusters()]
    links = [link | {"to": name} for link in SCENARIO["links"]]
    with pytest.raises(ScenarioError) as refused:
        parse_scenario(SCENARIO | {"clusters": clusters, "links": links})
    assert says in str(refused.value)
    assert "clusters[1].name" in str(refused.value)


def _clusters() -> list[dict[str, object]]:
    found: list[dict[str, object]] = SCENARIO["clusters"]
    return found
