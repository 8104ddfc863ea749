"""Incidents reach receivers, signed, tried again, at addresses that are allowed only (S-62)."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from routing.adapters import places
from routing.alerts import incidents, receivers, rules, sending, silences, telling
from routing.alerts.addresses import may_reach
from routing.alerts.models import Incident, Notification, Receiver
from routing.commands import Refused
from tests.routing.alerts.case import BY, FULL, Heard, incident, put, receiving
from tests.routing.cases import NOW, after, make_fleet

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(settings.ENV, "CONSOLE_ALERT_NETWORKS", ["127.0.0.0/8"])
    monkeypatch.setitem(settings.ENV, "CONSOLE_URL", "https://console.example/")


@pytest.fixture
def heard() -> Iterator[Heard]:
    with receiving() as server:
        yield server


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(places.FOLDER_SETTING, str(tmp_path))
    (tmp_path / "hook.key").write_text("top-secret\n")
    return tmp_path


def add(target: str, kind: str = "webhook", **more: Any) -> Receiver:
    options: dict[str, Any] = {"name": "hook", "if_version": None, "now": NOW} | BY | more
    return receivers.put(kind=kind, target=target, **options)


def rule(**more: Any) -> Any:
    put(FULL | {"receivers": ["hook"]} | more)
    return rules.parsed(FULL | {"receivers": ["hook"]} | more)


def deliver(at_s: float) -> list[str]:
    telling.deliver(lambda: after(at_s), random.Random(1))
    return list(Notification.objects.order_by("pk").values_list("state", flat=True))


def fired(**more: Any) -> Incident:
    row = incident()
    telling.queue([row], [], [rule(**more)], now=NOW)
    return row


def test_a_webhook_is_signed_and_says_it_all(heard: Heard, keys: Path) -> None:
    add(heard.url, secret_file="hook.key")
    row = fired(runbook_url="https://wiki.example/kv")
    assert deliver(1) == ["sent"]
    [body], [headers] = heard.bodies, heard.headers
    assert body["event"] == "firing"
    assert body["sentence"] == row.sentence
    assert body["url"] == f"https://console.example/alerts/{row.pk}/"
    assert (body["sources"], body["n_sources"], body["resolved_at_s"]) == (["f1/pd/d1"], 1, None)
    at, given = headers["X-PrfaaS-Signature"].removeprefix("t=").split(",v1=")
    signed = at.encode() + b"." + heard.raw[0]
    assert given == hmac.new(b"top-secret", signed, hashlib.sha256).hexdigest()
    assert "top-secret" not in str(body)


def test_what_ends_is_told_to_who_was_told_that_it_began(heard: Heard) -> None:
    add(heard.url)
    row = fired()
    deliver(1)
    incidents.acknowledge(
        incident_id=row.pk, note="on it", if_version=None, actor="bo", via="ui", now=after(2)
    )
    deliver(3)
    row.resolved_at = after(60)
    row.save()
    telling.queue([], [row], [], now=after(60))
    deliver(61)
    assert [body["event"] for body in heard.bodies] == ["firing", "acknowledged", "resolved"]
    assert (heard.bodies[1]["by"], heard.bodies[1]["note"]) == ("bo", "on it")
    assert heard.bodies[2]["resolved_at_s"] == after(60).timestamp()
    assert len({headers["Idempotency-Key"] for headers in heard.headers}) == 3


def test_a_receiver_that_fails_is_tried_again_with_growing_pauses(heard: Heard) -> None:
    add(heard.url)
    fired()
    heard.status = 503
    seen = []
    for at_s in range(0, 4000, 5):
        before = len(heard.bodies)
        deliver(at_s)
        if len(heard.bodies) > before:
            seen.append(at_s)
    assert len(seen) == telling.MOST_ATTEMPTS
    pauses = [b - a for a, b in itertools.pairwise(seen)]
    assert pauses[:3] == sorted(pauses[:3])
    assert max(pauses) <= 1.2 * telling.LONGEST_PAUSE_S + 5
    row = Notification.objects.get()
    assert (row.state, row.error) == ("given_up", "answered 503")


def test_one_that_comes_back_gets_it_once(heard: Heard) -> None:
    add(heard.url)
    fired()
    heard.status = 500
    deliver(0)
    heard.status = 200
    assert deliver(15) == ["sent"]
    assert deliver(30) == ["sent"]
    assert len(heard.bodies) == 2


def test_one_that_hangs_is_waited_for_so_long(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.2)
    add(heard.url)
    fired()
    heard.hangs_s = 1.0
    deliver(0)
    assert "needs more than 0.2 s" in Notification.objects.get().error


def test_one_that_fails_does_not_have_the_others_wait(heard: Heard) -> None:
    """Five incidents for it: one message of a pass is tried, and the other receiver gets all."""
    with receiving() as sick:
        sick.status = 500
        add(sick.url, name="sick")
        add(heard.url)
        asked = rule(receivers=["sick", "hook"])
        rows = [incident(group=f"f1/c{i}") for i in range(5)]
        telling.queue(rows, [], [asked], now=NOW)
        deliver(1)
        assert (len(sick.bodies), len(heard.bodies)) == (1, 5)


def test_a_redirect_is_not_followed_and_no_answer_is_shown(heard: Heard) -> None:
    add(heard.url)
    fired()
    with receiving() as other:
        heard.status, heard.location = 302, other.url
        deliver(0)
        assert other.bodies == []
    assert Notification.objects.get().error == "answered 302"


def test_a_name_that_is_bound_anew_is_not_believed(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked at the save it was public; at the delivery it is this machine."""
    found = ["93.184.216.34"]
    monkeypatch.setitem(settings.ENV, "CONSOLE_ALERT_NETWORKS", [])
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, **_: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found[0], port))],
    )
    port = heard.url.split(":")[2].split("/")[0]
    add(f"http://hook.example:{port}/hook")
    fired()
    found[0] = "127.0.0.1"
    deliver(0)
    assert "may not be reached" in Notification.objects.get().error
    assert heard.bodies == []


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "localhost", "169.254.169.254", "10.0.0.7", "192.168.1.1", "[::1]",
        "[::ffff:10.0.0.1]", "2130706433", "0x7f000001", "0", "[fe80::1]", "[64:ff9b::7f00:1]",
    ],
)  # fmt: skip
def test_addresses_of_this_site_are_refused_at_the_save(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.ENV, "CONSOLE_ALERT_NETWORKS", [])
    with pytest.raises(Refused) as wrong:
        add(f"http://{host}:9/hook")
    assert wrong.value.field == "target"


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("93.184.216.34", True), ("2606:2800:220:1::1", True), ("127.0.0.1", False),
        ("10.1.2.3", True), ("10.2.0.1", False), ("::ffff:10.1.2.3", True),
        ("::ffff:10.2.0.1", False), ("2002:7f00:1::", False), ("224.0.0.1", False),
        ("100.64.0.1", False), ("fe80::1%eth0", False), ("nothing", False),
    ],
)  # fmt: skip
def test_addresses(address: str, reached: bool) -> None:
    allowed = [sending.ipaddress.ip_network("10.1.0.0/16")]
    assert may_reach(address, allowed) == reached


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "A b"}, "name"),
        ({"kind": "fax"}, "kind"),
        ({"target": "ftp://127.0.0.1/"}, "target"),
        ({"target": "http://ada:pw@127.0.0.1/"}, "target"),
        ({"target": "http:///x"}, "target"),
        ({"kind": "email", "target": "ada"}, "target"),
        ({"kind": "pagerduty"}, "secret_file"),
        ({"secret_file": "../key"}, "secret_file"),
    ],
    ids=str,
)
def test_a_receiver_that_cannot_be_meant(change: dict[str, Any], field: str) -> None:
    with pytest.raises(Refused) as wrong:
        add(**({"target": "http://127.0.0.1:9/"} | change))
    assert wrong.value.field == field


