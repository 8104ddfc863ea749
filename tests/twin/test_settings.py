"""What the twin reads of a scenario: strictly, and where the core did not look."""

from __future__ import annotations

import math

import pytest

from routing.core.scenario.document import parse_scenario
from routing.core.scenario.tables import ScenarioError
from routing.twin.arrivals import Curve, Steady, Switching
from routing.twin.faults import AgentSilent, ClusterDown, InstancesDown, LinkCapacity, LinkLoss
from routing.twin.lengths import DrawnTokens, DriftingTokens, FixedTokens
from routing.twin.settings import CacheSettings, Delays, Settings, parse_settings
from routing.twin.sites import Sessions, Site
from tests.twin.fleets import ONE_PD, TWO_PD, WORKLOAD, document


def settings(extra: str = "", *, fleet: str = ONE_PD + WORKLOAD) -> Settings:
    given = document(extra, fleet=fleet)
    return parse_settings(given, parse_scenario(given))


def site(extra: str) -> Site:
    found = settings(extra).sites["pd"]
    assert isinstance(found, Site)
    return found


def test_a_scenario_that_says_nothing_is_poisson_without_cache_or_faults() -> None:
    found = settings()
    assert site("").pattern == Steady(4.0)
    assert site("").output == FixedTokens(200.0)
    assert found.cache is None
    assert found.faults == ()
    assert found.delays == Delays(1.0, 0.0, 0.5, 30.0, 2.0)


@pytest.mark.parametrize(
    ("arrivals", "pattern"),
    [
        ('kind = "poisson"', Steady(4.0)),
        ('kind = "gamma"\ncv = 3.0', Steady(4.0, cv=3.0)),
        (
            'kind = "mmpp"\nburst_factor = 3.0\nmean_on_s = 10\nmean_off_s = 30',
            Switching((8.0, 8.0 / 3.0), (10.0, 30.0)),
        ),
        (
            'kind = "mmpp"\nrates_rps = [9.0, 1.0]\nmean_on_s = 10\nmean_off_s = 30',
            Switching((9.0, 1.0), (10.0, 30.0)),
        ),
        (
            'kind = "rate_curve"\nfactors = [[0, 0.5], [60, 2.0]]\nperiod_s = 120',
            Curve(((0.0, 2.0), (60.0, 8.0)), period_s=120.0),
        ),
        (
            'kind = "rate_curve"\nrates_rps = [[0, 1], [60, 1], [60, 5]]\ncv = 2.0',
            Curve(((0.0, 1.0), (60.0, 1.0), (60.0, 5.0)), cv=2.0),
        ),
    ],
)
def test_every_kind_of_arrivals(arrivals: str, pattern: object) -> None:
    assert site(f"[arrivals]\n{arrivals}").pattern == pattern


def test_lengths_may_drift() -> None:
    prompt = site("[arrivals]\ndrift = [[0, 8.0], [600, 9.0]]").prompt
    assert isinstance(prompt, DriftingTokens)
    assert prompt.drift == ((0.0, 8.0), (600.0, 9.0))


def test_sessions_take_blocks_answers_and_rate_from_the_rest_of_the_scenario() -> None:
    found = settings(
        '[arrivals]\nkind = "sessions"\nturns = 5\ngrowth_tokens = 300\nthink_s = 20\n'
        "shared_tokens = 1024\n[cache]\nblock_tokens = 256"
    ).sites["pd"]
    assert isinstance(found, Sessions)
    assert (found.rate_rps, found.turns, found.block_tokens) == (4.0, 5.0, 256)
    assert found.growth == FixedTokens(300.0)
    assert found.answer_tokens_per_s == 40.0
    assert found.lead_s == 4 * 5 * (20 + 200 / 40)
    assert isinstance(found.first, DrawnTokens), "the workload's lengths where it says none"


def test_each_pd_cluster_has_its_own_arrivals_in_the_scenarios_order() -> None:
    sites = settings('[[arrivals]]\ncluster = "pd2"\nkind = "gamma"\ncv = 2.0', fleet=TWO_PD).sites
    assert list(sites) == ["pd", "pd2"]
    assert isinstance(sites["pd"], Site)
    assert isinstance(sites["pd2"], Site)
    assert sites["pd"].pattern == Steady(3.0)
    assert sites["pd2"].pattern == Steady(1.0, cv=2.0)
    assert isinstance(sites["pd2"].output, DrawnTokens), "the distribution, not its mean"


