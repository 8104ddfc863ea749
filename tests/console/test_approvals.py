"""Approvals by every door: what is proposed, who may say what to it, what the pages tell."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.utils import timezone

from routing.approvals.models import Proposal
from routing.jobs.models import Job
from routing.models import Action, Decision, Fleet, Hold, Policy
from tests.console.api_case import MODEL_BACKEND, conforms, machine, person, send, strict
from tests.console.big_people import HOSTILE
from tests.console.control_case import movable_fleet
from tests.console.test_pages import words
from tests.console.test_pages_changing import HELD, confirm
from tests.routing.approvals.case import limit
from tests.routing.cases import make_fleet, scenario
from tests.routing.jobs.case import ADVISE

pytestmark = pytest.mark.django_db

EVERYTHING = {
    "instances_moved": 0,
    "gates_switched": 0,
    "hold_s": 60,
    "changes": ["activate", "always_remote", "policy", "jobs", "breakers", "routers", "scenario",
                "epoch"],
}  # fmt: skip


def member(name: str, *groups: str) -> Client:
    """A signed-in person of these groups."""
    user = User.objects.create_user(name)
    for group in groups:
        user.groups.add(Group.objects.get_or_create(name=group)[0])
    client = Client()
    client.force_login(user, backend=MODEL_BACKEND)
    return client


@pytest.fixture
def fleet() -> Fleet:
    found = movable_fleet()
    limit(EVERYTHING)
    return found


@pytest.fixture
def ana(fleet: Fleet) -> Client:
    return member("ana", "operator")


@pytest.fixture
def bob(fleet: Fleet) -> Client:
    return member("bob", "approver")


def until(hours: float = 1.0) -> str:
    return (timezone.now() + timedelta(hours=hours)).isoformat()


def page_of(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200, response.status_code
    return words(response.content.decode())


def asked_by_rest(client: Client) -> Any:
    body = {"mode": "always_local", "reason": "link maintenance", "expires_at": until()}
    return send(client, "post", "/fleets/f1/holds", body)


def rest_doors() -> dict[str, tuple[str, str, Any, dict[str, str]]]:
    first = Decision.objects.get(version=1).pk
    move = {"cluster": "pd", "n_prefill": 4, "n_decode": 4, "reason": "x", "expires_at": until()}
    version = {"If-Match": '"1"'}
    return {
        "/fleets/{fleet}/policy": (
            *("patch", "/fleets/f1/policy"),
            {"knobs": {"t_dwell_s": 60}, "reason": "x"},
            version,
        ),
        "/fleets/{fleet}/holds": (
            *("post", "/fleets/f1/holds"),
            {"mode": "always_local", "reason": "x", "expires_at": until()},
            {},
        ),
        "/fleets/{fleet}/rebalances": (
            *("post", "/fleets/f1/rebalances"),
            move | {"expected": {"n_prefill": 3, "n_decode": 5}},
            {},
        ),
        "/fleets/{fleet}/decisions/{decision_id}/rollback": (
            *("post", f"/fleets/f1/decisions/{first}/rollback"),
            {"reason": "x", "expires_at": until()},
            {},
        ),
        "/fleets/{fleet}/breakers/reset": (
            *("post", "/fleets/f1/breakers/reset"),
            {"link": "prfaas->pd", "reason": "x"},
            {},
        ),
        "/fleets/{fleet}/jobs/{name}": (
            *("put", "/fleets/f1/jobs/advise"),
            {"document": ADVISE, "reason": "x"},
            {},
        ),
    }


@pytest.mark.parametrize(
    "template",
    [
        "/fleets/{fleet}/policy",
        "/fleets/{fleet}/holds",
        "/fleets/{fleet}/rebalances",
        "/fleets/{fleet}/decisions/{decision_id}/rollback",
        "/fleets/{fleet}/breakers/reset",
        "/fleets/{fleet}/jobs/{name}",
    ],
)
def test_each_door_of_rest_answers_with_the_proposal(
    ana: Client, bob: Client, template: str
) -> None:
    method, path, body, headers = rest_doors()[template]
    before = (Policy.objects.get().version, Hold.objects.count(), Job.objects.count())
    response = send(ana, method, path, body, **headers)
    assert response.status_code == 202, response.content
    row = conforms(response, template, method)
    assert response["Location"] == f"/api/v1/approvals/{row['id']}"
    assert (row["state"], row["asked_by"], row["via"]) == ("open", "ana", "rest")
    assert (Policy.objects.get().version, Hold.objects.count(), Job.objects.count()) == before
    ended = send(bob, "post", f"/approvals/{row['id']}/approve", {"reason": "yes"})
    found = conforms(ended, "/approvals/{proposal_id}/approve", "post")
    assert (ended.status_code, found["state"]) == (200, "done"), found["text"]
    assert (found["ended_by"], found["ended_reason"]) == ("bob", "yes")


def test_what_makes_it_safer_is_done_at_once_by_every_door(ana: Client) -> None:
    row = Hold.objects.create(
        fleet_id="f1",
        mode="always_local",
        owner="x",
        reason="x",
        expires_at=timezone.now() + timedelta(days=1),
    )
    released = send(ana, "post", f"/fleets/f1/holds/{row.pk}/release", {"reason": "x"})
    assert released.status_code == 200
    stopped = send(
        ana,
        "patch",
        "/fleets/f1/policy",
        {"mode": "paused", "reason": "fire"},
        **{"If-Match": '"1"'},
    )
    assert (stopped.status_code, Policy.objects.get().mode) == (200, "paused")
    back = send(ana, "patch", "/fleets/f1/policy", {"mode": "active"}, **{"If-Match": '"2"'})
    assert (back.status_code, Policy.objects.get().mode) == (202, "paused")


def test_under_a_key_the_proposal_is_the_answer_that_is_kept(ana: Client, bob: Client) -> None:
    """Else the transaction that keeps answers would take the proposal back."""
    body = {"mode": "always_local", "reason": "x", "expires_at": until()}
    key = {"Idempotency-Key": "k7"}
    first = send(ana, "post", "/fleets/f1/holds", body, **key)
    row = strict(first)
    assert (first.status_code, Proposal.objects.get().pk) == (202, row["id"])
    send(bob, "post", f"/approvals/{row['id']}/approve", {})
    again = send(ana, "post", "/fleets/f1/holds", body, **key)
    assert (again.status_code, strict(again)["id"]) == (202, row["id"])
    assert again["Location"] == first["Location"]
    assert (Hold.objects.count(), Proposal.objects.count()) == (1, 1)


def test_lists_are_filtered_and_of_ones_own_fleets(ana: Client, bob: Client) -> None:
    make_fleet("f2")
    limit(EVERYTHING, fleet="f2")
    row = strict(asked_by_rest(ana))
    other = {"mode": "always_local", "reason": "x", "expires_at": until()}
    send(ana, "post", "/fleets/f2/holds", other)
    listed = conforms(send(bob, "get", "/approvals?fleet=f1&state=open"), "/approvals")
    assert [each["id"] for each in listed["results"]] == [row["id"]]
    assert listed["results"][0]["needs"] == [
        "it moves 2 gates to another plan mode at once, over 0",
        "it holds for 60 min, over 1 min",
    ]
    narrow = member("nora", "approver:f2")
    assert [each["fleet"] for each in strict(send(narrow, "get", "/approvals"))["results"]] == [
        "f2"
    ]
    assert send(narrow, "get", f"/approvals/{row['id']}").status_code == 404
    assert send(narrow, "post", f"/approvals/{row['id']}/approve", {}).status_code == 404
    assert send(bob, "get", "/approvals?state=closed").status_code == 422
    assert send(bob, "get", "/approvals?colour=red").status_code == 422
    conforms(send(bob, "get", f"/approvals/{row['id']}"), "/approvals/{proposal_id}")


@pytest.mark.parametrize(
    ("groups", "approves", "withdraws", "breaks"),
    [(("viewer",), 403, 403, 403), (("operator",), 403, 422, 403), (("approver",), 200, 403, 403),
     (("operator", "approver"), 200, 422, 403), (("admin",), 200, 422, 200),
     (("approver:f1",), 200, 403, 403), (("approver:f2",), 404, 403, 403), ((), 403, 403, 403)],
)  # fmt: skip
def test_who_may_what(
    ana: Client, groups: tuple[str, ...], approves: int, withdraws: int, breaks: int
) -> None:
    somebody = member("somebody", *groups)
    path = f"/approvals/{strict(asked_by_rest(ana))['id']}"
    glass = {"confirm": "f1", "reason": "fire"}
    assert send(somebody, "post", f"{path}/withdraw", {}).status_code == withdraws
    assert send(somebody, "post", f"{path}/approve", {}).status_code == approves
    Hold.objects.all().delete()
    Proposal.objects.all().delete()
    path = f"/approvals/{strict(asked_by_rest(ana))['id']}"
    assert send(somebody, "post", f"{path}/break-glass", glass).status_code == breaks
    again = send(somebody, "post", f"{path}/reject", {"reason": "no"}).status_code
    assert again == (412 if breaks == 200 else approves)


def test_tokens_approve_what_others_asked_for(ana: Client, fleet: Fleet) -> None:
    row = strict(asked_by_rest(ana))
    reader, approver = machine("read"), machine("approve")
    assert send(reader, "post", f"/approvals/{row['id']}/approve", {}).status_code == 403
    assert send(approver, "post", f"/approvals/{row['id']}/approve", {}).status_code == 200
    assert Hold.objects.count() == 1


def test_nobody_approves_their_own_by_rest(fleet: Fleet) -> None:
    both = member("both", "operator", "approver")
    row = strict(asked_by_rest(both))
    refused = send(both, "post", f"/approvals/{row['id']}/approve", {})
    assert refused.status_code == 422
    assert "somebody else must approve it" in strict(refused)["error"]
    assert not Hold.objects.exists()


def test_limits_over_rest(ana: Client) -> None:
    template = "/fleets/{fleet}/approval-limits"
    admin = person("admin")
    read = send(ana, "get", "/fleets/f1/approval-limits")
    assert conforms(read, template)["limits"] == EVERYTHING
    assert read["ETag"] == '"1"'
    tighter = {"limits": EVERYTHING | {"hold_s": 30}, "reason": "x"}
    path = "/fleets/f1/approval-limits"
    assert send(ana, "put", path, tighter, **{"If-Match": '"1"'}).status_code == 403
    assert send(admin, "put", path, tighter).status_code == 428
    assert send(admin, "put", path, tighter, **{"If-Match": '"7"'}).status_code == 412
    kept = send(admin, "put", path, tighter, **{"If-Match": '"1"'})
    assert conforms(kept, template, "put")["version"] == 2
    loose = send(admin, "put", path, {"limits": {}}, **{"If-Match": '"2"'})
    assert (loose.status_code, strict(loose)["needs"]) == (
        202,
        ["it lets one person do more alone"],
    )
    wrong = send(admin, "put", path, {"limits": {"hold": 1}}, **{"If-Match": '"2"'})
    assert "limits.hold" in strict(wrong)["errors"]
    make_fleet("f3")
    assert strict(send(ana, "get", "/fleets/f3/approval-limits"))["version"] == 0


def test_a_document_is_applied_by_two(ana: Client, bob: Client) -> None:
    """Its changes are one proposal, and all of them are done or none."""
    admin = person("admin")
    document = strict(send(admin, "get", "/export?format=json"))
    document["policies"]["f1"]["knobs"] = {"t_dwell_s": 60.0, "band_ratio": 0.1}
    what = {name: value for name, value in ADVISE.items() if name != "name"}
    document["jobs"] = {"advise": what}
    asked = send(admin, "post", "/apply", document)
    row = conforms(asked, "/apply", "post")
    assert (asked.status_code, row["command"]) == (202, "apply.apply"), row
    assert {change["verb"] for change in row["changes"]} == {"policy.change", "job.create"}
    assert not Job.objects.exists()
    ended = strict(send(bob, "post", f"/approvals/{row['id']}/approve", {}))
    assert (ended["state"], ended["result"]) == ("done", {"n_changes": 2}), ended["text"]
    assert Policy.objects.get().knobs == {"t_dwell_s": 60.0, "band_ratio": 0.1}
    assert Job.objects.count() == 1


def test_the_shell_is_told_as_well(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "f1.toml"
    file.write_text(tomli_w.dumps(scenario("f1", start=False)))
    before = Fleet.objects.get().scenario
    with pytest.raises(CommandError, match=r"proposal \d+ waits for a second person"):
        call_command("fleet", "apply", str(file), stdout=StringIO())
    assert Fleet.objects.get().scenario == before
    assert Proposal.objects.get().via == "command"


def test_a_form_says_beforehand_that_it_needs_approval(ana: Client) -> None:
    found = page_of(ana, "/fleets/f1/hold/?" + "&".join(f"{k}={v}" for k, v in HELD.items()))
    assert "Needs approval: it holds for 1 h, and one person may for 1 min" in found
    assert "Confirming changes nothing yet" in found
    assert "Needs approval" not in page_of(ana, "/fleets/f1/mode/?to=paused")
    first = Decision.objects.get(version=1).pk
    for path in (f"decisions/{first}/rollback/", "rebalances/new/?cluster=pd&n_prefill=4"):
        assert "Needs approval:" in page_of(ana, f"/fleets/f1/{path}"), path
    Policy.objects.update(mode="paused")
    assert "it lets the loop do more than now" in page_of(ana, "/fleets/f1/mode/?to=active")


def test_a_page_leads_to_its_proposal_and_another_person_carries_it_out(
    ana: Client, bob: Client
) -> None:
    path = "/fleets/f1/hold/?" + "&".join(f"{k}={v}" for k, v in HELD.items())
    response = confirm(ana, path)
    row = Proposal.objects.get()
    assert response["Location"] == f"/approvals/{row.pk}/"
    assert not Hold.objects.exists()
    own = page_of(ana, f"/approvals/{row.pk}/")
    assert "Nothing has changed yet: somebody else has to approve it first." in own
    assert "You asked for it, so somebody else has to approve it." in own
    assert "Withdraw it" in own
    assert "Approve and do it" not in own
    listed = page_of(bob, "/approvals/")
    assert "1 proposal waits for a second person." in listed
    assert "Hold a plan: t 17.9K tok in pd until" in listed
    found = page_of(bob, f"/approvals/{row.pk}/")
    assert "revert of v2" in found
    assert "it holds for 1 h, and one person may for 1 min" in found
    done = bob.post(f"/approvals/{row.pk}/approve/", {"reason": "fine"}, follow=True)
    assert "It is done, as ana asked." in words(done.content.decode())
    assert Hold.objects.get().owner == "ana"
    again = bob.post(f"/approvals/{row.pk}/approve/", {"reason": "fine"}, follow=True)
    assert again.status_code == 200
    assert Action.objects.filter(verb="hold.place").count() == 1


def test_every_form_of_control_leads_to_a_proposal(ana: Client) -> None:
    Policy.objects.update(mode="advisory")
    confirm(ana, "/fleets/f1/mode/?to=active", reason="x")
    first = Decision.objects.get(version=1).pk
    confirm(ana, f"/fleets/f1/decisions/{first}/rollback/", reason="x", span_s="3600")
    sent = {"version": "1", "base": "{}", "t_dwell_s": "60", "reason": "x"}
    ana.post("/fleets/f1/policy/", sent)
    document = json.dumps(ADVISE)
    ana.post(
        "/fleets/f1/jobs/new/", {"document": document, "version": 0, "enabled": "on", "keep": ""}
    )
    Policy.objects.update(mode="active")
    ana.post(
        "/fleets/f1/rebalances/new/",
        {"cluster": "pd", "n_prefill": "4", "seen": "3/5", "reason": "x", "span_s": "3600"},
    )
    assert sorted(Proposal.objects.values_list("command", flat=True)) == [
        "commands.set_policy",
        "commands.set_policy",
        "jobs.put",
        "role_commands.move_roles",
        "router_commands.roll_back",
    ]
    assert (Policy.objects.get().version, Hold.objects.count(), Job.objects.count()) == (1, 0, 0)


def test_rejected_withdrawn_and_refused_are_said(ana: Client, bob: Client) -> None:
    first, second = strict(asked_by_rest(ana))["id"], 0
    no_reason = bob.post(f"/approvals/{first}/reject/", {"reason": ""})
    assert (no_reason.status_code, "must not be empty" in no_reason.content.decode()) == (409, True)
    bob.post(f"/approvals/{first}/reject/", {"reason": "not tonight"})
    assert "not tonight" in page_of(ana, f"/approvals/{first}/")
    late = bob.post(f"/approvals/{first}/approve/", {})
    assert (late.status_code, "is rejected already by bob" in late.content.decode()) == (409, True)
    second = strict(asked_by_rest(ana))["id"]
    ana.post(f"/approvals/{second}/withdraw/")
    assert Proposal.objects.get(pk=second).state == "withdrawn"
    assert bob.get(f"/approvals/{second}/approve/")["Location"] == f"/approvals/{second}/"
    assert "No proposal matches." in page_of(bob, "/approvals/?state=done")


def test_broken_glass_is_shown(ana: Client) -> None:
    admin = person("admin")
    row = strict(asked_by_rest(admin))["id"]
    found = page_of(admin, f"/approvals/{row}/")
    assert "Emergency: do it alone" in found
    wrong = admin.post(f"/approvals/{row}/break-glass/", {"confirm": "f2", "reason": "fire"})
    assert wrong.status_code == 409
    admin.post(f"/approvals/{row}/break-glass/", {"confirm": "f1", "reason": "fire"})
    assert Hold.objects.count() == 1
    assert "Glass was broken: admin did this alone at" in page_of(ana, f"/approvals/{row}/")
    assert "done alone, glass broken" in page_of(ana, "/approvals/")


def test_the_rail_counts_what_waits_for_who_may_approve_it(ana: Client, bob: Client) -> None:
    """In every fleet of theirs, whichever is open; nobody else is told of a number."""
    make_fleet("f2")
    limit(EVERYTHING, fleet="f2")
    waits, place = "Approvals 1 waiting", 'id="n-approvals"'
    assert waits not in page_of(bob, "/fleets/f1/policy/")
    assert place in bob.get("/fleets/f1/policy/").content.decode(), "where a count would come"
    asked_by_rest(ana)
    for page in ("/fleets/f1/policy/", "/fleets/f2/policy/", "/approvals/"):
        assert waits in page_of(bob, page)
    here = member("nora", "approver:f1", "viewer:f2")
    there = member("theo", "approver:f2", "viewer:f1")
    viewer = member("vera", "viewer")
    for page in ("/fleets/f1/", "/fleets/f2/"):
        assert waits in page_of(here, page)
        assert place in there.get(page).content.decode()
        assert waits not in page_of(there, page)
        assert place not in ana.get(page).content.decode()
        assert place not in viewer.get(page).content.decode()


def test_a_scenario_with_hostile_words_is_only_shown(bob: Client, fleet: Fleet) -> None:
    for i, text in enumerate(HOSTILE):
        Proposal.objects.create(
            fleet="f1",
            command="commands.place_hold",
            arguments={},
            changes=[{"verb": "policy.change", "fleet": "f1", "target": text,
                      "before": {"mode": "active", "knobs": {}},
                      "after": {"mode": "active", "knobs": {text: text}}}],
            reach={"kinds": ["policy"], "figures": {}},
            beyond=[{"limit": "policy", "value": None, "most": None}],
            seen={},
            digest=str(i),
            asked_by=text[:150],
            via="ui",
            reason=text[:500],
            asked_at=timezone.now(),
            expires_at=timezone.now() + timedelta(hours=1),
        )  # fmt: skip
    for row in Proposal.objects.all():
        html = bob.get(f"/approvals/{row.pk}/").content.decode()
        assert "<script>alert" not in html
    assert bob.get("/approvals/").status_code == 200


def test_limits_are_set_by_a_form(ana: Client) -> None:
    path = "/fleets/f1/approval-limits/"
    admin = person("admin")
    assert "Only administrators change when a second person is needed." in page_of(ana, path)
    assert ana.post(path, {}).status_code == 403
    found = page_of(admin, path)
    assert "Beyond these limits a change is only proposed" in found
    sent = {"share_moved": "25", "hold_min": "240", "changes": ["activate"], "expires_h": "12"}
    make_fleet("f2")
    wrong = admin.post("/fleets/f2/approval-limits/", {**sent, "hold_min": "-1", "version": "0"})
    assert wrong.status_code == 422
    kept = admin.post("/fleets/f2/approval-limits/", {**sent, "version": "0"}, follow=True)
    assert "Kept, version 1." in words(kept.content.decode())
    stale = admin.post("/fleets/f2/approval-limits/", {**sent, "hold_min": "180", "version": "0"})
    assert (stale.status_code, "is at version 1 now" in stale.content.decode()) == (422, True)
    read = strict(send(admin, "get", "/fleets/f2/approval-limits"))["limits"]
    assert read == {
        "share_moved": 0.25, "hold_s": 14_400.0, "changes": ["activate"], "expires_s": 43_200.0,
    }  # fmt: skip
    loosened = admin.post(path, {"expires_h": "24", "version": "1"})
    assert loosened["Location"].startswith("/approvals/")
