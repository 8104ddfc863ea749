"""A router of no make there is: an instance changes its role by being taken out and put in again.

The server lives on the lab's loop, its surface wherever a worker runs. What it is told is written
down, and each change is looked at together with what the first stack lists at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from routing.adapters import answers, applied
from routing.adapters.registry import KINDS, Make
from routing.adapters.surface import (
    Actual,
    CannotDo,
    Capabilities,
    Listed,
    Role,
    Status,
)
from tests.routing.lab_stack import LabStack

KIND = "swapping"


class SwappingRouter:
    """`workers` by engine URL. `told` are its changes in order, `broken` what was wrong at one."""

    def __init__(self, lab: LabStack, roles: Mapping[str, str]) -> None:
        """`roles` by name of the instances it lists."""
        self._lab = lab
        self._names = {lab.url(name): name for name in lab.engines}
        self.workers = {lab.url(name): role for name, role in roles.items()}
        self.status: Status = "ready"
        self.version, self.answers_canaries, self.is_readable = "1", 200, True
        self.refuses_to_drop = False
        self.told: list[tuple[str, str]] = []
        self.n_canaries = 0
        self.broken: list[str] = []
        app = web.Application()
        app.router.add_get("/list", self._show)
        app.router.add_delete("/list", self._remove)
        app.router.add_post("/list", self._add)
        app.router.add_post("/v1/completions", self._complete)
        self.url = lab.serve(app)

    def entry(self, **settings: Any) -> dict[str, Any]:
        """As a scenario names it."""
        return {"kind": KIND, "url": self.url, **settings}

    def roles(self) -> dict[str, str]:
        """What it lists, by name."""
        return {self._names[url]: role for url, role in self.workers.items()}

    async def _show(self, request: web.Request) -> web.Response:
        workers = [
            {"url": url, "role": role, "status": self.status} for url, role in self.workers.items()
        ]
        facts = {"version": self.version, "is_readable": self.is_readable}
        return web.json_response({**facts, "workers": workers})

    async def _remove(self, request: web.Request) -> web.Response:
        if self.refuses_to_drop:
            return web.json_response({"error": "not now"}, status=409)
        url = request.query["url"]
        self.workers.pop(url, None)
        self._note("out", url)
        return web.json_response({})

    async def _add(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.workers[body["url"]] = body["role"]
        self._note(body["role"], body["url"])
        return web.json_response({})

    async def _complete(self, request: web.Request) -> web.Response:
        self.n_canaries += 1
        if self.answers_canaries != 200:
            return web.json_response({"error": "no instance"}, status=self.answers_canaries)
        return web.json_response({"choices": [{"text": "here"}]})

    def _note(self, what: str, url: str) -> None:
        """Never two roles at once, never a role that nobody serves."""
        self.told.append((what, self._names[url]))
        roles = self.roles()
        for worker in self._lab.listings[0].workers:
            role = roles.get(worker.name)
            if worker.status == "ready" and role not in (None, worker.worker_type):
                self.broken.append(f"{worker.name} is {role} here, {worker.worker_type} there")
        if not {"prefill", "decode"} <= set(roles.values()):
            self.broken.append(f"after {self.told[-1]} it lists {roles}")


class _Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    serves: bool = False


class _Worker(msgspec.Struct, frozen=True):
    url: str
    role: Role
    status: Status


class _List(msgspec.Struct, frozen=True):
    version: str
    is_readable: bool
    workers: list[_Worker]


@dataclass(frozen=True)
class Swapping:
    settings: _Settings
    kind = KIND

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def serves_at(self) -> str | None:
        return self.url if self.settings.serves else None

    def capabilities(self, actual: Actual) -> Capabilities:
        can = Capabilities(
            threshold="none",
            roles="replace",
            drain="none",
            has_auth=False,
            is_readable=actual.facts["is_readable"] is True,
            tried_versions=("1",),
        )
        return applied.known(actual.version, can)

    def read(self) -> Actual:
        shown = answers.get(f"{self.url}/list", _List)
        listed = [Listed(worker.url, worker.role, worker.status) for worker in shown.workers]
        workers = applied.by_url(listed, router=self.url)
        return Actual(shown.version, workers, facts={"is_readable": shown.is_readable})

    def cordon(self, url: str) -> None:
        actual = self.read()
        applied.may(self, actual)
        if not applied.is_cordoned(actual, url):
            applied.not_last(actual, url, router=self.url)
            answers.call("DELETE", f"{self.url}/list?url={url}")

    def hold(self, url: str) -> None:
        pass

    def list_as(self, url: str, role: Role) -> None:
        actual = self.read()
        applied.may(self, actual)
        if url in actual.workers and actual.workers[url].role != role:
            raise CannotDo(f"{self.url}: {url} has to be taken out first")
        if url not in actual.workers:
            answers.call("POST", f"{self.url}/list", body={"url": url, "role": role})


@contextmanager
def registered() -> Iterator[None]:
    """Meanwhile the make is one that a scenario may name, in this process."""
    KINDS[KIND] = Make(_Settings, Swapping)
    try:
        yield
    finally:
        del KINDS[KIND]


def agree(lab: LabStack, swapping: SwappingRouter) -> bool:
    """Both routers list every engine as what it is, ready."""
    roles = lab.roles()
    stack = {name: (role, "ready") for name, role in roles.items()}
    return lab.listed()[0] == stack and swapping.roles() == roles and not swapping.broken
