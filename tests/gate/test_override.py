"""A rule of a person above the plan: set at the gate, kept, told, ended, never lost silently."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from routing.core.placement.rule import Rule
from routing.gate import override_command
from routing.gate.override import Asked, OverrideError, OverrideKeeper
from routing.gate.override_door import DoorError, ask
from routing.gate.plan import PlanState, offer
from routing.gate.rules import Rules
from tests.gate.peers import (
    TOKEN,
    Console,
    RunningGate,
    Upstream,
    gate_config,
    gate_running,
    plan,
    until,
)


class Clock:
    """Epoch seconds that are moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1.8e9

    def __call__(self) -> float:
        return self.now_s


def asked(**fields: Any) -> Asked:
    values: dict[str, Any] = {
        "mode": "threshold",
        "threshold_tokens": 5,
        "by": "ada",
        "reason": "link at half",
        "for_s": 3600.0,
    }
    return Asked(**(values | fields))


BAD = [
    ({"threshold_tokens": None}, "threshold_tokens = None"),
    ({"threshold_tokens": -1}, "threshold_tokens = -1"),
    ({"mode": "always_local"}, "threshold_tokens = 5"),
    ({"by": " "}, "by = ' '"),
    ({"by": "a\nb"}, "by = "),
    ({"reason": ""}, "reason = ''"),
    ({"reason": "x" * 201}, "reason = "),
    ({"for_s": 0.0}, "for = 0.0"),
    ({"for_s": 8 * 86_400.0}, "for = "),
    ({"for_s": float("nan")}, "for = nan"),
]


@pytest.mark.parametrize(("fields", "words"), BAD, ids=[c[1] for c in BAD])
def test_what_cannot_be_meant_is_named(tmp_path: Path, fields: Any, words: str) -> None:
    keeper = OverrideKeeper(tmp_path / "o", epoch_s=Clock())
    with pytest.raises(OverrideError) as caught:
        keeper.put(asked(**fields))
    assert words in str(caught.value)
    assert keeper.current() is None


