"""agent.toml: everything wrong in it is named by file, key and value."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from telemetry.agent.__main__ import main
from telemetry.agent.config import Config, TokenError, load, read_token
from telemetry.agent.discovery import Discover
from telemetry.agent.instances import Instance, Router
from telemetry.strict_toml import TomlError

GOOD = """\
agent = "pd-agent"
console_url = "https://console.example"
spool_dir = "spool"
token_file = "token"
[[instances]]
id = "f/pd/p0"
role = "prefill"
engine = "vllm"
url = "http://127.0.0.1:8000/metrics"
[[routers]]
id = "f/pd/gate-0"
kind = "gate"
url = "http://127.0.0.1:8100/metrics"
[[links]]
id = "prfaas->pd"
source = "proc_net_dev"
interface = "eth0"
measured_layer = "interface"
capacity_gbps = 100.0
"""


def _load(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load(path)


def test_a_good_file(tmp_path: Path) -> None:
    config = _load(tmp_path, GOOD)
    assert (config.interval_s, config.timeout_s) == (1.0, 2.0)
    assert config.spool_dir == str(tmp_path / "spool")
    assert config.instances[0].group is None
    (tmp_path / "token").write_text("pf_abc_def\n")
    assert read_token(config) == "pf_abc_def"


BAD = [
    ("unknown key", "spool_dir", "spool_max = 3\nspool_dir", "spool_max=3: unknown key"),
    ("unknown key in a table", "interface =", "iface = 1\ninterface =", "links[0].iface=1"),
    ("wrong type", 'agent = "pd-agent"', "agent = 3", "agent=3"),
    ("no agent", 'agent = "pd-agent"', 'agent = ""', "agent=''"),
    ("missing key", 'spool_dir = "spool"\n', "", "`spool_dir`"),
    ("no name", 'agent = "pd-agent"\n', "", "agent=''"),
    ("not a URL", "https://console.example", "console:8000", "console_url='console:8000'"),
    ("bad role", '"prefill"', '"draft"', "instances[0].role='draft'"),
    ("bad engine", '"vllm"', '"banana"', "instances[0].engine='banana'"),
    ("engine as a router", 'kind = "gate"', 'kind = "vllm"', "routers[0].kind='vllm'"),
    ("bad id", '"f/pd/p0"', '"p0"', "instances[0].id='p0'"),
    ("breaking id", '"f/pd/p0"', '"f/pd/p\\n0"', "instances[0].id='f/pd/p\\n0'"),
    ("breaking name", 'agent = "pd-agent"', 'agent = "pd\\u202e"', "agent='pd\\u202e'"),
    ("link over three", '"prfaas->pd"', '"a->b->c"', "links[0].id='a->b->c'"),
    ("bad link id", '"prfaas->pd"', '"prfaas-pd"', "links[0].id='prfaas-pd'"),
    ("no interface", 'interface = "eth0"\n', "", "links[0].interface=''"),
    ("no capacity", "capacity_gbps = 100.0", "capacity_gbps = 0.0", "capacity_gbps=0.0"),
    ("no layer", '"interface"\n', '""\n', "links[0].measured_layer=''"),
    ("both tokens", "token_file", 'token = "x"\ntoken_file', "token_file='token'"),
    ("too fast", "spool_dir", "interval_s = 0.0\nspool_dir", "interval_s=0.0"),
    ("tiny spool", "spool_dir", "spool_max_bytes = 10\nspool_dir", "spool_max_bytes=10"),
    ("not TOML", "agent =", "agent", "not valid TOML"),
    (
        "an id twice",
        "[[routers]]",
        '[[instances]]\nid = "f/pd/p0"\nrole = "decode"\nurl = "http://h/metrics"\n[[routers]]',
        "instances[1].id='f/pd/p0': is given twice",
    ),
]


@pytest.mark.parametrize(("old", "new", "want"), [c[1:] for c in BAD], ids=[c[0] for c in BAD])
def test_a_mistake_is_named(
    tmp_path: Path, old: str, new: str, want: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(TomlError) as caught:
        _load(tmp_path, text)
    assert want in str(caught.value)
    assert str(tmp_path / "agent.toml") in str(caught.value)
    assert main(["--config", str(tmp_path / "agent.toml")]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert want in errors


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(TomlError, match="nothing to read"):
        _load(tmp_path, GOOD.split("[[instances]]")[0])


def test_a_token_that_is_not_there_is_said(tmp_path: Path) -> None:
    config = _load(tmp_path, GOOD)
    with pytest.raises(TokenError, match="token_file"):
        read_token(config)
    (tmp_path / "token").write_text("\n")
    with pytest.raises(TokenError, match="empty"):
        read_token(config)
    none = _load(tmp_path, GOOD.replace('token_file = "token"\n', ""))
    with pytest.raises(TokenError, match="neither"):
        read_token(none)


def test_a_name_from_outside_goes_before_the_files(tmp_path: Path) -> None:
    """One file for the agents of many nodes."""
    path = tmp_path / "agent.toml"
    path.write_text(GOOD.replace('agent = "pd-agent"\n', ""))
    assert load(path, agent="node-7").agent == "node-7"
    path.write_text(GOOD)
    assert load(path, agent="node-7").agent == "node-7"
    with pytest.raises(TomlError, match="agent="):
        load(path, agent="x" * 300)


def test_every_key_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    for table in (Config, Instance, Router, Discover):
        for field in msgspec.structs.fields(table):
            assert f"`{field.name}`" in text, f"{table.__name__}.{field.name}"


EXAMPLES = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def test_the_examples_of_the_documentation_are_good_files(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
    found = [example for example in EXAMPLES.findall(text) if "console_url" in example]
    assert found
    for example in found:
        _load(tmp_path, example)
    parts = [example for example in EXAMPLES.findall(text) if "console_url" not in example]
    for part in parts:
        _load(tmp_path, GOOD.split("[[instances]]")[0] + part)


DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_kubernetes_example_holds_a_good_configuration(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "agent-kubernetes.yaml").read_text()))
    files = [
        text
        for document in documents
        if document["kind"] == "ConfigMap"
        for text in document["data"].values()
    ]
    assert len(files) == 2
    for text in files:
        (tmp_path / "agent.toml").write_text(text)
        assert load(tmp_path / "agent.toml", agent="node-1").token_file