def test_one_table_holds_for_all_pd_clusters() -> None:
    sites = settings('[arrivals]\nkind = "trace"', fleet=TWO_PD).sites
    assert sites == {"pd": None, "pd2": None}


def test_a_cache_knows_its_defaults() -> None:
    assert settings("[cache]").cache == CacheSettings({}, 512, "exact", "cluster", "local_prefix")
    stateless = ONE_PD.replace("state_bytes = 1000000", "state_bytes = 0") + WORKLOAD
    cache = settings("[cache]\ncapacity_tokens = 5000", fleet=stateless).cache
    assert cache is not None
    assert cache.linear_state == "none"
    assert cache.capacity_tokens == {"far": 5000.0, "pd": 5000.0}


def test_a_cache_may_differ_by_cluster() -> None:
    cache = settings(
        '[cache]\ncapacity_tokens = { pd = 9000 }\nscope = "instance"\ndecode_holds = "nothing"'
    ).cache
    assert cache == CacheSettings({"pd": 9000.0}, 512, "exact", "instance", "nothing")


def test_faults_are_told_apart_and_put_in_order_of_time() -> None:
    faults = settings(
        """
[[faults]]
kind = "link_gbps"
link = "far->pd"
gbps = 2.0
at_s = 100
for_s = 60
[[faults]]
kind = "prefill_down"
cluster = "far"
at_s = 10
[[faults]]
kind = "decode_down"
cluster = "pd"
instances = 2
at_s = 20
for_s = 5
[[faults]]
kind = "agent_silent"
cluster = "pd"
at_s = 30
for_s = 5
[[faults]]
kind = "cluster_down"
cluster = "far"
at_s = 40
for_s = 5
[[faults]]
kind = "link_loss"
link = "far->pd"
loss_ratio = 0.01
at_s = 50
for_s = 5
[[faults]]
kind = "link_down"
link = "far->pd"
at_s = 60
for_s = 2
times = 3
every_s = 10
"""
    ).faults
    assert faults == (
        InstancesDown("far", "prefill", 1, 10.0, math.inf),
        InstancesDown("pd", "decode", 2, 20.0, 5.0),
        AgentSilent("pd", 30.0, 5.0),
        ClusterDown("far", 40.0, 5.0),
        LinkLoss("far->pd", 0.01, 50.0, 5.0),
        LinkCapacity("far->pd", 0.0, 60.0, 2.0),
        LinkCapacity("far->pd", 0.0, 70.0, 2.0),
        LinkCapacity("far->pd", 0.0, 80.0, 2.0),
        LinkCapacity("far->pd", 2.0, 100.0, 60.0),
    )


def test_delays_are_read() -> None:
    delays = settings("[delays]\nagent_s = 0\nagent_loss_ratio = 0.2\ndrain_s = 5").delays
    assert delays == Delays(agent_s=0.0, agent_loss_ratio=0.2, gate_s=0.5, drain_s=5.0, tick_s=2.0)


