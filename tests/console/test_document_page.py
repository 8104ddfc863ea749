"""The page that applies a document: its plan, what is wrong with it, and what confirming does."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from console.site_document import MAX_BYTES
from routing.approvals.models import Proposal
from routing.declared.state import read_state
from routing.declared.text import FORMATS, Format, read, write
from routing.models import Action, Fleet, Policy, Tick
from tests.console.api_case import person
from tests.routing.cases import NOW, make_fleet, scenario
from tests.routing.declared.case import applied, site, wipe

pytestmark = pytest.mark.django_db

PAGE = "/document/"
YAML = {"format": "yaml"}


@pytest.fixture
def admin() -> Client:
    return person("admin")


def sent(client: Client, text: str, format_: str = "yaml", **more: Any) -> tuple[int, str]:
    """Status and words of the page that answers a form with this text."""
    answer = client.post(PAGE, {"document": text, "format": format_, "plan": "", **more})
    return answer.status_code, str(answer.content.decode())


def words(page: str) -> str:
    main = page[page.index("<main") : page.index("</main>")]
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", main).split()))


def confirming(page: str, **more: Any) -> dict[str, Any]:
    """What the form of a plan sends when it is confirmed."""
    form = page[page.index('<section class="panel confirm"') :]
    form = form[: form.index("</form>")]
    fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form))
    text = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form, re.DOTALL)
    assert text
    # As a browser sends it.
    document = html.unescape(text[1]).replace("\n", "\r\n")
    return {**fields, "document": document, "apply": "", "reason": "growth", **more}


@pytest.mark.parametrize("format_", FORMATS)
def test_an_export_is_planned_confirmed_and_exported_again(admin: Client, format_: Format) -> None:
    site()
    exported = read_state().text(format_)
    wipe()
    status, page = sent(admin, exported.decode(), format_)
    assert (status, Fleet.objects.count()) == (200, 0)
    assert "It would change 11: 11 made. 0 are as declared." in words(page)
    answer = admin.post(PAGE, confirming(page), follow=True)
    assert "Applied: 11 made." in answer.content.decode()
    assert read_state().text(format_) == exported
    row = Action.objects.filter(verb="fleet.create").latest("pk")
    assert (row.actor, row.via, row.reason) == ("admin", "ui", "growth")
    _, page = sent(admin, exported.decode(), format_, prune="on")
    assert "Everything is as declared already: nothing would change." in words(page)
    assert 'name="apply"' not in page


def test_a_plan_says_each_field_before_and_after_and_what_goes(admin: Client) -> None:
    site()
    document = read_state().document
    document["policies"]["f1"]["knobs"]["t_dwell_s"] = 40
    del document["windows"]["christmas"], document["fleets"], document["policies"]["f2"]
    document["receivers"]["new"] = {"kind": "email", "target": "new@example.org"}
    status, page = sent(admin, write(document, "yaml").decode(), prune="on")
    said = words(page)
    assert status == 200
    assert "It would change 3: 1 made, 1 changed, 1 deleted. 6 are as declared." in said
    assert "Policies 1 f1 changed Field Before After knobs.t_dwell_s 30.0 40.0" in said
    assert 'new made 2 fields Field After kind "email" target "new@example.org"' in said
    assert "christmas deleted 5 fields Field Before" in said
    assert read_state().document["windows"].keys() == {"christmas", "nights"}
    admin.post(PAGE, confirming(page))
    assert read_state().document["windows"].keys() == {"nights"}
    assert Policy.objects.get(fleet="f1").knobs["t_dwell_s"] == 40.0


def test_all_that_is_wrong_is_named_with_its_line_and_the_text_is_kept(admin: Client) -> None:
    site()
    before, rows = read_state(), Action.objects.count()
    text = (
        "policies:\n  f1:\n    mode: asleep\n    knobs:\n      warp: 9\n"
        "windows:\n  <b>: {}\n  w:\n    kind: freeze\n"
    )
    status, page = sent(admin, text)
    said = words(page)
    assert status == 422
    assert "9 things are wrong. Nothing has changed." in said
    assert '3 policies.f1.mode must be active or advisory or paused "asleep"' in said
    assert "5 policies.f1.knobs.warp" in said
    assert "8 windows.w.when is missing" in said
    assert "windows.<b>" in said
    assert "<b>:" not in page
    assert html.escape(text) in page
    assert (read_state(), Action.objects.count()) == (before, rows)


@pytest.mark.parametrize(
    ("text", "format_", "line", "why"),
    [
        ("a: 1\na: 2", "yaml", "2", "twice in one table"),
        ("a = 1\nb =", "toml", "2", "is not TOML"),
        ('{"a": 1,\n}', "json", "2", "is not JSON"),
        ("jobs:\n  x:\n    at: .inf\n    b: 1.0e999", "yaml", "4", "must be a finite number"),
        ("[1]", "json", "–", "must be a table"),
        ("version: 2", "yaml", "1", "must be 1"),
        ("fleets: {f1: {fleet: {file: /etc/passwd}}}", "yaml", "1", "file"),
    ],
    ids=str,
)
def test_what_cannot_be_read_says_where(
    admin: Client, text: str, format_: str, line: str, why: str
) -> None:
    status, page = sent(admin, text, format_)
    assert status == 422
    row = next(row for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if why in row)
    assert words(f"<main{row}</main>").split()[0] == line
    assert html.escape(text) in page


@pytest.mark.parametrize("form", [{}, {"document": "  \n"}, {"document": "a", "format": "ini"}])
def test_a_form_that_cannot_be_meant_is_shown_again(admin: Client, form: dict[str, str]) -> None:
    assert admin.post(PAGE, {**YAML, **form}).status_code == 422


def test_a_file_counts_and_says_its_format_and_a_large_one_is_refused(admin: Client) -> None:
    make_fleet("f1")
    file = SimpleUploadedFile("site.YML", b"policies: {f1: {mode: paused}}")
    answer = admin.post(PAGE, {"format": "toml", "document": "= no", "upload": file})
    assert answer.status_code == 200
    assert 'f1 changed Field Before After mode "active" "paused"' in words(answer.content.decode())
    large = SimpleUploadedFile("site.toml", b"#" * (MAX_BYTES + 1))
    answer = admin.post(PAGE, {"format": "toml", "upload": large})
    assert (answer.status_code, b"more than 1 MiB" in answer.content) == (422, True)
    not_text = SimpleUploadedFile("site.toml", b"\xff\xfe")
    answer = admin.post(PAGE, {"format": "toml", "upload": not_text})
    assert (answer.status_code, b"is not UTF-8" in answer.content) == (422, True)


def test_a_reason_is_needed_and_another_state_by_now_shows_its_plan(admin: Client) -> None:
    site()
    text = "policies: {f1: {mode: paused}}"
    _, page = sent(admin, text)
    answer = admin.post(PAGE, confirming(page, reason=" "))
    assert (answer.status_code, b"Say why" in answer.content) == (422, True)
    applied({"policies": {"f1": {"mode": "advisory"}}})
    answer = admin.post(PAGE, confirming(page))
    again = answer.content.decode()
    assert answer.status_code == 409
    assert "Somebody changed something since you looked: this is the plan now." in words(again)
    assert 'mode "advisory" "paused"' in words(again)
    assert Policy.objects.get(fleet="f1").mode == "advisory"
    assert admin.post(PAGE, confirming(again)).status_code == 302
    assert Policy.objects.get(fleet="f1").mode == "paused"


def test_the_text_can_be_changed_after_the_plan(admin: Client) -> None:
    make_fleet("f1")
    _, page = sent(admin, "policies: {f1: {mode: paused}}", prune="on")
    form = {name: value for name, value in confirming(page).items() if name != "apply"}
    answer = admin.post(PAGE, {**form, "edit": ""})
    again = answer.content.decode()
    assert "policies: {f1: {mode: paused}}" in again
    assert '<option value="yaml" selected>' in again
    assert re.search(r'name="prune"[^>]*checked', again)


def test_a_fleet_with_history_goes_when_its_name_is_typed(admin: Client) -> None:
    site()
    Tick.objects.create(
        fleet_id="f1", seq=1, at=NOW, observed={}, verdict={}, mode="active", action="adopt",
        reason="x", duration_ms=1.0,
    )  # fmt: skip
    text = json.dumps({"fleets": {"f2": read_state().document["fleets"]["f2"]}})
    _, page = sent(admin, text, "json", prune="on")
    assert "Type f1: its plans, ticks and decisions go with it" in words(page)
    assert "it is of the fleet f1, which is deleted" in words(page)
    answer = admin.post(PAGE, confirming(page, confirm=["f2"]))
    assert answer.status_code == 422
    assert "Type the name of each fleet that goes" in words(answer.content.decode())
    assert Fleet.objects.count() == 2
    assert admin.post(PAGE, confirming(page, confirm=["f1"])).status_code == 302
    assert list(Fleet.objects.values_list("pk", flat=True)) == ["f2"]


def test_what_a_freeze_forbids_is_shown_with_the_plan_and_cannot_be_confirmed(
    admin: Client,
) -> None:
    site()
    now = timezone.now()
    when = {"zone": "UTC", "from": f"{now - timedelta(hours=1):%Y-%m-%d %H:%M}",
            "to": f"{now + timedelta(hours=1):%Y-%m-%d %H:%M}"}  # fmt: skip
    quiet = {"fleet": "f1", "kind": "freeze", "reason": "peak", "when": when}
    applied({"windows": {"quiet": quiet}})
    text = json.dumps({"policies": {"f1": {"mode": "active", "knobs": {"t_dwell_s": 9}}}})
    status, page = sent(admin, text, "json")
    said = words(page)
    assert status == 200
    assert "A freeze forbids it now policies.f1 f1 is frozen by quiet until" in said
    assert "peak A document is judged by the freezes that stand before it" in said
    assert "knobs.t_dwell_s 30.0 9.0" in said
    assert 'name="apply"' not in page
    answer = admin.post(PAGE, confirming(page))
    assert (answer.status_code, Policy.objects.get(fleet="f1").knobs["t_dwell_s"]) == (422, 30.0)


def test_what_needs_a_second_person_is_proposed(admin: Client) -> None:
    site(limits={"changes": ["policy"]})
    text = json.dumps({"policies": {"f1": {"mode": "active", "knobs": {"t_dwell_s": 9}}}})
    _, page = sent(admin, text, "json")
    assert "Needs approval: it changes numbers of the loop." in words(page)
    assert "Propose it" in words(page)
    answer = admin.post(PAGE, confirming(page))
    proposal = Proposal.objects.get()
    assert answer.url == f"/approvals/{proposal.pk}/"
    assert (proposal.command, proposal.asked_by) == ("apply.apply", "admin")
    assert Policy.objects.get(fleet="f1").knobs["t_dwell_s"] == 30.0


def test_a_large_plan_is_bounded_and_says_so(admin: Client) -> None:
    rules = {f"r{i:03}": {"signal": "instance.requests_waiting", "is": "above", "threshold": i,
                          "severity": "warn"} for i in range(250)}  # fmt: skip
    _, page = sent(admin, json.dumps({"alert_rules": rules}), "json")
    assert "It would change 250: 250 made." in words(page)
    assert "50 more changes." in words(page)
    wrong = {f"r{i:03}": {"signal": "none"} for i in range(250)}
    _, page = sent(admin, json.dumps({"alert_rules": wrong}), "json")
    assert "The first 200 are shown." in words(page)


@pytest.mark.parametrize("role", ["viewer", "operator", "nobody"])
def test_only_administrators_of_the_site(role: str) -> None:
    make_fleet("f1")
    client = person(role)
    assert client.get(PAGE).status_code == 403
    assert sent(client, "policies: {f1: {mode: paused}}")[0] == 403
    assert f'href="{PAGE}"' not in client.get("/audit/").content.decode()


def test_it_is_linked_and_leads_to_exports(admin: Client) -> None:
    make_fleet("f1")
    assert f'href="{PAGE}"' in admin.get("/audit/").content.decode()
    page = admin.get(PAGE).content.decode()
    for format_ in FORMATS:
        address = f"/api/v1/export?format={format_}"
        assert f'href="{address}" download="site.{format_}"' in page
        assert read(admin.get(address).content, format_) == read_state().document
    assert scenario("f1")["fleet"]["name"] == "f1"
