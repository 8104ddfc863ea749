"""From stored readings to incidents: opened, followed, closed, one each, whatever flaps."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from routing.alerts import incidents, passes, rules, silences
from routing.alerts.models import AlertTracks, Incident
from routing.approvals.proposals import reject
from routing.commands import Refused, Stale
from routing.models import Action, Fleet
from telemetry import wire
from tests.routing.alerts.case import BY, FULL, put
from tests.routing.approvals.case import BOB, hold, limit, proposed
from tests.routing.cases import NOW, NOW_S, after, feed, link, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture
def fleet() -> Fleet:
    return make_fleet()


def instance(name: str, at_s: float, **signals: float) -> wire.InstanceSample:
    return wire.InstanceSample(
        id=f"f1/pd/{name}",
        role="decode",
        engine="vllm",
        at_s=NOW_S + at_s,
        signals=wire.InstanceSignals(**signals),
    )


def tell(at_s: float, **usage: float) -> None:
    """A reading of instances of pd, by name."""
    feed(instance(name, at_s, kv_cache_usage_ratio=value) for name, value in usage.items())


def look(at_s: float) -> passes.Seen:
    seen = passes.look(lambda: after(at_s))
    assert seen is not None
    return seen


def told(at_s: float, **usage: float) -> passes.Seen:
    tell(at_s - 1.0, **usage)
    return look(at_s)


def test_an_incident_opens_is_followed_and_closes(fleet: Fleet) -> None:
    put(FULL)
    assert told(0, d1=0.95, d2=0.5).opened == ()
    assert told(10, d1=0.95, d2=0.5).opened == ()
    [opened] = told(20, d1=0.95, d2=0.5).opened
    assert (opened.rule, opened.kind, opened.group, opened.fleet, opened.cluster, opened.n) == (
        *("kv-full", "figure", "f1/pd", "f1", "pd", 1),
    )
    assert opened.sentence == "f1/pd/d1: instance.kv_cache_usage_ratio is 0.95, above 0.9"
    told(30, d1=0.97, d2=0.95)
    assert told(50, d1=0.97, d2=0.99).opened == ()
    row = Incident.objects.get()
    assert (row.n, row.most) == (2, 2)
    assert [m["source"] for m in row.members] == ["f1/pd/d2", "f1/pd/d1"]
    told(60, d1=0.5, d2=0.99)
    told(90, d1=0.5, d2=0.99)
    assert Incident.objects.get().n == 1
    told(100, d1=0.5, d2=0.5)
    [closed] = told(130, d1=0.5, d2=0.5).closed
    assert (closed.pk, Incident.objects.get().resolved_at) == (row.pk, after(130))
    assert AlertTracks.objects.get().states == {}


def test_what_flaps_is_one_incident(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0})
    for i in range(60):
        told(10.0 * i, d1=0.95 if i % 3 else 0.5)
    assert Incident.objects.count() == 1
    assert Incident.objects.get().resolved_at is None


def test_a_figure_that_is_missing_ends_nothing(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0})
    told(0, d1=0.95)
    for at_s in range(60, 600, 60):
        assert look(at_s).closed == (), "nothing was read since"
    assert Incident.objects.get().members[0]["value"] is None


def test_no_data_is_an_incident_apart(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0, "no_data_for_s": 60})
    told(0, d1=0.5)
    assert [look(at_s).opened for at_s in (20, 30)] == [(), ()]
    [opened] = look(90).opened
    assert (opened.kind, opened.sentence) == (
        *("no_data", "f1/pd/d1: no instance.kv_cache_usage_ratio is measured"),
    )
    told(100, d1=0.5)
    [closed] = told(200, d1=0.5).closed
    assert closed.kind == "no_data"


def test_it_goes_on_where_another_process_stopped(fleet: Fleet) -> None:
    """All that is known between looks is in the database."""
    put(FULL)
    told(0, d1=0.95)
    assert AlertTracks.objects.get().states == {
        "figure": {"f1/pd/d1": [1.0, NOW_S, 0.0]},
    }
    assert len(told(25, d1=0.95).opened) == 1


@pytest.mark.parametrize(
    ("signal", "threshold", "source"),
    [
        ("instance.down", 0, "f1/pd/d1"),
        ("instance.age_s", 10, "f1/pd/d1"),
        ("loop.age_s", 10, None),
        ("plan.gates_silent", 0, None),
        ("bill.p95_of_cap_ratio", 0.8, None),
        ("approval.waits_s", 0, None),
    ],
)
def test_other_signals_are_read(
    fleet: Fleet, signal: str, threshold: float, source: str | None
) -> None:
    put(FULL | {"signal": signal, "threshold": threshold, "for_s": 0})
    tell(-30.0, d1=0.5)
    assert [m["source"] for row in look(0).opened for m in row.members] == (
        [source] if source else []
    )


def test_what_waits_for_a_second_person_too_long_or_runs_out_soon(fleet: Fleet) -> None:
    """Each proposal is a source of its own; decided, it is none and its incident is over."""
    limit({"hold_s": 1800.0, "expires_s": 3600.0})
    waits = {"signal": "approval.waits_s", "threshold": 900, "for_s": 0, "group_by": "source"}
    put(FULL | waits | {"name": "waits"})
    put(FULL | waits | {"name": "elsewhere", "where": {"source": "f2/*"}})
    ends = {"signal": "approval.ends_in_s", "is": "below", "threshold": 600}
    put(FULL | waits | ends | {"name": "ends"})
    assert look(0).opened == ()
    row = proposed(hold, for_s=7200.0)
    proposed(hold, now=after(2500.0), for_s=7000.0)
    assert look(900.0).opened == ()
    [opened] = look(910.0).opened
    source = f"f1/proposal-{row.pk}"
    assert (opened.rule, opened.fleet, opened.group) == ("waits", "f1", source)
    assert opened.sentence == f"{source}: approval.waits_s is 910 s, above 900 s"
    [soon] = look(3010.0).opened
    assert (soon.rule, soon.members[0]["source"]) == ("ends", source)
    reject(proposal_id=row.pk, now=after(3011.0), **BOB)
    assert {closed.rule for closed in look(3020.0).closed} == {"waits", "ends"}
    assert not Incident.objects.filter(resolved_at=None).exists()


def test_links_are_of_their_fleet_and_sending_cluster(fleet: Fleet) -> None:
    put(FULL | {"signal": "link.use_ratio", "threshold": 0.5, "for_s": 0, "fleet": "f1"})
    feed([link(tx_gbps=80.0)])
    [opened] = look(0).opened
    assert (opened.fleet, opened.cluster, opened.members[0]["value"]) == ("f1", "prfaas", 0.8)


def test_counters_are_watched_as_gain_a_second(fleet: Fleet) -> None:
    put(FULL | {"signal": "instance.requests_failed_total", "threshold": 1.4, "for_s": 0})
    for at_s, total in ((-41.0, 100.0), (-21.0, 140.0), (-1.0, 20.0)):
        feed([instance("d1", at_s, requests_failed_total=total)])
    [opened] = look(0).opened
    assert opened.members[0]["value"] == pytest.approx((40 + 20) / 40), "20 after a restart"


def test_a_rule_that_is_switched_off_or_deleted_closes_its_incidents(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0})
    told(0, d1=0.95)
    put(FULL | {"for_s": 0}, enabled=False, now=after(1))
    assert Incident.objects.get().ended_by == "ada switched the rule off"
    assert told(10, d1=0.95).n_rules == 0
    put(FULL | {"for_s": 0}, now=after(11))
    told(20, d1=0.95)
    rules.delete(name="kv-full", if_version=3, now=after(21), **BY)
    assert [row.ended_by for row in Incident.objects.order_by("pk")][1] == "ada deleted the rule"
    assert Action.objects.filter(verb__startswith="alert_rule.").count() == 4


def test_a_rule_is_changed_by_who_has_seen_it(fleet: Fleet) -> None:
    assert put(FULL, if_version=0).version == 1
    assert put(FULL).version == 1, "nothing new"
    with pytest.raises(Stale):
        put(FULL | {"threshold": 0.8}, if_version=0)
    assert put(FULL | {"threshold": 0.8}, if_version=1).version == 2
    with pytest.raises(Refused, match="is no fleet"):
        put(FULL | {"fleet": "nobody"})


def test_an_incident_is_acknowledged_once(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0})
    told(0, d1=0.95)
    row = Incident.objects.get()
    who: dict[str, Any] = {"actor": "ada", "via": "test", "now": after(1)}
    with pytest.raises(Stale):
        incidents.acknowledge(incident_id=row.pk, note="", if_version=row.version + 1, **who)
    done = incidents.acknowledge(incident_id=row.pk, note="on it", if_version=row.version, **who)
    assert (done.acknowledged_by, done.note, done.version) == ("ada", "on it", row.version + 1)
    with pytest.raises(Refused, match="ada has acknowledged it"):
        incidents.acknowledge(incident_id=row.pk, note="", if_version=None, **who)
    told(60, d1=0.5)
    told(120, d1=0.5)
    assert Incident.objects.get().resolved_at is not None
    with pytest.raises(Refused, match="is over"):
        incidents.acknowledge(incident_id=row.pk, note="", if_version=None, **who)
    [action] = Action.objects.filter(verb="incident.acknowledge")
    assert (action.actor, action.fleet, action.reason) == ("ada", "f1", "on it")


def test_silences(fleet: Fleet) -> None:
    put(FULL | {"for_s": 0})
    told(0, d1=0.95)
    row = Incident.objects.get()
    begin: dict[str, Any] = {
        "fleet": "", "rule": "*", "cluster": "*", "severity": "*", "reason": "maintenance",
        "ends_at": after(60), "actor": "ada", "via": "test", "now": NOW,
    }  # fmt: skip
    silence = silences.begin(**begin)
    assert silences.silenced(row, silences.in_force(NOW)) == silence
    assert silences.in_force(after(60)) == []
    for change in ({"fleet": "g"}, {"rule": "kv"}, {"cluster": "p"}, {"severity": "page"}):
        other = silences.begin(**begin | change)
        assert silences.silenced(row, [other]) is None
    for change in ({"rule": "kv-*"}, {"cluster": "pd"}, {"severity": "warn"}, {"fleet": "f1"}):
        assert silences.silenced(row, [silences.begin(**begin | change)]) is not None
    for change, field in (
        ({"reason": " "}, "reason"),
        ({"ends_at": NOW}, "ends_at"),
        ({"ends_at": NOW + datetime.timedelta(days=31)}, "ends_at"),
        ({"severity": "loud"}, "severity"),
        ({"rule": "x" * 201}, "rule"),
    ):
        with pytest.raises(Refused) as wrong:
            silences.begin(**begin | change)
        assert wrong.value.field == field
    ended = silences.end(silence_id=silence.pk, now=after(5), **BY)
    assert (ended.ends_at, ended.ended_by) == (after(5), "ada")
    with pytest.raises(Refused, match="has ended"):
        silences.end(silence_id=silence.pk, now=after(6), **BY)