def test_a_receiver_that_a_rule_names_stays() -> None:
    make_fleet()
    add("http://127.0.0.1:9/")
    put(FULL | {"receivers": ["hook"]})
    with pytest.raises(Refused, match="named by the rule kv-full"):
        receivers.delete(name="hook", **BY)
    put(FULL)
    receivers.delete(name="hook", **BY)
    assert not Receiver.objects.exists()


def test_what_is_silent_is_not_told_nor_its_end(heard: Heard) -> None:
    add(heard.url)
    silence: dict[str, Any] = {
        "fleet": "", "rule": "*", "cluster": "*", "severity": "*", "reason": "x",
        "ends_at": after(60), "actor": "ada", "via": "test", "now": NOW,
    }  # fmt: skip
    silences.begin(**silence)
    row = fired()
    assert deliver(1) == []
    telling.queue_repeats([rule()], now=after(59))
    assert deliver(59) == []
    telling.queue_repeats([rule()], now=after(61))
    assert deliver(61) == ["sent"], "it fires still"
    assert heard.bodies[0]["incident"] == row.pk


def test_it_is_told_again_until_somebody_is_at_it(heard: Heard) -> None:
    add(heard.url)
    row = fired(repeat_s=300)
    asked = [rule(repeat_s=300)]
    for at_s in range(0, 1000, 100):
        telling.queue_repeats(asked, now=after(at_s))
        deliver(at_s)
    assert [body["event"] for body in heard.bodies] == ["firing", "repeat", "repeat", "repeat"]
    incidents.acknowledge(
        incident_id=row.pk, note="", if_version=None, actor="bo", via="ui", now=after(1000)
    )
    telling.queue_repeats(asked, now=after(2000))
    deliver(2000)
    assert heard.bodies[-1]["event"] == "acknowledged"


