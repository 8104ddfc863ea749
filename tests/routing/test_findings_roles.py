"""Pools and routers as findings: who takes requests, what a threshold means, who misleads."""

from __future__ import annotations

from typing import Any

import pytest

from routing import scheduler
from routing.models import Fleet, ManagedRouter
from tests.routing.cases import NOW, NOW_S, after, make_fleet
from tests.routing.test_findings import clear, engine, found, made, unknown

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def router(**facts: Any) -> ManagedRouter:
    known: dict[str, Any] = {
        "cluster": "pd",
        "name": "smg-1",
        "kind": "smg",
        "url": "http://smg",
        "make_version": "1.13.0",
        "state": "sync",
        "since": NOW,
        "observed_at": NOW,
        "capabilities": {
            "threshold": "none",
            "roles": "live",
            "why": "",
            "threshold_means": "It has none.",
        },
        "observed": {"workers": {}, "threshold": None, "facts": {}, "findings": []},
    }
    return ManagedRouter.objects.create(fleet_id="f1", **{**known, **facts})


def lists(**statuses: str) -> dict[str, Any]:
    """An observation; names begin with the letter of their role."""
    roles = {"p": "prefill", "d": "decode"}
    workers = {
        f"http://{name}": {"role": roles[name[0]], "status": status, "requests": None}
        for name, status in statuses.items()
    }
    return {"workers": workers, "threshold": None, "facts": {}, "findings": []}


class TestRoutersAndRoles:
    def test_a_router_whose_only_prefill_still_starts(self, fleet: Fleet) -> None:
        """sglang#33740: it says that it is healthy."""
        router(observed=lists(p0="starting", d0="ready"))
        pools = [x for x in found(made(), "RoleNotReady") if "smg-1" in x.sentence]
        assert [(x.subject, x.severity) for x in pools] == [("f1/pd", "bad")]
        assert "No prefill instance takes requests by f1/pd/smg-1 (p0 starting)" in (
            pools[0].sentence
        )

    def test_both_roles_ready_is_well(self, fleet: Fleet) -> None:
        router(observed=lists(p0="ready", d0="ready"))
        report = made()
        assert found(report, "RoleNotReady") == []
        assert len([x for x in clear(report, "RoleNotReady") if "smg-1" in x.what]) == 2

    def test_routers_that_list_no_prefill_at_all(self, fleet: Fleet) -> None:
        router(observed=lists(d0="ready"))
        run(0.0)
        (one,) = found(made(), "RoleNotReady")
        assert one.sentence == "No prefill instance is listed by its routers, and 3 are wanted"

    def test_engines_that_are_all_down(self, fleet: Fleet) -> None:
        engine("f1/pd/d0", until_s=-130.0)
        engine("f1/pd/d0", since_s=-100.0, state="down")
        (one,) = found(made(), "RoleNotReady")
        assert (
            "No decode instance takes requests by the engines' readings (d0 down)" in one.sentence
        )
        assert one.since_s == NOW_S - 100.0

    def test_of_a_drained_cluster_nothing_is_wanted(self) -> None:
        make_fleet(pd={"drained": True})
        engine("f1/pd/d0", state="down")
        assert found(made(), "RoleNotReady") == []

    def test_a_scrape_that_fails_says_nothing_of_the_role(self, fleet: Fleet) -> None:
        engine("f1/pd/d0", state="failed")
        report = made()
        assert found(report, "RoleNotReady") == []
        assert any("d0 unread" in x.why for x in unknown(report, "RoleNotReady"))

    def test_a_router_that_does_not_answer_is_unknown(self, fleet: Fleet) -> None:
        router(observed=lists(p0="ready", d0="ready"), away_since=NOW)
        assert len(unknown(made(), "RoleNotReady")) >= 2

    def test_what_a_threshold_means_is_shown_in_the_adapters_words(self, fleet: Fleet) -> None:
        run(0.0)
        can = {"threshold": "roll", "roles": "none", "why": "it has none"}
        means = "Local only below N uncached tokens that are a small part of the prompt."
        router(
            name="dyn",
            kind="dynamo",
            url="http://dyn",
            capabilities={**can, "threshold_means": means},
            observed={**lists(p0="ready", d0="ready"), "threshold": {"tokens": 2048, "words": ""}},
        )
        router()
        report = made()
        (one,) = found(report, "ThresholdMeansOther")
        assert (one.subject, one.severity) == ("f1/pd/dyn", "warn")
        assert means.rstrip(".") in one.sentence
        assert [x.what for x in clear(report, "ThresholdMeansOther")] == ["smg: It has none"]

    def test_what_an_adapter_knows_and_its_router_does_not_say(self, fleet: Fleet) -> None:
        router(observed={**lists(p0="ready", d0="ready"), "findings": ["It drops every label."]})
        (one,) = found(made(), "RouterMisleads")
        assert (one.subject, one.sentence) == ("f1/pd/smg-1", "It drops every label")

    def test_roles_that_a_router_cannot_be_told(self, fleet: Fleet) -> None:
        can = {
            "threshold": "none",
            "roles": "none",
            "why": "it can only remove",
            "threshold_means": "",
        }
        router(capabilities=can)
        (one,) = [x for x in found(made(), "PrerequisiteMissing") if x.subject == "f1/pd/smg-1"]
        assert "it can only remove" in one.sentence


def run(at_s: float) -> None:
    scheduler.run_tick("f1", now=after(at_s), tick_s=2.0)
