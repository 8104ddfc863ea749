"""A P/D stack of our own dialect (docs/contracts.md, A stack's workers), over `/workers`.

Its drains have a lease: a console that dies takes no capacity with it. Only draining workers change
their role, and the stack itself keeps the last ready one of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import msgspec

from routing.adapters import answers, applied, base, gateway
from routing.adapters.places import Url
from routing.adapters.surface import (
    Actual,
    CannotDo,
    Capabilities,
    Listed,
    Role,
    SurfaceError,
    Unheeded,
)
from routing.core.urls import base_url

TRIED = ("1",)
"""Of the contract; a stack says none."""
_CAN = Capabilities(
    threshold="none",
    roles="live",
    drain="until_idle",
    has_auth=False,
    is_readable=True,
    tried_versions=TRIED,
    threshold_means=(
        "It has none: it is an upstream of one side. Remote goes what the gate before it sends "
        "there, which is every prompt with more uncached tokens than t."
    ),
)


class _Worker(msgspec.Struct, frozen=True):
    """One instance as a stack lists it; `requests` is everything that is still on it."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
    url: Url
    worker_type: Role
    status: Literal["ready", "draining"]
    requests: Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _Listing(msgspec.Struct, frozen=True):
    workers: list[_Worker]


class Settings(base.Settings, frozen=True, kw_only=True):
    """`url`: the control URL. `serves_at`: the stack's own OpenAI API, for a canary. `lease_s`: of
    a drain."""

    serves_at: Url | None = None
    lease_s: Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)] = 30.0


class Stack(base.Router[Settings]):
    kind = "stack"

    def capabilities(self, actual: Actual) -> Capabilities:
        return applied.known(actual.version, _CAN)

    def read(self) -> Actual:
        at = f"{self.url}/workers"
        ids, listed = set(), []
        for i, each in enumerate(answers.get(at, _Listing).workers):
            if each.id in ids:
                raise SurfaceError(f"{at}: workers[{i}].id {each.id} is listed twice")
            ids.add(each.id)
            listed.append(Listed(each.url, each.worker_type, each.status, each.id, each.requests))
        return Actual(version=TRIED[0], workers=applied.by_url(listed, router=self.url))

    def cordon(self, url: str) -> None:
        actual = self.read()
        listed = actual.workers.get(base_url(url))
        if listed is None:
            return
        # One that drains is drained anew: its lease may be over before the next reading.
        applied.not_last(_cluster_of(actual, listed.key), url, router=self.url)
        self._drain(listed.key)
        applied.until_shown(self, lambda a: applied.is_cordoned(a, url), what=f"{url} as draining")

    def hold(self, url: str) -> None:
        listed = self.read().workers.get(base_url(url))
        if listed is not None and listed.status == "draining":
            self._drain(listed.key)

    def list_as(self, url: str, role: Role) -> None:
        actual = self.read()
        if applied.is_listed(actual, url, role):
            return
        listed = actual.workers.get(base_url(url))
        if listed is None:
            raise CannotDo(f"{self.url}: does not list {url}, and takes no new instance")
        if listed.role != role:
            if listed.status == "ready":
                applied.not_last(_cluster_of(actual, listed.key), url, router=self.url)
                self._drain(listed.key)
            self._put(listed.key, {"worker_type": role})
        self._put(listed.key, {"status": "ready"})
        applied.until_shown(
            self, lambda a: applied.is_listed(a, url, role), what=f"{url} as a ready {role}"
        )

    def _drain(self, key: str) -> None:
        self._put(key, {"status": "draining", "lease_s": self.settings.lease_s})

    def _put(self, key: str, change: dict[str, object]) -> None:
        at = gateway.worker_url(self.url, key.rpartition("/")[2])
        worker = answers.read_as(answers.call("PUT", at, body=change), _Worker)
        for field in ("status", "worker_type"):
            shown = getattr(worker, field)
            if shown != change.get(field, shown):
                raise Unheeded(f"{at}: answers 200 with {field} {shown}, not {change[field]}")


def _cluster_of(actual: Actual, key: str) -> Actual:
    """Only the workers of that one's cluster: each keeps its own last."""
    cluster = key.rpartition("/")[0]
    return replace(
        actual,
        workers={u: w for u, w in actual.workers.items() if w.key.rpartition("/")[0] == cluster},
    )
