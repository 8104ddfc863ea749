"""Instances by pod labels: list the pods, then watch them, over the API server's HTTP API.

A watch begins where the list ended (`resourceVersion`) and ends after a while, or with 410 when
that version is too old: then everything is listed again. Running pods with an address are targets;
one that is not ready yet is read all the same, because what it says (or that it is down) is news.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from telemetry.agent.discovery import Discover, DiscoveryError, Publish, Target

T = TypeVar("T")
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PAGE: Final = 500
WATCH_S: Final = 300
"""The server ends a watch after so long; a silent connection is given up a little later."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0
MAX_EVENT_BYTES: Final = 2 * 1024 * 1024
_ANSWER_S: Final = 15.0


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    continue_: str = msgspec.field(default="", name="continue")


class _Port(msgspec.Struct, rename="camel"):
    container_port: int
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Status(msgspec.Struct):
    phase: str = ""
    podIP: str = ""


class Pod(msgspec.Struct):
    """The little of a pod that this needs."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _PodList(msgspec.Struct):
    metadata: _Meta
    items: list[Pod] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _TooOld(Exception):
    """The watch cannot go on from here: list again."""


class KubernetesFinder:
    """Tells the pods of one selector, at once and after each change."""

    def __init__(
        self,
        discover: Discover,
        *,
        session: aiohttp.ClientSession,
        rng: random.Random,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._discover, self._session, self._rng = discover, session, rng
        self._environ = environ
        self._pods: dict[tuple[str, str], Target] = {}
        self._version = ""
        self.problem: str | None = None

    async def run(self, publish: Publish) -> None:
        loop, n_failures = asyncio.get_running_loop(), 0
        while True:
            try:
                await self._list()
                n_failures, self.problem = 0, None
                publish(list(self._pods.values()))
                while True:
                    began_s = loop.time()
                    async for _ in self._watch():
                        publish(list(self._pods.values()))
                    # A server that ends each watch at once must not be asked without a rest.
                    await asyncio.sleep(max(0.0, FIRST_RETRY_S - (loop.time() - began_s)))
            except _TooOld:
                continue
            except (DiscoveryError, aiohttp.ClientError, OSError, TimeoutError) as exc:
                self.problem = f"kubernetes: {str(exc) or type(exc).__name__}"
                n_failures += 1
                longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(n_failures - 1, 30))
                await asyncio.sleep(longest * (0.5 + 0.5 * self._rng.random()))

    async def _list(self) -> None:
        pods: dict[tuple[str, str], Target] = {}
        more = ""
        while True:
            query = {"limit": str(PAGE)} | ({"continue": more} if more else {})
            async with asyncio.timeout(_ANSWER_S), self._get(query) as answer:
                body = await answer.read()
            page = _decoded(body, _PodList)
            for pod in page.items:
                self._take(pod, pods)
            more = page.metadata.continue_
            if not more:
                break
        self._pods, self._version = pods, page.metadata.resource_version

    async def _watch(self) -> AsyncIterator[None]:
        """One watch until the server ends it; yields after each change. Raises _TooOld."""
        query = {
            "watch": "1",
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        async with self._get(query) as answer:
            async for line in _lines(answer, longest_silence_s=WATCH_S + _ANSWER_S):
                event = _decoded(line, _Event)
                if event.type == "ERROR":
                    raise _error(json.loads(bytes(event.object)))
                pod = _decoded(event.object, Pod)
                self._version = pod.metadata.resource_version or self._version
                if event.type == "DELETED":
                    if self._pods.pop(_key(pod), None) is not None:
                        yield
                elif event.type != "BOOKMARK":
                    before = self._pods.get(_key(pod))
                    self._take(pod, self._pods)
                    if self._pods.get(_key(pod)) != before:
                        yield

    def _take(self, pod: Pod, pods: dict[tuple[str, str], Target]) -> None:
        if pod.status.phase != "Running" or not pod.status.podIP:
            pods.pop(_key(pod), None)
            return
        labels = pod.metadata.labels or {}
        pods[_key(pod)] = Target(pod.metadata.name, pod.status.podIP, self._port(pod), labels)

    def _port(self, pod: Pod) -> int | None:
        name = self._discover.port_name
        if not name:
            return None
        ports = [port for c in pod.spec.containers for port in c.ports or []]
        return next((port.container_port for port in ports if port.name == name), None)

    @asynccontextmanager
    async def _get(self, query: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The API server's answer of pods. Raises DiscoveryError or _TooOld where it is none."""
        url = self._url()
        async with self._session.get(
            url,
            params={"labelSelector": self._discover.selector, **query},
            headers=self._head(),
            ssl=self._tls(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_ANSWER_S),
        ) as answer:
            if answer.status == 410:
                raise _TooOld
            if answer.status != 200:
                why = (await answer.content.read(200)).decode("utf-8", errors="replace")
                raise DiscoveryError(f"HTTP {answer.status} from {url}: {why}")
            yield answer

    def _url(self) -> str:
        discover = self._discover
        base = discover.api_url
        if not base:
            host = self._environ.get("KUBERNETES_SERVICE_HOST", "")
            port = self._environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise DiscoveryError("not inside a cluster (KUBERNETES_SERVICE_HOST): give api_url")
            base = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        namespace = discover.namespace or _read(ACCOUNT / "namespace", "default")
        where = "" if namespace == "*" else f"/namespaces/{namespace}"
        return f"{base.rstrip('/')}/api/v1{where}/pods"

    def _head(self) -> dict[str, str]:
        # Read each time: the token is rotated.
        token = _read(Path(self._discover.api_token_file or ACCOUNT / "token"), "")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _tls(self) -> ssl.SSLContext | bool:
        ca_file = Path(self._discover.api_ca_file or ACCOUNT / "ca.crt")
        if not ca_file.exists():
            return True
        try:
            return ssl.create_default_context(cafile=str(ca_file))
        except (OSError, ssl.SSLError) as exc:
            raise DiscoveryError(f"{ca_file}: {exc}") from None


async def _lines(
    answer: aiohttp.ClientResponse, *, longest_silence_s: float
) -> AsyncIterator[bytes]:
    """Lines of a stream, each bounded. Raises DiscoveryError or TimeoutError."""
    rest = b""
    while True:
        async with asyncio.timeout(longest_silence_s):
            chunk = await answer.content.readany()
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MAX_EVENT_BYTES:
            raise DiscoveryError(f"an event of more than {MAX_EVENT_BYTES} bytes")


def _decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise DiscoveryError(f"the API server's answer cannot be read: {exc}") from None


def _error(status: dict[str, Any]) -> Exception:
    if status.get("code") == 410:
        return _TooOld()
    return DiscoveryError(f"watch: {status.get('message', 'no reason given')}")


def _key(pod: Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


def _read(path: Path, otherwise: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or otherwise
    except OSError:
        return otherwise
