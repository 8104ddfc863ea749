"""Links on the pages: what the loop found, since when, what follows, and the breaker's reset."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from console import link_states
from routing import scheduler
from routing.core.types import LinkLabel, LinkMemory, Memory
from routing.models import Action, Fleet, Tick
from tests.console.api_case import person
from tests.console.page_case import busy_fleet, tick
from tests.console.test_pages import text, words
from tests.console.test_pages_changing import confirm
from tests.routing import cases
from tests.routing.cases import feed, make_fleet

pytestmark = pytest.mark.django_db

LINK = "prfaas->pd"
RESET = f"/fleets/f1/breakers/reset/?link={LINK}"


def judge(fleet: Fleet, ago_s: float, label: LinkLabel = "clear", **memory: Any) -> Tick:
    """A tick `ago_s` back that found the link so; `since_s` and the like are ages as well."""
    now = timezone.now()
    for name in ("since_s", "breaker_at_s", "flow_since_s"):
        if name in memory:
            memory[name] = now.timestamp() - memory[name]
    found = LinkMemory(label=label, **memory)
    return tick(fleet, now - timedelta(seconds=ago_s), memory=Memory(links={LINK: found}))


def read(fleet: Fleet, *, ago_s: float = 1.0, **signals: Any) -> None:
    at_s = timezone.now().timestamp() - cases.NOW_S - ago_s
    feed([cases.link(at_s=at_s, **{"tx_gbps": 98.0, "capacity_gbps": 100.0, **signals})])


def rows(client: Client) -> str:
    """The words of the Links panel."""
    page = client.get(reverse("fleet", args=["f1"])).content.decode()
    panel = page[page.index('id="sources"') : page.index('id="instances"')]
    return words(panel[panel.index(">") + 1 :])


@pytest.mark.parametrize(
    ("label", "memory", "says"),
    [
        ("clear", {}, ("clear", "closed")),
        (
            "near_limit",
            {"signs": "it sends 87 of 100 Gbps"},
            ("near limit : it sends 87 of 100 Gbps .", "Forbids moving prefixes over it."),
        ),
        (
            "congested",
            {"signs": "it sends 98 of 100 Gbps", "trouble": "congested", "since_s": 240.0},
            (
                "congested for 4 min",
                "congested : it sends 98 of 100 Gbps . Asks for a higher t; forbids lowering t.",
            ),
        ),
        (
            "flow_limited",
            {"signs": "a transfer runs at 2 Gbps", "flow_since_s": 90.0},
            ("flow-limited for 1 min 30 s", "Asks for more connections a transfer"),
        ),
        ("burst", {"signs": "senders meet"}, ("burst", "Asks for paced senders")),
        (
            "down",
            {"signs": "its breaker is open", "breaker": "open", "breaker_at_s": 20.0},
            (
                "down for 20 s",
                "open for 20 s , probe in 39 s",
                "Asks for local prefill; forbids sending over it.",
            ),
        ),
        (
            "clear",
            {"breaker": "half_open", "breaker_at_s": 5.0},
            ("clear", "half open for 5 s"),
        ),
        ("unknown", {"signs": "it is not read"}, ("unknown", "Asks for a reading")),
    ],
)
def test_a_link_says_what_it_is_why_and_what_follows(
    fleet: Fleet, viewer: Client, label: LinkLabel, memory: dict[str, Any], says: tuple[str, ...]
) -> None:
    read(fleet)
    judge(fleet, 1.0, label, **memory)
    found = rows(viewer)
    for sentence in says:
        assert sentence in found
    assert "fresh" not in found


def test_every_label_and_breaker_state_has_its_own_mark() -> None:
    marks = [link_states.mark(label) for label in LinkLabel.__args__]
    assert len({mark.text for mark in marks}) == len(marks)
    assert [mark.tone for mark in marks].count("good") == 1
    assert link_states.mark("of_tomorrow").text == "of tomorrow"


def test_a_clear_link_needs_no_second_row(fleet: Fleet, viewer: Client) -> None:
    read(fleet)
    judge(fleet, 1.0)
    assert "Forbids" not in rows(viewer)
    assert "Asks" not in rows(viewer)


def test_a_path_on_fewer_ports_is_a_warning_beside_the_label(fleet: Fleet, viewer: Client) -> None:
    """S-12."""
    read(fleet, ago_s=2.0, path_state="degraded", n_members=2.0, n_members_up=1.0)
    judge(fleet, 1.0, "clear")
    assert "path degraded: 1 of 2 members up" in rows(viewer)
    read(fleet, path_state="whole", n_members=2.0, n_members_up=2.0)
    assert "degraded" not in rows(viewer)


def test_a_reading_that_is_missing_comes_before_the_label(fleet: Fleet, viewer: Client) -> None:
    judge(fleet, 1.0, "congested", trouble="congested", since_s=60.0, signs="it is not read")
    assert "never read closed" in rows(viewer)
    read(fleet, ago_s=40.0)
    found = rows(viewer)
    assert "silent since" in found
    assert "congested : it is not read" in found, "what the loop goes by is still told"
    assert "congested for" not in found


@pytest.mark.parametrize(
    ("ago_s", "says"),
    [(None, "No link is judged yet"), (60.0, "The loop has not looked at the links since")],
)
def test_without_a_loop_labels_are_of_no_time_or_of_then(
    fleet: Fleet, viewer: Client, ago_s: float | None, says: str
) -> None:
    read(fleet)
    at = judge(fleet, ago_s, "congested", trouble="congested").at if ago_s else None
    found = rows(viewer)
    assert says in found
    assert (f"congested at {at:%H:%M:%S}" if at else "not judged yet –") in found


def test_a_tick_of_an_earlier_release_judged_nothing(fleet: Fleet, viewer: Client) -> None:
    row = tick(fleet, timezone.now())
    for memory in ({"links": {LINK: {"label": "clear"}}}, {}):
        Tick.objects.filter(pk=row.pk).update(verdict=row.verdict | {"memory": memory})
        assert "never read" in rows(viewer)


class TestWhatHappened:
    def test_a_quiet_past_says_so(self, fleet: Fleet, viewer: Client) -> None:
        for ago_s in (30.0, 20.0, 10.0):
            judge(fleet, ago_s)
        assert "Nothing: no link changed its state" in rows(viewer)

    def test_changes_are_told_newest_first_with_the_tick_that_saw_them(
        self, fleet: Fleet, viewer: Client
    ) -> None:
        judge(fleet, 50.0)
        began = judge(fleet, 40.0, "near_limit", signs="it sends 86 of 100 Gbps")
        judge(fleet, 30.0, "near_limit", signs="it sends 87 of 100 Gbps")
        judge(fleet, 20.0)
        found = rows(viewer)
        past = found[found.index("What happened on links") :]
        assert past.count("near limit") == 1
        assert past.index("clear") < past.index("near limit it sends 86 of 100 Gbps")
        page = viewer.get(reverse("fleet", args=["f1"])).content.decode()
        assert reverse("tick", args=["f1", began.seq]) in page

    def test_a_label_that_never_changed_stands_for_longer_than_is_looked_back(
        self, fleet: Fleet, viewer: Client
    ) -> None:
        read(fleet)
        judge(fleet, 90.0)
        judge(fleet, 1.0)
        assert "clear for over 1 min 30 s" in rows(viewer)

    def test_a_label_stands_since_it_changed_last(self, fleet: Fleet, viewer: Client) -> None:
        read(fleet)
        judge(fleet, 90.0)
        judge(fleet, 61.0, "near_limit")
        judge(fleet, 31.0)
        judge(fleet, 1.0)
        assert "clear for 31 s" in rows(viewer)

    def test_an_event_that_goes_on_is_told_once(self, fleet: Fleet, viewer: Client) -> None:
        judge(fleet, 50.0)
        for ago_s, n in ((40.0, 3), (38.0, 4), (36.0, 5)):
            judge(fleet, ago_s, events=(f"first transfers after a pause failed: {n}",))
        judge(fleet, 30.0)
        judge(fleet, 20.0, events=("its transport changed: fewer bytes", "its breaker closed"))
        found = rows(viewer)
        assert found.count("first transfers after a pause failed") == 1
        assert "its transport changed: fewer bytes; its breaker closed" in found

    def test_a_link_that_is_not_read_any_more_is_an_event(
        self, fleet: Fleet, viewer: Client
    ) -> None:
        judge(fleet, 50.0)
        judge(fleet, 40.0, "unknown", signs="it is not read")
        judge(fleet, 30.0)
        past = rows(viewer).partition("What happened")[2]
        assert "unknown it is not read" in past

    def test_many_are_cut_and_counted(self, fleet: Fleet, viewer: Client) -> None:
        labels: tuple[LinkLabel, LinkLabel] = ("near_limit", "clear")
        for n in range(40):
            judge(fleet, 100.0 - 2 * n, labels[n % 2])
        assert f"and {39 - link_states.MOST_EVENTS} earlier" in rows(viewer)

    def test_what_is_older_or_of_another_fleet_is_not_told(
        self, fleet: Fleet, viewer: Client
    ) -> None:
        judge(fleet, 1800.0, "congested", trouble="congested")
        judge(fleet, 1790.0)
        other = make_fleet("f2")
        judge(other, 20.0)
        judge(other, 10.0, "burst")
        judge(fleet, 5.0)
        assert "Nothing: no link changed its state" in rows(viewer)

    def test_a_large_fleet_looks_back_less_far(
        self, fleet: Fleet, viewer: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        judge(fleet, 600.0, "burst")
        judge(fleet, 20.0)
        judge(fleet, 10.0)
        assert "burst" not in rows(viewer).partition("What happened")[2]
        assert "Nothing" not in rows(viewer)
        monkeypatch.setattr(link_states, "MOST_LOOKS", 2)
        assert "Nothing: no link changed its state" in rows(viewer)


class TestReset:
    @pytest.fixture
    def opened(self, fleet: Fleet) -> Tick:
        read(fleet)
        return judge(fleet, 1.0, "down", breaker="open", breaker_at_s=20.0, n_openings=2)

    def test_only_operators_see_the_button(self, fleet: Fleet, opened: Tick) -> None:
        assert "Reset breaker" not in text(person("viewer"), "fleet", "f1")
        page = person("operator").get(reverse("fleet", args=["f1"])).content.decode()
        assert f"/fleets/f1/breakers/reset/?link={LINK.replace('>', '%3E')}" in page

    def test_a_closed_breaker_has_no_button(self, fleet: Fleet) -> None:
        judge(fleet, 1.0)
        assert "Reset breaker" not in text(person("operator"), "fleet", "f1")

    @pytest.mark.parametrize("method", ["get", "post"])
    def test_a_viewer_is_refused(self, fleet: Fleet, opened: Tick, method: str) -> None:
        answer = getattr(person("viewer"), method)(RESET, {"reason": "cable"})
        assert answer.status_code == 403
        assert not Action.objects.filter(verb="breaker.reset").exists()

    def test_it_says_what_it_does_and_is_audited(self, fleet: Fleet, opened: Tick) -> None:
        operator = person("operator")
        said = words(operator.get(RESET).content.decode())
        at = datetime.fromtimestamp(
            opened.verdict["memory"]["links"][LINK]["breaker_at_s"] + 120.0,
            tz=timezone.now().tzinfo,
        )
        for sentence in (
            "Reset the breaker of prfaas → pd",
            ", 2 times in a row: too many transfers failed.",
            f"a few requests probe it from {at:%H:%M:%S} on",
            "Goes on: counting transfers",
        ):
            assert sentence in said
        assert confirm(operator, RESET, reason="").status_code == 422
        assert not Action.objects.filter(verb="breaker.reset").exists()
        answer = confirm(operator, RESET, reason="cable replaced")
        assert answer["Location"] == "/fleets/f1/fleet/"
        row = Action.objects.get(verb="breaker.reset")
        assert (row.actor, row.via, row.target, row.reason, row.before) == (
            *("operator", "ui", LINK, "cable replaced"),
            {"breaker": "open"},
        )
        assert "operator reset its breaker: cable replaced" in text(operator, "fleet", "f1")
        audit = text(operator, "audit")
        assert "breaker open → closed" in audit
        assert f"at {row.at:%Y-%m-%d %H:%M}" in audit

    def test_one_that_is_closed_again_is_not_reset(self, fleet: Fleet) -> None:
        judge(fleet, 1.0)
        operator = person("operator")
        said = words(operator.get(RESET).content.decode())
        assert "There is nothing to reset: the breaker of prfaas → pd is closed." in said
        assert operator.post(RESET, {"reason": "cable"}).status_code == 422
        assert not Action.objects.filter(verb="breaker.reset").exists()

    @pytest.mark.parametrize("link", ["", "pd->nowhere", "%00"])
    def test_a_link_that_is_not_there_is_not_found(self, fleet: Fleet, link: str) -> None:
        answer = person("operator").get(f"/fleets/f1/breakers/reset/?link={link}")
        assert answer.status_code in (400, 404)


def test_live_frames_carry_what_the_loop_found(fleet: Fleet) -> None:
    row = judge(fleet, 1.0, "congested", signs="it sends 98 of 100 Gbps")
    message = scheduler.tick_message(row, None)
    assert message["links"] == {
        LINK: {"label": "congested", "signs": "it sends 98 of 100 Gbps", "breaker": "closed"}
    }
    row.verdict.pop("memory")
    assert scheduler.tick_message(row, None)["links"] == {}


def test_a_ticks_inputs_tell_what_its_links_were_judged(fleet: Fleet, viewer: Client) -> None:
    row = judge(fleet, 1.0, "congested", signs="it sends 98 of 100 Gbps")
    assert "Judged it sends 98 of 100 Gbps congested" in text(viewer, "tick", "f1", row.seq)


def test_a_busy_fleets_page_is_whole(viewer: Client) -> None:
    busy_fleet()
    assert re.search(r"prfaas → pd never read", rows(viewer))
