"""Maintenance: traffic leaves, alerts are silent, all of it comes back by itself, whoever dies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from routing import fleets, link_breakers, scheduler
from routing.alerts import silences
from routing.alerts.models import Incident, Silence
from routing.commands import Refused, Stale
from routing.models import Action, Fleet, Tick
from routing.replay import verify
from routing.windows import in_force, maintenance
from routing.windows.models import Maintenance
from tests.routing.cases import Gate, after, engines, feed, link, make_fleet, steady
from tests.routing.windows.case import BY, now_on

pytestmark = pytest.mark.django_db

LINK = "prfaas->pd"


@pytest.fixture
def fleet() -> Fleet:
    made = make_fleet()
    feed(steady(Gate(), np.random.default_rng(3), until_s=180.0, every_s=10.0))
    return made


def tick(at_s: float) -> Tick:
    feed(engines("f1", at_s=at_s))
    feed([link(at_s=at_s, tx_gbps=9.0, capacity_gbps=100.0, retransmit_ratio=0.0)])
    found = scheduler.run_tick("f1", now=after(at_s), tick_s=2.0)
    assert found is not None
    return found


def mode(fleet: Fleet) -> str:
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    return str(decision.plan["clusters"]["pd"]["mode"])


def planned(**changes: Any) -> Maintenance:
    facts: dict[str, Any] = {"fleet": "f1", "link": LINK, "ends_at": after(60.0), "now": after(5.0)}
    return maintenance.plan(**(facts | BY | changes))


def reconcile(at_s: float) -> int:
    return maintenance.reconcile(lambda: after(at_s))


def standing(at_s: float) -> list[tuple[str, str]]:
    return sorted((row.cluster, row.source) for row in silences.in_force(after(at_s)))


def incident(**changes: Any) -> Incident:
    facts = {
        "rule": "r",
        "fleet": "f1",
        "cluster": "prfaas",
        "severity": "warning",
        "n": 1,
        "members": [{"source": LINK, "value": 1.0, "since_s": 0.0}],
    }
    return Incident(**(facts | changes))


@pytest.mark.parametrize(
    "what", [{}, {"link": "", "cluster": "pd"}, {"link": "", "cluster": "prfaas"}]
)
def test_traffic_leaves_and_returns_by_a_probe(fleet: Fleet, what: dict[str, Any]) -> None:
    """Of a link, of the PD cluster, of the PrfaaS cluster: nothing is prefilled remotely."""
    tick(0.0)
    assert mode(fleet) == "threshold"
    planned(**what)
    found = tick(6.0)
    assert (found.reason, mode(fleet)) == ("LinkDown", "always_local")
    assert "in maintenance until 2026-11-29 12:01:00 UTC" in found.verdict["message"]
    assert (tick(58.0).reason, mode(fleet)) == ("LinkDown", "always_local")
    found = tick(60.0)
    assert (found.reason, mode(fleet)) == ("LinkBack", "threshold")
    assert link_breakers.breaker_of(fleet, LINK) == "half_open"
    assert verify(Fleet.objects.get(), after(-10.0), after(100.0)).n_different == 0


def test_it_begins_at_its_time_and_no_sooner(fleet: Fleet) -> None:
    planned(starts_at=after(20.0))
    tick(0.0)
    tick(18.0)
    assert mode(fleet) == "threshold"
    assert reconcile(19.0) == 0
    tick(20.0)
    assert mode(fleet) == "always_local"
    assert reconcile(20.0) == 1
    assert standing(20.0) == [("*", LINK)]


def test_it_is_silent_of_it_alone(fleet: Fleet) -> None:
    planned()
    reconcile(6.0)
    now = silences.in_force(after(6.0))
    assert silences.silenced(incident(), now) is not None
    other = {"source": "prfaas->other", "value": 1.0, "since_s": 0.0}
    assert silences.silenced(incident(members=[other]), now) is None
    both = [*incident().members, other]
    assert silences.silenced(incident(n=2, members=both), now) is None
    assert silences.silenced(incident(n=51), now) is None, "nobody knows of the others"
    assert silences.silenced(incident(fleet="f2"), now) is None


def test_of_a_cluster_its_instances_and_links_are_silent(fleet: Fleet) -> None:
    planned(link="", cluster="pd")
    reconcile(6.0)
    assert standing(6.0) == [("*", "*->pd"), ("pd", "*")]
    now = silences.in_force(after(6.0))
    instance = [{"source": "f1/pd/a", "value": 1.0, "since_s": 0.0}]
    assert silences.silenced(incident(cluster="pd", members=instance), now) is not None
    assert silences.silenced(incident(), now) is not None, "a link into it"
    assert silences.silenced(incident(members=instance), now) is None


def test_a_pass_is_idempotent_and_the_end_undoes_all(fleet: Fleet) -> None:
    row = planned()
    assert [reconcile(at_s) for at_s in (6.0, 7.0, 8.0)] == [1, 0, 0]
    assert Silence.objects.count() == 1
    assert [reconcile(at_s) for at_s in (60.0, 61.0)] == [1, 0]
    row.refresh_from_db()
    assert (row.began_at, row.over_at) == (after(6.0), after(60.0))
    assert standing(60.0) == []
    verbs = Action.objects.filter(verb__startswith="maintenance").order_by("pk")
    assert list(verbs.values_list("verb", "actor")) == [
        ("maintenance.plan", "ada"),
        ("maintenance.begin", "system"),
        ("maintenance.over", "system"),
    ]


def test_a_pass_that_dies_leaves_all_or_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(link="", cluster="pd")
    begin, made = silences.begin, []

    def dies(**kwargs: Any) -> Silence:
        if made:
            raise RuntimeError("killed")
        made.append(begin(**kwargs))
        return made[0]

    with monkeypatch.context() as patch:
        patch.setattr(silences, "begin", dies)
        assert reconcile(6.0) == 0
    assert not Silence.objects.exists()
    assert reconcile(7.0) == 1
    assert len(standing(7.0)) == 2


def test_a_console_that_slept_through_it_has_nothing_to_undo(fleet: Fleet) -> None:
    row = planned()
    tick(6.0)
    assert reconcile(500.0) == 1
    row.refresh_from_db()
    assert (row.began_at, row.over_at) == (None, after(500.0))
    assert not Silence.objects.exists()
    tick(500.0)
    assert mode(fleet) == "threshold"


def test_it_is_extended_and_ended_early(fleet: Fleet) -> None:
    tick(0.0)
    row = planned()
    reconcile(6.0)
    row = maintenance.extend(
        maintenance_id=row.pk, ends_at=after(120.0), if_version=1, now=after(30.0), **BY
    )
    with pytest.raises(Stale):
        maintenance.end(maintenance_id=row.pk, if_version=1, now=after(31.0), **BY)
    reconcile(31.0)
    assert [each.ends_at for each in silences.in_force(after(31.0))] == [after(120.0)]
    tick(90.0)
    assert mode(fleet) == "always_local"
    row = maintenance.end(maintenance_id=row.pk, if_version=2, now=after(100.0), **BY)
    assert (row.ends_at, row.ended_by) == (after(100.0), "ada")
    assert in_force.maintained("f1", after(100.0)) == []
    reconcile(101.0)
    assert standing(101.0) == []
    with pytest.raises(Refused, match="has ended"):
        maintenance.end(maintenance_id=row.pk, if_version=None, now=after(102.0), **BY)


def test_one_that_has_not_begun_is_called_off(fleet: Fleet) -> None:
    row = planned(starts_at=after(3600.0), ends_at=after(7200.0))
    row = maintenance.end(maintenance_id=row.pk, if_version=1, now=after(10.0), **BY)
    assert maintenance.state_of(row, after(10.0)) == "over"
    assert reconcile(11.0) == 1
    assert in_force.maintained("f1", after(3700.0)) == []


def test_a_silence_that_a_person_ended_stays_ended(fleet: Fleet) -> None:
    planned()
    reconcile(6.0)
    silences.end(silence_id=Silence.objects.get().pk, now=after(7.0), **BY)
    assert reconcile(8.0) == 0
    assert standing(8.0) == []


def test_under_a_freeze_it_may_begin_and_end(fleet: Fleet) -> None:
    now_on()
    tick(0.0)
    planned()
    tick(6.0)
    assert mode(fleet) == "always_local"
    tick(60.0)
    assert mode(fleet) == "threshold"


def test_two_at_once_of_different_things_and_the_longer_counts(fleet: Fleet) -> None:
    planned()
    planned(link="", cluster="pd", ends_at=after(90.0))
    tick(6.0)
    found = tick(70.0)
    assert mode(fleet) == "always_local"
    assert "until 2026-11-29 12:01:30 UTC" in found.verdict["message"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"fleet": "nowhere"}, "fleet"),
        ({"link": "a->b"}, "link"),
        ({"cluster": "pd"}, "cluster"),
        ({"link": ""}, "cluster"),
        ({"link": "", "cluster": "nowhere"}, "cluster"),
        ({"ends_at": after(5.0)}, "ends_at"),
        ({"starts_at": after(90.0)}, "ends_at"),
        ({"ends_at": after(5.0) + timedelta(days=31)}, "ends_at"),
        ({"starts_at": after(0.0) + timedelta(days=400), "ends_at": after(0.0)}, "starts_at"),
        ({"reason": ""}, "reason"),
    ],
)
def test_what_cannot_be_meant_names_its_field(
    fleet: Fleet, asked: dict[str, Any], field: str
) -> None:
    with pytest.raises(Refused) as caught:
        planned(**asked)
    assert caught.value.field == field
    assert not Maintenance.objects.exists()


def test_what_is_worked_on_already_is_extended_not_doubled(fleet: Fleet) -> None:
    planned()
    with pytest.raises(Refused, match="ada works on it until 2026-11-29 12:01 UTC; extend that"):
        planned(now=after(30.0), ends_at=after(99.0))
    planned(now=after(30.0), starts_at=after(60.0), ends_at=after(99.0))


def test_nobody_resets_the_breaker_of_what_is_worked_on(fleet: Fleet) -> None:
    planned(link="", cluster="pd")
    with pytest.raises(Refused, match="in maintenance until 2026-11-29 12:01 UTC"):
        link_breakers.reset(fleet=fleet, link=LINK, now=after(6.0), **BY)
