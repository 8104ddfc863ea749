"""Pods by label, from an API server that speaks the real HTTP API: pages, watches, 410, tokens."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from telemetry.agent import kubernetes
from telemetry.agent.discovery import Discover, Target
from telemetry.agent.kubernetes import KubernetesFinder
from tests.agent.conftest import Peer
from tests.agent.site import Eventually, Site, samples

SELECTOR = "app=vllm,role in (decode)"


def pod(
    name: str, ip: str = "10.0.0.1", *, phase: str = "Running", **labels: str
) -> dict[str, Any]:
    """As the API server writes one, with what nobody here reads."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "llm",
            "labels": labels or None,
            "annotations": {"note": "x" * 50},
        },
        "spec": {
            "containers": [
                {"name": "proxy"},
                {"name": "vllm", "ports": [{"name": "http-metrics", "containerPort": 8000}]},
            ]
        },
        "status": {"phase": phase, "podIP": ip, "conditions": []},
    }


@dataclass
class ApiServer(Peer):
    """Pods of one namespace: lists them in pages, streams what changes, forgets old versions."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    page: int = 2
    token: str = "sa-token"
    status: int = 200
    queries: list[dict[str, str]] = field(default_factory=list)
    watches: dict[web.StreamResponse, asyncio.Event] = field(default_factory=dict)
    too_old: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/v1/namespaces/llm/pods", self._get)]

    def put(self, *pods: dict[str, Any]) -> None:
        for entry in pods:
            self.version += 1
            entry["metadata"]["resourceVersion"] = str(self.version)
            self.pods[entry["metadata"]["name"]] = entry

    async def change(self, kind: str, entry: dict[str, Any]) -> None:
        self.put(entry)
        if kind == "DELETED":
            del self.pods[entry["metadata"]["name"]]
        await self.send({"type": kind, "object": entry})

    async def send(self, *events: dict[str, Any]) -> None:
        text = "".join(json.dumps(event) + "\n" for event in events).encode()
        # In two pieces: an event does not end where a packet does.
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            for watch in list(self.watches):
                await watch.write(part)

    def end_watches(self) -> None:
        """The server's own time limit: the streams end as they should."""
        for ended in self.watches.values():
            ended.set()

    async def _get(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.queries.append(query)
        assert query["labelSelector"] == SELECTOR
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        if self.status != 200:
            return web.json_response({"kind": "Status", "message": "no"}, status=self.status)
        if "watch" in query:
            return await self._watch(request)
        start = int(query.get("continue", 0))
        chosen = list(self.pods.values())[start : start + self.page]
        more = start + self.page < len(self.pods)
        meta = {"resourceVersion": str(self.version)} | (
            {"continue": str(start + self.page)} if more else {}
        )
        return web.json_response({"kind": "PodList", "metadata": meta, "items": chosen})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self.too_old:
            self.too_old = False
            return web.json_response({"kind": "Status", "code": 410}, status=410)
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        ended = self.watches[answer] = asyncio.Event()
        try:
            await ended.wait()
        finally:
            del self.watches[answer]
        return answer


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(kubernetes, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(kubernetes, "LONGEST_RETRY_S", 0.05)
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


@dataclass
class Watched:
    """What a finder told so far."""

    finder: KubernetesFinder
    told: list[dict[str, Target]] = field(default_factory=list)

    def names(self) -> set[str]:
        return set(self.told[-1]) if self.told else set()


@asynccontextmanager
async def watching(api: ApiServer, tmp_path: Path, **more: Any) -> AsyncIterator[Watched]:
    token = tmp_path / "token"
    if not token.exists():
        token.write_text(f"{api.token}\n")
    facts = {"namespace": "llm", "api_url": api.url, "api_token_file": str(token)} | more
    discover = Discover(
        source="kubernetes", id="f/pd/{name}", role="decode", selector=SELECTOR, **facts
    )
    async with aiohttp.ClientSession() as session:
        finder = KubernetesFinder(discover, session=session, rng=random.Random(1), environ={})
        watched = Watched(finder)
        task = asyncio.create_task(
            finder.run(lambda targets: watched.told.append({t.name: t for t in targets}))
        )
        yield watched
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_running_pods_of_all_pages_then_every_change(
    api: ApiServer, tmp_path: Path, eventually: Eventually
) -> None:
    api.put(pod("a"), pod("b", "10.0.0.2", role="decode"), pod("starting", phase="Pending"))
    api.put(pod("c", "fd00::3"), pod("no-address", ""))
    async with watching(api, tmp_path, port_name="http-metrics") as watched:
        await eventually(lambda: watched.told and api.watches)
        assert watched.told == [
            {
                "a": Target("a", "10.0.0.1", 8000),
                "b": Target("b", "10.0.0.2", 8000, {"role": "decode"}),
                "c": Target("c", "fd00::3", 8000),
            }
        ]
        await api.change("MODIFIED", pod("starting", "10.0.0.9"))
        await eventually(lambda: "starting" in watched.names())
        await api.change("ADDED", pod("d"))
        await eventually(lambda: "d" in watched.names())
        await api.change("DELETED", pod("a"))
        await eventually(lambda: "a" not in watched.names())
        await api.change("MODIFIED", pod("b", phase="Failed"))
        await eventually(lambda: "b" not in watched.names())
        n_told = len(watched.told)
        bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9000"}}
        await api.send({"type": "BOOKMARK", "object": bookmark})
        await api.change("MODIFIED", pod("d"))
        await api.change("ADDED", pod("e"))
        await eventually(lambda: "e" in watched.names())
        assert len(watched.told) == n_told + 1, "what changes nothing is not told"
        assert watched.names() == {"starting", "c", "d", "e"}
        assert watched.finder.problem is None
    lists = [query for query in api.queries if "watch" not in query]
    assert [query.get("continue") for query in lists] == [None, "2", "4"]


async def test_a_watch_goes_on_where_the_one_before_ended_and_lists_when_that_is_too_old(
    api: ApiServer, tmp_path: Path, eventually: Eventually
) -> None:
    api.put(pod("a"))
    async with watching(api, tmp_path) as watched:
        await eventually(lambda: api.watches)
        await api.change("ADDED", pod("b"))
        await eventually(lambda: "b" in watched.names())
        api.end_watches()
        await eventually(
            lambda: sum("watch" in query for query in api.queries) == 2 and api.watches
        )
        assert api.queries[-1]["resourceVersion"] == str(api.version)
        api.put(pod("c"))
        gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
        await api.send({"type": "ERROR", "object": gone})
        await eventually(lambda: "c" in watched.names())
        assert watched.finder.problem is None
        api.too_old = True
        api.put(pod("d"))
        await eventually(lambda: api.watches)
        api.end_watches()
        await eventually(lambda: "d" in watched.names())


async def test_an_api_server_that_fails_takes_nothing_away(
    api: ApiServer, tmp_path: Path, eventually: Eventually
) -> None:
    api.put(pod("a"))
    async with watching(api, tmp_path) as watched:
        await eventually(lambda: api.watches)
        api.status = 500
        await api.stop()
        await eventually(lambda: watched.finder.problem)
        await api.start()
        await eventually(lambda: "HTTP 500" in (watched.finder.problem or ""))
        assert [set(told) for told in watched.told] == [{"a"}]
        api.status = 200
        api.put(pod("b"))
        await eventually(lambda: watched.names() == {"a", "b"})
        assert watched.finder.problem is None


async def test_a_rotated_token_is_read_again(
    api: ApiServer, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "token").write_text("old")
    api.put(pod("a"))
    async with watching(api, tmp_path) as watched:
        await eventually(lambda: "HTTP 401" in (watched.finder.problem or ""))
        (tmp_path / "token").write_text(api.token)
        await eventually(lambda: watched.names() == {"a"})


NONSENSE: list[Callable[[ApiServer], dict[str, Any]]] = [
    lambda api: {"type": "ADDED", "object": {"metadata": {"name": 7}}},
    lambda api: {"type": "ADDED"},
    lambda api: {"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}},
]


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_a_watch_that_talks_nonsense_is_said_and_everything_listed_again(
    api: ApiServer,
    tmp_path: Path,
    eventually: Eventually,
    nonsense: Callable[[ApiServer], dict[str, Any]],
) -> None:
    api.put(pod("a"))
    async with watching(api, tmp_path) as watched:
        await eventually(lambda: api.watches)
        api.put(pod("b"))
        await api.send(nonsense(api))
        await eventually(lambda: watched.names() == {"a", "b"})


async def test_outside_a_cluster_it_says_what_is_missing(
    api: ApiServer, tmp_path: Path, eventually: Eventually
) -> None:
    async with watching(api, tmp_path, api_url="") as watched:
        await eventually(lambda: "give api_url" in (watched.finder.problem or ""))


async def test_the_agent_reads_the_pods_and_says_when_one_is_gone(
    api: ApiServer, site: Site, console: Any, engine: Any, eventually: Eventually
) -> None:
    """S-20, from a pod's deletion to the console."""
    (site.folder / "sa").write_text(api.token)
    port = int(engine.url.rsplit(":", 1)[1])
    api.put(pod("p-0", "127.0.0.1"), pod("p-1", "127.0.0.1"))
    site.add(
        "discover",
        source="kubernetes",
        id="f/pd/{name}",
        role="decode",
        selector=SELECTOR,
        namespace="llm",
        api_url=api.url,
        api_token_file="sa",
        port=port,
    )
    async with site.running():
        await eventually(lambda: samples(console, "f/pd/p-0") and samples(console, "f/pd/p-1"))
        await api.change("DELETED", pod("p-1", "127.0.0.1"))
        await eventually(lambda: samples(console, "f/pd/p-1")[-1].state == "gone")
    assert {sample.state for sample in samples(console, "f/pd/p-0")} == {"ok"}