def test_what_was_over_before_it_could_be_told_is_dropped(heard: Heard) -> None:
    add(heard.url)
    row = fired()
    row.resolved_at = after(1)
    row.save()
    telling.queue([], [row], [], now=after(1))
    assert deliver(2) == ["dropped", "dropped"]
    assert heard.bodies == []


def test_a_worker_that_died_leaves_it_to_the_next(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(heard.url)
    fired()

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sending, "send", dies)
        with pytest.raises(KeyboardInterrupt):
            deliver(0)
    assert deliver(5) == ["waiting"]
    assert deliver(30) == ["sent"]


def test_pagerduty_slack_and_alertmanager(heard: Heard, keys: Path) -> None:
    row = incident(sentence="a <b> & c")
    add(heard.url, "pagerduty", secret_file="hook.key")
    sending.send(Receiver.objects.get(), telling.told(row, "firing", at=NOW))
    page = heard.bodies[-1]
    assert (page["routing_key"], page["event_action"]) == ("top-secret", "trigger")
    assert (page["dedup_key"], page["payload"]["severity"]) == (
        f"prfaas-incident-{row.pk}",
        "warning",
    )
    assert page["payload"]["timestamp"] == NOW.isoformat()
    add(heard.url, "slack")
    sending.send(Receiver.objects.get(), telling.told(row, "firing", at=NOW))
    assert "a &lt;b&gt; &amp; c" in heard.bodies[-1]["text"]
    add(heard.url, "alertmanager")
    sending.send(Receiver.objects.get(), telling.told(row, "firing", at=NOW))
    [alert] = heard.bodies[-1]
    assert alert["labels"]["alertname"] == "kv-full"
    assert alert["endsAt"] == (NOW + datetime.timedelta(hours=1)).isoformat()
    row.resolved_at = after(5)
    sending.send(Receiver.objects.get(), telling.told(row, "resolved", at=after(6)))
    assert heard.bodies[-1][0]["endsAt"] == after(5).isoformat()


def test_a_key_that_is_not_there_is_said(heard: Heard, keys: Path) -> None:
    add(heard.url, secret_file="gone.key")
    fired()
    deliver(0)
    assert "No such file" in Notification.objects.get().error
    assert heard.bodies == []


def test_mail(mailoutbox: list[Any]) -> None:
    add("ada@example.org, bo@example.org", "email")
    row = fired()
    deliver(0)
    [mail] = mailoutbox
    assert mail.to == ["ada@example.org", "bo@example.org"]
    assert mail.subject.startswith("[FIRING] kv-full: f1/pd/d1")
    assert f"https://console.example/alerts/{row.pk}/" in mail.body
