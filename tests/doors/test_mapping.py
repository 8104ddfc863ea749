"""Rules: which series belong to what, and files that cannot be meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from telemetry.doors import mapping
from telemetry.doors.mapping import Rules, Unmatched
from telemetry.strict_toml import TomlError

LABELS = {
    "__name__": "x",
    "job": "vllm",
    "instance": "10.0.0.1:8000",
    "cluster": "pd",
    "pd_role": "decode",
}


def rules(tmp_path: Path, text: str) -> Rules:
    path = tmp_path / "doors.toml"
    path.write_text(text)
    return mapping.load(path)


RULE = """
[[rules]]
match = { job = "vllm|sglang", cluster = ".+" }
id = "prod/{cluster}/{instance}"
role = "{pd_role}"
group = "{cluster}-group"
"""


def test_a_rule_makes_an_id_of_labels(tmp_path: Path) -> None:
    place = rules(tmp_path, RULE).place(LABELS)
    assert place is not None
    assert (place.kind, place.id) == ("instance", "prod/pd/10.0.0.1:8000")
    assert (place.role, place.group) == ("decode", "pd-group")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"job": "vllm2"}, "no rule matches"),
        ({"cluster": ""}, "no rule matches"),
        ({"pd_role": "router"}, "rules[0].role='router' is not one of prefill, decode, both"),
        ({"instance": ""}, "rules[0].id: label 'instance' is absent"),
    ],
)
def test_what_cannot_be_placed_says_why(tmp_path: Path, change: dict[str, str], why: str) -> None:
    with pytest.raises(Unmatched) as told:
        rules(tmp_path, RULE).place(LABELS | change)
    assert str(told.value) == why


def test_a_value_cannot_reach_into_another_part_of_an_id(tmp_path: Path) -> None:
    place = rules(tmp_path, RULE).place(LABELS | {"cluster": "a/b", "instance": "p->q"})
    assert place is not None
    assert place.id == "prod/a_b/p__q"


def test_the_first_rule_decides_and_drop_is_no_complaint(tmp_path: Path) -> None:
    text = "[[rules]]\nmatch = { __name__ = 'go_.*' }\nkind = 'drop'\n" + RULE
    assert rules(tmp_path, text).place(LABELS | {"__name__": "go_threads"}) is None
    assert rules(tmp_path, text).place(LABELS) is not None


def test_a_link_is_an_interface(tmp_path: Path) -> None:
    text = """
    [[rules]]
    kind = "link"
    match = { job = "node" }
    id = "{site}->pd"
    interface = "{wan_interface}"
    measured_layer = "bond"
    capacity_gbps = 100.0
    """
    place = rules(tmp_path, text).place({"job": "node", "site": "p", "wan_interface": "bond0"})
    assert place is not None
    assert (place.id, place.interface) == ("p->pd", "bond0")


GOOD = 'match = { job = "v" }\nid = "f/{c}/{i}"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing required field `rules`"),
        ("rules = []", "rules=0: must be 1..200"),
        (f"[[rules]]\n{GOOD}\ncluster = 'x'", "rules[0].cluster='x': unknown key"),
        (f"name = 'a b'\n[[rules]]\n{GOOD}", "name='a b'"),
        ("[[rules]]\nmatch = {}\nid = 'f/c/i'", "rules[0].match={}: must name"),
        ("[[rules]]\nmatch = { a = '(' }\nid = 'f/c/i'", "rules[0].match.a='(': is not a regular"),
        ("[[rules]]\nmatch = { a = 'b' }\nid = 'f/{c}'", "an id is FLEET/CLUSTER/NAME"),
        ("[[rules]]\nmatch = { a = 'b' }\nid = 'f/{c }/x'", "only {label} may stand in braces"),
        (f"[[rules]]\n{GOOD}\nrole = 'x'", "rules[0].role='x': must be one of"),
        (f"[[rules]]\n{GOOD}\nengine = 'x'", "rules[0].engine='x': must be one of auto,"),
        (f"[[rules]]\n{GOOD}\nkind = 'router'\nengine = 'vllm'", "rules[0].engine='vllm'"),
        (f"[[rules]]\n{GOOD}\nkind = 'host'", "rules[0].kind='host'"),
        ("[[rules]]\nmatch = { a = 'b' }\nid = 'a-b'\nkind = 'link'", 'a link id is "A->B"'),
        ("[[rules]]\nmatch = { a = 'b' }\nid = 'a->b'\nkind = 'link'", "rules[0].measured_layer"),
        (
            "[[rules]]\nmatch = { a = 'b' }\nid = 'a->b'\nkind = 'link'\nmeasured_layer = 'x'",
            "rules[0].interface",
        ),
    ],
)
def test_a_file_that_cannot_be_meant_names_the_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TomlError) as told:
        rules(tmp_path, text)
    assert words in str(told.value)
    assert str(told.value).startswith(str(tmp_path / "doors.toml"))
