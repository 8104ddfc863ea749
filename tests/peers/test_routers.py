"""Each make as its real program, over lab engines, with requests that go on all the while."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from routing.adapters import applied, engines
from routing.adapters.sglang_router import SglangRouter
from routing.adapters.smg import Smg
from routing.adapters.surface import CannotDo, Refused, Role, Unheeded
from tests.peers.programs import wait_for
from tests.peers.routers import ADMIN, STARTS, Routed, smg, vllm_router_static

pytestmark = pytest.mark.timeout(120)


def roles(routed: Routed) -> dict[str, Role | None]:
    return {url: worker.role for url, worker in routed.surface.read().workers.items()}


def become(routed: Routed, url: str, role: Role) -> None:
    """A move as a rebalance makes it: out of service, idle by its own counts, switched, back."""
    routed.surface.cordon(url)
    assert applied.is_cordoned(routed.surface.read(), url)
    wait_for(lambda: engines.look(url, "engine").requests == 0, within_s=20)
    if not routed.is_label:
        engines.switch(url, role)
    routed.surface.list_as(url, role)


def tell(method: str, url: str, body: Any) -> int:
    """As a person would by hand, with the key."""
    request = urllib.request.Request(
        url,
        method=method,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def test_an_instance_changes_its_role_under_load_and_nobody_notices(routed: Routed) -> None:
    moved, kept = routed.engines.decodes
    with routed.engines.load(routed.url, routed.headers):
        wait_for(lambda: routed.engines.n_served > 10, within_s=20)
        become(routed, moved, "prefill")
        assert roles(routed)[moved] == "prefill"
        n_served, n_tokens = routed.engines.n_served, routed.engines.decoded_tokens(moved)
        wait_for(lambda: routed.engines.n_served > n_served + 20, within_s=20)
        n_prefilled = routed.engines.decoded_tokens(moved) - n_tokens
        become(routed, moved, "decode")
        wait_for(lambda: routed.engines.n_served > n_served + 40, within_s=40)
    assert routed.engines.failures == []
    # As a prefill it answers one token a request, and some requests did go there.
    assert 0 < n_prefilled <= routed.engines.n_served
    assert roles(routed) == {
        **dict.fromkeys(routed.engines.prefills, "prefill"),
        **dict.fromkeys((moved, kept), "decode"),
    }
    assert routed.engines.ask(routed.url, routed.headers) is None


def test_the_last_instance_of_a_role_is_never_taken_out(routed: Routed) -> None:
    gone, last = routed.engines.decodes
    routed.surface.cordon(gone)
    with pytest.raises(Refused, match=f"{last} is the last ready decode"):
        routed.surface.cordon(last)
    with pytest.raises(Refused, match=f"{last} is the last ready decode"):
        routed.surface.list_as(last, "prefill")
    assert roles(routed)[last] == "decode"
    assert routed.engines.ask(routed.url, routed.headers) is None


def test_what_is_said_twice_is_said_once(routed: Routed) -> None:
    url = routed.engines.prefills[0]
    routed.surface.list_as(url, "prefill")
    routed.surface.cordon(url)
    routed.surface.cordon(url)
    routed.surface.hold(url)
    routed.surface.list_as(url, "prefill")
    routed.surface.list_as(url, "prefill")
    assert len(routed.surface.read().ready("prefill")) == 2


def test_a_change_by_hand_is_read(routed: Routed, folder: Path) -> None:
    url = routed.engines.decodes[0]
    if "manifest" in routed.settings:
        path = folder / routed.settings["manifest"]
        document = json.loads(path.read_text())
        for worker in document["workers"]:
            if worker["url"] == url:
                worker |= {"worker_type": "prefill", "bootstrap_port": 8998}
        path.write_text(json.dumps(document))
    else:
        key = routed.surface.read().workers[url].key
        entry = {"url": url, "worker_type": "prefill", "bootstrap_port": 8998, "model_id": "small"}
        if routed.surface.kind == "smg":
            tell("PUT", f"{routed.url}/workers/{key}", entry)
        else:
            if routed.surface.kind == "sglang-router":
                tell("DELETE", f"{routed.url}/workers/{key}", None)
                wait_for(lambda: url not in routed.surface.read().workers, within_s=10)
            tell("POST", f"{routed.url}/workers", entry)
    wait_for(lambda: roles(routed).get(url) == "prefill", within_s=10)


def test_a_version_nobody_tried_is_read_and_not_changed(routed: Routed) -> None:
    if "version" not in routed.settings:
        pytest.skip("it says its version itself")
    other = routed.like(version="9.9.9")
    actual = other.read()
    assert actual.workers.keys() == set(routed.engines.urls.values())
    assert "9.9.9 was not tried" in other.capabilities(actual).why
    with pytest.raises(CannotDo, match=r"9\.9\.9 was not tried"):
        other.cordon(routed.engines.decodes[0])


class BySilentPut(SglangRouter):
    """Changes a role as the router's own interface suggests."""

    def list_as(self, url: str, role: Role) -> None:
        key = self.read().workers[url].key
        tell("PUT", f"{self.url}/workers/{key}", self.settings.entry(url, role))
        applied.until_shown(
            self, lambda a: applied.is_listed(a, url, role), what=f"a {role}", within_s=3.0
        )