_MMPP = '[arrivals]\nkind = "mmpp"\nmean_on_s = 10\nmean_off_s = 30\n'
_CURVE = '[arrivals]\nkind = "rate_curve"\n'
_SESSIONS = '[arrivals]\nkind = "sessions"\nturns = 5\ngrowth_tokens = 300\nthink_s = 20\n'


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ('[arrivals]\nkind = "bursty"', "arrivals.kind", "bursty"),
        ('[arrivals]\nkind = "poisson"\ncv = 2.0', "arrivals.cv", 2.0),
        ("[arrivals]\nratio = 2.0", "arrivals.ratio", 2.0),
        ('[arrivals]\nkind = "gamma"', "arrivals.cv", None),
        ('[arrivals]\nkind = "gamma"\ncv = -1.0', "arrivals.cv", -1.0),
        ('[arrivals]\nkind = "gamma"\ncv = 1e9', "arrivals.cv", 1e9),
        ('[arrivals]\ncluster = "far"', "arrivals.cluster", "far"),
        ('[[arrivals]]\nkind = "poisson"', "arrivals[0].cluster", None),
        (
            '[[arrivals]]\ncluster = "pd"\n[[arrivals]]\ncluster = "pd"',
            "arrivals[1].cluster",
            "pd",
        ),
        (_MMPP, "arrivals.burst_factor", None),
        (f"{_MMPP}burst_factor = 1", "arrivals.burst_factor", 1),
        (f"{_MMPP}burst_factor = 2\nrates_rps = [2, 1]", "arrivals.rates_rps", [2, 1]),
        (f"{_MMPP}rates_rps = [1, 2]", "arrivals.rates_rps", [1, 2]),
        (f"{_CURVE}factors = []", "arrivals.factors", []),
        (f"{_CURVE}factors = [[0, 1], [5, -1]]", "arrivals.factors[1]", [5.0, -1.0]),
        (f"{_CURVE}factors = [[9, 1], [5, 1]]", "arrivals.factors[1]", [5.0, 1.0]),
        (f"{_CURVE}rates_rps = [[0, 0], [5, 0]]", "arrivals.rates_rps", [[0, 0], [5, 0]]),
        (f"{_CURVE}factors = [[0, 1], [9, 1]]\nperiod_s = 5", "arrivals.period_s", 5),
        ("[arrivals]\ndrift = [[0, -40.0]]", "arrivals.drift[0]", [0.0, -40.0]),
        (f"{_SESSIONS}drift = [[0, 8.0]]", "arrivals.drift", [[0, 8.0]]),
        (f"{_SESSIONS}first_tokens = 0", "arrivals.first_tokens", 0),
        (f"{_SESSIONS}shared_tokens = 200000", "arrivals.shared_tokens", 200000),
        ("[cache]\nsize = 5", "cache.size", 5),
        ("[cache]\nblock_tokens = 0", "cache.block_tokens", 0),
        ("[cache]\ncapacity_tokens = 100", "cache.capacity_tokens", 100),
        ("[cache]\ncapacity_tokens = { no = 1000 }", "cache.capacity_tokens.no", 1000),
        ('[cache]\nscope = "fleet"', "cache.scope", "fleet"),
        ("[delays]\nagent = 1", "delays.agent", 1),
        ("[delays]\ntick_s = 0", "delays.tick_s", 0),
        ("[delays]\nagent_loss_ratio = 1.0", "delays.agent_loss_ratio", 1.0),
        ('[[faults]]\nkind = "fire"\nat_s = 1', "faults[0].kind", "fire"),
        ('[[faults]]\nkind = "link_down"\nat_s = 1', "faults[0].link", None),
        ('[[faults]]\nkind = "link_down"\nlink = "pd->far"\nat_s = 1', "faults[0].link", "pd->far"),
        ('[[faults]]\nkind = "link_down"\nlink = "far->pd"', "faults[0].at_s", None),
        (
            '[[faults]]\nkind = "link_down"\nlink = "far->pd"\nat_s = 1\ngbps = 2',
            "faults[0].gbps",
            2,
        ),
        ('[[faults]]\nkind = "decode_down"\ncluster = "far"\nat_s = 1', "faults[0].cluster", "far"),
        ('[[faults]]\nkind = "prefill_down"\ncluster = "x"\nat_s = 1', "faults[0].cluster", "x"),
        (
            '[[faults]]\nkind = "prefill_down"\ncluster = "far"\ninstances = 3\nat_s = 1',
            "faults[0].instances",
            3,
        ),
        (
            '[[faults]]\nkind = "agent_silent"\ncluster = "pd"\nat_s = 1\nfor_s = 9\ntimes = 2\n'
            "every_s = 9",
            "faults[0].every_s",
            9,
        ),
        (
            '[[faults]]\nkind = "link_loss"\nlink = "far->pd"\nat_s = 1\nloss_ratio = 1.5',
            "faults[0].loss_ratio",
            1.5,
        ),
    ],
)
def test_what_cannot_be_meant_is_named(extra: str, field: str, value: object) -> None:
    with pytest.raises(ScenarioError) as caught:
        settings(extra)
    assert caught.value.field == field
    assert caught.value.value == value


def test_drift_needs_log_normal_lengths() -> None:
    with pytest.raises(ScenarioError, match="lognormal"):
        settings('[[arrivals]]\ncluster = "pd2"\ndrift = [[0, 8.0]]', fleet=TWO_PD)


def test_one_cluster_cannot_be_drawn_while_another_follows_a_trace() -> None:
    with pytest.raises(ScenarioError, match="every PD cluster"):
        settings('[[arrivals]]\ncluster = "pd2"\nkind = "trace"', fleet=TWO_PD)
