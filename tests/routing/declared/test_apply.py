"""A document is made so, all of it or nothing, and what was exported makes the same state again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing import commands, token_commands
from routing.alerts.models import AlertRule, Receiver
from routing.approvals.models import ApprovalLimits
from routing.commands import Outdated
from routing.costs.models import PriceTable
from routing.declared.document import NotMeant
from routing.declared.state import read_state
from routing.declared.text import FORMATS, Format, read
from routing.jobs.models import Job
from routing.models import Action, Decision, Fleet, Hold, Policy, Tick
from routing.windows.models import Window
from telemetry.models import ApiToken
from tests.routing.cases import NOW, make_fleet, scenario
from tests.routing.declared.case import (
    BY,
    CHRISTMAS,
    NIGHTS,
    RULE,
    applied,
    site,
    tried,
    wipe,
)
from tests.routing.declared.test_text import NUMBERS, TEXTS

pytestmark = pytest.mark.django_db


def document() -> dict[str, Any]:
    return copy.deepcopy(read_state().document)


def wrong_of(document: dict[str, Any], **options: Any) -> dict[str, str]:
    with pytest.raises(NotMeant) as refused:
        applied(document, **options)
    return {each.path: each.message for each in refused.value.wrong}


def verbs() -> list[str]:
    return list(Action.objects.order_by("id").values_list("verb", flat=True))


@pytest.mark.parametrize("format_", FORMATS)
def test_export_wipe_apply_exports_the_same_bytes(format_: Format) -> None:
    """Limits that the document sets do not make a second person needed for the rest of it."""
    site(limits={"changes": ["policy", "jobs"], "hold_s": 60})
    exported = read_state().text(format_)
    wipe()
    assert not Fleet.objects.exists()
    done = applied(read(exported, format_))
    assert {change.action for change in done.changes} == {"create"}
    assert read_state().text(format_) == exported
    assert not AlertRule.objects.get().enabled
    assert {row.name: row.enabled for row in Window.objects.all()} == {
        "christmas": True,
        "nights": False,
    }
    assert Window.objects.get(pk="christmas").ends_at is not None
    assert (Policy.objects.get(fleet="f1").mode, Policy.objects.get(fleet="f2").mode) == (
        *("active", "advisory"),
    )


@pytest.mark.parametrize("format_", FORMATS)
def test_applied_again_nothing_is_written(format_: Format) -> None:
    site()
    versions, rows = read_state().versions, Action.objects.count()
    done = applied(read(read_state().text(format_), format_), prune=True)
    assert (done.changes, done.n_same) == ([], 11)
    assert done.digest == done.digest_before
    assert (read_state().versions, Action.objects.count()) == (versions, rows)


def test_what_differs_is_changed_by_the_usual_commands_and_audited() -> None:
    site()
    wanted, before = document(), Action.objects.count()
    wanted["fleets"]["f1"]["clusters"][1]["instances"] = 9
    wanted["policies"]["f1"] = {"mode": "advisory", "knobs": {"t_dwell_s": 40}}
    wanted["jobs"]["big-morning"]["enabled"] = False
    wanted["prices"]["f1"]["hours"][0]["price"] = "2.75"
    wanted["approval_limits"]["f1"]["changes"] = ["epoch"]
    wanted["windows"]["nights"]["when"]["days"].append("wed")
    del wanted["receivers"], wanted["alert_rules"], wanted["policies"]["f2"]
    done = applied(wanted)
    assert [
        (c.kind, c.name, [(d.path, d.before, d.after) for d in c.differences]) for c in done.changes
    ] == [
        ("fleets", "f1", [("clusters[1].instances", 8, 9)]),
        (
            "policies",
            "f1",
            [
                ("knobs.objective", "min_remote", None),
                ("knobs.t_dwell_s", 30.0, 40.0),
                ("mode", "active", "advisory"),
            ],
        ),
        ("jobs", "big-morning", [("enabled", None, False)]),
        ("prices", "f1", [("hours[0].price", "2.50", "2.75")]),
        ("approval_limits", "f1", [("changes", None, ["epoch"])]),
        ("windows", "nights", [("when.days[2]", None, "wed")]),
    ]
    assert verbs()[before:] == [
        *("fleet.update", "policy.change", "job.update"),
        *("price_table.update", "approval_limits.update", "window.update"),
    ]
    assert Policy.objects.get(fleet="f1").knobs == {"t_dwell_s": 40.0}
    assert (Policy.objects.get(fleet="f2").mode, Receiver.objects.count()) == ("advisory", 1)
    assert set(Action.objects.filter(pk__gt=0).values_list("actor", flat=True)) == {"ada", "test"}


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    site()
    wanted = document()
    wanted["fleets"]["f3"] = scenario("f3")
    del wanted["jobs"]["big-morning"]
    before, rows = read_state(), Action.objects.count()
    trial = tried(wanted, prune=True)
    assert (read_state(), Action.objects.count()) == (before, rows)
    done = applied(wanted, prune=True)
    assert (done.changes, done.digest_before) == (trial.changes, trial.digest)
    assert done.digest == read_state().digest != before.digest


def test_a_broken_document_changes_nothing_and_names_every_error() -> None:
    site()
    before, rows = read_state(), Action.objects.count()
    wanted = document()
    wanted["fleets"]["f3"] = scenario("f3")  # would be fine
    wanted["fleets"]["f1"]["clusters"][1] |= {"instances": "8", "speed": 3}
    wanted["fleets"]["f1"]["links"][0]["gbps"] = -1
    wanted["fleets"]["f2"]["clusters"][0]["profile"] = "h300"
    wanted["policies"]["f2"] = {"mode": "asleep", "knobs": {"t_dwell_s": -1, "warp": 9}}
    wanted["policies"]["f9"] = {"mode": "active"}
    wanted["jobs"]["big-morning"] |= {"grace_s": -1, "cron": "* *"}
    wanted["jobs"]["late"] = wanted["jobs"]["big-morning"] | {"do": {"kind": "reboot"}}
    wanted["alert_rules"]["waiting"] |= {"severity": "loud", "receivers": "ops"}
    wanted["receivers"]["hook"] = {"kind": "webhook", "target": "http://127.0.0.1:1/x"}
    wanted["receivers"]["Bad Name"] = {"kind": "fax"}
    wanted["prices"]["f1"] |= {"currency": "euro", "zone": "Mars", "gpu": 1}
    wanted["prices"]["f1"]["hours"] += [{"price": -1}, {"price": "9", "per": "week"}, {}]
    wanted["prices"]["f1"]["links"] = [{"link": "a"}, {"gb": "1"}, {"gb": "2"}]
    wanted["prices"]["f9"] = wanted["prices"]["f2"] = {"currency": "EUR"}
    wanted["approval_limits"]["f1"] = {
        "share_moved": 2, "hold_s": -1, "changes": ["lunch"], "expires_s": 1,
    }  # fmt: skip
    wanted["approval_limits"]["f9"] = {}
    wanted["windows"]["christmas"] |= {"kind": "thaw", "of": ["jam"], "reason": "", "day": 1}
    wanted["windows"]["christmas"]["when"] |= {"zone": "Mars", "from": "soon", "to": "9999"}
    wanted["windows"]["nights"] |= {"fleet": "f9"}
    wanted["windows"]["Days"] = {"when": {"zone": "UTC", "days": [], "from": "8", "to": "9"}}
    wanted["silences"] = {}
    wanted["version"] = 2
    assert wrong_of(wanted).keys() >= {
        "version",
        "silences",
        "fleets.f1.clusters[1].instances",
        "fleets.f1.clusters[1].speed",
        "fleets.f1.links[0].gbps",
        "fleets.f2.clusters[0].profile",
        "policies.f2.mode",
        "policies.f2.knobs.t_dwell_s",
        "policies.f2.knobs.warp",
        "policies.f9",
        "jobs.big-morning.grace_s",
        "jobs.big-morning.cron",
        "jobs.late.do.kind",
        "alert_rules.waiting.severity",
        "alert_rules.waiting.receivers",
        "receivers.hook.target",
        "receivers.Bad Name",
        "receivers.Bad Name.kind",
        "receivers.Bad Name.target",
        "prices.f1.currency",
        "prices.f1.zone",
        "prices.f1.gpu",
        "prices.f1.hours[2].price",
        "prices.f1.hours[3].per",
        "prices.f1.hours[4].price",
        "prices.f1.links[0].gb",
        "prices.f9",
        "approval_limits.f1.share_moved",
        "approval_limits.f1.hold_s",
        "approval_limits.f1.changes",
        "approval_limits.f1.expires_s",
        "approval_limits.f9",
        "windows.christmas.kind",
        "windows.christmas.of",
        "windows.christmas.reason",
        "windows.christmas.day",
        "windows.christmas.when.zone",
        "windows.christmas.when.from",
        "windows.christmas.when.to",
        "windows.nights.fleet",
        "windows.Days",
        "windows.Days.kind",
        "windows.Days.reason",
        "windows.Days.when.days",
        "windows.Days.when.from",
        "windows.Days.when.to",
    }
    assert (read_state(), Action.objects.count()) == (before, rows)


def test_what_is_of_a_broken_fleet_is_not_called_wrong_for_that() -> None:
    site()
    exported = document()
    wipe()
    exported["fleets"]["f1"]["links"][0]["gbps"] = "fast"
    assert wrong_of(exported).keys() == {"fleets.f1.links[0].gbps"}


@pytest.mark.parametrize(
    "change",
    [
        {"fleets": []},
        {"fleets": {"f1": None}},
        {"fleets": {"f1": {"fleet": {"name": "f2"}}}},
        {"jobs": {"x": 3}},
        {"policies": {"f1": {}}},
        {"policies": {"f1": {"mode": "active", "knobs": {"t_min_tokens": 9, "t_max_tokens": 3}}}},
        {"jobs": {"other": {"name": "else"}}},
        {"alert_rules": {"a": {"enabled": "yes"}}},
        {"receivers": {"a": {"kind": "email", "target": "nobody"}}},
        {"version": True},
        {"version": "1"},
        {"prices": {"f1": {"currency": "EUR", "links": [{"gb": "1"}, {"gb": "2"}]}}},
        {"approval_limits": {"f1": []}},
        {"windows": {"a": {**CHRISTMAS, "name": "b"}}},
        {"windows": {"a": {**NIGHTS, "name": "a", "enabled": 1}}},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any]) -> None:
    site()
    before = read_state()
    assert wrong_of(change, prune=True)
    assert read_state() == before


def test_without_prune_nothing_is_deleted() -> None:
    site()
    nothing: dict[str, Any] = {kind: {} for kind in read_state().tables if kind != "policies"}
    assert applied(nothing).changes == []


def test_pruned_are_only_kinds_that_the_document_has() -> None:
    site()
    done = applied({"alert_rules": {}, "receivers": {}}, prune=True)
    # The rule names the receiver, so it goes first.
    assert [(c.action, c.kind) for c in done.changes] == [
        ("delete", "alert_rules"),
        ("delete", "receivers"),
    ]
    assert (Fleet.objects.count(), Job.objects.count(), Receiver.objects.count()) == (2, 1, 0)
    done = applied(
        {"windows": {"nights": document()["windows"]["nights"]}, "prices": {}}, prune=True
    )
    assert [(c.action, c.kind, c.name) for c in done.changes] == [
        ("delete", "windows", "christmas"),
        ("delete", "prices", "f1"),
    ]
    assert verbs()[-2:] == ["window.delete", "price_table.delete"]
    assert (Window.objects.get().name, ApprovalLimits.objects.count()) == ("nights", 1)


def test_a_fleet_goes_with_what_is_of_it_and_the_audit_stays() -> None:
    site()
    token_commands.issue_token(
        name="gate", scopes=["router"], fleet="f1", expires_at=None, now=NOW, **BY
    )
    done = applied({"fleets": {"f2": document()["fleets"]["f2"]}}, prune=True)
    assert [(c.kind, c.name, bool(c.because)) for c in done.changes] == [
        ("windows", "christmas", True),
        ("approval_limits", "f1", True),
        ("prices", "f1", True),
        ("alert_rules", "waiting", True),
        ("jobs", "big-morning", True),
        ("fleets", "f1", False),
    ]
    assert list(Fleet.objects.values_list("pk", flat=True)) == ["f2"]
    assert not PriceTable.objects.exists()
    assert Window.objects.get().name == "nights"
    assert ApiToken.objects.get().revoked_at is not None
    row = Action.objects.get(verb="fleet.delete")
    assert (row.fleet, row.before["mode"], row.after) == ("f1", "active", None)


def test_a_fleet_with_history_goes_only_when_it_is_confirmed_by_name() -> None:
    fleet = site()
    tick = Tick.objects.create(
        fleet=fleet, seq=1, at=NOW, observed={}, verdict={}, mode="active", action="adopt",
        reason="x", duration_ms=1.0,
    )  # fmt: skip
    Decision.objects.create(
        fleet=fleet, epoch=1, version=1, tick=tick, plan={}, reason="x", message="", created_at=NOW
    )
    commands.place_hold(
        fleet="f1", mode="always_local", threshold_tokens=None, owner="ada",
        expires_at=NOW.replace(hour=15), now=NOW, **BY,
    )  # fmt: skip
    wanted = document()
    del wanted["fleets"]["f1"], wanted["policies"]["f1"]
    wanted |= {"jobs": {}, "alert_rules": {}, "prices": {}, "approval_limits": {}, "windows": {}}
    assert wrong_of(wanted, prune=True).keys() == {"fleets.f1"}
    assert wrong_of(wanted, prune=True, confirmed=["f2"]).keys() == {"fleets.f1"}
    tried(wanted, prune=True, confirmed=["f1"])
    assert Fleet.objects.count() == 2
    applied(wanted, prune=True, confirmed=["f1"])
    assert list(Fleet.objects.values_list("pk", flat=True)) == ["f2"]
    assert not any(model.objects.exists() for model in (Tick, Decision, Hold, Job, AlertRule))


def test_what_is_of_a_fleet_that_goes_may_not_be_declared() -> None:
    site()
    wanted = document()
    del wanted["fleets"]["f1"]
    assert wrong_of(wanted, prune=True).keys() == {
        "policies.f1",
        "jobs.big-morning.fleet",
        "alert_rules.waiting.fleet",
        "prices.f1",
        "approval_limits.f1",
        "windows.christmas.fleet",
    }


def test_another_state_than_the_one_declared_on_is_refused_unless_it_is_so_already() -> None:
    site()
    seen, wanted = read_state().digest, document()
    wanted["policies"]["f1"]["mode"] = "paused"
    make_fleet("f3")
    with pytest.raises(Outdated):
        applied(wanted, if_digest=seen)
    assert Policy.objects.get(fleet="f1").mode == "active"
    applied(wanted, if_digest=read_state().digest)
    assert applied(wanted, if_digest=seen).changes == []


def test_nulls_are_what_is_absent_and_names_stand_in_their_address() -> None:
    wanted = scenario("f1")
    del wanted["fleet"]["name"]
    wanted["clusters"][1]["start"] = {"n_prefill": 3, "threshold_tokens": None}
    applied({"fleets": {"f1": wanted}})
    kept = Fleet.objects.get().scenario
    assert kept["fleet"]["name"] == "f1"
    assert kept["clusters"][1]["start"] == {"n_prefill": 3}
    assert applied({"fleets": {"f1": wanted}}).changes == []


def test_a_rule_is_the_same_however_its_defaults_are_written() -> None:
    site()
    said = {key: value for key, value in RULE.items() if key != "name"} | {
        "enabled": False, "severity": "warn", "where": {"cluster": "*"}, "keep_firing_s": 60,
    }  # fmt: skip
    assert applied({"alert_rules": {"waiting": said}}).changes == []


def test_what_an_earlier_release_left_of_a_fleet_is_not_exported() -> None:
    site()
    exported = read_state()
    for model in (Policy, Fleet):
        model.objects.filter(pk__in=model.objects.all()).delete()
    left = read_state()
    assert (left.tables["prices"], left.tables["approval_limits"]) == ({}, {})
    assert left.tables["windows"].keys() == {"nights"}
    applied(exported.document, prune=True)
    assert read_state().document == exported.document


FLEETS = st.builds(
    lambda instances, gbps, rate, faults: {
        **scenario("f1", pd={"instances": instances}),
        "links": [{"from": "prfaas", "to": "pd", "gbps": gbps}],
        "workload": scenario()["workload"] | {"rate_rps": rate},
        "faults": faults,
    },
    st.integers(4, 64),
    st.floats(1e-3, 1e29) | st.integers(1, 10**29),
    st.floats(1e-9, 1e6),
    st.lists(st.dictionaries(TEXTS, TEXTS | NUMBERS | st.none(), max_size=3), max_size=3),
)
KNOBS = st.fixed_dictionaries(
    {},
    optional={
        "t_dwell_s": st.floats(0, 3600) | st.integers(0, 3600),
        "objective": st.sampled_from(["min_remote", "max_headroom"]),
        "max_changes_per_hour": st.integers(1, 1800),
    },
)
RULES = st.builds(
    lambda threshold, summary, enabled: {
        **{key: value for key, value in RULE.items() if key != "name"},
        "threshold": threshold, "summary": summary, "enabled": enabled,
    },
    st.floats(-1e29, 1e29),
    TEXTS.filter(str.isprintable),
    st.booleans(),
)  # fmt: skip


PRICE_TABLES = st.builds(
    lambda price, number, decimals: {
        "currency": "EUR", "decimals": decimals, "hours": [{"price": price}],
        "links": [{"gb": number}, {"link": "a->b", "gbps_month": price}],
    },
    st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,8})?", fullmatch=True),
    st.integers(0, 10**9 - 1) | st.integers(1, 10**6).map(lambda n: n / 100),
    st.integers(0, 4),
)  # fmt: skip
LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "share_moved": st.floats(0, 1),
        "hold_s": st.floats(0, 1e6) | st.integers(0, 10**6),
        "changes": st.lists(st.sampled_from(["policy", "jobs", "scenario"]), max_size=3),
    },
)
WINDOWS = st.builds(
    lambda reason, of, when, enabled: {
        "kind": "freeze", "reason": reason, "of": of, "when": when, "enabled": enabled,
    },
    TEXTS.filter(lambda text: text and text.isprintable()),
    st.lists(st.sampled_from(["plans", "roles", "people"]), min_size=1, max_size=3),
    st.sampled_from([CHRISTMAS["when"], NIGHTS["when"]]),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    fleet=FLEETS,
    knobs=KNOBS,
    rules=st.dictionaries(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True), RULES),
    priced=PRICE_TABLES,
    limits=LIMITS,
    windows=st.dictionaries(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True), WINDOWS),
    format_=st.sampled_from(FORMATS),
)
def test_whatever_is_declared_is_exported_and_made_again(
    fleet: dict[str, Any],
    knobs: dict[str, Any],
    rules: dict[str, Any],
    priced: dict[str, Any],
    limits: dict[str, Any],
    windows: dict[str, Any],
    format_: Format,
) -> None:
    wipe()
    declared = {
        "fleets": {"f1": fleet},
        "policies": {"f1": {"mode": "paused", "knobs": knobs}},
        "alert_rules": rules,
        "prices": {"f1": priced},
        "approval_limits": {"f1": limits},
        "windows": windows,
    }
    applied(declared)
    assert applied(declared, prune=True).changes == []
    exported = read_state().text(format_)
    wipe()
    applied(read(exported, format_), prune=True)
    assert read_state().text(format_) == exported
    assert applied(read(exported, format_), prune=True).changes == []
