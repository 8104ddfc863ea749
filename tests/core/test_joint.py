"""The joint plan of several PD and PrfaaS clusters: brute force, and the laws it must keep."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.core.model.curves import Array, Curve
from routing.core.model.kvcache import KvModel, bytes_per_s
from routing.core.model.lengths import BucketLengths, LogNormalLengths
from routing.core.model.optimize import Freedom, Optimum, optimise
from routing.core.model.sharing import Sharing
from routing.core.model.site_work import Remote, Site
from routing.core.model.throughput import FleetModel, predict
from tests.core.cases import demo_model, mean_below

T_LOW, T_HIGH = 512.0, 131_072.0
CASE = demo_model()
H20, H200 = CASE.sites[0].profile, CASE.sites[0].remotes[0].profile
FAST = dataclasses.replace(
    H20, prefill=type(H20.prefill).through((8_192, 65_536), (0.5, 3.5)), name="fast"
)
BUCKET_EDGES = np.geomspace(256, 65_536, 9)

lengths = st.one_of(
    st.builds(
        LogNormalLengths, st.floats(8.3, 10.6), st.floats(0.5, 1.4), st.just(128), st.just(131_072)
    ),
    st.lists(st.floats(0.0, 10.0), min_size=8, max_size=8)
    .filter(lambda w: sum(w) > 1.0)
    .map(lambda w: BucketLengths(BUCKET_EDGES, np.array(w) / sum(w))),
)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[FleetModel, dict[str, Freedom]]:
    """One or two PD clusters, one or two PrfaaS clusters, links of which some really bind."""
    n_prfaas = draw(st.integers(1, 2))
    kv = KvModel(draw(st.floats(1_000, 60_000)), draw(st.floats(0, 4e8)))
    profiles = [draw(st.sampled_from([H200, FAST.prefill])) for _ in range(n_prfaas)]
    sites, freedom, link_gbps = [], {}, {}
    for k in range(draw(st.integers(1, 2))):
        name, size = f"pd{k}", draw(st.integers(2, 5))
        used = [m for m in range(n_prfaas) if m == 0 or draw(st.booleans())]
        remotes = tuple(
            Remote(f"f{m}", f"f{m}->{name}", profiles[m], 1.0 / len(used)) for m in used
        )
        link_gbps.update({r.link: draw(st.floats(0.3, 60.0)) for r in remotes})
        site = Site(name, draw(st.floats(0.1, 4.0)), draw(lengths), 1024, H20, remotes)
        sites.append(site)
        freedom[name] = Freedom(T_LOW, T_HIGH, size, 1, size - 1)
    prefill = {f"f{m}": float(draw(st.integers(1, 6))) for m in range(n_prfaas)}
    used_remotes = {r.name for site in sites for r in site.remotes}
    prefill = {name: n for name, n in prefill.items() if name in used_remotes}
    return FleetModel(kv, tuple(sites), prefill, link_gbps), freedom


def brute_force(model: FleetModel, freedom: dict[str, Freedom]) -> float:
    """Headroom of the best of a grid of roles, thresholds and shares, every combination."""
    options = [list(_options(model, site, freedom[site.name])) for site in model.sites]
    best = 0.0
    for ways in itertools.product(*options):  # roles of every site; the rest is an array each
        own = _outer([way[0] for way in ways])
        fullest = own.copy()
        for name, instances in model.prefill.items():
            load = _outer([way[1].get(name, np.zeros(1)) for way in ways], add=True)
            fullest = np.maximum(fullest, load / instances)
        best = max(best, 1.0 / float(fullest.min()))
    return best


def _outer(parts: list[Array], *, add: bool = False) -> Array:
    """One axis per site, the largest or the sum of the parts in each combination."""
    total = parts[0]
    for part in parts[1:]:
        left, right = total[..., None], part.reshape((1,) * total.ndim + part.shape)
        total = left + right if add else np.maximum(left, right)
    return total


def _options(model: FleetModel, site: Site, free: Freedom):
    """Per role split: utilisation of what the site has to itself, seconds on each PrfaaS cluster.

    Flat arrays over (t, share of the first remote).
    """
    grid = np.unique(np.round(np.geomspace(T_LOW, T_HIGH, 40)))
    first = np.linspace(0.0, 1.0, 21) if len(site.remotes) > 1 else np.ones(1)
    given = [first, 1.0 - first][: len(site.remotes)]
    demand = site.demand_rps

    def above(curve: Curve) -> Array:
        return mean_below(site.lengths, curve, [math.inf]) - mean_below(site.lengths, curve, grid)

    local = demand * mean_below(site.lengths, site.profile.prefill.curve, grid)
    sent = demand * above(model.kv.curve)
    links = np.zeros((len(grid), len(first)))
    seconds = {}
    for remote, share in zip(site.remotes, given, strict=True):
        use = np.outer(sent, share) / bytes_per_s(model.link_gbps[remote.link])
        links = np.maximum(links, use)
        seconds[remote.name] = np.outer(demand * above(remote.profile.curve), share).ravel()
    for n_decode in range(free.decode_low, free.decode_high + 1):
        own = np.maximum(
            links,
            np.maximum(local / (free.instances - n_decode), demand * site.decode_s / n_decode)[
                :, None
            ],
        )
        yield own.ravel(), seconds


@given(fleets())
@settings(max_examples=320, deadline=None, derandomize=True)
def test_never_below_brute_force(fleet) -> None:
    model, freedom = fleet
    found = optimise(model, freedom)
    assert (found.prediction.headroom or 0.0) >= brute_force(model, freedom) * (1 - 0.005)
    _is_allowed(model, freedom, found)


def _is_allowed(model: FleetModel, freedom: dict[str, Freedom], found: Optimum) -> None:
    for site in model.sites:
        setting, free = found.settings[site.name], freedom[site.name]
        assert free.t_low <= setting.threshold <= free.t_high
        assert setting.threshold == round(setting.threshold)
        assert free.decode_low <= setting.n_decode <= free.decode_high
        assert setting.n_prefill + setting.n_decode == free.instances
        assert setting.shares is not None
        assert setting.shares.keys() == {remote.name for remote in site.remotes}
        assert min(setting.shares.values()) >= 0.0
        assert sum(setting.shares.values()) == pytest.approx(1.0)


@given(fleets(), st.sampled_from(["instances", "prefill", "link"]), st.integers(0, 10))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_more_capacity_never_lowers_headroom(fleet, what, which) -> None:
    model, freedom = fleet
    before = optimise(model, freedom).prediction.headroom or 0.0
    if what == "instances":
        name = model.sites[which % len(model.sites)].name
        free = freedom[name]
        more = dataclasses.replace(
            free, instances=free.instances + 1, decode_high=free.decode_high + 1
        )
        freedom = {**freedom, name: more}
    elif what == "prefill":
        name = sorted(model.prefill)[which % len(model.prefill)]
        model = dataclasses.replace(model, prefill={**model.prefill, name: model.prefill[name] + 1})
    else:
        name = sorted(model.link_gbps)[which % len(model.link_gbps)]
        model = dataclasses.replace(
            model, link_gbps={**model.link_gbps, name: model.link_gbps[name] * 1.5}
        )
    # Thresholds are whole tokens: a token more or less may cost some 1e-5 of headroom.
    assert (optimise(model, freedom).prediction.headroom or 0.0) >= before * (1 - 1e-4)


@given(fleets(), st.floats(0.01, 50.0))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_scaling_every_demand_leaves_the_plan(fleet, factor) -> None:
    model, freedom = fleet
    sites = tuple(
        dataclasses.replace(site, demand_rps=site.demand_rps * factor) for site in model.sites
    )
    before = optimise(model, freedom)
    after = optimise(dataclasses.replace(model, sites=sites), freedom)
    for name, setting in before.settings.items():
        scaled = after.settings[name]
        assert (scaled.n_prefill, scaled.n_decode) == (setting.n_prefill, setting.n_decode)
        assert scaled.threshold == setting.threshold
        assert scaled.shares == pytest.approx(setting.shares, abs=1e-6)
    want = (before.prediction.headroom or 0.0) / factor
    assert after.prediction.headroom == pytest.approx(want, rel=1e-9)


@given(lengths, st.integers(2, 4), st.integers(1, 4), st.integers(2, 8), st.floats(0.5, 40.0))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_symmetric_fleets_give_symmetric_plans(some, n_pd, n_prfaas, size, gbps) -> None:
    names = [f"f{m}" for m in range(n_prfaas)]
    sites = tuple(
        Site(
            f"pd{k}",
            1.5,
            some,
            1024,
            H20,
            tuple(Remote(n, f"{n}->pd{k}", H200, 1.0 / n_prfaas) for n in names),
        )
        for k in range(n_pd)
    )
    model = FleetModel(
        CASE.kv,
        sites,
        dict.fromkeys(names, 2.0),
        {remote.link: gbps for site in sites for remote in site.remotes},
    )
    freedom = {site.name: Freedom(T_LOW, T_HIGH, size, 1, size - 1) for site in sites}
    found = optimise(model, freedom)
    first = found.settings["pd0"]
    for setting in found.settings.values():
        assert (setting.threshold, setting.n_prefill) == (first.threshold, first.n_prefill)
        assert setting.shares == pytest.approx(dict.fromkeys(names, 1.0 / n_prfaas), abs=1e-6)


def test_a_crossed_fleet_is_treated_alike_too() -> None:
    """Equal only after exchanging both PD and both PrfaaS clusters: near links are wide."""
    sites = tuple(
        Site(
            f"pd{k}",
            2.0,
            LogNormalLengths(9.9, 1.0, 128, 131_072),
            1024,
            H20,
            tuple(Remote(f"f{m}", f"f{m}->pd{k}", H200, 0.5) for m in (0, 1)),
        )
        for k in (0, 1)
    )
    links = {f"f{m}->pd{k}": 40.0 if m == k else 1.5 for k in (0, 1) for m in (0, 1)}
    model = FleetModel(CASE.kv, sites, {"f0": 3.0, "f1": 3.0}, links)
    found = optimise(model, {s.name: Freedom(T_LOW, T_HIGH, 8, 1, 7) for s in sites})
    one, other = found.settings["pd0"], found.settings["pd1"]
    assert one.threshold == other.threshold
    assert one.shares is not None
    assert other.shares is not None
    assert one.shares["f0"] == pytest.approx(other.shares["f1"], abs=1e-6)
    assert one.shares["f0"] > 0.6, "the narrow link cannot take half"


def case_site(name: str, demand_rps: float, remotes: tuple[Remote, ...]) -> Site:
    return Site(name, demand_rps, LogNormalLengths(9.9, 1.0, 128, 131_072), 1024, H20, remotes)


def test_shares_go_where_the_capacity_is() -> None:
    """One PD cluster, a PrfaaS cluster of 6 and one of 2 instances: three quarters and one."""
    remotes = (Remote("big", "big->pd", H200, 0.5), Remote("small", "small->pd", H200, 0.5))
    model = FleetModel(
        CASE.kv,
        (case_site("pd", 3.0, remotes),),
        {"big": 6.0, "small": 2.0},
        {"big->pd": 100.0, "small->pd": 100.0},
    )
    freedom = {"pd": Freedom.of_threshold(T_LOW, T_HIGH, n_prefill=4, n_decode=12)}
    found = optimise(model, freedom)
    shares = found.settings["pd"].shares
    assert shares is not None
    assert shares["big"] == pytest.approx(0.75, abs=1e-3)
    halves = predict(
        model, {"pd": dataclasses.replace(found.settings["pd"], shares={"big": 0.5, "small": 0.5})}
    )
    assert (found.prediction.headroom or 0.0) > 1.2 * (halves.headroom or 0.0)


def test_a_site_that_can_go_elsewhere_makes_room_for_one_that_cannot() -> None:
    both = (Remote("a", "a->free", H200, 0.5), Remote("b", "b->free", H200, 0.5))
    model = FleetModel(
        CASE.kv,
        (
            case_site("free", 2.0, both),
            case_site("bound", 2.0, (Remote("a", "a->bound", H200, 1.0),)),
        ),
        {"a": 3.0, "b": 3.0},
        {"a->free": 100.0, "b->free": 100.0, "a->bound": 100.0},
    )
    found = optimise(model, {s.name: Freedom(T_LOW, T_HIGH, 8, 1, 7) for s in model.sites})
    shares = found.settings["free"].shares
    assert shares is not None
    assert shares["b"] > 0.95


def test_a_narrow_link_takes_only_what_it_carries() -> None:
    remotes = (Remote("a", "a->pd", H200, 0.5), Remote("b", "b->pd", H200, 0.5))
    model = FleetModel(
        CASE.kv,
        (case_site("pd", 3.0, remotes),),
        {"a": 4.0, "b": 4.0},
        {"a->pd": 100.0, "b->pd": 2.0},
    )
    found = optimise(model, {"pd": Freedom(T_LOW, T_HIGH, 8, 1, 7)})
    headroom = found.prediction.headroom or 0.0
    used = found.prediction.link_utilisation_ratio["b->pd"]
    assert used is not None
    assert headroom * used == pytest.approx(1.0, abs=0.01)


@given(
    st.integers(1, 4),
    st.integers(2, 4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_nearest_shares_are_carried_and_no_shares_that_are_lie_nearer(
    n_sites, n_prfaas, rng
) -> None:
    seconds = np.array([[rng.uniform(0.05, 2.0) for _ in range(n_prfaas)] for _ in range(n_sites)])
    link_use = np.array([[rng.uniform(0.1, 3.0) for _ in range(n_prfaas)] for _ in range(n_sites)])
    instances = np.array([rng.uniform(0.5, 4.0) for _ in range(n_prfaas)])
    sharing = Sharing(seconds, link_use, instances)
    least, vertex, prices = sharing.least_load()
    if least > 1.0:
        return
    assert sharing.load(vertex) <= max(least, 1.0) + 1e-9
    assert sharing.least_load_by(prices) == pytest.approx(least)
    assert sharing.least_load_by(1.0 / (instances * n_prfaas)) <= least + 1e-9
    wanted = np.full(seconds.shape, 1.0 / n_prfaas)
    found = sharing.nearest_shares(wanted)
    assert np.all(found >= -1e-12)
    assert np.all(found <= sharing.most + 1e-6)
    assert found.sum(axis=1) == pytest.approx(np.ones(n_sites))
    assert np.all((seconds * found).sum(axis=0) <= instances * (1 + 1e-5))
    # The carried shares are a convex set: on the way to any other of them nothing comes nearer.
    weight = seconds.max(axis=1, keepdims=True)
    away = found - wanted
    towards = vertex - found
    assert float((weight * away * towards).sum()) >= -1e-4 * float(weight.sum())


def test_least_load_says_when_links_alone_fall_short() -> None:
    sharing = Sharing(np.array([[0.1, 0.1]]), np.array([[4.0, 4.0]]), np.array([1.0, 1.0]))
    assert sharing.least_load().load == pytest.approx(2.0)
    one_wide = Sharing(np.array([[0.1, 0.1]]), np.array([[1e-9, 9.0]]), np.array([1.0, 1.0]))
    assert one_wide.least_load().load < 1.0


def test_a_target_takes_the_least_remote_traffic_that_reaches_it() -> None:
    remotes = (Remote("a", "a->pd", H200, 0.5), Remote("b", "b->pd", H200, 0.5))
    model = FleetModel(
        CASE.kv,
        (case_site("pd", 2.0, remotes),),
        {"a": 2.0, "b": 2.0},
        {"a->pd": 100.0, "b->pd": 100.0},
    )
    freedom = {"pd": Freedom(T_LOW, T_HIGH, 8, 1, 7)}
    most, least = optimise(model, freedom), optimise(model, freedom, headroom_target=1.2)
    assert least.prediction.headroom == pytest.approx(1.2, rel=1e-3)
    assert sum(least.prediction.link_gbps.values()) < 0.9 * sum(most.prediction.link_gbps.values())


NOTHING = [
    ("no PrfaaS instance", {"prefill": {"a": 0.0}}, {}),
    ("no link", {"link_gbps": {"a->pd": 0.0}}, {}),
    ("neither", {"prefill": {"a": 0.0}, "link_gbps": {"a->pd": 0.0}}, {}),
    ("nobody prefills", {}, {"n_prefill": 0, "n_decode": 8}),
    ("nobody decodes", {}, {"n_prefill": 8, "n_decode": 0}),
]


@pytest.mark.parametrize(("case", "model", "roles"), NOTHING, ids=[case[0] for case in NOTHING])
def test_what_carries_nothing_is_a_plan_without_headroom(case, model, roles) -> None:
    fleet = FleetModel(
        CASE.kv,
        (case_site("pd", 3.0, (Remote("a", "a->pd", H200, 1.0),)),),
        {"a": 4.0},
        {"a->pd": 100.0},
    )
    fleet = dataclasses.replace(fleet, **model)
    free = Freedom.of_threshold(T_LOW, T_HIGH / 2, **{"n_prefill": 3, "n_decode": 5, **roles})
    found = optimise(fleet, {"pd": free})
    assert found.prediction.headroom == 0.0
    assert T_LOW <= found.settings["pd"].threshold <= T_HIGH / 2


def test_one_dead_prfaas_cluster_of_two_gets_nothing() -> None:
    remotes = (Remote("a", "a->pd", H200, 0.5), Remote("b", "b->pd", H200, 0.5))
    model = FleetModel(
        CASE.kv,
        (case_site("pd", 3.0, remotes),),
        {"a": 4.0, "b": 0.0},
        {"a->pd": 100.0, "b->pd": 100.0},
    )
    found = optimise(model, {"pd": Freedom(T_LOW, T_HIGH, 8, 1, 7)})
    shares = found.settings["pd"].shares
    assert shares is not None
    assert shares["a"] == pytest.approx(1.0, abs=1e-6)


def test_roles_stay_where_they_carry_as_much() -> None:
    """Decode limits at any of these splits of 16: who decodes now goes on, alone or with others."""
    local = FleetModel(CASE.kv, (case_site("pd", 3.0, ()),), {}, {})
    apart = FleetModel(
        CASE.kv,
        (
            case_site("pd", 3.0, (Remote("a", "a->pd", H200, 1.0),)),
            case_site("other", 3.0, (Remote("a", "a->other", H200, 1.0),)),
        ),
        {"a": 40.0},
        {"a->pd": 100.0, "a->other": 100.0},
    )
    t = (math.inf, math.inf)
    best = optimise(local, {"pd": Freedom(*t, 16, 1, 15)})
    n_decode = int(best.settings["pd"].n_decode)
    kept = optimise(local, {"pd": Freedom(*t, 16, 1, 15, decode_now=n_decode)})
    assert kept.settings["pd"].n_decode == n_decode
    # "other" is short of decode at 2 of 3 and decides the headroom; "pd" has more than it needs.
    freedom = {
        "other": Freedom.of_threshold(T_LOW, T_HIGH, n_prefill=1, n_decode=2),
        "pd": Freedom(T_LOW, T_HIGH, 16, 1, 15, decode_now=9),
    }
    assert optimise(apart, freedom, enough=0.0).settings["pd"].n_decode == 9
    freedom["pd"] = dataclasses.replace(freedom["pd"], decode_now=1)
    found = optimise(apart, freedom, enough=0.0)
    assert found.settings["pd"].n_decode == 2, "one does not carry it"


def test_an_overloaded_cluster_is_no_reason_to_overload_another() -> None:
    """Two pairs that share nothing: the second gets what it would get alone."""
    sites = (
        case_site("over", 6.0, (Remote("a", "a->over", H200, 1.0),)),
        case_site("fine", 2.5, (Remote("b", "b->fine", H200, 1.0),)),
    )
    model = FleetModel(CASE.kv, sites, {"a": 4.0, "b": 4.0}, {"a->over": 100.0, "b->fine": 100.0})
    freedom = {site.name: Freedom(T_LOW, T_HIGH, 8, 1, 7) for site in sites}
    found = optimise(model, freedom)
    assert (found.prediction.headroom or 0.0) < 0.6
    fine = found.settings["fine"]
    assert fine.threshold == pytest.approx(19_813, abs=1)
    assert (fine.n_prefill, fine.n_decode) == (3, 5)
    least = optimise(model, freedom, enough=1.1).settings["fine"]
    alone = FleetModel(CASE.kv, sites[1:], {"b": 4.0}, {"b->fine": 100.0})
    told = predict(alone, {"fine": least})
    assert told.headroom == pytest.approx(1.1, rel=1e-3), "enough, and no more Gbps than for that"


def test_a_site_stuck_at_its_link_does_not_hold_the_others() -> None:
    """All on one PrfaaS cluster with room: only the narrow link's site is held by it."""
    names = ("narrow", "wide", "wider")
    sites = tuple(case_site(n, 2.5, (Remote("a", f"a->{n}", H200, 1.0),)) for n in names)
    model = FleetModel(
        CASE.kv, sites, {"a": 12.0}, {"a->narrow": 1.0, "a->wide": 100.0, "a->wider": 100.0}
    )
    freedom = {n: Freedom.of_threshold(T_LOW, T_HIGH, n_prefill=3, n_decode=5) for n in names}
    found = optimise(model, freedom)
    held = found.settings["narrow"].threshold
    assert held > 1.5 * found.settings["wide"].threshold
    assert found.settings["wide"].threshold == found.settings["wider"].threshold


@pytest.mark.parametrize("seed", range(60))
def test_sites_that_are_alike_get_the_same_shares(seed) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), int(rng.integers(2, 5)))
    seconds, link_use = np.exp(rng.normal(0, 1, shape)), np.exp(rng.normal(-0.7, 0.8, shape))
    instances = np.exp(rng.normal(0, 0.5, shape[1]))
    least = Sharing(seconds, link_use, instances).least_load().load
    instances = instances * least * rng.uniform(1.01, 1.5)
    twins = Sharing(np.vstack([seconds] * 2), np.vstack([link_use] * 2), 2.0 * instances)
    found = twins.nearest_shares(np.full((2 * shape[0], shape[1]), 1.0 / shape[1]))
    assert found[: shape[0]] == pytest.approx(found[shape[0] :], abs=1e-5)
