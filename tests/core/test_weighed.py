"""Every verdict says what limits and which plans it weighed."""

from __future__ import annotations

import dataclasses

import pytest

from routing.core.decide import decide
from routing.core.scenario.document import parse_scenario
from routing.core.types import PrefillObservation
from tests.core.asked import ACTIVE, GAINED, says
from tests.core.cases import demo_document, link, pd, plan, seen


class TestEveryVerdict:
    @pytest.mark.parametrize(
        ("observation", "params", "label"),
        [
            (seen(), {}, "prefill"),
            (seen(pd=pd(n_prefill=6, n_decode=2)), {}, "decode"),
            (seen(), {"mode": "paused"}, "prefill"),
            (seen(pd=pd(demand_rps=None, demand_state="missing")), {}, "unknown"),
            (seen(pd=pd(demand_rps=0.0, demand_state="idle")), {}, "unknown"),
            (seen(link=link(capacity_gbps=0.0, tx_gbps=0.0)), {}, "link"),
            (seen(link=link(tx_gbps=95.0)), {}, "link"),
        ],
        ids=["healthy", "short of decode", "paused", "blind", "idle", "link down", "congested"],
    )
    def test_has_a_label_and_what_it_weighed(self, observation, params, label) -> None:
        verdict = says(observation, **params)
        assert verdict.bottleneck.label == label, verdict.bottleneck
        assert verdict.bottleneck.signs
        assert len(verdict.alternatives) <= 8
        names = [a.name for a in verdict.alternatives]
        assert (names[:1] == ["stay"]) is (verdict.current is not None)

    def test_what_ran_what_is_best_and_the_step_are_told_apart(self) -> None:
        verdict = says(seen(), running=plan(4000), memory=GAINED, roles_mode="fixed")
        rows = {a.name: a for a in verdict.alternatives}
        assert rows.keys() == {"stay", "best", "step", "more_prefill", "more_decode"}
        assert rows["stay"].why_not == "changed: PrefillImbalance"
        assert rows["step"].why_not == ""
        assert "t_max_step_factor" in rows["best"].why_not
        assert "6,000" in rows["step"].text
        gains = [rows[name].gain_ratio for name in ("stay", "step", "best")]
        assert gains == sorted(gains)
        assert gains[0] == pytest.approx(0.0)
        assert rows["best"].headroom == pytest.approx(verdict.best.headroom)
        assert rows["more_decode"].why_not == "roles are not the loop's to move here"

    def test_one_instance_more_or_less_is_weighed_at_its_best_t(self) -> None:
        """Paper, section 5: 3/5 carries 3.158 by the exact method, 4/4 3.125."""
        verdict = says(seen())
        rows = {a.name: a for a in verdict.alternatives}
        assert "pd 3/5 -> 4/4" in rows["more_prefill"].text
        assert rows["more_prefill"].headroom == pytest.approx(3.125 / 2.5, rel=0.01)
        assert "a move takes 4%" in rows["more_prefill"].why_not
        assert rows["more_decode"].headroom < rows["stay"].headroom

    def test_texts_stay_short_in_a_large_fleet(self) -> None:
        document = demo_document()
        document["clusters"][0]["instances"] = 80
        names = [f"pd{i}" for i in range(20)]
        first = document["clusters"].pop()
        document["clusters"] += [{**first, "name": name} for name in names]
        near = document["links"].pop()
        document["links"] += [{**near, "to": name} for name in names]
        traffic = document.pop("workload")
        document["workloads"] = [{**traffic, "cluster": name} for name in names]
        one = seen()
        many = dataclasses.replace(
            one,
            pd=dict.fromkeys(names, pd()),
            prefill={"prfaas": PrefillObservation(80, age_s=1.0)},
            links={f"prfaas->{name}": link() for name in names},
        )
        running = plan(4000)
        running = dataclasses.replace(
            running, clusters=dict.fromkeys(names, running.clusters["pd"])
        )
        verdict = decide(many, running, GAINED, ACTIVE, parse_scenario(document))
        assert verdict.action == "adopt"
        assert len(verdict.message) < 600
        assert {a.name for a in verdict.alternatives} >= {"stay", "best", "more_prefill"}
        assert all(len(a.text) <= 300 and len(a.why_not) <= 300 for a in verdict.alternatives)
        assert "and 16 more" in verdict.alternatives[1].text
