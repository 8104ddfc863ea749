"""production-stack's router calls itself healthy while it serves nobody: it is only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from routing.adapters.base import Settings
from routing.adapters.production_stack import ProductionStack
from routing.adapters.surface import CannotDo, SurfaceError
from tests.routing.fake_pages import Pages
from tests.routing.fake_router import serving

CONFIG = {
    "routing_logic": "disaggregated_prefill_orchestrated",
    "service_discovery": "static",
    "static_backends": "http://10.0.0.1:8000, http://10.0.0.2:8000/",
    "static_model_labels": "prefill,decode",
    "prefill_model_labels": "prefill",
    "decode_model_labels": "decode",
}


@pytest.fixture
def router() -> Pages:
    return Pages({"GET /health": {"status": "healthy", "dynamic_config": CONFIG}})


@pytest.fixture
def surface(router: Pages) -> Iterator[ProductionStack]:
    with serving(router) as url:  # type: ignore[arg-type]
        yield ProductionStack(Settings(url=url))


def test_healthy_is_not_believed(surface: ProductionStack) -> None:
    actual = surface.read()
    roles = {url: (w.role, w.status) for url, w in actual.workers.items()}
    assert roles == {
        "http://10.0.0.1:8000": ("prefill", "starting"),
        "http://10.0.0.2:8000": ("decode", "starting"),
    }
    assert "503 PREFILL_SERVICE_UNAVAILABLE" in actual.findings[0]
    assert actual.ready("prefill") == []


def test_every_change_is_refused_with_the_reason(surface: ProductionStack, router: Pages) -> None:
    can = surface.capabilities(surface.read())
    assert (can.threshold, can.roles, can.is_readable) == ("none", "none", True)
    assert "answered 503 while it calls itself healthy" in can.why
    for change in (surface.cordon, lambda url: surface.list_as(url, "decode")):
        with pytest.raises(CannotDo, match="never changed"):
            change("http://10.0.0.1:8000")
    surface.hold("http://10.0.0.1:8000")
    assert {asked[0] for asked in router.asked} == {"GET"}


def test_without_a_dynamic_configuration_it_shows_nothing(
    surface: ProductionStack, router: Pages
) -> None:
    router.at["GET /health"] = {"status": "healthy"}
    actual = surface.read()
    assert (actual.workers, actual.findings) == ({}, ())
    assert not surface.capabilities(actual).is_readable


def test_another_routing_logic_is_no_finding(surface: ProductionStack, router: Pages) -> None:
    router.at["GET /health"] = {
        "status": "healthy",
        "dynamic_config": CONFIG | {"routing_logic": "roundrobin", "static_model_labels": None},
    }
    actual = surface.read()
    assert actual.findings == ()
    assert {w.role for w in actual.workers.values()} == {None}


def test_labels_that_do_not_fit(surface: ProductionStack, router: Pages) -> None:
    router.at["GET /health"] = {
        "status": "healthy",
        "dynamic_config": CONFIG | {"static_model_labels": "prefill"},
    }
    with pytest.raises(SurfaceError, match="has 1 entries for 2"):
        surface.read()
