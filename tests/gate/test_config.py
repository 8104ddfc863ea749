"""Every wrong setting is named by file, key and value; what is left out has its stated meaning."""

# ruff: noqa: E501  (one claim a line)

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from routing.gate import settings, tokenizer
from routing.gate.access_log import Line
from routing.gate.admission import REASONS
from routing.gate.config import ConfigError, load_config
from routing.gate.settings import upstream_names
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
    assert config.upstreams.remote["prfaas"][0].capacity_blocks(512) == blocks


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
    ("a stack of several", GOOD + '[[upstreams.remote.far]]\nurl = "http://a"\n[[upstreams.remote.far]]\nurl = 3\n', ["upstreams.remote.far[1].url = 3"]),
    ("no stack", GOOD.replace("[upstreams.remote.prfaas]\nurl = \"http://127.0.0.1:2/base\"", "[upstreams.remote]\nfar = []"), ["upstreams.remote.far = []", "no stack"]),
    ("one url twice", GOOD + '[[upstreams.remote.far]]\nurl = "http://a"\n[[upstreams.remote.far]]\nurl = "http://a/"\n', ["upstreams.remote.far[0].url = 'http://a'", "twice"]),
    ("one name twice", GOOD + 'name = "local"\n', ["upstreams.remote.prfaas.name = 'local'", "also the name of upstreams.local"]),
    ("a name with a slash", GOOD + 'name = "a/b"\n', ["upstreams.remote.prfaas.name = 'a/b'"]),
    ("a certificate without its key", GOOD + 'cert_file = "gate.toml"\n', ["upstreams.remote.prfaas.cert_file = 'gate.toml'", "together"]),
    ("an authority that is not there", GOOD + 'ca_file = "none"\n', ["upstreams.remote.prfaas.ca_file = 'none'", "no such file"]),
    ("limit 0", GOOD + "[limits]\nin_flight = 0\n", ["limits.in_flight = 0", "at least 1"]),
    ("unknown limit", GOOD + "[limits]\nin_fligth = 1\n", ["limits.in_fligth = 1", "unknown key"]),
    ("negative queue", GOOD + "[limits]\nqueue = -1\n", ["limits.queue = -1"]),
    ("no wait at all", GOOD + "[limits]\nqueue_s = 0\n", ["limits.queue_s = 0"]),
    ("rate 0", GOOD + "[tenants]\nrps = 0\n", ["tenants.rps = 0"]),
    ("burst without rate", GOOD + "[tenants]\nburst = 5\n", ["tenants.burst = 5", "needs rps"]),
    ("no header", GOOD + '[tenants]\nheader = "X Team"\n', ["tenants.header = 'X Team'"]),
    ("a ratio above 1", GOOD + "[breaker]\nfailure_ratio = 1.5\n", ["breaker.failure_ratio = 1.5"]),
    ("open longer than at most", GOOD + "[breaker]\nopen_s = 90\n", ["breaker.max_open_s = 60", "open_s"]),
    ("negative retries", "retries_per_side = -1\n" + GOOD, ["retries_per_side = -1"]),
    ("half of TLS", GOOD + '[tls]\ncert_file = "gate.toml"\n', ["tls", "key_file"]),
    ("a template without a role", GOOD + '[chat_template]\nmessage = "{content}"\n', ["chat_template.message = '{content}'", "{role}"]),
    ("no such port", GOOD.replace("127.0.0.1:1", "127.0.0.1:99999"), ["upstreams.local.url = 'http://127.0.0.1:99999'"]),
    ("no port", GOOD.replace("127.0.0.1:1", "127.0.0.1:x"), ["upstreams.local.url = 'http://127.0.0.1:x'"]),
    ("half an address", GOOD + '[[upstreams.remote.far]]\nurl = "http://[::1"\n[[upstreams.remote.far]]\nurl = "http://a"\n', ["upstreams.remote.far[0].url = 'http://[::1'"]),
    ("a user in a url", GOOD.replace("127.0.0.1:1", "ada:hidden@127.0.0.1:1"), ["upstreams.local.url = 'http://...@127.0.0.1:1'", "no user"]),
    ("a token misspelt", 'console_token = "hidden"\n' + GOOD, ["console_token = '...'", "unknown key"]),
    ("a list of tokens", 'token = ["hidden"]\n' + GOOD, ["token = '...'"]),
    ("a template with a brace too many", GOOD + '[chat_template]\nmessage = "{role}{content}}"\n', ["chat_template.message"]),
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
    assert "hidden" not in message, "it is logged, and a reload's is on a page"


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


def test_stacks_are_called_by_their_place_or_their_address(tmp_path: Path) -> None:
    text = GOOD + '[[upstreams.remote.far]]\nurl = "http://a:1/x"\n'
    text += '[[upstreams.remote.far]]\nname = "b"\nurl = "http://b"\n'
    places = load_config(written(tmp_path, text)).upstreams.remote
    assert upstream_names("prfaas", places["prfaas"]) == ["prfaas"]
    assert upstream_names("far", places["far"]) == ["a:1", "b"]


def keys_of(kind: type[msgspec.Struct]) -> set[str]:
    return set(kind.__struct_fields__) - {"upstreams"}


def test_the_documentation_names_every_key() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "gate.md").read_text()
    kinds = (
        *(settings.GateConfig, settings.UpstreamConfig, settings.BreakerConfig, settings.Limits),
        *(settings.Tenants, settings.Tls, settings.AccessLog, settings.ChatTemplate),
    )
    tables = {"breaker", "limits", "tenants", "tls", "access_log", "chat_template"}
    names = {key for kind in kinds for key in keys_of(kind)} - tables
    missing = [name for name in sorted(names) if f"`{name}`" not in text]
    missing += [name for name in sorted(tables) if f"`[{name}]`" not in text]
    assert not missing, f"docs/gate.md does not name {missing}"
    fields = Line.__struct_fields__
    assert not [name for name in fields if f"`{name}`" not in text], "nor all of a line"
    codes = (*REASONS, "not_found", "method_not_allowed", "too_large", "upstream_timeout")
    assert not [code for code in codes if f"`{code}`" not in text]
