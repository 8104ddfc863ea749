"""Console, Redis and PostgreSQL killed together under traffic: the site goes on, all converges.

The short one is killed for some twenty seconds, the slow one for ten minutes.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from console import demo
from console.supervisor import Program, Supervisor
from tests.live.harness import say
from tests.startup.test_console_away import ask, n_ticks, readings, rows
from tests.startup.test_console_away import state as state  # the fixture
from tests.startup.test_up import ROOT, Console, alive, descendants, free_port, wait_until

FLEET = "prfaas-1t"
GATES = ("gw-1", "gw-2")
RESTARTED = "gw-3"
BY_HAND = {**dict.fromkeys(GATES, "applied"), RESTARTED: "accepted"}
"""How far a plan gets while a person overrides the one gate."""
T = 4_000
_START_S = 150.0
_AGENT_PAUSE_S = 5.0
"""An agent reads every second: a longer pause between two readings is a lost reading."""


class Site:
    """A demo's lab, gates, agents and load, supervised here, and the console they report to."""

    def __init__(self, state: Path) -> None:
        self.state, self.port = state, free_port()
        self._env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        self._env["CONSOLE_STATE_DIR"] = str(state)
        self._site = Supervisor(out=io.StringIO())
        self.console: Console | None = None

    def start(self) -> None:
        self.start_console()
        options = demo.parse_options(
            ["rate_rps=1", f"threshold_tokens={T}", "roles=fixed", "cache_mode=scarce"]
        )
        scenario = demo.write_scenario(self.state, options)
        words = ["prepare", "--json", "--demo-scenario", str(scenario)]
        words += ["--demo-tokens", str(self.state / "demo"), "--demo-mode", "active"]
        tokens = json.loads(self.manage(*words))["tokens"]
        url = f"http://127.0.0.1:{self.port}"
        self._site.start(demo.programs(self._env, self.state, options, tokens, url))
        self._places = demo.places(self.state)
        scopes = ("--scope", "read", "--scope", "operate")
        issued = self.manage("token", "issue", "away", *scopes, "--json")
        self._secret = json.loads(issued)["secret"]

    def stop(self) -> None:
        self._site.stop()
        if self.console is not None:
            self.console.process.send_signal(signal.SIGINT)
            self.console.process.wait(30)

    def start_console(self) -> None:
        self.console = console = Console(self.state, self.port)

        def ready() -> bool:
            assert console.process.poll() is None, console.text
            return "ready after" in console.text

        wait_until(ready, timeout_s=_START_S, what="the console is ready")

    def kill_console(self) -> None:
        """SIGKILL to all of it at once: web, worker, beat, Valkey, PostgreSQL."""
        assert self.console is not None
        family = descendants(self.console.process.pid) | {self.console.process.pid}
        for pid in family:
            with contextlib.suppress(ProcessLookupError):  # it went down with its parent
                os.kill(pid, signal.SIGKILL)
        self.console.process.wait(10)
        wait_until(lambda: not alive(family), timeout_s=10, what="nothing of the console is left")

    def restarted_gate(self) -> str:
        """A gate that starts now with the plan file that another one left: its base URL."""
        folder, port = self.state / "demo", free_port()
        config = tomllib.loads((folder / "gw-2.toml").read_text())
        config |= {"router": f"{FLEET}/pd/{RESTARTED}", "port": port, "plan_file": "gw-3.plan.json"}
        path = folder / f"{RESTARTED}.toml"
        path.write_text(tomli_w.dumps(config))
        shutil.copy(folder / "gw-2.plan.json", folder / "gw-3.plan.json")
        command = (sys.executable, "-m", "routing.gate", "--config", str(path))
        url = f"http://127.0.0.1:{port}"
        self._site.start([Program(RESTARTED, command, self._env, ready_url=f"{url}/healthz")])
        self._places[RESTARTED] = url
        return url

    def by_hand(self, *words: str) -> Any:
        """What a person on the restarted gate's machine says to it; its answer."""
        path = self.state / "demo" / f"{RESTARTED}.toml"
        command = [sys.executable, "-m", "routing.gate", "override", str(path), *words]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self._env,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def ask(self, gate: str, tokens: int) -> dict[str, str]:
        return ask(self._places[gate], tokens)

    def health(self, gate: str) -> dict[str, Any]:
        return dict(self._get(f"{self._places[gate]}/healthz"))

    def load(self) -> dict[str, Any]:
        return dict(self._get(f"{self._places['load']}/summary"))

    def rest(self, path: str, body: Any = None) -> Any:
        return self._get(f"http://127.0.0.1:{self.port}/api/v1/fleets/{FLEET}{path}", body)

    def hold(self, threshold_tokens: int) -> None:
        expires_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        values = {"mode": "threshold", "threshold_tokens": threshold_tokens, "owner": "ada"}
        self.rest("/holds", values | {"expires_at": expires_at, "reason": "after the outage"})

    def delivered(self) -> dict[str, str]:
        """By gate, how far the newest plan got."""
        routers = self.newest()["delivery"]["routers"]
        return {row["router"].rpartition("/")[2]: row["state"] for row in routers}

    def newest(self) -> dict[str, Any]:
        """The newest plan's decision with its delivery."""
        decisions = self.rest("/decisions?limit=20")["results"]
        return dict(next(d for d in decisions if d["kind"] == "adopted"))

    def _get(self, url: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as got:
            return json.load(got)


class Asking:
    """Requests to both gates from a thread, one long and one short in turn. On leaving it raises
    what a request raised."""

    def __init__(self, site: Site) -> None:
        self.seen: Counter[tuple[str, int, str, str]] = Counter()
        self._site, self._stop = site, threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            for gate, tokens in itertools.cycle(itertools.product(GATES, (T - 1_000, T + 1_000))):
                said = self._site.ask(gate, tokens)
                self.seen[gate, tokens, said["x-prfaas-side"], said["x-prfaas-plan"]] += 1
                if self._stop.wait(0.2):
                    return
        except BaseException as exc:
            self._error = exc


def all_back_after(state: Path, away_s: float) -> None:
    with ExitStack() as stack:
        site = Site(state)
        stack.callback(site.stop)
        site.start()
        wait_until(
            lambda: site.newest()["delivery"]["n_applied"] == 2,
            timeout_s=60,
            what="both gates run the plan",
        )
        wait_until(lambda: len(readings(state)) == 2, timeout_s=30, what="both agents report")
        [run] = {site.ask(gate, 100)["x-prfaas-plan"] for gate in GATES}

        ticks_before, gone_s = n_ticks(state), time.time()
        site.kill_console()
        with Asking(site) as asking:
            site_goes_on(site, away_s, run)
        expected = {
            (gate, tokens, "local" if tokens <= T else "remote", run)
            for gate in GATES
            for tokens in (T - 1_000, T + 1_000)
        }
        assert set(asking.seen) == expected, asking.seen
        site.start_console()
        back_s = time.time()
        came_back(site, ticks_before, gone_s=gone_s, back_s=back_s)
        took_s = time.time() - back_s
        load = site.load()
        say(
            "all away",
            away_s=round(back_s - gone_s, 1),
            asked=asking.seen.total(),
            load=load["requests"],
            failed=load["failed"],
            whole_after_s=round(took_s, 1),
        )
        assert load["failures"] == []
        a_newer_plan_is_taken(site, run)


def site_goes_on(site: Site, away_s: float, run: str) -> None:
    """The time without a console: a gate starts in it, and a person overrides its plan."""
    began_s = time.monotonic()
    wait_until(
        lambda: all(site.health(gate)["console"]["contact"] == "away" for gate in GATES),
        timeout_s=40,
        what="both gates say that the console is away",
    )
    site.restarted_gate()
    plan = site.health(RESTARTED)["plan"]
    assert (f"{plan['epoch']}.{plan['version']}", plan["origin"]) == (run, "file")
    assert site.ask(RESTARTED, T + 1_000)["x-prfaas-side"] == "remote"
    site.by_hand("--always-local", "--for", "1h", "--reason", "link looks bad", "--by", "ada")
    assert site.ask(RESTARTED, T + 1_000)["x-prfaas-side"] == "local"
    time.sleep(max(0.0, began_s + away_s - time.monotonic()))


def came_back(site: Site, ticks_before: int, *, gone_s: float, back_s: float) -> None:
    """Ticks, telemetry and acks go on, and every reading of the time without is there."""
    state = site.state
    wait_until(
        lambda: n_ticks(state) > ticks_before + 2, timeout_s=40, what="the loop is at work again"
    )

    def caught_up() -> bool:
        newest = [times[-1] for times in readings(state).values()]
        return len(newest) == 2 and time.time() - min(newest) < 5

    wait_until(caught_up, timeout_s=90, what="current readings arrive")
    wait_until(
        lambda: not gaps(state, since_s=gone_s - 5.0),
        timeout_s=120,
        what="every reading taken meanwhile is a committed row",
    )
    heard = "select count(*) from routing_routerstate where extract(epoch from last_seen_at) > "
    wait_until(
        lambda: rows(state, f"{heard}{back_s}")[0][0] == 3, timeout_s=40, what="every gate acked"
    )
    wait_until(
        lambda: site.delivered() == BY_HAND,
        timeout_s=40,
        what="the plan in force is applied by all that nobody overrides",
    )
    shown = {r["router"].rpartition("/")[2]: r for r in site.rest("/routers")["results"]}
    assert {name: row["state"] for name, row in shown.items()} == {
        **dict.fromkeys(GATES, "running"),
        RESTARTED: "overridden",
    }
    assert shown[RESTARTED]["override"]["by"] == "ada"


def gaps(state: Path, *, since_s: float) -> list[tuple[str, float, float]]:
    """Pauses of an agent longer than it ever makes."""
    return [
        (agent, before, after)
        for agent, times in readings(state).items()
        for before, after in itertools.pairwise(times)
        if after > since_s and after - before >= _AGENT_PAUSE_S
    ]


def a_newer_plan_is_taken(site: Site, before: str) -> None:
    """By all but the overridden gate, which it waits for until the person has done."""
    site.hold(T + 4_000)
    wait_until(
        lambda: site.rest("/plan")["clusters"]["pd"]["threshold_tokens"] == T + 4_000,
        timeout_s=20,
        what="the hold is a plan",
    )
    wait_until(lambda: site.delivered() == BY_HAND, timeout_s=20, what="the others run it")
    for gate in GATES:
        said = site.ask(gate, T + 2_000)
        assert said["x-prfaas-side"] == "local"
        assert number(said["x-prfaas-plan"]) > number(before)
    assert site.ask(RESTARTED, 2 * T + 1_000)["x-prfaas-side"] == "local"
    site.by_hand("release", "--by", "ada")
    assert site.ask(RESTARTED, 2 * T + 1_000)["x-prfaas-side"] == "remote"
    wait_until(
        lambda: set(site.delivered().values()) == {"applied"}, timeout_s=20, what="all run it"
    )


def number(plan: str) -> tuple[int, ...]:
    return tuple(map(int, plan.split(".")))


@pytest.mark.fault
@pytest.mark.timeout(400)
def test_all_of_it_killed_for_twenty_seconds(state: Path) -> None:
    all_back_after(state, 20.0)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_of_it_killed_for_ten_minutes(state: Path) -> None:
    all_back_after(state, 600.0)