class BySilentPatch(Smg):
    def list_as(self, url: str, role: Role) -> None:
        key = self.read().workers[url].key
        tell("PATCH", f"{self.url}/workers/{key}", {"worker_type": role})
        applied.until_shown(
            self, lambda a: applied.is_listed(a, url, role), what=f"a {role}", within_s=3.0
        )


@pytest.mark.parametrize(
    ("kind", "lying"), [("sglang-router", BySilentPut), ("smg", BySilentPatch)]
)
def test_a_yes_that_is_not_done_is_caught(kind: str, lying: type[Any], folder: Path) -> None:
    with STARTS[kind](folder) as routed:
        url = routed.engines.decodes[0]
        with pytest.raises(Unheeded, match="does not show a prefill"):
            lying(routed.surface.settings).list_as(url, "prefill")
        assert roles(routed)[url] == "decode"


def test_smg_lets_in_who_has_the_key(folder: Path) -> None:
    with smg(folder) as routed:
        with pytest.raises(Refused, match="answers 401"):
            routed.like(token_file="").read()
        viewer = routed.like(token_file="viewer.key")
        assert len(viewer.read().workers) == 4
        with pytest.raises(Refused, match="answers 403"):
            viewer.cordon(routed.engines.decodes[0])
        assert len(routed.surface.read().ready("decode")) == 2


def test_smg_keeps_what_is_put_in_while_its_removal_goes_on(folder: Path) -> None:
    with smg(folder) as routed:
        url = routed.engines.decodes[0]
        routed.surface.cordon(url)
        assert routed.surface.read().workers[url].status == "draining"
        routed.surface.list_as(url, "decode")
        # A PUT in its place would be shown at once, and gone 5 s after the removal.
        until_s = time.monotonic() + 6.0
        while time.monotonic() < until_s:
            assert applied.is_listed(routed.surface.read(), url, "decode")
            time.sleep(0.5)


def test_smg_finishes_what_runs_longer_than_it_lists_a_removed_worker(folder: Path) -> None:
    with smg(folder) as routed:
        asked = [
            routed.engines.begin(routed.url, {}, output_tokens=800) for _ in routed.engines.decodes
        ]
        url = routed.engines.decodes[0]
        wait_for(lambda: engines.look(url, "engine").requests == 1, within_s=10)
        routed.surface.cordon(url)
        wait_for(lambda: url not in routed.surface.read().workers, within_s=10)
        assert engines.look(url, "engine").requests == 1
        assert [each.result(30) for each in asked] == [None, None]


def test_a_static_vllm_router_is_left_alone(folder: Path) -> None:
    with vllm_router_static(folder) as routed:
        surface = routed.surface
        actual = surface.read()
        assert len(actual.workers) == 4
        assert surface.capabilities(actual).roles == "none"
        assert any("never be put back" in finding for finding in actual.findings)
        for change in (
            lambda: surface.cordon(routed.engines.decodes[0]),
            lambda: surface.list_as(routed.engines.decodes[0], "prefill"),
        ):
            with pytest.raises(CannotDo, match="without --enable-igw"):
                change()
        assert surface.read().workers == actual.workers


def test_an_engine_that_does_not_answer_is_not_listed(folder: Path) -> None:
    with STARTS["vllm-router"](folder) as routed:
        with pytest.raises(Exception, match="is not told of it"):
            routed.surface.list_as("http://127.0.0.1:9", "decode")
        assert "http://127.0.0.1:9" not in routed.surface.read().workers
