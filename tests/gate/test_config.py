"""Every wrong setting is named by file, key and value; what is left out has its stated meaning."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

from pathlib import Path

import pytest

from routing.gate import tokenizer
from routing.gate.config import ConfigError, load_config
from routing.gate.tokenizer import TokenizerError, load_tokenizer

GOOD = """
router = "F/pd/g1"
[upstreams.local]
url = "http://127.0.0.1:1"
[upstreams.remote.prfaas]
url = "http://127.0.0.1:2/base"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(text)
    return path


def test_the_least_there_can_be(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, GOOD))
    assert (config.fleet, config.cluster) == ("F", "pd")
    assert config.console_url is None
    assert config.block_tokens == 512
    assert config.read_token() is None
    assert list(config.upstreams.remote) == ["prfaas"]


@pytest.mark.parametrize(
    ("line", "blocks"),
    [
        ("", 8192),
        ("cache_capacity_tokens = 0", 0),
        ("cache_capacity_tokens = 511", 0),
        ("cache_capacity_tokens = 1024", 2),
        ('cache_capacity_tokens = "infinite"', None),
    ],
)
def test_absent_zero_and_infinite_capacity_are_three_things(
    tmp_path: Path, line: str, blocks: int | None
) -> None:
    config = load_config(written(tmp_path, f"{GOOD}{line}\n"))
    assert config.upstreams.remote["prfaas"].capacity_blocks(512) == blocks


BAD = [
    # name, text, words of the error
    ("no TOML", "router = ", ["is not TOML"]),
    ("nothing", "", ["router"]),
    ("no local", 'router = "F/pd/g1"\n[upstreams]\n', ["upstreams", "local"]),
    ("unknown key", "colour = 3\n" + GOOD, ["colour = 3", "unknown key"]),
    ("unknown key of local", GOOD.replace("url", "uri = 5\nurl", 1), ["upstreams.local.uri = 5", "unknown key"]),
    ("unknown key of a remote", GOOD + "weight = 2\n", ["upstreams.remote.prfaas.weight = 2", "unknown key"]),
    ("remote no table", 'router="F/pd/g1"\n[upstreams]\nremote={prfaas="u"}\nlocal={url="http://x"}', ["upstreams.remote.prfaas = 'u'"]),
    ("router", GOOD.replace("F/pd/g1", "pd/g1"), ["router = 'pd/g1'", "FLEET/CLUSTER/NAME"]),
    ("port a text", 'port = "80"\n' + GOOD, ["port = '80'", "int"]),
    ("port too big", "port = 70000\n" + GOOD, ["port = 70000"]),
    ("block size 0", "block_tokens = 0\n" + GOOD, ["block_tokens = 0"]),
    ("interval 0", "health_interval_s = 0\n" + GOOD, ["health_interval_s = 0"]),
    ("interval not a number", "ack_interval_s = nan\n" + GOOD, ["ack_interval_s = nan"]),
    ("negative drain", "drain_s = -1\n" + GOOD, ["drain_s = -1"]),
    ("infinite drain", "drain_s = inf\n" + GOOD, ["drain_s = inf"]),
    ("url without scheme", GOOD.replace("http://127.0.0.1:1", "127.0.0.1:1"), ["upstreams.local.url = '127.0.0.1:1'"]),
    ("url with query", GOOD.replace("2/base", "2/?x=1"), ["upstreams.remote.prfaas.url"]),
    ("console url", 'console_url = "ws://x"\n' + GOOD, ["console_url = 'ws://x'"]),
    ("negative capacity", GOOD + "cache_capacity_tokens = -1\n", ["upstreams.remote.prfaas.cache_capacity_tokens = -1"]),
    ("capacity a word", GOOD + 'cache_capacity_tokens = "lots"\n', ["upstreams.remote.prfaas.cache_capacity_tokens = 'lots'"]),
    ("a linear state it does not know", GOOD + 'linear_state = "some"\n', ["upstreams.remote.prfaas.linear_state = 'some'"]),
    ("its own cluster as a remote", GOOD.replace("remote.prfaas", "remote.pd"), ["upstreams.remote.pd", "own cluster"]),
    ("health path", GOOD + 'health_path = "health"\n', ["upstreams.remote.prfaas.health_path = 'health'"]),
    ("two tokens", 'token = "a"\ntoken_file = "gate.toml"\n' + GOOD, ["token_file = 'gate.toml'", "not both"]),
    ("token file missing", 'token_file = "none"\n' + GOOD, ["token_file = 'none'", "no such file"]),
    ("tokenizer file missing", 'tokenizer_file = "none"\n' + GOOD, ["tokenizer_file = 'none'"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "words"), BAD, ids=[c[0] for c in BAD])
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "gate.toml")


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(" pf_x \n")
    text = 'token_file = "secret"\nplan_file = "plan.json"\n' + GOOD
    config = load_config(written(tmp_path, text))
    assert config.read_token() == "pf_x"
    assert config.plan_file == str(tmp_path / "plan.json")


def test_a_file_that_is_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        load_tokenizer(written(tmp_path, "{}"))


def test_without_the_package_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "tokenizers", None)
    with pytest.raises(TokenizerError, match=r"prfaas-console\[tokenizer\]"):
        load_tokenizer(written(tmp_path, "{}"))
