"""The routers from PyPI in front of lab engines, each with the surface it is driven through."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from routing.adapters.registry import surface_of
from routing.adapters.surface import Surface, SurfaceError
from routing.lab.config import PdApi
from tests.peers.engines import MODEL, Engines, lab_engines
from tests.peers.programs import VERSIONS, answers, free_ports, program, running, wait_for

ADMIN, VIEWER = "an-admin-key", "a-viewer-key"


@dataclass(frozen=True)
class Routed:
    """A router that serves over `engines`. `headers` let a request in; `is_label`: engines do
    either role, so only the router is told."""

    surface: Surface
    engines: Engines
    settings: dict[str, Any]
    is_label: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.surface.url

    def like(self, **changes: Any) -> Surface:
        """The same router, otherwise described."""
        return surface_of(self.surface.kind, self.settings | changes)


Start = Callable[[Path], AbstractContextManager[Routed]]


def _serves(surface: Surface, n: int) -> bool:
    """It lists `n` instances, all ready."""
    try:
        workers = surface.read().workers
    except SurfaceError:
        return False
    return len(workers) == n and all(w.status == "ready" for w in workers.values())


_PROGRAMS: dict[str, tuple[str, PdApi]] = {
    "smg": ("smg", "sglang"),
    "smg-manifest": ("smg", "sglang"),
    "sglang-router": ("sglang-router", "sglang"),
    "vllm-router": ("vllm-router", "nixl"),
    "vllm-router-zmq": ("vllm-router", "nixl"),
}
"""By kind: the program, and how engines behind it hand KV on."""


@contextmanager
def router(
    folder: Path,
    kind: str,
    arguments: Callable[[Engines, int, int], list[str]],
    settings: dict[str, Any],
    *,
    api: PdApi | None = None,
    headers: dict[str, str] | None = None,
    lists_at_start: bool = True,
) -> Iterator[Routed]:
    """`arguments` of the engines, its port and the one of its metrics. `lists_at_start`: what it is
    started with it lists, so it is waited for."""
    name, usual_api = _PROGRAMS[kind]
    api = api or usual_api
    path = program(name)
    port, metrics_port = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    with lab_engines(folder, api) as engines:
        command = [path, *arguments(engines, port, metrics_port)]
        described = {"url": url, **settings}
        surface = surface_of(kind, described)
        with running(command, folder / "router.log", is_up=lambda: answers(f"{url}/liveness")):
            if lists_at_start:
                wait_for(lambda: _serves(surface, 4), within_s=20)
            yield Routed(surface, engines, described, api == "nixl", headers or {})


def ports(port: int, metrics_port: int) -> list[str]:
    at = ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    return [*at, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]


def pairs(engines: Engines, *bootstrap: str) -> list[str]:
    prefills = [w for url in engines.prefills for w in ("--prefill", url, *bootstrap)]
    return [*prefills, *(w for url in engines.decodes for w in ("--decode", url))]


def _key(folder: Path, name: str, key: str) -> str:
    (folder / name).write_text(f"{key}\n")
    return name


def smg(folder: Path) -> AbstractContextManager[Routed]:
    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        keys = [f"k1:console:admin:{ADMIN}", f"k2:viewer:user:{VIEWER}"]
        return [
            *("launch", "--pd-disaggregation", *pairs(engines, "8998")),
            *(*ports(port, metrics_port), "--disable-tokenizer-autoload"),
            *("--worker-startup-check-interval", "1", "--load-monitor-interval", "1"),
            *("--shutdown-grace-period-secs", "1", "--control-plane-api-keys", *keys),
        ]

    settings = {"token_file": _key(folder, "smg.key", ADMIN), "bootstrap_port": 8998}
    _key(folder, "viewer.key", VIEWER)
    return router(folder, "smg", arguments, settings)


def smg_manifest(folder: Path) -> AbstractContextManager[Routed]:
    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        prefills = [
            {"url": url, "worker_type": "prefill", "bootstrap_port": 8998}
            for url in engines.prefills
        ]
        decodes = [{"url": url, "worker_type": "decode"} for url in engines.decodes]
        path = folder / "fleet.json"
        path.write_text(json.dumps({"version": 1, "workers": prefills + decodes}))
        return [
            *("launch", "--pd-disaggregation", "--discovery-provider", "file"),
            *("--discovery-file", str(path), "--discovery-check-interval-secs", "1"),
            *(*ports(port, metrics_port), "--disable-tokenizer-autoload"),
            *("--shutdown-grace-period-secs", "1", "--load-monitor-interval", "1"),
        ]

    settings = {"manifest": "fleet.json", "check_interval_s": 1.0, "bootstrap_port": 8998}
    return router(folder, "smg-manifest", arguments, settings)


def sglang_router(folder: Path) -> AbstractContextManager[Routed]:
    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        return [
            *("launch", "--pd-disaggregation", *pairs(engines, "8998")),
            *ports(port, metrics_port),
            *("--worker-startup-check-interval", "1", "--api-key", ADMIN),
        ]

    settings = {
        "token_file": _key(folder, "router.key", ADMIN),
        "version": VERSIONS["sglang-router"],
        "bootstrap_port": 8998,
    }
    headers = {"Authorization": f"Bearer {ADMIN}"}
    return router(folder, "sglang-router", arguments, settings, headers=headers)


@contextmanager
def vllm_router(folder: Path) -> Iterator[Routed]:
    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        at = ports(port, metrics_port)
        return ["--enable-igw", "--vllm-pd-disaggregation", *pairs(engines), *at]

    settings = {"version": VERSIONS["vllm-router"], "model_id": MODEL}
    with router(folder, "vllm-router", arguments, settings, lists_at_start=False) as routed:
        # What it is started with it does not list in this mode.
        for url in routed.engines.prefills:
            routed.surface.list_as(url, "prefill")
        for url in routed.engines.decodes:
            routed.surface.list_as(url, "decode")
        yield routed


def vllm_router_static(folder: Path) -> AbstractContextManager[Routed]:
    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        return ["--vllm-pd-disaggregation", *pairs(engines), *ports(port, metrics_port)]

    settings = {"version": VERSIONS["vllm-router"]}
    return router(folder, "vllm-router", arguments, settings, lists_at_start=False)


@contextmanager
def vllm_router_zmq(folder: Path) -> Iterator[Routed]:
    (zmq_port,) = free_ports(1)
    metrics: dict[str, str] = {}

    def arguments(engines: Engines, port: int, metrics_port: int) -> list[str]:
        metrics["metrics_url"] = f"http://127.0.0.1:{metrics_port}/metrics"
        at = f"127.0.0.1:{zmq_port}"
        return [
            *("--vllm-pd-disaggregation", "--vllm-discovery-address", at),
            *ports(port, metrics_port),
        ]

    settings = {"manifest": "fleet.json", "version": VERSIONS["vllm-router"]}
    with ExitStack() as closing:
        routed = closing.enter_context(
            router(folder, "vllm-router-zmq", arguments, settings, lists_at_start=False)
        )
        described = routed.settings | metrics
        routed = Routed(surface_of("vllm-router-zmq", described), routed.engines, described, True)
        roles = [(url, "prefill") for url in routed.engines.prefills]
        roles += [(url, "decode") for url in routed.engines.decodes]
        workers = [{"url": url, "worker_type": role} for url, role in roles]
        path = folder / "fleet.json"
        path.write_text(json.dumps({"version": 1, "workers": workers}))
        pinger = [sys.executable, "-m", "routing.adapters.pings", "--manifest", str(path)]
        closing.enter_context(
            running(
                [*pinger, "--router", f"127.0.0.1:{zmq_port}"],
                folder / "pings.log",
                is_up=lambda: _serves(routed.surface, 4),
            )
        )
        wait_for(lambda: routed.engines.ask(routed.url, {}) is None, within_s=10)
        yield routed


STARTS: dict[str, Start] = {
    "smg": smg,
    "smg-manifest": smg_manifest,
    "sglang-router": sglang_router,
    "vllm-router": vllm_router,
    "vllm-router-zmq": vllm_router_zmq,
}
"""Those that can change roles, by kind."""
