"""What the lab reads: scenario and stack files, profiles, prompts, caches."""

from __future__ import annotations

from pathlib import Path

import pytest

import routing.lab
from routing.lab.cache import PrefixCache
from routing.lab.config import load_config
from routing.lab.errors import LabError
from routing.lab.profile import Profile, load_scenario
from routing.lab.prompt import of_ids, of_text
from tests.lab.small import prompt, write_config

DEMO = Path(routing.lab.__file__).with_name("prfaas_1t.toml")


@pytest.mark.parametrize(
    ("profile", "tokens", "want_s"),
    [
        pytest.param("h200", 1024, 0.44, id="on a knot"),
        pytest.param("h200", 4608, 0.58, id="half way between knots"),
        pytest.param("h200", 131_072, 7.40, id="last knot"),
        pytest.param("h200", 199_734, 7.40 + 3.89, id="end slope goes on above"),
        pytest.param("h20", 10_224, 1.829, id="first knot"),
        pytest.param("h20", 0, 1.829 - 10_224 * 2.436 / 17_262, id="end slope goes on below"),
    ],
)
def test_the_demo_profiles_are_linear_between_knots(
    profile: str, tokens: int, want_s: float
) -> None:
    assert load_scenario(DEMO).profiles[profile].prefill_s(tokens) == pytest.approx(want_s)


def test_a_prefill_never_takes_less_than_no_time() -> None:
    assert Profile("steep", ((100, 0.1), (200, 10.0)), 1, 0.025).prefill_s(1) == 0.0


def test_the_demo_fleet() -> None:
    scenario = load_scenario(DEMO)
    assert scenario.kv.bytes_of(32_768) == 182_347_366 + 17_280 * 32_768
    pd, prfaas = scenario.clusters["pd"], scenario.clusters["prfaas"]
    assert (pd.instances, pd.n_prefill, prfaas.instances, prfaas.n_prefill) == (8, 3, 4, 4)
    (link,) = scenario.links
    assert (link.id, link.gbps, link.rtt_s) == ("prfaas->pd", 100.0, 0.005)
    assert scenario.workloads[0].rate_rps == 2.5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param("gbps = 0.8", "gbps = -1.0", "links[0].gbps", id="negative capacity"),
        pytest.param("gbps = 0.8", "gbps = nan", "links[0].gbps", id="not a number"),
        pytest.param("gbps = 0.8", "gbp = 0.8", "`gbp`", id="unknown key is named"),
        pytest.param('to = "pd"', 'to = "pb"', "links[0].to: no such cluster", id="loose end"),
        pytest.param('"slow"\n', '"slo"\n', "clusters[1].profile: no such profile", id="profile"),
        pytest.param("n_prefill = 2", "n_prefill = 4", "start.n_prefill", id="nobody decodes"),
        pytest.param("[100, 10.0]", "[0, 10.0]", "profiles.fast.prefill[1]", id="knots go back"),
        pytest.param("batch = 2", "batch = 0", "profiles.fast.decode", id="no slots"),
        pytest.param("bytes_per_token = 1000000\n", "", "model.bytes_per_token", id="no KV size"),
        pytest.param("[model]", "[model", "is not valid TOML", id="no TOML"),
    ],
)
def test_a_bad_scenario_names_file_and_field(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = write_config(tmp_path)
    scenario = tmp_path / "scenario.toml"
    text = scenario.read_text()
    assert old in text
    scenario.write_text(text.replace(old, new, 1))
    with pytest.raises(LabError) as refused:
        load_config(path)
    assert says in str(refused.value)
    assert "scenario.toml" in str(refused.value)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ("cache_scope = 'rack'", "cache_scope"),
        ("cache_capacity_tokens = 'some'", "cache_capacity_tokens"),
        ("linear_state = 'block'", "linear_state"),
        ("n_prefill = { pd = 4 }", "n_prefill.pd"),
        ("n_prefill = { far = 1 }", "n_prefill: no such pd cluster (got 'far')"),
        ("links = { 'pd->far' = { gbps = 1.0 } }", "links: no such link (got 'pd->far')"),
        ("clusters = ['far']", "clusters[0]: no such pd cluster"),
        ("ports = { admin = 70000 }", "ports.admin"),
        ("speed = 1", "`speed`"),
    ],
)
def test_a_bad_stack_file_names_the_setting(tmp_path: Path, extra: str, says: str) -> None:
    with pytest.raises(LabError) as refused:
        load_config(write_config(tmp_path, extra=extra))
    assert says in str(refused.value)
    assert "stack.toml" in str(refused.value)


