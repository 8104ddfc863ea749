"""Jobs over REST and on their pages: tried, kept, due in two clocks, run now."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from routing.jobs import runs
from routing.jobs.models import Job, JobRun
from routing.models import Policy
from tests.console.api_case import conforms, person, send, strict
from tests.routing.cases import make_fleet
from tests.routing.jobs.case import ADVISE, MORNING, put

pytestmark = pytest.mark.django_db

ONE = "/fleets/{fleet}/jobs/{name}"


@pytest.fixture
def operator() -> Client:
    make_fleet()
    return person("operator")


def text(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return str(response.content.decode())


def test_the_life_of_a_job_over_rest(operator: Client) -> None:
    path = "/fleets/f1/jobs/advise"
    made = send(operator, "put", path, {"document": ADVISE})
    assert conforms(made, ONE, "put")["version"] == 1
    assert len(strict(made)["next_due_at"]) == 3
    assert send(operator, "put", path, {"document": ADVISE | {"grace_s": 5}}).status_code == 428
    changed = send(
        operator, "put", path, {"document": ADVISE | {"grace_s": 5}}, **{"If-Match": '"1"'}
    )
    assert strict(changed)["document"]["grace_s"] == 5
    begun = send(operator, "post", f"{path}/run", {"reason": "now"})
    assert begun.status_code == 201
    assert conforms(begun, ONE + "/run", "post")["state"] == "due"
    assert send(operator, "post", f"{path}/run", {"reason": "now"}).status_code == 422
    runs.work(timezone.now)
    listed = conforms(send(operator, "get", "/fleets/f1/job-runs"), "/fleets/{fleet}/job-runs")
    assert [(run["state"], run["asked_by"]) for run in listed["results"]] == [("done", "operator")]
    assert Policy.objects.get().mode == "advisory"
    assert send(operator, "delete", path, **{"If-Match": '"2"'}).status_code == 204
    assert not Job.objects.exists()


def test_a_job_is_of_the_fleet_in_its_address(operator: Client) -> None:
    make_fleet("f2")
    refused = send(operator, "put", "/fleets/f2/jobs/advise", {"document": ADVISE})
    assert "and f2 in the address" in str(strict(refused)["errors"]["document"])
    put(ADVISE)
    assert send(operator, "get", "/fleets/f2/jobs/advise").status_code == 404
    other = send(operator, "put", "/fleets/f2/jobs/advise", {"document": ADVISE | {"fleet": "f2"}})
    assert other.status_code in (400, 422)


def test_what_is_wrong_is_named(operator: Client) -> None:
    document = ADVISE | {"when": ADVISE["when"] | {"zone": "Paris"}}
    refused = send(operator, "put", "/fleets/f1/jobs/advise", {"document": document})
    assert refused.status_code == 422
    assert "IANA" in str(strict(refused)["errors"]["when.zone"])


def test_an_empty_page_says_what_jobs_are(operator: Client) -> None:
    page = text(operator, "/fleets/f1/jobs/")
    assert "Nothing is done at a time." in page
    assert "No job has been due yet." in page


def test_due_times_are_shown_in_both_clocks(operator: Client) -> None:
    """S-54: the zone's and UTC."""
    put(MORNING)
    page = text(operator, "/fleets/f1/jobs/")
    assert "08:00 Europe/Paris, mon, tue, wed, thu, fri" in page
    assert "at least 5 prefill in pd for 10 h" in page
    assert page.count(" 08:00 Europe/Paris") >= 5, "a week ahead"
    assert " UTC" in page


def test_the_calendar_has_what_ran_since_yesterday(operator: Client) -> None:
    """With what became of it, in the job's clock as well; older runs are in the list only."""
    put(ADVISE)
    now = timezone.now()
    for job, hours, said in (
        ("advise", 1, "f1 is so"),
        ("gone", 2, "so be it"),
        ("gone", 25, "ages ago"),
    ):
        at = now - timedelta(hours=hours)
        JobRun.objects.create(job=job, fleet="f1", due_at=at, state="done", text=said)
    page = text(operator, "/fleets/f1/jobs/")
    calendar, runs_listed = page.split('id="job-calendar"')[1].split('id="job-runs"')
    assert calendar.index("so be it") < calendar.index("f1 is so"), "in their order"
    assert "ages ago" not in calendar
    assert all(said in runs_listed for said in ("f1 is so", "so be it", "ages ago"))
    local = (now - timedelta(hours=1)).astimezone(ZoneInfo("Europe/Paris"))
    assert f"{local:%a %F %H:%M} Europe/Paris" in calendar
    assert calendar.count('class="state good"') == 2


def sent(document: Any, version: int = 0, **more: str) -> dict[str, Any]:
    return {"document": json.dumps(document), "version": version, "enabled": "on", **more}


def test_a_job_is_tried_before_it_is_kept(operator: Client) -> None:
    path = "/fleets/f1/jobs/new/"
    tried = operator.post(path, sent(ADVISE, **{"try": ""}))
    assert "dry run: would set f1 advisory, it is active" in tried.content.decode()
    assert not Job.objects.exists()
    cannot = operator.post(path, sent(MORNING, **{"try": ""}))
    assert "now it could not" in cannot.content.decode()
    kept = operator.post(path, sent(ADVISE, keep=""), follow=True)
    assert "Job advise is kept, version 1." in kept.content.decode()
    stale = operator.post("/fleets/f1/jobs/advise/", sent(ADVISE, version=0, keep=""))
    assert stale.status_code == 422
    other = operator.post(path, sent(ADVISE | {"fleet": "f2"}, keep=""))
    assert "fleet: is no fleet of this console" in other.content.decode()


def test_run_now_and_its_run(operator: Client) -> None:
    put(ADVISE)
    done = operator.post("/fleets/f1/jobs/advise/run/", {"reason": "x"}, follow=True)
    assert "advise is due now" in done.content.decode()
    again = operator.post("/fleets/f1/jobs/advise/run/", {"reason": "x"}, follow=True)
    assert "a run of it is due" in again.content.decode()
    assert JobRun.objects.count() == 1


def test_a_viewer_looks_only() -> None:
    make_fleet()
    put(ADVISE)
    viewer = person("viewer")
    assert "Run now" not in text(viewer, "/fleets/f1/jobs/")
    for path in ("new/", "advise/", "advise/run/"):
        assert viewer.post(f"/fleets/f1/jobs/{path}", {}).status_code == 403
