"""Headroom in every draw of the lengths, against the plain model computed draw by draw."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from routing.core.model.curves import Curve
from routing.core.model.draws import FleetDraws
from routing.core.model.lengths import BucketLengths, LogNormalLengths
from routing.core.model.profiles import PrefillProfile
from routing.core.model.site_work import Remote, Site
from routing.core.model.throughput import FleetModel, Setting, predict
from routing.core.model.uncertainty import N_DRAWS, Outlook, outlook
from tests.core.cases import demo_model, exact_histogram

CASE = demo_model()
H200 = CASE.sites[0].remotes[0].profile


def model_and_outlooks() -> tuple[FleetModel, dict[str, Outlook]]:
    """Two PD clusters with traffic of their own, one of which may also send elsewhere."""
    known = {
        "x": outlook(exact_histogram(400)),
        "y": outlook(exact_histogram(300, LogNormalLengths(9.3, 0.8, 128, 131_072))),
    }
    both = (Remote("a", "a->x", H200, 0.7), Remote("b", "b->x", slow(), 0.3))
    sites = (
        Site("x", 2.0, known["x"].lengths, 1024, CASE.sites[0].profile, both),
        Site(
            "y",
            3.0,
            known["y"].lengths,
            1024,
            CASE.sites[0].profile,
            (Remote("a", "a->y", H200, 1.0),),
        ),
    )
    model = FleetModel(
        CASE.kv, sites, {"a": 4.0, "b": 2.0}, {"a->x": 9.0, "b->x": 5.0, "a->y": 20.0}
    )
    return model, known


def slow() -> PrefillProfile:
    return PrefillProfile.through((1_000, 50_000), (0.6, 6.0))


def one_by_one(model, known, settings) -> np.ndarray:
    found = []
    for i in range(N_DRAWS):
        sites = tuple(
            dataclasses.replace(
                site, lengths=BucketLengths(known[site.name].edges, known[site.name].draws[i])
            )
            for site in model.sites
        )
        found.append(predict(dataclasses.replace(model, sites=sites), settings).headroom)
    return np.array(found)


SETTINGS = [
    ("busy", Setting(19_800.0, 3, 5), Setting(6_000.0, 4, 4)),
    ("other shares", Setting(4_000.0, 3, 5, {"a": 0.1, "b": 0.9}), Setting(30_000.0, 4, 4)),
    ("one local", Setting(math.inf, 5, 3), Setting(12_000.0, 4, 4)),
    ("all remote", Setting(0.0, 1, 7), Setting(0.0, 1, 7)),
]


@pytest.mark.parametrize(("case", "x", "y"), SETTINGS, ids=[case[0] for case in SETTINGS])
def test_every_draw_is_what_the_model_says_of_it(case, x, y) -> None:
    model, known = model_and_outlooks()
    settings = {"x": x, "y": y}
    quick = FleetDraws(model, known).headroom(settings)
    assert quick == pytest.approx(one_by_one(model, known, settings), rel=1e-6)


def test_along_a_grid_it_is_the_same_at_every_t() -> None:
    model, known = model_and_outlooks()
    draws = FleetDraws(model, known)
    settings = {"x": SETTINGS[0][1], "y": SETTINGS[0][2]}
    grid = np.array([600.0, 5_000.0, 19_800.0, 131_072.0])
    loads = draws.at(settings)
    found = loads.along("y", settings["y"], grid)
    along = found.headroom
    for i, t in enumerate(grid):
        changed = dataclasses.replace(settings["y"], threshold=float(t))
        assert along[:, i] == pytest.approx(draws.headroom({**settings, "y": changed}))
    loads.take("y", found, 1)
    assert loads.headroom == pytest.approx(along[:, 1])


def test_profiles_that_bend_are_counted() -> None:
    model, known = model_and_outlooks()
    bent = PrefillProfile(Curve((), (0.2,), (1e-4,), (1e-9,)), (1_000.0, 100_000.0))
    sites = tuple(
        dataclasses.replace(site, profile=dataclasses.replace(site.profile, prefill=bent))
        for site in model.sites
    )
    model = dataclasses.replace(model, sites=sites)
    settings = {"x": SETTINGS[0][1], "y": SETTINGS[0][2]}
    quick = FleetDraws(model, known).headroom(settings)
    assert quick == pytest.approx(one_by_one(model, known, settings), rel=1e-6)