def test_a_stack_file_overrides_the_scenario(tmp_path: Path) -> None:
    extra = """
        n_prefill = { pd = 3 }
        cache_capacity_tokens = "infinite"
        [links."far->pd"]
        gbps = 5.8
        rtt_ms = 30.0
        connections = 16
        per_connection_gbps = 1.5
    """
    config = load_config(write_config(tmp_path, extra=extra))
    (link,) = config.scenario.links
    assert (link.gbps, link.rtt_s, link.connections, link.per_connection_gbps) == (
        5.8,
        0.03,
        16,
        1.5,
    )
    assert config.scenario.clusters["pd"].n_prefill == 3
    assert config.cache_capacity_tokens is None
    assert config.linear_state == "none"


def test_tokens_are_ids_or_words() -> None:
    assert of_ids([1, 2, 3, 4, 5], block_tokens=2).tokens == 5
    assert of_text(" one  two\nthree ", block_tokens=2).tokens == 3
    assert of_text("", block_tokens=2).tokens == 0


@pytest.mark.parametrize(
    ("a", "b", "n_shared"),
    [
        pytest.param([1, 2, 3, 4], [1, 2, 3, 4, 5], 2, id="same blocks, partial one not counted"),
        pytest.param([1, 2, 3, 4], [1, 2, 3, 9], 1, id="second block differs"),
        pytest.param([9, 2, 3, 4], [1, 2, 3, 4], 0, id="same second block after another first"),
        pytest.param([1], [1], 0, id="below one block"),
    ],
)
def test_blocks_are_chained_over_the_prefix(a: list[int], b: list[int], n_shared: int) -> None:
    for make in (of_ids, lambda ids, **kw: of_text(" ".join(map(str, ids)), **kw)):
        one, two = make(a, block_tokens=2).blocks, make(b, block_tokens=2).blocks
        same = [x == y for x, y in zip(one, two, strict=False)]
        assert same == [True] * n_shared + [False] * (len(same) - n_shared)


def test_a_cache_holds_prefixes_of_whole_blocks() -> None:
    cache = PrefixCache(capacity_tokens=None, block_tokens=4)
    cache.insert(prompt(10))
    assert cache.held_tokens(prompt(100)) == 8
    assert cache.held_tokens(prompt(7)) == 4
    assert cache.held_tokens(prompt(10, first=1)) == 0


def test_a_prefill_computes_at_least_one_token() -> None:
    cache = PrefixCache(capacity_tokens=None, block_tokens=4)
    cache.insert(prompt(8))
    assert (cache.held_tokens(prompt(8)), cache.cached_tokens(prompt(8))) == (8, 4)
    assert cache.cached_tokens(prompt(9)) == 8


def test_a_bounded_cache_forgets_the_oldest_prefix_from_its_end() -> None:
    cache = PrefixCache(capacity_tokens=20, block_tokens=4)  # five blocks
    cache.insert(prompt(12))
    cache.insert(prompt(8, first=1000))
    cache.insert(prompt(4, first=2000))
    assert len(cache) == 5
    assert cache.held_tokens(prompt(12)) == 8
    assert cache.held_tokens(prompt(8, first=1000)) == 8


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = PrefixCache(capacity_tokens=0, block_tokens=4)
    cache.insert(prompt(12))
    assert len(cache) == 0
