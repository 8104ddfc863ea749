"""Streams through real gates over a real stack while roles flip and thresholds change.

Everything between a client and an engine is a process of its own; the test is the console's worker:
it takes decisions and drives rebalances, as celery's tasks do, in real time.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import tomllib
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest
from django.db import transaction
from django.utils import timezone

from console.embedded import die_with_parent
from routing import announce, commands, delivery, fleets, rebalance, rebalance_driver
from routing.models import Decision, Delivery, Fleet, Rebalance, RouterState
from tests import servers
from tests.gate.peers import serving
from tests.live.harness import say
from tests.live.streams import DONE, Streams
from tests.routing.issuing import WHO, issue, next_push_at, token, wait_for

N_INSTANCES = 8
THRESHOLDS = (520, 1_500)
_PASS_EVERY_S = 0.5

SCENARIO = """
[fleet]
name = "{fleet}"
slo = {{ tokens_per_s = 40.0, ttft_s = 10.0 }}
[model]
bytes_per_token = 1000
state_bytes = 20000
[profiles.fast]
prefill = [[10, 0.001], [2000, 0.02]]
decode = {{ batch = 128, step_s = 0.02 }}
[profiles.slow]
prefill = [[10, 0.002], [2000, 0.04]]
decode = {{ batch = 128, step_s = 0.02 }}
[[clusters]]
name = "far"
kind = "prefill"
profile = "fast"
instances = 2
[[clusters]]
name = "pd"
kind = "pd"
profile = "slow"
instances = {n}
start = {{ n_prefill = 3, threshold_tokens = 800 }}
[[links]]
from = "far"
to = "pd"
gbps = 100.0
rtt_ms = 1.0
[workload]
rate_rps = 20.0
output_tokens = 60
lengths = {{ kind = "lognormal", mu = 5.5, sigma = 0.7, min = 16, max = 1000 }}
"""


class Site:
    """A lab process with its stack, the fleet it is, and gates in front of it."""

    def __init__(self, folder: Path, console: servers.Server, *, n_gates: int) -> None:
        self._closing, self._folder, self._console = ExitStack(), folder, console
        name = f"s-{uuid.uuid4().hex[:8]}"
        text = SCENARIO.format(fleet=name, n=N_INSTANCES)
        (folder / "scenario.toml").write_text(text)
        (folder / "stack.toml").write_text('scenario = "scenario.toml"\nlayers = 4\n')
        try:
            self.lab = self._start("routing.lab.stack", "stack.toml")
            document = tomllib.loads(text)
            document["clusters"][1]["control_urls"] = [self.lab["upstreams"]["pd"]["control"]]
            self.fleet = commands.create_fleet(
                scenario=document, mode="active", now=timezone.now(), **WHO
            )
            secret = token()
            self.gates = [self._gate(f"gw-{i}", secret) for i in range(n_gates)]
        except BaseException:
            self.close()
            raise

    def _gate(self, name: str, secret: str) -> str:
        local, far = self.lab["local"], self.lab["remote"]["far"]
        (self._folder / f"{name}.toml").write_text(
            f'router = "{self.fleet.pk}/pd/{name}"\nport = 0\nack_interval_s = 1.0\n'
            f'console_url = "http://{self._console.host}"\ntoken = "{secret}"\n'
            f'[upstreams.local]\nurl = "{local}"\n[upstreams.remote.far]\nurl = "{far}"\n'
        )
        return str(self._start("routing.gate", f"{name}.toml")["url"])

    def _start(self, module: str, config: str) -> dict[str, Any]:
        """A process that runs until the site is closed; its ready line."""
        with (self._folder / f"{config}.log").open("w") as log:
            process = subprocess.Popen(
                (sys.executable, "-m", module, "--config", str(self._folder / config)),
                cwd=servers.ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent(signal.SIGKILL),
            )
        self._closing.callback(process.communicate)
        self._closing.callback(process.kill)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (self._folder / f"{config}.log").read_text()[-3000:]
        document: dict[str, Any] = json.loads(line)
        return document

    def close(self) -> None:
        self._closing.close()


def want_roles(fleet: Fleet, n_prefill: int) -> Rebalance:
    """A plan with other roles, in force, and its rebalance: what the loop does of a role change."""
    running, now = fleets.newest_adopted(fleet), timezone.now()
    assert running is not None
    before = running.plan["clusters"]["pd"]
    after = before | {"n_prefill": n_prefill, "n_decode": N_INSTANCES - n_prefill}
    decision = Decision.objects.create(
        fleet=fleet,
        epoch=running.epoch,
        version=running.version + 1,
        plan=running.plan | {"clusters": {"pd": after}, "version": running.version + 1},
        previous=running.plan,
        reason="Test",
        message="",
        created_at=now,
    )
    with transaction.atomic():
        delivery.open_deliveries(decision, now)
    announce.publish({"type": "plan", "fleet": fleet.pk, "plan": delivery.document(decision)})
    return rebalance.open_for(
        decision=decision,
        cluster="pd",
        from_n_prefill=before["n_prefill"],
        from_n_decode=before["n_decode"],
        to_n_prefill=after["n_prefill"],
        to_n_decode=after["n_decode"],
        deadline_s=120.0,
        drain_timeout_s=60.0,
        now=now,
    )


def change(fleet: Fleet, *, n_flips: int, n_thresholds: int) -> None:
    """So many role flips, one after another, and beside them so many changes of t."""
    flips = [(4, 5, 4, 3)[i % 4] for i in range(n_flips)]
    low, high = THRESHOLDS
    thresholds = [low + (i * 97) % (high - low) for i in range(1, n_thresholds + 1)]
    while flips or thresholds or Rebalance.objects.filter(state__in=rebalance.ACTIVE).exists():
        if thresholds and next_push_at(fleet) <= timezone.now():
            issue(fleet, thresholds.pop(0))
        if flips and not Rebalance.objects.filter(state__in=rebalance.ACTIVE).exists():
            want_roles(fleet, flips.pop(0))
        rebalance_driver.drive(timezone.now)
        time.sleep(_PASS_EVERY_S)


def no_stream_notices(
    folder: Path,
    console: servers.Server,
    *,
    n_streams: int,
    n_flips: int,
    n_thresholds: int,
    output_tokens: tuple[int, int],
) -> None:
    site = Site(folder, console, n_gates=2)
    try:
        acked = RouterState.objects.filter(fleet=site.fleet)
        wait_for(lambda: acked.count() == 2)
        issue(site.fleet, THRESHOLDS[0])
        streams = Streams(
            site.gates,
            n_streams,
            prompt_tokens=(16, 2_000),
            output_tokens=output_tokens,
            seed=7,
        )
        with streams:
            wait_for(lambda: streams.n_open == n_streams)
            began_s = time.monotonic()
            change(site.fleet, n_flips=n_flips, n_thresholds=n_thresholds)
            took_s = time.monotonic() - began_s
        newest = fleets.newest_adopted(site.fleet)
        assert newest is not None
        wait_for(lambda: set(acked.values_list("version_running", flat=True)) == {newest.version})
    finally:
        site.close()
        servers.settle()

    outcomes, moved = streams.outcomes, Rebalance.objects.filter(fleet=site.fleet)
    plans = Counter(outcome.said.get("x-prfaas-plan") for outcome in outcomes)
    sides = Counter(outcome.said.get("x-prfaas-side") for outcome in outcomes)
    say(
        "streams under changes",
        streams=n_streams,
        seconds=round(took_s, 1),
        requests=len(outcomes),
        tokens=sum(outcome.got_tokens for outcome in outcomes),
        by_side=sides,
        plans_routed_by=len(plans),
        flips=Counter(moved.values_list("state", flat=True)),
        broken=len(streams.broken()),
    )
    assert streams.broken() == []
    assert len(outcomes) > 2 * n_streams
    assert min(sides["local"], sides["remote"]) > len(outcomes) / 10
    assert len(plans) > n_thresholds
    assert list(moved.values_list("state", flat=True)) == ["done"] * n_flips
    assert set(Delivery.objects.values_list("state", flat=True)) <= {"applied", "superseded"}
    assert newest.version == 1 + n_flips + n_thresholds


TOKENS = b'data: {"choices": [{"text": "tok tok "}]}\n\n'


@pytest.mark.parametrize(
    ("status", "sent", "breaks", "whole"),
    [
        (200, TOKENS + TOKENS + DONE, False, True),
        (200, TOKENS + DONE, False, False),
        (200, TOKENS + TOKENS, False, False),
        (200, TOKENS + TOKENS + DONE, True, False),
        (200, TOKENS + DONE + TOKENS, False, False),
        (200, TOKENS + TOKENS + DONE + b"data: {", False, False),
        (503, TOKENS + TOKENS + DONE, False, False),
    ],
    ids=["whole", "too few", "no end", "broken off", "goes on", "half an event", "5xx"],
)
async def test_a_stream_that_is_not_whole_is_told(
    status: int, sent: bytes, breaks: bool, whole: bool
) -> None:
    async def answer(request: aiohttp.web.Request) -> aiohttp.web.StreamResponse:
        response = aiohttp.web.StreamResponse(status=status)
        await response.prepare(request)
        await response.write(sent)
        if breaks:
            assert request.transport is not None
            request.transport.close()
        return response

    app = aiohttp.web.Application()
    app.router.add_post("/v1/completions", answer)
    async with serving(app) as url, aiohttp.ClientSession() as session:
        streams = Streams([url], 1, prompt_tokens=(1, 1), output_tokens=(4, 4), seed=1)
        await streams.request(session, url, random.Random(1))
    assert [outcome.whole for outcome in streams.outcomes] == [whole]
    assert bool(streams.broken()) is not whole


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("transactional_db")
def test_no_stream_notices_two_flips_and_six_thresholds(
    tmp_path: Path, web: servers.Server
) -> None:
    no_stream_notices(
        tmp_path, web, n_streams=20, n_flips=2, n_thresholds=6, output_tokens=(20, 120)
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("transactional_db")
def test_no_stream_of_200_notices_ten_flips_and_fifty_thresholds(
    tmp_path: Path, web: servers.Server
) -> None:
    no_stream_notices(
        tmp_path, web, n_streams=200, n_flips=10, n_thresholds=50, output_tokens=(100, 500)
    )
