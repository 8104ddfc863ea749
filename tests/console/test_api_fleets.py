"""What the API answers about a fleet, checked against its own schema."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from django.test import Client
from django.utils import timezone

from routing import delivery, scheduler
from routing.models import Decision, Fleet, RouterState, Tick
from telemetry import wire
from tests.console.api_case import BASE, conforms, machine, schema, send, strict
from tests.routing.cases import (
    NOW_S,
    Gate,
    after,
    engines,
    feed,
    instance,
    link,
    traffic,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def reader() -> Client:
    return machine("read")


def shift(samples: list[Any]) -> list[Any]:
    """The same samples as if NOW were now: REST answers by the clock."""
    by_s = timezone.now().timestamp() - NOW_S
    return [type(s)(**{**_fields(s), "at_s": s.at_s + by_s}) for s in samples]


def _fields(sample: Any) -> dict[str, Any]:
    return {name: getattr(sample, name) for name in sample.__struct_fields__}


def run_ticks(n: int = 3) -> list[Tick]:
    ticks = [scheduler.run_tick("f1", now=after(2.0 * i), tick_s=2.0) for i in range(n)]
    return [tick for tick in ticks if tick is not None]


def test_fleets_are_listed_with_their_mode(fleet: Fleet, reader: Client) -> None:
    body = conforms(send(reader, "get", "/fleets"), "/fleets")
    assert [(f["name"], f["mode"]) for f in body["results"]] == [("f1", "active")]


def test_a_fleet_shows_its_scenario_plan_and_newest_tick(fleet: Fleet, reader: Client) -> None:
    body = conforms(send(reader, "get", "/fleets/f1"), "/fleets/{fleet}")
    assert (body["plan"], body["tick"]) == (None, None)
    run_ticks()
    body = conforms(send(reader, "get", "/fleets/f1"), "/fleets/{fleet}")
    assert body["plan"]["version"] == 1
    assert body["tick"]["seq"] == Tick.objects.latest("seq").seq
    assert body["scenario"]["fleet"]["name"] == "f1"


@pytest.mark.parametrize(
    "path", ["", "/plan", "/policy", "/holds", "/ticks", "/decisions", "/routers", "/instances",
             "/links", "/series?names=loop:headroom", "/snapshot", "/ticks/1", "/decisions/1"]
)  # fmt: skip
def test_an_unknown_fleet_is_404_in_the_one_error_shape(reader: Client, path: str) -> None:
    response = send(reader, "get", f"/fleets/nobody{path}")
    body = strict(response)
    assert (response.status_code, body["ok"], body["status"]) == (404, False, 404)


def test_an_unknown_address_is_404_in_the_one_error_shape(reader: Client) -> None:
    body = strict(send(reader, "get", "/fleet"))
    assert body == {
        "ok": False,
        "error": "there is no /api/v1/fleet",
        "errors": {},
        "status": 404,
        "code": "not_found",
        "request_id": body["request_id"],
    }


def test_a_wrong_method_is_405_in_the_one_error_shape(fleet: Fleet) -> None:
    response = send(machine("operate"), "delete", "/fleets/f1/policy")
    assert (response.status_code, strict(response)["status"]) == (405, 405)


def test_the_plan_is_read_once_and_then_not_modified(fleet: Fleet) -> None:
    router = machine("router")
    assert send(router, "get", "/fleets/f1/plan").status_code == 404
    run_ticks()
    response = send(router, "get", "/fleets/f1/plan")
    body = conforms(response, "/fleets/{fleet}/plan")
    assert body == delivery.newest_document(fleet)
    assert response["ETag"] == '"1.1"'
    again = send(router, "get", "/fleets/f1/plan", **{"If-None-Match": '"1.1"'})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", '"1.1"')
    other = send(router, "get", "/fleets/f1/plan", **{"If-None-Match": '"1.0"'})
    assert other.status_code == 200


def test_a_polling_router_acks_in_its_headers(fleet: Fleet) -> None:
    run_ticks()
    headers = {
        "X-Router": "f1/pd/gw-1",
        "X-Version-Running": "1.1",
        "X-State": "running",
        "If-None-Match": '"1.1"',
    }
    assert send(machine("router"), "get", "/fleets/f1/plan", **headers).status_code == 304
    row = RouterState.objects.get()
    assert (row.epoch_running, row.version_running, row.transport) == (1, 1, "poll")
    decision = Decision.objects.get()
    assert delivery.summaries([decision])[decision.pk]["state"] == "applied"


def test_a_router_without_a_plan_acks_too(fleet: Fleet) -> None:
    headers = {"X-Router": "f1/pd/gw-1", "X-State": "no_plan"}
    assert send(machine("router"), "get", "/fleets/f1/plan", **headers).status_code == 404
    assert RouterState.objects.get().state == "no_plan"


@pytest.mark.parametrize(
    ("field", "headers"),
    [
        ("router", {"X-Router": "gw-1"}),
        ("state", {"X-Router": "f1/pd/gw-1", "X-State": "fine"}),
        ("X-Version-Running", {"X-Router": "f1/pd/gw-1", "X-Version-Running": "41"}),
        ("X-Version-Running", {"X-Router": "f1/pd/gw-1", "X-Version-Running": "1.²"}),
        ("X-Version-Running", {"X-Router": "f1/pd/gw-1", "X-Version-Running": "1.99999999999"}),
    ],
)
def test_an_ack_that_cannot_be_meant_is_422(
    fleet: Fleet, field: str, headers: dict[str, str]
) -> None:
    response = send(machine("router"), "get", "/fleets/f1/plan", **headers)
    assert response.status_code == 422
    assert field in strict(response)["errors"]
    assert not RouterState.objects.exists()


def test_reading_the_plan_is_not_acking_it(fleet: Fleet, reader: Client) -> None:
    run_ticks()
    assert send(reader, "get", "/fleets/f1/plan").status_code == 200
    response = send(reader, "get", "/fleets/f1/plan", **{"X-Router": "f1/pd/gw-1"})
    assert response.status_code == 403
    assert not RouterState.objects.exists()


def test_ticks_are_paged_newest_first_and_told_in_full(fleet: Fleet, reader: Client) -> None:
    """S-30: reason, inputs, formula, clamps and the next moment, also of a non-action."""
    traffic()
    ticks = run_ticks(5)
    body = conforms(send(reader, "get", "/fleets/f1/ticks?limit=2"), "/fleets/{fleet}/ticks")
    assert [t["seq"] for t in body["results"]] == [ticks[4].seq, ticks[3].seq]
    more = strict(reader.get(body["next"]))
    assert [t["seq"] for t in more["results"]] == [ticks[2].seq, ticks[1].seq]
    one = conforms(
        send(reader, "get", f"/fleets/f1/ticks/{ticks[4].seq}"), "/fleets/{fleet}/ticks/{seq}"
    )
    assert one["reason"]
    assert one["message"]
    assert {"clamps", "formula", "next_action_at_s", "memory"} <= one["verdict"].keys()
    assert one["observed"]["pd"]["pd"]["lengths"]["n_seen"] > 1_000


def test_decisions_show_what_changed_and_how_far_it_got(fleet: Fleet, reader: Client) -> None:
    run_ticks()
    body = conforms(send(reader, "get", "/fleets/f1/decisions"), "/fleets/{fleet}/decisions")
    [row] = body["results"]
    assert row["changes"]["pd"]["threshold_tokens"] == [None, 4000]
    assert row["delivery"]["state"] == "unclaimed"
    one = conforms(
        send(reader, "get", f"/fleets/f1/decisions/{row['id']}"),
        "/fleets/{fleet}/decisions/{decision_id}",
    )
    assert one["plan"]["clusters"]["pd"]["threshold_tokens"] == 4000
    assert one["tick"]["reason"] == "Initial"


def test_routers_show_ack_witness_and_findings(fleet: Fleet, reader: Client) -> None:
    feed(shift([Gate(plan=(1, 7)).sample(NOW_S)]))
    body = conforms(send(reader, "get", "/fleets/f1/routers"), "/fleets/{fleet}/routers")
    [row] = body["results"]
    assert (row["state"], row["scraped"]["version"]) == ("never_acked", 7)
    assert row["findings"]


def test_signals_that_are_idle_missing_or_failed_are_told_apart(
    fleet: Fleet, reader: Client
) -> None:
    """S-04: a histogram that saw nothing is idle; absent is missing; a failed read is failed."""
    ttft = wire.Histogram([0.1, 1.0], [3.0, 2.0, 0.0], 2.5)
    path = "f1/pd/d0"
    idle = [
        wire.InstanceSample(
            id=path,
            role="decode",
            engine="vllm",
            at_s=NOW_S + at_s,
            signals=wire.InstanceSignals(requests_running=0.0, ttft_seconds=ttft),
        )
        for at_s in (-50.0, -1.0)
    ]
    feed(shift([*idle, instance("f1/pd/p0", at_s=-1.0, state="failed")]))
    body = conforms(send(reader, "get", "/fleets/f1/instances"), "/fleets/{fleet}/instances")
    by_id = {row["id"]: row for row in body["results"]}
    signals = by_id[path]["signals"]
    assert signals["requests_running"] == {"state": "value", "value": 0.0}
    assert signals["ttft_seconds"] == {"state": "idle", "value": {"count": 5.0, "sum": 2.5}}
    assert signals["kv_cache_usage_ratio"] == {"state": "missing", "value": None}
    failed = by_id["f1/pd/p0"]
    assert (failed["state"], failed["error"]) == ("failed", "timed out")
    assert {s["state"] for s in failed["signals"].values()} == {"failed"}


def test_instances_are_paged_and_narrowed(fleet: Fleet, reader: Client) -> None:
    feed(shift(engines()))
    body = strict(send(reader, "get", "/fleets/f1/instances?cluster=pd&role=decode&limit=2"))
    assert body["count"] == 5
    assert [row["id"] for row in body["results"]] == ["f1/pd/d0", "f1/pd/d1"]


def test_links_are_listed_whether_or_not_they_were_read(fleet: Fleet, reader: Client) -> None:
    body = conforms(send(reader, "get", "/fleets/f1/links"), "/fleets/{fleet}/links")
    [row] = body["results"]
    assert (row["id"], row["state"], row["configured_gbps"]) == ("prfaas->pd", "missing", 100.0)
    feed(shift([link(tx_gbps=9.5)]))
    [row] = strict(send(reader, "get", "/fleets/f1/links"))["results"]
    assert row["signals"]["tx_gbps"] == {"state": "value", "value": 9.5}
    assert row["measured_layer"] == "lab"


def test_the_snapshot_is_a_frame_over_rest(fleet: Fleet, reader: Client) -> None:
    feed(shift([*engines(), link(tx_gbps=9.5)]))
    body = conforms(send(reader, "get", "/fleets/f1/snapshot"), "/fleets/{fleet}/snapshot")
    assert (body["type"], body["fleet"], body["snapshot"]) == ("frame", "f1", True)


def test_series_put_samples_and_ticks_on_one_axis(fleet: Fleet, reader: Client) -> None:
    traffic()
    ticks = run_ticks(30)
    names = (
        "link:prfaas->pd:tx_gbps", "pool:pd/prefill:waiting", "loop:threshold_tokens:pd",
        "loop:remote_share:pd", "loop:remote_predicted:pd", "loop:demand_rps", "loop:headroom",
        "loop:lambda_max_rps",
    )  # fmt: skip
    until = NOW_S + 58
    response = send(
        reader,
        "get",
        f"/fleets/f1/series?names={','.join(names)}&since={NOW_S - 60}&until={until}&points=40",
    )
    body = conforms(response, "/fleets/{fleet}/series")
    assert set(body["series"]) == set(names)
    assert {len(values) for values in body["series"].values()} == {len(body["t"])}
    before = [i for i, t in enumerate(body["t"]) if t + body["bin_s"] <= NOW_S]
    during = [i for i, t in enumerate(body["t"]) if NOW_S <= t < until]
    thresholds, demand = (
        body["series"]["loop:threshold_tokens:pd"],
        body["series"]["loop:demand_rps"],
    )
    assert [thresholds[i] for i in before] == [None] * len(before)
    assert thresholds[during[0]] == 4000
    assert all(demand[i] == pytest.approx(2.5, rel=0.3) for i in during)
    assert [demand[i] for i in before] == [None] * len(before)
    assert 9.4 in body["series"]["link:prfaas->pd:tx_gbps"]
    assert body["decisions"][0]["reason"] == "Initial"
    assert body["decisions"][0]["changes"]["pd"]["mode"] == [None, "threshold"]
    assert ticks[-1].at.timestamp() < until + 2


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "names"),
        ("names=", "names"),
        ("names=cpu:pd", "names"),
        ("names=link:prfaas->pd:colour", "names"),
        ("names=pool:pd:waiting", "names"),
        ("names=loop:luck", "names"),
        ("names=loop:headroom&points=0", "points"),
        ("names=loop:headroom&points=99999", "points"),
        ("names=loop:headroom&since=2&until=1", "until"),
        ("names=loop:headroom&since=nan", "since"),
        ("names=loop:headroom&since=0&until=1e10", "until"),
        ("names=loop:headroom&speed=1", "speed"),
        ("names=" + ",".join(["loop:headroom"] * 41), "names"),
    ],
)
def test_a_series_that_cannot_be_meant_is_422(
    fleet: Fleet, reader: Client, query: str, field: str
) -> None:
    response = send(reader, "get", f"/fleets/f1/series?{query}")
    assert response.status_code == 422, response.content
    assert field in strict(response)["errors"]


def test_a_page_is_never_longer_than_200(fleet: Fleet, reader: Client) -> None:
    feed(shift([instance(f"f1/pd/p{i}", at_s=-1.0) for i in range(210)]))
    body = strict(send(reader, "get", "/fleets/f1/instances?limit=100000"))
    assert (len(body["results"]), body["count"]) == (200, 210)


LISTS = (
    *(f"/fleets/f1/{name}" for name in ("holds", "ticks", "decisions", "rebalances", "routers")),
    *("/fleets", "/fleets/f1/instances", "/fleets/f1/links", "/audit", "/tokens"),
)


@pytest.mark.parametrize(
    ("query", "field", "says"),
    [
        ("limit=abc", "limit", "must be a whole number (got 'abc')"),
        ("limit=0", "limit", "must be at least 1 (got '0')"),
        ("limits=5", "limits", "is not a field of this query, which has limit"),
        ("limit=1&limit=2", "limit", "is given twice"),
    ],
)
@pytest.mark.parametrize("path", LISTS)
def test_a_query_that_cannot_be_meant_is_422_on_every_list(
    fleet: Fleet, path: str, query: str, field: str, says: str
) -> None:
    body = strict(response := send(machine("admin"), "get", f"{path}?{query}"))
    assert response.status_code == body["status"] == 422, body
    assert list(body["errors"]) == [field]
    assert body["error"].startswith(f"{field}: {says}")


@pytest.mark.parametrize(
    ("path", "query", "error"),
    [
        ("holds", "open=maybe", "open: must be true or false (got 'maybe')"),
        ("rebalances", "open=maybe", "open: must be true or false (got 'maybe')"),
        ("instances", "offset=-1", "offset: must be at least 0 (got '-1')"),
        ("instances", "rol=prefill", "rol: is not a field of this query, which has limit, cursor, "
         "offset, cluster, role"),
        ("series", "names=loop:headroom&points=many", "points: A valid integer is required. "
         "(got 'many')"),
    ],
)  # fmt: skip
def test_an_error_in_a_query_names_field_and_value(
    fleet: Fleet, reader: Client, path: str, query: str, error: str
) -> None:
    response = send(reader, "get", f"/fleets/f1/{path}?{query}")
    assert (response.status_code, strict(response)["error"]) == (422, error)


def test_the_schema_names_every_field_of_a_lists_query(fleet: Fleet) -> None:
    for path in LISTS:
        names = {
            p["name"]: p["schema"]["type"]
            for p in schema()["paths"][BASE + path.replace("f1", "{fleet}")]["get"]["parameters"]
            if p["in"] == "query"
        }
        wrong = strict(send(machine("admin"), "get", f"{path}?no=1"))["error"]
        assert names.keys() == set(wrong.rpartition("which has ")[2].split(", ")), path
        assert names["limit"] == "integer"


@pytest.mark.parametrize("position", ["abc", "1", "2026-01-01", "9" * 5_000, "%00"])
@pytest.mark.parametrize("path", ["ticks", "decisions", "holds"])
def test_a_forged_cursor_is_not_found(
    fleet: Fleet, reader: Client, path: str, position: str
) -> None:
    cursor = base64.b64encode(f"p={position}".encode()).decode()
    response = send(reader, "get", f"/fleets/f1/{path}?{urlencode({'cursor': cursor})}")
    good = position == "1" and path != "ticks"
    assert response.status_code == (200 if good else 404)
    strict(response)


def test_the_pages_of_a_list_follow_each_other(fleet: Fleet, reader: Client) -> None:
    run_ticks()
    first = strict(send(reader, "get", "/fleets/f1/ticks?limit=1"))
    query = urlsplit(first["next"]).query
    second = strict(send(reader, "get", f"/fleets/f1/ticks?{query}"))
    assert second["results"][0]["seq"] < first["results"][0]["seq"]


def test_a_null_character_in_a_query_is_refused_in_the_one_error_shape(
    fleet: Fleet, reader: Client
) -> None:
    for path in ("/audit?fleet=%00", "/fleets/f1/instances?cluster=%00&role=%00"):
        response = send(reader, "get", path)
        assert (response.status_code, strict(response)["status"]) == (400, 400)


def test_a_host_we_do_not_answer_to_is_400_in_the_one_error_shape(
    fleet: Fleet, reader: Client
) -> None:
    response = send(reader, "get", "/fleets/f1", Host="evil.example")
    assert (response.status_code, strict(response)["status"]) == (400, 400)


@pytest.mark.parametrize("since_s", ["-1e12", "253402300799", "-1"])
def test_a_series_at_no_possible_time_is_422(fleet: Fleet, reader: Client, since_s: str) -> None:
    until_s = float(since_s) + 100.0 if since_s != "253402300799" else 253402300899
    query = f"names=loop:headroom&since={since_s}&until={until_s}"
    response = send(reader, "get", f"/fleets/f1/series?{query}")
    assert response.status_code == 422
    assert "since" in strict(response)["errors"]


def test_an_ack_of_a_version_of_5000_digits_is_422(fleet: Fleet) -> None:
    headers = {"X-Router": "f1/pd/gw-1", "X-Version-Running": "9" * 5_000 + ".1"}
    response = send(machine("router"), "get", "/fleets/f1/plan", **headers)
    assert response.status_code == 422


def test_the_links_of_other_fleets_are_not_in_a_fleets_series(fleet: Fleet) -> None:
    bound = machine("read", fleet="f1")
    response = send(bound, "get", "/fleets/f1/series?names=link:x->y:tx_gbps")
    assert response.status_code == 422
    assert "is no link of f1" in strict(response)["error"]
