"""Is what a router says of prefill and decode true? Asked of engines behind real programs."""

from __future__ import annotations

import json
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from routing import findings
from routing.models import Fleet
from telemetry import canonical, exposition, wire
from tests.peers import routers
from tests.peers.engines import MODEL, Engines
from tests.peers.routers import Routed
from tests.routing.cases import NOW_S, after, feed, make_fleet

pytestmark = [pytest.mark.timeout(120), pytest.mark.django_db]

N_REQUESTS, PROMPT_TOKENS = 12, 400


def smg_before_nixl(folder: Path) -> AbstractContextManager[Routed]:
    """smg 1.13 before engines that are reached over HTTP as vLLM's are: it hands out no KV
    parameters (`smg_pd_kv_connector_mode_total{mode="passthrough"}`)."""

    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        return [
            *("launch", "--pd-disaggregation", *routers.pairs(engines)),
            *(*routers.ports(port, metrics_port), "--disable-tokenizer-autoload"),
            *("--worker-startup-check-interval", "1", "--load-monitor-interval", "1"),
            *("--shutdown-grace-period-secs", "1"),
        ]

    return routers.router(folder, "smg", arguments, {}, api="nixl")


def ask(routed: Routed, i: int) -> None:
    prompt = " ".join(f"w{1000 * i + n}" for n in range(PROMPT_TOKENS))
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
    request = urllib.request.Request(
        f"{routed.url}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **routed.headers},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def read(routed: Routed, at_s: float) -> None:
    """What an agent would read of the engines, in the roles that they were started with."""
    for role, urls in (("prefill", routed.engines.prefills), ("decode", routed.engines.decodes)):
        for url in urls:
            with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            signals = canonical.to_instance_signals(canonical.canonicalise(exposition.parse(text)))
            sample = wire.InstanceSample(
                id=f"f1/pd/{role[0]}{urls.index(url)}",
                role=role,
                engine="vllm",
                at_s=NOW_S + at_s,
                signals=signals,
            )
            feed([sample])


@pytest.mark.parametrize(
    ("start", "is_fake"),
    [(routers.vllm_router, False), (smg_before_nixl, True)],
    ids=["vllm-router", "smg passthrough"],
)
def test_every_request_is_answered_and_only_engines_tell_how(
    start: routers.Start, is_fake: bool, tmp_path: Path
) -> None:
    make_fleet()
    with start(tmp_path) as routed:
        read(routed, -60.0)
        for i in range(N_REQUESTS):
            ask(routed, i)
        time.sleep(0.5)  # the last answer's KV is counted as it is let go
        read(routed, -5.0)
    report = findings.report(Fleet.objects.get(pk="f1"), now=after(0.0))
    told = [each for each in report.findings if each.name == "FakeDisaggregation"]
    assert bool(told) is is_fake
    if told:
        shown = {each.what: each.value for each in told[0].evidence}
        assert shown["of these computed on decode"] == 1.0
        tokens = shown["prompt tokens that came into use on decode"]
        assert tokens == pytest.approx(N_REQUESTS * PROMPT_TOKENS, rel=0.05)
    else:
        assert "FakeDisaggregation" in [each.name for each in report.clear]
