"""The `/workers` of routers that descend from SGLang's gateway: smg, sglang-router, vllm-router.

They share how a worker is shown, put in and taken out. What each heeds of that, and of any other
change, is in its own file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec

from routing.adapters import answers, applied, base, http, places
from routing.adapters.places import Port, Url
from routing.adapters.surface import ROLES, Actual, Listed, Role, Status, SurfaceError
from routing.core.urls import base_url

MAX_LISTING_BYTES = 4_000_000
"""smg shows 1 to 2 kB a worker."""
NO_THRESHOLD = (
    "It has none: every prompt it is given is prefilled apart. Which prompts it is given is "
    "decided by the gate before it."
)
_ListedUrl = Annotated[
    str,
    msgspec.Meta(
        max_length=500, pattern=r"^(https?|grpcs?)://[^\s\x00-\x1f\x7f/?#@]+(/[^\s?#]*)?$"
    ),
]
"""An engine that speaks gRPC is no instance of ours, and does not make the others unreadable."""
_STATES: dict[str, Status] = {
    "ready": "ready",
    "draining": "draining",
    "pending": "starting",
    "not_ready": "failed",
    "failed": "failed",
}


class Settings(base.Settings, frozen=True, kw_only=True):
    """What every one of them is told. `bootstrap_ports` by engine URL, `bootstrap_port` for those
    not in it: where a prefill of SGLang gives its KV away. `worker`: further fields of a worker
    that is listed anew, such as priority, cost and labels."""

    token_file: places.NameOrNone = ""
    bootstrap_port: Port | None = None
    bootstrap_ports: dict[Url, Port] = {}
    worker: dict[str, Any] = {}

    def entry(self, url: str, role: Role) -> dict[str, Any]:
        """The worker as it is put in."""
        ports = {base_url(engine): port for engine, port in self.bootstrap_ports.items()}
        port = ports.get(base_url(url), self.bootstrap_port)
        port_of_it = {} if role == "decode" or port is None else {"bootstrap_port": port}
        return {**self.worker, **port_of_it, "url": url, "worker_type": role}


class _Worker(msgspec.Struct, frozen=True):
    url: _ListedUrl
    worker_type: str
    is_healthy: bool
    load: int | None = None
    id: str = ""
    status: str | None = None

    def listed(self) -> Listed:
        status = _STATES.get("ready" if self.status is None else self.status, "failed")
        if status == "ready" and not self.is_healthy:
            # Where the two contradict each other nobody is counted on.
            status = "failed"
        return Listed(
            url=self.url,
            role=ROLES.get(self.worker_type),
            status=status,
            key=self.id,
            requests=None if self.load is None else max(0, self.load),
        )


class Listing(msgspec.Struct, frozen=True):
    workers: list[_Worker]
    stats: dict[str, Any] = {}


def listing(at: str, *, headers: Mapping[str, str]) -> tuple[dict[str, Listed], Listing]:
    """What is listed, by URL, and the whole answer. Raises SurfaceError."""
    found = answers.get(f"{at}/workers", Listing, headers=headers, max_bytes=MAX_LISTING_BYTES)
    return applied.by_url([worker.listed() for worker in found.workers], router=at), found


def worker_url(at: str, key: str) -> str:
    """Of one worker, by the router's own name of it. Raises SurfaceError where that would be the
    whole list, or something above it."""
    if key in ("", ".", ".."):
        raise SurfaceError(f"{at}/workers: a worker has the id {key!r}: it cannot be named")
    return f"{at}/workers/{quote(key, safe='')}"


def require_answer(engine_url: str, *, router: str) -> None:
    """Raises SurfaceError for an engine that does not answer: routers take one as ready until they
    look themselves, or wait for it and list it when nobody expects that any more."""
    try:
        http.ask("GET", f"{base_url(engine_url)}/health")
    except http.HttpError as exc:
        raise SurfaceError(f"{router} is not told of it: {exc}") from None


G = TypeVar("G", bound=Settings)


class Gateway(base.Changing[G]):
    """What is sent to any of them."""

    def _headers(self) -> dict[str, str]:
        return places.bearer(self.settings.token_file, router=self.url)

    def _post(self, url: str, role: Role) -> None:
        entry = self.settings.entry(url, role)
        answers.call("POST", f"{self.url}/workers", headers=self._headers(), body=entry)

    def _delete(self, key: str) -> None:
        """One that somebody else has taken out meanwhile is out. Raises Refused, SurfaceError."""
        try:
            http.ask("DELETE", worker_url(self.url, key), headers=self._headers())
        except http.Status as exc:
            if exc.status != 404:
                raise answers.no_of(exc) from None
        except http.HttpError as exc:
            raise SurfaceError(str(exc)) from None


class Replacing(Gateway[G]):
    """One whose workers change their role by a DELETE, which shows at once, and a POST."""

    def _named(self, listed: Listed) -> str:
        return listed.key

    def _take_out(self, actual: Actual, url: str) -> Actual:
        self._delete(self._named(actual.workers[url]))
        return self._until_gone(url)

    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        require_answer(url, router=self.url)
        if url in actual.workers:
            applied.not_last(actual, url, router=self.url)
            self._take_out(actual, url)
        self._post(url, role)
