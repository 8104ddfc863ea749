"""The pages and the API of backtests: who may, what they show, what they refuse, what they give."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from routing import backtest_work, backtests
from routing.models import Action, Backtest, Fleet, TraceFile
from tests.console.api_case import BASE, conforms, machine, person, send, strict
from tests.console.page_case import decision, tick
from tests.console.test_pages import words
from tests.routing.backtesting import (
    mooncake,
    scenario_backtest,
    trace_backtest,
    upload,
    work_all,
)
from tests.routing.cases import make_fleet

pytestmark = pytest.mark.django_db

PAGE = "/fleets/f1/backtests/"
START = f"{PAGE}start/"
FORM: dict[str, Any] = {
    "workload": "scenario",
    "duration_min": "2",
    "scale": "factor",
    "scale_value": "1",
    "policies": ["paper", "always_local"],
    "seeds": "2",
    "warmup_percent": "10",
    "plan_for": "workload",
    "cache": "",
    "cache_capacity": "unbounded",
}


@pytest.fixture
def operator() -> Client:
    return person("operator")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker is told of anything, and none remembers what another test prepared."""
    backtest_work._prepared.cache_clear()
    backtest_work._trace.cache_clear()
    for place in ("console.backtests.wake_twin", "routing.backtest_api.wake_twin"):
        monkeypatch.setattr(place, lambda n: None)


