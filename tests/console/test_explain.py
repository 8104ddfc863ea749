"""Where would this request run? The API's answer is the core's, under the plan in force."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from routing import fleets
from routing.core.placement.explain import Request, explain
from routing.models import Fleet
from telemetry import wire
from tests.console.api_case import conforms, machine, person, send, strict
from tests.routing.cases import feed
from tests.routing.issuing import issue

pytestmark = pytest.mark.django_db
TEMPLATE = "/fleets/{fleet}/explain"


@pytest.fixture
def reader() -> Client:
    return machine("read")


def ask(client: Client, total: Any, local: Any = 0, remote: Any = 0, cluster: str = "pd") -> Any:
    body = {
        "cluster": cluster,
        "total_tokens": total,
        "cached_tokens": {"local": local, "remote": remote},
    }
    return send(client, "post", "/fleets/f1/explain", body)


def test_before_any_plan_everything_is_local(fleet: Fleet, reader: Client) -> None:
    body = conforms(ask(reader, 30_000), TEMPLATE, "post")
    assert (body["plan"], body["side"], body["reason"]) == (None, "local", "NoPlan")
    assert body["remote"] is None
    assert body["compute_s"]["remote"] is None


def test_the_answer_is_the_cores_under_the_plan_in_force(fleet: Fleet, reader: Client) -> None:
    """S-64, on a grid of lengths and cached tokens."""
    issue(fleet, 4000)
    decision = fleets.newest_adopted(fleet)
    assert decision is not None
    under = fleets.plan_of(decision).clusters["pd"]
    sides = set()
    for total in (0, 3999, 4000, 4001, 60_000):
        for local, remote in ((0, 0), (total // 2, 0), (0, total), (total, total)):
            body = conforms(ask(reader, total, local, remote), TEMPLATE, "post")
            request = Request(total, {"local": local, "remote": remote})
            want = explain(request, under, cluster="pd")
            assert body["plan"] == f"{decision.epoch}.{decision.version}"
            for name in ("side", "reason", "sentence", "uncached_tokens", "decided_by", "remote"):
                assert body[name] == getattr(want, name), (total, local, remote)
            sides.add(body["side"])
    assert sides == {"local", "remote"}


def test_bytes_and_seconds_are_of_the_scenario_and_the_link_as_read(
    fleet: Fleet, reader: Client
) -> None:
    issue(fleet, 4000)
    body = conforms(ask(reader, 27_486), TEMPLATE, "post")
    [kv] = body["shipments"]
    assert (kv["link"], kv["what"], kv["tokens"]) == ("prfaas->pd", "kv", 27_486)
    assert kv["bytes"] == pytest.approx(182_347_366 + 17_280 * 27_486)
    # 30 of 100 Gbps are certainly free below the policy's scarce_above_ratio.
    assert kv["seconds"] == pytest.approx(0.005 + 8 * kv["bytes"] / 30e9)
    assert body["compute_s"] == {"local": pytest.approx(4.265), "remote": pytest.approx(1.63265)}
    now_s = timezone.now().timestamp()
    signals = wire.LinkSignals(capacity_gbps=10.0)
    feed([wire.LinkSample(id="prfaas->pd", at_s=now_s, measured_layer="ip", signals=signals)])
    [slower] = conforms(ask(reader, 27_486), TEMPLATE, "post")["shipments"]
    assert slower["seconds"] == pytest.approx(0.005 + 8 * kv["bytes"] / 3e9)


WRONG = [
    ("no such cluster", {"cluster": "nowhere"}, "nowhere"),
    ("a PrfaaS cluster has no gates", {"cluster": "prfaas"}, "prfaas"),
    ("negative", {"total_tokens": -1}, "total_tokens"),
    ("not a number", {"total_tokens": "many"}, "many"),
    (
        "more cached than there is",
        {"cached_tokens": {"local": 9, "remote": 0}},
        "cached_tokens.local",
    ),
    ("absent is not zero", {"cached_tokens": {"local": 1}}, "remote"),
    ("misspelt", {"total_token": 5}, "total_token"),
    ("no object", {"cached_tokens": 5}, "cached_tokens"),
    ("nobody's decision", {"decision": 999_999}, "is no decision of f1"),
    ("nan lies in no range", {"free_ratio": "nan"}, "free_ratio"),
    ("half a comparison", {"moment": {"waits_s": {"local": 1.0}}}, "remote"),
    ("a moment misspelt", {"moment": {"up": True}}, "is not a field"),
]


@pytest.mark.parametrize(("case", "changed", "says"), WRONG, ids=[c[0] for c in WRONG])
def test_what_cannot_be_meant_is_refused(
    fleet: Fleet, reader: Client, case: str, changed: dict[str, Any], says: str
) -> None:
    body = {"cluster": "pd", "total_tokens": 8, "cached_tokens": {"local": 0, "remote": 0}}
    response = send(reader, "post", "/fleets/f1/explain", {**body, **changed})
    assert response.status_code == 422
    assert says in str(strict(response))


@pytest.mark.parametrize("query", ["cluster=pd", "dry_run=true", "limit=5"])
def test_what_follows_the_question_mark_is_not_read_and_so_refused(
    fleet: Fleet, reader: Client, query: str
) -> None:
    body = {"cluster": "pd", "total_tokens": 8, "cached_tokens": {"local": 0, "remote": 0}}
    response = send(reader, "post", f"/fleets/f1/explain?{query}", body)
    assert response.status_code == 422
    [field] = strict(response)["errors"]
    assert field == query.partition("=")[0]
    assert "is not a field of this query, which has none" in str(strict(response))


def test_viewers_may_ask(fleet: Fleet) -> None:
    assert ask(person("viewer"), 5).status_code == 200
    assert send(machine("read"), "post", "/fleets/none/explain", {}).status_code == 404


def command(*words: str) -> str:
    out = io.StringIO()
    call_command("explain", *words, stdout=out)
    return out.getvalue()


def test_the_command_says_it_in_a_sentence(fleet: Fleet) -> None:
    issue(fleet, 4000)
    said = command("f1", "pd", "30000", "--cached-local", "10000", "--cached-remote", "25000")
    assert said.splitlines() == [
        "Remote, at prfaas: 20,000 uncached tokens are above the threshold of 4,000.",
        "prfaas->pd: 20,000 tokens of kv, 528 MB in 0.146 s",
        "15,000 more tokens over prfaas->pd: 0.123 s to move, 2.12 s to compute; "
        "the prefill is remote, where it is",
    ]
    body = json.loads(command("f1", "pd", "30000", "--json"))
    assert (body["side"], body["uncached_tokens"]) == ("remote", 30_000)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none", "pd", "5"), "fleet none"),
        (("f1", "none", "5"), "cluster = none"),
        (("f1", "pd", "5", "--cached-local", "6"), r"cached_tokens\.local = 6"),
        (("f1", "pd", "-5"), "total_tokens = -5"),
    ],
    ids=["no such fleet", "no such cluster", "more cached than there is", "negative"],
)
def test_a_command_that_cannot_be_meant_is_exit_2(fleet: Fleet, words: Any, says: str) -> None:
    with pytest.raises(CommandError, match=says) as refused:
        command(*words)
    assert refused.value.returncode == 2
