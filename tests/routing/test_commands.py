"""What people and automation may change, and the one audit row that each change leaves."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from routing import commands, knobs, token_commands
from routing.core.types import Params
from routing.models import Action, Fleet, Hold, Policy
from telemetry.models import ApiToken
from tests.routing.cases import NOW, after, make_fleet, scenario

pytestmark = pytest.mark.django_db

WHO: dict[str, Any] = {"actor": "ada", "via": "rest", "reason": "because", "now": NOW}
HOLD: dict[str, Any] = {
    "fleet": "f1",
    "cluster": "pd",
    "mode": "threshold",
    "threshold_tokens": 8_000,
    "owner": "ada",
    "expires_at": after(3_600),
}


def place(**changes: Any) -> Hold:
    return commands.place_hold(**{**HOLD, **WHO, **changes})


def set_policy(**changes: Any) -> Policy:
    version = Policy.objects.get(fleet="f1").version
    return commands.set_policy(fleet="f1", changes=changes, if_version=version, **WHO)


def a_token() -> ApiToken:
    token, _ = token_commands.issue_token(
        name="agent", scopes=["ingest"], fleet="", expires_at=None, **WHO
    )
    return token


CHANGES: list[tuple[str, str, Callable[[], Any]]] = [
    ("fleet.create", "f2", lambda: commands.create_fleet(scenario=scenario("f2"), **WHO)),
    (
        "fleet.update",
        "f1",
        lambda: commands.create_fleet(scenario=scenario("f1", start=False), **WHO),
    ),
    ("policy.change", "f1", lambda: set_policy(mode="paused")),
    ("policy.change", "f1", lambda: set_policy(knobs={"t_dwell_s": 30})),
    ("hold.place", "hold", place),
    ("epoch.raise", "f1", lambda: commands.raise_epoch(fleet="f1", **WHO)),
    ("token.issue", "agent (", a_token),
]


@pytest.mark.parametrize(("verb", "target", "change"), CHANGES, ids=[c[0] for c in CHANGES])
def test_a_change_leaves_one_audit_row(verb: str, target: str, change: Callable[[], Any]) -> None:
    """S-58: actor, before, after and reason."""
    make_fleet()
    before = Action.objects.count()
    change()
    assert Action.objects.count() == before + 1
    action = Action.objects.latest("id")
    assert (action.actor, action.via, action.reason) == ("ada", "rest", "because")
    assert action.verb == verb
    assert action.target.startswith(target)
    assert action.after is not None
    if verb not in ("fleet.create", "hold.place", "token.issue"):
        assert action.before != action.after


def test_ending_something_leaves_one_audit_row_with_what_it_was() -> None:
    make_fleet()
    hold, token = place(), a_token()
    for verb, change in (
        ("hold.release", lambda: commands.release_hold(hold_id=hold.pk, **WHO)),
        ("token.revoke", lambda: token_commands.revoke_token(token_id=token.pk, **WHO)),
    ):
        before = Action.objects.count()
        change()
        assert Action.objects.count() == before + 1
        action = Action.objects.latest("id")
        assert action.verb == verb
        assert action.before


def test_a_change_to_what_is_already_so_is_no_change() -> None:
    make_fleet(mode="active")
    before = Action.objects.count()
    make_fleet(mode="active")
    set_policy(mode="active", knobs={"t_dwell_s": None})
    assert Action.objects.count() == before
    assert Policy.objects.get(fleet="f1").version == 1


def test_a_refused_change_leaves_nothing() -> None:
    make_fleet()
    before = Action.objects.count()
    with pytest.raises(commands.Refused):
        place(threshold_tokens=-1)
    with pytest.raises(commands.Refused):
        set_policy(mode="paused", knobs={"t_dwell_s": -1})
    assert Action.objects.count() == before
    assert not Hold.objects.exists()
    assert Policy.objects.get(fleet="f1").mode == "active"


REFUSALS: list[tuple[str, Callable[[], Any]]] = [
    ("mode", lambda: set_policy(mode="on")),
    ("colour", lambda: set_policy(colour="red")),
    ("knobs.t_dwell", lambda: set_policy(knobs={"t_dwell": 1})),
    ("knobs.mode", lambda: set_policy(knobs={"mode": "active"})),
    ("knobs.t_dwell_s", lambda: set_policy(knobs={"t_dwell_s": "20"})),
    ("knobs.t_dwell_s", lambda: set_policy(knobs={"t_dwell_s": float("nan")})),
    ("knobs.t_dwell_s", lambda: set_policy(knobs={"t_dwell_s": float("inf")})),
    ("knobs.min_requests", lambda: set_policy(knobs={"min_requests": 2.5})),
    ("knobs.min_requests", lambda: set_policy(knobs={"min_requests": True})),
    ("knobs.objective", lambda: set_policy(knobs={"objective": "speed"})),
    ("knobs.t_min_tokens", lambda: set_policy(knobs={"t_min_tokens": 9, "t_max_tokens": 8})),
    ("fleet", lambda: place(fleet="nobody")),
    ("cluster", lambda: place(cluster="prfaas")),
    ("mode", lambda: place(mode="sometimes")),
    ("threshold_tokens", lambda: place(threshold_tokens=None)),
    ("threshold_tokens", lambda: place(threshold_tokens=1)),
    ("threshold_tokens", lambda: place(mode="always_local", threshold_tokens=0)),
    ("owner", lambda: place(owner=" ")),
    ("reason", lambda: place(reason="")),
    ("expires_at", lambda: place(expires_at=NOW)),
    ("expires_at", lambda: place(expires_at=NOW + datetime.timedelta(days=7, seconds=1))),
    ("reason", lambda: commands.raise_epoch(fleet="f1", **{**WHO, "reason": ""})),
    ("hold", lambda: commands.release_hold(hold_id=0, **WHO)),
    ("token", lambda: token_commands.revoke_token(token_id=0, **WHO)),
    (
        "scopes",
        lambda: token_commands.issue_token(name="x", scopes=[], fleet="", expires_at=None, **WHO),
    ),
    (
        "scopes",
        lambda: token_commands.issue_token(
            name="x", scopes=["root"], fleet="", expires_at=None, **WHO
        ),
    ),
    (
        "fleet",
        lambda: token_commands.issue_token(
            name="x", scopes=["read"], fleet="nobody", expires_at=None, **WHO
        ),
    ),
]


@pytest.mark.parametrize(
    ("field", "change"), REFUSALS, ids=[f"{i}-{r[0]}" for i, r in enumerate(REFUSALS)]
)
def test_what_cannot_be_meant_is_refused_by_name(field: str, change: Callable[[], Any]) -> None:
    make_fleet()
    with pytest.raises(commands.Refused) as refused:
        change()
    assert refused.value.field == field
    assert refused.value.message


def test_a_scenario_with_an_unknown_key_names_it() -> None:
    document = copy.deepcopy(scenario())
    document["links"][0]["speed"] = 3
    with pytest.raises(commands.Refused, match="speed"):
        commands.create_fleet(scenario=document, **WHO)
    assert not Fleet.objects.exists()


def test_a_new_fleet_only_advises_until_told_otherwise() -> None:
    commands.create_fleet(scenario=scenario(), **WHO)
    assert Policy.objects.get(fleet="f1").mode == "advisory"


def test_updating_a_fleet_keeps_its_mode() -> None:
    make_fleet(mode="active")
    commands.create_fleet(scenario=scenario(start=False), **WHO)
    assert Policy.objects.get(fleet="f1").mode == "active"


def test_nobody_overwrites_a_policy_they_have_not_seen() -> None:
    """S-55: the second of two changes made from the same version is refused."""
    make_fleet()
    commands.set_policy(fleet="f1", changes={"mode": "paused"}, if_version=1, **WHO)
    with pytest.raises(commands.Stale) as stale:
        commands.set_policy(fleet="f1", changes={"mode": "active"}, if_version=1, **WHO)
    assert stale.value.current == 2
    assert Policy.objects.get(fleet="f1").mode == "paused"


def test_one_knob_changes_alone_and_returns_to_its_default() -> None:
    make_fleet()
    set_policy(knobs={"t_dwell_s": 30})
    assert set_policy(knobs={"min_requests": 50}).knobs == {"t_dwell_s": 30.0, "min_requests": 50}
    assert set_policy(knobs={"t_dwell_s": None}).knobs == {"min_requests": 50}


def test_every_number_of_the_loop_can_be_set() -> None:
    fields = Params.__dataclass_fields__.keys() - {"mode", "holds"}
    assert set(knobs.RANGES) == fields
    # No number at all is the default of a limit; null in a change returns to it.
    defaults = {name: value for name, value in knobs.effective({}).items() if value is not None}
    assert knobs.checked(defaults) == defaults, "every default is a value that may be set"


@pytest.mark.parametrize(
    ("first", "second"),
    [("pd", "pd"), ("", "pd"), ("pd", "")],
    ids=["same cluster", "fleet is held", "a cluster is held"],
)
def test_a_second_hold_on_the_same_cluster_is_refused(first: str, second: str) -> None:
    make_fleet()
    place(cluster=first)
    with pytest.raises(commands.Refused, match="ada already holds"):
        place(cluster=second)


def test_a_hold_ends_once() -> None:
    make_fleet()
    hold = place()
    commands.release_hold(hold_id=hold.pk, **WHO)
    with pytest.raises(commands.Refused, match="already ended"):
        commands.release_hold(hold_id=hold.pk, **WHO)


def test_an_expired_hold_is_closed_once_by_the_system() -> None:
    fleet = make_fleet()
    place(expires_at=after(60))
    assert commands.expire_holds(fleet=fleet, now=after(59)) == []
    assert len(commands.expire_holds(fleet=fleet, now=after(60))) == 1
    assert commands.expire_holds(fleet=fleet, now=after(61)) == []
    [action] = Action.objects.filter(verb="hold.expire")
    assert (action.actor, action.via) == ("system", "scheduler")
    assert action.before["owner"] == "ada"


def test_a_revoked_token_cannot_be_revoked_again() -> None:
    token = a_token()
    token_commands.revoke_token(token_id=token.pk, **WHO)
    with pytest.raises(commands.Refused, match="already revoked"):
        token_commands.revoke_token(token_id=token.pk, **WHO)
