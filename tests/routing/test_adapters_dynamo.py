"""Dynamo: what its decode workers advertise, the rule that makes of it, and what is not said."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.adapters.dynamo import Busy, Dynamo, Settings
from routing.adapters.rendered import Wanted
from routing.adapters.surface import CannotDo, Refused, SurfaceError, Unheeded
from tests.routing.fake_etcd import FakeEtcd
from tests.routing.fake_pages import Pages
from tests.routing.fake_router import serving

BLOCK_TOKENS = 16


def stays_local(config: dict[str, Any], *, prompt: int, cached_blocks: int) -> bool:
    """Dynamo's rule as its source has it (lib/kv-router/src/conditional_disagg.rs)."""
    uncached = max(0, prompt - cached_blocks * BLOCK_TOKENS)
    if uncached >= config["eff_isl_threshold"]:
        return False
    return uncached / max(1, prompt) < config["eff_isl_ratio_threshold"]


def card(id: int, role: str, rule: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A worker's card, cut down to what is in it of 1.6.1; fields at their default are left out."""
    model: dict[str, Any] = {
        "display_name": more.pop("model", "tiny"),
        "worker_type": role,
        "kv_cache_block_size": BLOCK_TOKENS,
        "runtime_config": {"kv_event_publishing_enabled": more.pop("events", True)},
    }
    if rule is not None:
        kv = {f"conditional_disagg_{name}": value for name, value in rule.items()}
        kv |= {"use_kv_events": True, "router_predicted_ttl_secs": more.pop("ttl", None)}
        model["router_config"] = {"router_mode": "k_v", "kv_router_config": kv}
    component = "prefill" if role == "prefill" else "backend"
    return {
        "type": "Model",
        "namespace": "dynamo",
        "component": component,
        "endpoint": "generate",
        "instance_id": id,
        "card_json": model,
    }


class Frontend(Pages):
    def __init__(self, store: Path) -> None:
        super().__init__()
        self.store = store / "store" / "v1" / "mdc"
        self.store.mkdir(parents=True)
        self.version, self.cards = "1.6.1", dict[int, dict[str, Any]]()
        self.busy: dict[str, Any] = {"model": "tiny", "active_decode_blocks_threshold": None}
        self.at = {
            "GET /openapi.json": lambda _: {"info": {"version": self.version}},
            "GET /health": lambda _: {"status": "healthy", "instances": self._instances()},
            "GET /busy_threshold": lambda _: {"thresholds": [self.busy]},
            "POST /busy_threshold": self._set_busy,
            "GET /metrics": b"".join(
                b"dynamo_frontend_router_admission_received_total"
                b'{model="tiny",worker_type="%s"} %d\n' % pair
                for pair in ((b"decode", 49), (b"prefill", 26))
            ),
        }

    def advertise(self, *cards: dict[str, Any]) -> None:
        for each in cards:
            self.cards[each["instance_id"]] = each
            (self.store / f"dynamo%2F{each['instance_id']}").write_text(json.dumps(each))

    def _instances(self) -> list[dict[str, Any]]:
        return [
            {"component": c["component"], "endpoint": endpoint, "namespace": "dynamo"}
            | {"instance_id": id, "transport": {"tcp": f"127.0.0.1:{id}/x/dynamo/generate"}}
            for id, c in self.cards.items()
            for endpoint in ("generate", "worker_kv_query_source_1")
        ]

    def _set_busy(self, body: Any) -> Any:
        if body["model"] != "tiny":
            return 404, {"error": f"Model '{body['model']}' not found."}
        self.busy |= body
        return self.busy


@pytest.fixture
def frontend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frontend:
    monkeypatch.setenv("CONSOLE_ROUTERS_DIR", str(tmp_path))
    return Frontend(tmp_path)


@pytest.fixture
def url(frontend: Frontend) -> Iterator[str]:
    with serving(frontend) as served:  # type: ignore[arg-type]
        yield served


@pytest.fixture
def surface(url: str) -> Dynamo:
    return Dynamo(Settings(url=url, store="store"))


def environ_of(surface: Dynamo, wanted: Wanted) -> dict[str, str]:
    lines = surface.rendered(wanted, surface.read()).content.splitlines()
    return dict(line.split("=", 1) for line in lines)


def rule_of(surface: Dynamo, wanted: Wanted) -> dict[str, Any]:
    rule: dict[str, Any] = json.loads(
        environ_of(surface, wanted)["DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG"]
    )
    return rule


@pytest.mark.parametrize("t", [0, 1, 15, 100, 19_800])
def test_what_is_rendered_is_the_plans_rule_where_something_is_cached(
    surface: Dynamo, t: int
) -> None:
    rule = rule_of(surface, Wanted("threshold", t))
    assert rule["policy"] == "isl_bounding"
    for uncached in {max(0, t - 1), t, t + 1}:
        prompt = BLOCK_TOKENS + uncached
        assert stays_local(rule, prompt=prompt, cached_blocks=1) is (uncached <= t)


def test_a_cold_prompt_goes_remote_and_the_words_say_so(surface: Dynamo) -> None:
    rule = rule_of(surface, Wanted("threshold", 256))
    assert not stays_local(rule, prompt=80, cached_blocks=0)
    rendered = surface.rendered(Wanted("threshold", 256), surface.read())
    assert any("nothing is cached" in note for note in rendered.notes)
    assert "however short it is" in surface.capabilities(surface.read()).threshold_means


def test_modes_are_not_thresholds(surface: Dynamo) -> None:
    environ = environ_of(surface, Wanted("always_remote"))
    assert environ == {"DYN_ROUTER_MODE": "kv", "DYN_ROUTER_CONDITIONAL_DISAGG": "false"}
    with pytest.raises(CannotDo, match="keeps every prompt local"):
        surface.rendered(Wanted("always_local"), surface.read())


def advertised(t: int, **more: Any) -> dict[str, Any]:
    return {"enabled": True, "eff_isl_threshold": t + 1, "eff_isl_ratio_threshold": 1.0} | more


def test_it_is_applied_only_when_every_decode_worker_advertises_it(
    surface: Dynamo, frontend: Frontend
) -> None:
    old, new = Wanted("threshold", 100), Wanted("threshold", 40)
    frontend.advertise(card(1, "prefill"), *(card(i, "decode", advertised(100)) for i in (2, 3)))
    actual = surface.read()
    assert (surface.runs(old, actual), surface.runs(new, actual)) == (True, False)
    assert actual.facts["requests_total"] == 49
    assert actual.facts["remote_requests_total"] == 26
    assert {w.key: w.role for w in actual.workers.values()} == {
        "prefill/1": "prefill",
        "backend/2": "decode",
        "backend/3": "decode",
    }
    frontend.advertise(card(3, "decode", advertised(40)))
    between = surface.read()
    assert (surface.runs(old, between), surface.runs(new, between)) == (None, None)
    assert "1 and 1 decode workers advertise different" in between.findings[0]
    frontend.advertise(card(2, "decode", advertised(40)))
    assert surface.runs(new, surface.read()) is True


@pytest.mark.parametrize(
    ("rule", "tokens", "finding"),
    [
        (advertised(100), 100, None),
        # Left out of the card are the defaults: 2048 and 0.7.
        ({"enabled": True}, None, "eff_isl_ratio_threshold is 0.7"),
        (advertised(100, eff_isl_ratio_threshold=0.5), None, "0.5"),
        (advertised(-1), None, None),
        (advertised(100, decode_busy_threshold=0.9), 100, "busy decode worker"),
        (advertised(100, policy="isl_or_load", prefill_busy_threshold=0.5), None, None),
        ({"enabled": True, "policy": "prefill_load", "prefill_busy_threshold": 0.0}, None, None),
    ],
)
def test_what_an_advertised_rule_means(
    surface: Dynamo,
    frontend: Frontend,
    rule: dict[str, Any],
    tokens: int | None,
    finding: str | None,
) -> None:
    frontend.advertise(card(2, "decode", rule))
    actual = surface.read()
    assert actual.threshold is not None
    assert actual.threshold.tokens == tokens
    assert actual.threshold.words
    assert [finding in f for f in actual.findings] == ([True] if finding else [])  # type: ignore[operator]
    assert surface.runs(Wanted("always_remote"), actual) is False


def test_without_events_nothing_is_ever_local(surface: Dynamo, frontend: Frontend) -> None:
    frontend.advertise(*(card(i, "decode", advertised(9), events=i > 2) for i in (2, 3)))
    assert "1 of 2 decode workers publish no KV events" in surface.read().findings[0]
    frontend.advertise(*(card(i, "decode", advertised(9), events=False, ttl=60.0) for i in (2, 3)))
    assert surface.read().findings == ()


def test_what_nobody_advertises_is_not_known(surface: Dynamo, frontend: Frontend, url: str) -> None:
    frontend.advertise(card(1, "prefill"), card(2, "decode"))
    actual = surface.read()
    assert actual.threshold is not None
    assert actual.threshold.tokens is None
    for wanted in (Wanted("threshold", 5), Wanted("always_remote"), Wanted("always_local")):
        assert surface.runs(wanted, actual) is None
    blind = Dynamo(Settings(url=url))
    assert not blind.capabilities(blind.read()).is_readable
    assert blind.runs(Wanted("threshold", 5), blind.read()) is None


def test_what_its_planner_waits_for_is_shown(frontend: Frontend, url: str) -> None:
    store = FakeEtcd()
    with serving(store) as etcd_url:  # type: ignore[arg-type]
        surface = Dynamo(Settings(url=url, planner_etcd_url=etcd_url, namespace="ns"))
        assert surface.read().facts["planner_decision_id"] is None
        store.write(num_decode_workers=3, decision_id=4)
        waiting = surface.read()
        assert waiting.facts["planner_n_decode"] == 3
        assert "decided as many prefill and 3 decode workers (decision 4)" in waiting.findings[-1]
        planner = surface.settings.planner
        decision = planner and planner.read().pending
        assert planner is not None
        assert decision is not None
        planner.report_done(decision, ours=None)
        after = surface.read()
        assert (after.findings, after.facts["planner_waits"]) == ((), False)


def test_an_unknown_version_is_read_and_not_changed(surface: Dynamo, frontend: Frontend) -> None:
    frontend.version = "1.7.0"
    can = surface.capabilities(surface.read())
    assert (can.threshold, can.roles) == ("none", "none")
    assert "1.7.0 was not tried" in can.why


def test_roles_are_of_processes(surface: Dynamo, frontend: Frontend) -> None:
    frontend.advertise(card(1, "prefill"))
    for change in (surface.cordon, lambda u: surface.list_as(u, "decode")):
        with pytest.raises(CannotDo, match="--disaggregation-mode"):
            change("tcp://127.0.0.1:1")
    surface.hold("tcp://127.0.0.1:1")


def test_several_models_are_not_mixed(surface: Dynamo, frontend: Frontend, url: str) -> None:
    frontend.advertise(card(2, "decode", advertised(9)), card(3, "decode", model="other"))
    with pytest.raises(SurfaceError, match="serves other, tiny: name one"):
        surface.read()
    actual = Dynamo(Settings(url=url, store="store", model="tiny")).read()
    assert actual.threshold is not None
    assert actual.threshold.tokens == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "truncated"),
        (json.dumps(card(2, "decode") | {"instance_id": "x"}), "instance_id"),
        (json.dumps(card(2, "decode", advertised(1, eff_isl_threshold=-5))), "eff_isl_threshold"),
        (json.dumps(card(2, "decode", advertised(1, eff_isl_ratio_threshold=7))), "<= 1.0"),
    ],
)
def test_a_card_that_cannot_be_meant(
    surface: Dynamo, frontend: Frontend, text: str, says: str
) -> None:
    (frontend.store / "bad").write_text(text)
    with pytest.raises(SurfaceError, match=says):
        surface.read()