def text(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return words(response.content.decode())


class TestTheList:
    def test_empty_it_says_what_a_backtest_is(self, fleet: Fleet, operator: Client) -> None:
        found = text(operator, PAGE)
        assert "No backtest yet." in found
        assert "The loop has written no tick of this fleet yet" in found
        assert "Start backtest" in found

    def test_a_viewer_sees_the_list_and_no_form(self, fleet: Fleet) -> None:
        scenario_backtest(fleet)
        page = person("viewer").get(PAGE).content.decode()
        assert "Scenario traffic, 2 min" in words(page)
        assert "Start backtest" not in words(page)
        assert page.count('method="post"') == 2  # sign out, and the language

    def test_the_form_starts_one_and_leads_to_it(self, fleet: Fleet, operator: Client) -> None:
        response = operator.post(START, {**FORM, "static": "4000, 9000", "note": "why not"})
        made = Backtest.objects.get()
        assert response["Location"] == f"{PAGE}{made.pk}/"
        assert made.asked["policies"] == [
            *("paper", "always_local", "static:4000", "static:9000"),
        ]
        assert (made.note, made.requested_by) == ("why not", "operator")
        assert Action.objects.get(verb="backtest.create").via == "ui"

    def test_what_cannot_be_meant_stands_beside_its_field(
        self, fleet: Fleet, operator: Client
    ) -> None:
        for sent, says in (
            ({"policies": []}, "needs one at least"),
            ({"static": "many"}, "T of static:T must be a whole number of tokens"),
            ({"number:prfaas->pd.gbps": "-3"}, "must be in 0.001..1e+06"),
            ({"workload": "trace"}, "Choose a file, or one that was uploaded before."),
            ({"workload": "recorded"}, "Say from when to when."),
            ({"seeds": "21"}, "less than or equal to 20"),
            ({"cache": "cluster", "cache_capacity": "profile"}, "has no kv_capacity_tokens"),
        ):
            response = operator.post(START, {**FORM, **sent})
            assert response.status_code == 422, sent
            assert says in words(response.content.decode()).replace("&gt;", ">"), sent
        assert not Backtest.objects.exists()

    def test_a_trace_is_uploaded_with_the_form_and_can_be_chosen_again(
        self, fleet: Fleet, operator: Client
    ) -> None:
        file = SimpleUploadedFile("day.jsonl.gz", gzip.compress(mooncake()))
        sent = {**FORM, "workload": "trace", "scale": "load", "scale_value": "80", "upload": file}
        assert operator.post(START, sent).status_code == 302
        trace = TraceFile.objects.get()
        assert trace.name == "day.jsonl.gz"
        assert Backtest.objects.get().asked["scale_value"] == 0.8
        assert "day.jsonl.gz" in operator.get(PAGE).content.decode()
        sent = {**FORM, "workload": "trace", "trace": str(trace.pk)}
        assert operator.post(START, sent).status_code == 302
        assert TraceFile.objects.count() == 1

    def test_a_bad_file_says_its_line(self, fleet: Fleet, operator: Client) -> None:
        file = SimpleUploadedFile("bad.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,1\n")
        response = operator.post(START, {**FORM, "workload": "trace", "upload": file})
        assert response.status_code == 422
        assert "bad.csv:2:" in words(response.content.decode())

    def test_the_planners_numbers_arrive_in_the_form(self, fleet: Fleet, operator: Client) -> None:
        page = operator.get(PAGE, {"pd.rate_rps": "3.5", "cluster": "pd"}).content.decode()
        assert 'name="number:pd.rate_rps" value="3.5"' in page
        made = operator.post(START, {**FORM, "number:pd.rate_rps": "3.5"})
        assert made.status_code == 302
        assert Backtest.objects.get().scenario["workload"]["rate_rps"] == 3.5

    def test_the_same_again_with_changes(self, fleet: Fleet, operator: Client) -> None:
        made = trace_backtest(fleet, policies=("paper", "static:4000"), seeds=3, cache="instance")
        page = operator.get(PAGE, {"again": str(made.pk)}).content.decode()
        assert 'name="static" value="4000"' in page
        assert 'name="seeds" value="3"' in page
        assert f'<option value="{made.trace_id}" selected>' in page


class TestOne:
    def test_waiting_it_says_for_what(self, fleet: Fleet, operator: Client) -> None:
        made = scenario_backtest(fleet)
        Backtest.objects.update(created_at=timezone.now() - timedelta(minutes=2))
        found = text(operator, f"{PAGE}{made.pk}/")
        assert "queued 0 of 4 runs done, 4 waiting" in found
        assert "No worker has taken it for 2 min" in found
        assert "--queues twin" in found

    def test_done_it_compares_policies(self, fleet: Fleet, operator: Client) -> None:
        made = scenario_backtest(fleet, numbers={"prfaas->pd.gbps": 8})
        work_all()
        found = text(operator, f"{PAGE}{made.pk}/")
        assert "done 4 of 4 runs done" in found
        assert "paper baseline" in found
        assert "2 of 2" in found
        assert "Scenario traffic, 2 min, prfaas → pd.gbps = 8" in found
        assert "Cancel" not in found
        other = text(operator, f"{PAGE}{made.pk}/?baseline=always_local")
        assert "always local baseline" in other

    def test_a_trace_tells_what_it_was_and_how_it_was_scaled(
        self, fleet: Fleet, operator: Client
    ) -> None:
        made = trace_backtest(fleet, scale="load", scale_value=0.5)
        assert "the first run reads the whole trace" in text(operator, f"{PAGE}{made.pk}/")
        work_all()
        found = text(operator, f"{PAGE}{made.pk}/")
        for says in (
            "small.jsonl at 50 % of the best plan&#x27;s capacity",
            "60 requests in 2 min",
            "× its speed",
            "one for each cluster, unbounded, in blocks of 512 tokens",
            "2: each begins at another row of the trace",
        ):
            assert says in found, says

    def test_failed_it_names_row_and_field(self, fleet: Fleet, operator: Client) -> None:
        bad = b'{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'
        made = trace_backtest(fleet, upload(fleet, mooncake(4000) + bad))
        work_all()
        found = text(operator, f"{PAGE}{made.pk}/")
        assert "failed 0 of 4 runs done, 4 failed" in found
        assert "small.jsonl:4001: time = 0.001: is earlier than the row before it" in found

    def test_cancelled_it_says_by_whom(self, fleet: Fleet, operator: Client) -> None:
        made = scenario_backtest(fleet)
        assert "Cancel" in text(operator, f"{PAGE}{made.pk}/")
        response = operator.post(f"{PAGE}{made.pk}/cancel/")
        assert response["Location"] == f"{PAGE}{made.pk}/"
        found = text(operator, f"{PAGE}{made.pk}/")
        assert "cancelled 0 of 4 runs done, 4 cancelled" in found
        assert "Cancelled by operator" in found
        again = operator.post(f"{PAGE}{made.pk}/cancel/", follow=True).content.decode()
        assert "Nothing was cancelled: it is over" in words(again)

    def test_a_recorded_one_shows_twin_beside_live(self, fleet: Fleet, operator: Client) -> None:
        now = timezone.now().replace(second=0, microsecond=0)
        decision(fleet, now - timedelta(minutes=12), 1, 4000)
        for i in range(40):
            tick(fleet, now - timedelta(minutes=10) + timedelta(seconds=15 * i))
        sent = {
            **FORM,
            "workload": "recorded",
            "policies": ["lived"],
            "since": f"{now - timedelta(minutes=10):%Y-%m-%dT%H:%M}",
            "until": f"{now:%Y-%m-%dT%H:%M}",
        }
        assert operator.post(START, sent).status_code == 302
        made = Backtest.objects.get()
        assert "Twin beside live" not in text(operator, f"{PAGE}{made.pk}/")
        work_all()
        found = text(operator, f"{PAGE}{made.pk}/")
        assert "Twin beside live" in found
        assert "Remote share 48 %" in found
        assert "Under the plans that were lived." in found

    def test_another_fleets_is_not_found_here(self, fleet: Fleet, operator: Client) -> None:
        made = scenario_backtest(make_fleet("f2"))
        assert operator.get(f"{PAGE}{made.pk}/").status_code == 404
        assert operator.post(f"{PAGE}{made.pk}/cancel/").status_code == 404


class TestApi:
    def test_upload_start_look_and_cancel(self, fleet: Fleet) -> None:
        client = machine("operate")
        stored = client.post(
            f"{BASE}/fleets/f1/traces?name=day.jsonl",
            mooncake(),
            content_type="application/octet-stream",
        )
        assert stored.status_code == 201
        trace = conforms(stored, "/fleets/{fleet}/traces", "post")
        asked = {
            "workload": "trace",
            "trace": trace["id"],
            "policies": ["paper", "always_local"],
            "seeds": 2,
        }
        made = send(client, "post", "/fleets/f1/backtests", asked)
        assert made.status_code == 201
        body = conforms(made, "/fleets/{fleet}/backtests", "post")
        assert (body["state"], body["runs"]["queued"]) == ("queued", 4)
        assert body["asked"]["cache"] == "cluster"
        one = f"/fleets/f1/backtests/{body['id']}"
        work_all()
        reader = machine("read")
        found = conforms(send(reader, "get", one), "/fleets/{fleet}/backtests/{backtest_id}")
        assert found["results"]["state"] == "done"
        assert found["results"]["series"]["paper"]["n_seeds"] == 2
        assert found["backtest"]["prepared"]["n_requests"] == 60
        listed = send(reader, "get", "/fleets/f1/backtests")
        assert [row["id"] for row in strict(listed)["results"]] == [body["id"]]
        refused = send(client, "post", f"{one}/cancel", {"reason": "late"})
        assert refused.status_code == 422
        assert "nothing left to cancel" in strict(refused)["error"]

    @pytest.mark.parametrize(
        ("asked", "field"),
        [
            ({}, "workload"),
            ({"workload": "trace"}, "trace"),
            ({"workload": "trace", "trace": 77}, "trace"),
            ({"workload": "scenario", "policies": ["best"]}, "policies"),
            ({"workload": "scenario", "color": "red"}, "color"),
            ({"workload": "recorded"}, "since"),
        ],
    )
    def test_what_cannot_be_meant_names_its_field(
        self, fleet: Fleet, asked: dict[str, Any], field: str
    ) -> None:
        response = send(machine("operate"), "post", "/fleets/f1/backtests", asked)
        assert response.status_code == 422
        assert field in strict(response)["errors"]

    def test_too_large_an_upload_is_read_no_further(
        self, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backtests, "MOST_TRACE_BYTES", 50)
        response = machine("operate").post(
            f"{BASE}/fleets/f1/traces?name=a.jsonl",
            mooncake(),
            content_type="application/octet-stream",
        )
        assert response.status_code == 422
        assert "at most 50" in strict(response)["error"]

    def test_exports_carry_everything(self, fleet: Fleet) -> None:
        made = scenario_backtest(fleet)
        work_all()
        client = machine("read")
        one = f"{BASE}/fleets/f1/backtests/{made.pk}"
        everything = strict(client.get(f"{one}/export.json"))
        assert everything["scenario"]["fleet"]["name"] == "f1"
        assert len(everything["reports"]) == 4
        assert everything["reports"][0]["report"]["goodput_rps"] > 0
        assert everything["comparison"]["baseline"] == "paper"
        response = client.get(f"{one}/export.csv")
        assert response["Content-Type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(response.content.decode())))
        assert [(row["policy"], row["seed"]) for row in rows][:2] == [
            ("paper", "1"),
            ("paper", "2"),
        ]
        assert float(rows[0]["goodput_rps"]) > 0

    def test_another_baseline_can_be_asked_for(self, fleet: Fleet) -> None:
        made = scenario_backtest(fleet)
        client = machine("read")
        path = f"/fleets/f1/backtests/{made.pk}?baseline="
        found = strict(send(client, "get", f"{path}always_local"))
        assert found["results"]["baseline"] == "always_local"
        assert send(client, "get", f"{path}best").status_code == 422

    def test_cancelling_over_rest_stands_in_the_audit(self, fleet: Fleet) -> None:
        made = scenario_backtest(fleet)
        path = f"/fleets/f1/backtests/{made.pk}/cancel"
        response = send(machine("operate"), "post", path, {"reason": "wrong trace"})
        body = conforms(response, "/fleets/{fleet}/backtests/{backtest_id}/cancel", "post")
        assert (body["state"], body["cancelled_by"]) == ("cancelled", "token operate")
        action = Action.objects.get(verb="backtest.cancel")
        assert (action.via, action.reason) == ("rest", "wrong trace")