def test_it_ends_by_itself_and_a_restart_keeps_it_until_then(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "plan.json.override"
    put = OverrideKeeper(file, epoch_s=clock).put(asked(for_s=60.0))
    for after_s, want in ((0.0, put), (59.0, put), (60.0, None)):
        clock.now_s = 1.8e9 + after_s
        again = OverrideKeeper(file, epoch_s=clock)
        again.load()
        assert again.current() == want
    assert not file.exists()


def test_only_the_override_that_is_named_is_released(tmp_path: Path) -> None:
    keeper = OverrideKeeper(tmp_path / "o", epoch_s=Clock())
    first = keeper.put(asked())
    second = keeper.put(asked(threshold_tokens=6))
    assert keeper.release("the console", only=first.id) is None
    assert keeper.current() is second
    assert keeper.release("the console", only=second.id) is second
    assert keeper.current() is None
    assert keeper.release("ada") is None


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": "a\r\nX-Evil: 1"},
        {"threshold_tokens": None},
        {"threshold_tokens": -1},
        {"mode": "always_local"},
        {"reason": "two\nlines"},
        {"until_s": 1e12},
    ],
    ids=str,
)
def test_a_file_that_no_door_would_have_written_is_not_believed(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    file = tmp_path / "o"
    OverrideKeeper(file, epoch_s=Clock()).put(asked())
    written = json.loads(file.read_bytes())
    for document, believed in ((written, True), (written | change, False)):
        file.write_text(json.dumps(document))
        keeper = OverrideKeeper(file, epoch_s=Clock())
        keeper.load()
        assert (keeper.current() is not None) == believed


def running(**entry: Any) -> PlanState:
    return offer(PlanState(), json.dumps(plan(**entry)).encode(), fleet="F", cluster="pd")


LIMITED = {"remote": {"prfaas": 2.0}, "max_remote_in_flight": 7}


@pytest.mark.parametrize(
    ("state", "fields", "want"),
    [
        (running(**LIMITED, band=[5, 2000]), {}, Rule("threshold", 5, {"prfaas": 2.0}, 7)),
        (
            running(**LIMITED),
            {"mode": "always_local", "threshold_tokens": None},
            Rule("always_local", None, {"prfaas": 2.0}, 7),
        ),
        (
            running(mode="always_local", threshold_tokens=None, remote={}),
            {"mode": "always_remote", "threshold_tokens": None},
            Rule("always_remote", None, {"prfaas": 1.0, "other": 1.0}),
        ),
        (PlanState(), {"threshold_tokens": 0}, Rule("threshold", 0, {"prfaas": 1.0, "other": 1.0})),
    ],
    ids=["threshold", "always local", "nobody had weight", "never had a plan"],
)
def test_it_replaces_mode_and_threshold_and_nothing_else(
    tmp_path: Path, state: PlanState, fields: Any, want: Rule
) -> None:
    keeper = OverrideKeeper(tmp_path / "o", epoch_s=Clock())
    rules = Rules(lambda: state, keeper, remotes=["prfaas", "other"], max_remote_in_flight=None)
    before = rules.now()
    put = keeper.put(asked(**fields))
    assert (rules.now().rule, rules.now().override) == (want, put)
    keeper.release("ada")
    assert rules.now() == before


def config_of(tmp_path: Path, local: Upstream, remote: Upstream, **more: Any) -> Any:
    return gate_config(
        local.url, {"prfaas": remote.url}, plan_file=str(tmp_path / "plan.json"), **more
    )


async def at_door(tmp_path: Path, **request: Any) -> Any:
    return await asyncio.to_thread(ask, tmp_path / "plan.json.sock", request)


ASKED = {
    "mode": "threshold", "threshold_tokens": 5, "by": "ada", "reason": "link", "for_s": 3600.0,
}  # fmt: skip


async def reason(gate: RunningGate) -> tuple[str, str | None]:
    response, _ = await gate.complete(list(range(10)))
    headers = response.headers
    return headers["X-PrfaaS-Reason"], headers.get("X-PrfaaS-Override")


async def test_the_whole_story_with_the_console_away(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    """Plan, console gone, override, restart, console back with a newer plan, release by id."""
    console = Console(plan(1, 1, threshold_tokens=1000))
    async with console.running():
        port = console.port
        config = config_of(tmp_path, local, remote, console_url=console.url, token=TOKEN)
        async with gate_running(config):
            await until(lambda: console.last_ack.get("version_running") == 1)

    async with gate_running(config) as gate:  # the console is away
        assert await reason(gate) == ("Short", None), "it routes by the last plan"
        override = await at_door(tmp_path, do="set", asked=ASKED)
        assert await reason(gate) == ("Long", override["id"])
        assert (await gate.metrics())['prfaas_gate_override_active{mode="threshold"}'] == 1
        assert (await gate.health())["override"] == override

    async with gate_running(config) as gate:  # and the gate is started again
        assert await reason(gate) == ("Long", override["id"])
        async with console.running(port=port):
            console.document = plan(1, 2, threshold_tokens=2000)
            await until(lambda: console.last_ack.get("version_running") == 2)
            ack = console.last_ack
            assert ack["state"] == "overridden"
            assert ack["override"] == override
            assert override.keys() >= {"id", "mode", "threshold_tokens", "by", "reason", "until_s"}
            assert await reason(gate) == ("Long", override["id"]), "the newer plan waits under it"

            release = {"type": "release_override", "router": "F/pd/g1", "id": "another"}
            for each in console.sockets:
                await each.send_str(json.dumps(release))
            await asyncio.sleep(0.1)
            assert await reason(gate) == ("Long", override["id"])
            for each in console.sockets:
                await each.send_str(json.dumps(release | {"id": override["id"]}))
            await until(lambda: console.last_ack["state"] == "running")
            assert "override" not in console.last_ack
            assert await reason(gate) == ("Short", None)
            metrics = await gate.metrics()
            assert metrics['prfaas_gate_override_active{mode="threshold"}'] == 0
            assert not any(name.startswith("prfaas_gate_override_until") for name in metrics)


async def test_a_gate_that_polls_tells_and_hears_it_in_headers(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    console = Console(plan(1, 1))
    console.socket_allowed = False
    async with console.running():
        config = config_of(tmp_path, local, remote, console_url=console.url, token=TOKEN)
        async with gate_running(config) as gate:
            override = await at_door(tmp_path, do="set", asked={**ASKED, "reason": "é"})

            def told() -> Any:
                return console.gets and console.gets[-1][0].get("X-Override")

            said = await until(told)
            assert json.loads(said) == override
            assert said.isascii()
            assert console.gets[-1][0]["X-State"] == "overridden"
            console.release = override["id"]
            await until(lambda: gate.gate.keeper.current() is None)
            await until(lambda: not told())


async def test_the_door_is_for_the_gates_own_user(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    path = tmp_path / "plan.json.sock"
    async with gate_running(config_of(tmp_path, local, remote)) as gate:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert await at_door(tmp_path, do="status") is None
        for request, words in (
            ({"do": "open"}, "open"),
            ({"do": "set"}, "asked = None"),
            ({"do": "set", "asked": {**ASKED, "for_s": -1.0}}, "for = -1.0"),
            ({"do": "set", "asked": {**ASKED, "colour": 3}}, "colour"),
            ({"do": "release", "by": "ada"}, "none is in force"),
        ):
            with pytest.raises(DoorError, match=words):
                await at_door(tmp_path, **request)
        assert gate.gate.keeper.current() is None
    assert not path.exists()
    with pytest.raises(DoorError, match="no gate answers"):
        await at_door(tmp_path, do="status")


async def test_a_door_left_behind_by_a_killed_gate_is_taken_over(
    tmp_path: Path, local: Upstream, remote: Upstream
) -> None:
    config = config_of(tmp_path, local, remote)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "plan.json.sock"))
    async with gate_running(config):
        assert await at_door(tmp_path, do="status") is None
        async with gate_running(config):  # a second gate by mistake: the first keeps its door
            override = await at_door(tmp_path, do="set", asked=ASKED)
        assert await at_door(tmp_path, do="status") == override


async def test_where_no_door_fits_the_gate_serves_without_one(
    tmp_path: Path, local: Upstream, remote: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    deep = tmp_path / ("x" * 110)  # a socket's path holds 107 bytes
    deep.mkdir()
    async with gate_running(config_of(deep, local, remote)) as gate:
        assert "no door for overrides: AF_UNIX path too long" in caplog.text
        response, _ = await gate.complete([1])
        assert response.status == 200
        with pytest.raises(DoorError, match="no gate answers: AF_UNIX path too long"):
            await at_door(deep, do="status")


def config_file(tmp_path: Path, upstream: Upstream) -> Path:
    path = tmp_path / "gate.toml"
    path.write_text(
        f'router = "F/pd/g1"\nplan_file = "plan.json"\n[upstreams.local]\nurl = "{upstream.url}"\n'
    )
    return path


async def test_the_command(
    tmp_path: Path, local: Upstream, remote: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(config_file(tmp_path, local))

    async def run(*words: str) -> tuple[int, Any]:
        code = await asyncio.to_thread(override_command.main, [config, *words])
        said = capsys.readouterr()
        return code, json.loads(said.out) if code == 0 else said.err

    who = ("--by", "ada", "--reason", "a test")
    code, said = await run("status")
    assert (code, "no gate answers" in said) == (1, True)
    async with gate_running(config_of(tmp_path, local, remote)) as gate:
        assert await run("status") == (0, None)
        code, put = await run("--threshold", "5", "--for", "1.5h", *who)
        assert code == 0
        assert (put["mode"], put["threshold_tokens"]) == ("threshold", 5)
        assert put["until_s"] - put["since_s"] == 5400.0
        assert await reason(gate) == ("Long", put["id"])
        assert await run("status") == (0, put)
        code, local_only = await run("--always-local", "--for", "90s", *who)
        assert (code, local_only["threshold_tokens"]) == (0, None)
        assert await reason(gate) == ("AlwaysLocal", local_only["id"])
        assert await run("release", "--by", "ada") == (0, local_only)
        assert await reason(gate) == ("NoPlan", None)
        code, said = await run("release", "--by", "ada")
        assert (code, "none is in force" in said) == (1, True)
        code, said = await run("--threshold", "-1", "--for", "1h", *who)
        assert (code, "threshold_tokens = -1" in said) == (1, True)
        for words, named in (
            (("--threshold", "5", "--for", "1h", "--reason", "x"), "--by"),
            (("--threshold", "5", "--for", "1h", "--by", "x"), "--reason"),
            (("--threshold", "5", *who), "--for"),
            (("--for", "1h", *who), "--threshold N"),
            (("release",), "--by"),
        ):
            code, said = await run(*words)
            assert (code, said.startswith(named)) == (2, True)


@pytest.mark.parametrize("text", ["1", "h", "-1h", "1w", "1 h", "inf"])
def test_a_duration_has_a_unit(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not like"):
        override_command.duration_s(text)