def test_no_store_is_an_error_and_not_an_empty_fleet(url: str) -> None:
    with pytest.raises(SurfaceError, match="No such file"):
        Dynamo(Settings(url=url, store="elsewhere")).read()


def test_busy_thresholds_are_read_back(surface: Dynamo, frontend: Frontend) -> None:
    shown = surface.set_busy(Busy("tiny", active_decode_blocks_threshold=0.85))
    assert shown.active_decode_blocks_threshold == 0.85
    assert frontend.asked[-2][2] == {"model": "tiny", "active_decode_blocks_threshold": 0.85}
    with pytest.raises(Refused, match="404"):
        surface.set_busy(Busy("other", active_prefill_tokens_threshold=1))
    with pytest.raises(Refused, match="cannot be unset"):
        surface.set_busy(Busy("tiny"))
    frontend.at["POST /busy_threshold"] = {"model": "tiny"}
    with pytest.raises(Unheeded, match="does not show them"):
        surface.set_busy(Busy("tiny", active_prefill_tokens_threshold=4096))


def test_workers_of_one_process_do_not_hide_each_other(surface: Dynamo, frontend: Frontend) -> None:
    frontend.advertise(card(1, "decode"), card(2, "decode"), card(3, "prefill"))
    instances = frontend._instances()
    for each in instances[:4]:
        each["transport"] = {"tcp": f"127.0.0.1:9/{each['instance_id']}/generate"}
    frontend.at["GET /health"] = {"instances": instances}
    assert {url: w.role for url, w in surface.read().workers.items()} == {
        "dynamo://backend/1": "decode",
        "dynamo://backend/2": "decode",
        "tcp://127.0.0.1:3": "prefill",
    }


def test_a_card_that_is_no_file_is_not_waited_for(surface: Dynamo, frontend: Frontend) -> None:
    frontend.advertise(card(1, "decode"))
    os.mkfifo(frontend.store / "pipe")
    assert len(surface.read().workers) == 1
