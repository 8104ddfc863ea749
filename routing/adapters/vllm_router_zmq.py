"""vllm-router that finds its instances by ZMQ pings (`--vllm-discovery-address`).

Measured with 0.1.17: it lists whoever pinged it in the last 5 s, in the role of the ping, and shows
nothing of it: `/workers` and `/readiness` are empty while it serves. `routing.adapters.pings` does
the pinging from a manifest; what is told here as listed is what that process has pinged, and how
many requests are where is from the router's metrics. So nothing is proven but by a request.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from routing.adapters import answers, applied, base, gateway, manifest, pinged, places
from routing.adapters.places import Url
from routing.adapters.surface import Actual, Capabilities, Listed, Role, SurfaceError
from routing.core.urls import base_url

STALE_AFTER_S = 4.0
_UNSEEN = "it shows nothing of its list: what is told is what is pinged, and a request is the proof"
_REQUESTS = {
    "prefill": "vllm_router_pd_prefill_occupancy",
    "decode": "vllm_router_pd_active_decode_requests",
}


class Settings(base.Settings, frozen=True, kw_only=True):
    """`url`: its OpenAI API. `manifest`: what the pinger follows, by its name in the folder of
    routers' files. `metrics_url`: its Prometheus port with the path."""

    manifest: places.Name
    metrics_url: Url | None = None
    version: str = ""


@dataclass(frozen=True)
class VllmRouterZmq(base.Changing[Settings]):
    clock: Callable[[], float] = time.time
    kind = "vllm-router-zmq"
    _can = Capabilities(
        threshold="none",
        roles="replace",
        drain="until_idle",
        has_auth=False,
        is_readable=False,
        tried_versions=("0.1.17",),
        threshold_means=gateway.NO_THRESHOLD,
        why=_UNSEEN,
    )

    def read(self) -> Actual:
        path = self._path()
        state, now_s = self._state(path), self.clock()
        wanted = manifest.read(path, router=self.url)
        if abs(now_s - state.at_s) > STALE_AFTER_S:
            # Also of a time to come: a clock that was set back must not hide that nobody pings.
            raise SurfaceError(
                f"{self.url}: nobody has pinged for {now_s - state.at_s:.0f} s by this clock: "
                f"is routing.adapters.pings running for {self.settings.manifest}?"
            )
        counts = self._counts()
        workers = {
            url: Listed(url, entry.worker_type, "starting")
            for url, entry in wanted.items()
            if url not in state.pinged
        }
        for url, last in state.pinged.items():
            # Until it is forgotten it is given requests, whether it is still pinged or not.
            role = last.worker_type
            workers[url] = Listed(url, role, "ready", requests=counts.get((url, role)))
        return Actual(
            version=self.settings.version or None,
            workers=workers,
            findings=(f"{self.url}: {state.error}",) if state.error else (),
            facts={"version_from": "settings", "listed_from": "pings"},
        )

    def _is_told(self, url: str, role: Role | None) -> bool:
        stands = manifest.read(self._path(), router=self.url).get(url)
        return (stands and stands.worker_type) == role

    def _take_out(self, actual: Actual, url: str) -> Actual:
        """Returns when the router has forgotten it."""
        self._change(url, None)
        within_s = pinged.FORGETS_AFTER_S + applied.APPLIED_WITHIN_S
        return self._until_gone(url, what="pinged no more", within_s=within_s)

    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        gateway.require_answer(url, router=self.url)
        if url in actual.workers and actual.workers[url].role != role:
            # Pinged in both roles at once it would be given both halves of a request.
            applied.not_last(actual, url, router=self.url)
            self._take_out(actual, url)
        self._change(url, role)

    def _change(self, url: str, role: Role | None) -> None:
        entry = None if role is None else {"url": url, "worker_type": role}
        manifest.change(self._path(), url, entry, router=self.url)

    def _state(self, path: Path) -> pinged.State:
        state = pinged.state_path(path)
        try:
            raw = places.content(state, max_bytes=pinged.MAX_BYTES)
            return msgspec.json.decode(raw, type=pinged.State)
        except OSError as exc:
            raise SurfaceError(f"{self.url}: {state}: {exc.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise SurfaceError(f"{self.url}: {state}: {exc}") from None

    def _counts(self) -> dict[tuple[str, Role], int]:
        """Requests that the router has on each instance, by URL and role."""
        if self.settings.metrics_url is None:
            return {}
        found = answers.metrics(self.settings.metrics_url)
        roles: tuple[Role, Role] = ("prefill", "decode")
        return {
            (base_url(sample.labels["worker"]), role): max(0, round(sample.value))
            for role in roles
            for sample in found.samples.get(_REQUESTS[role], ())
            if sample.labels.get("rank") == "aggregate"
            and "worker" in sample.labels
            and math.isfinite(sample.value)
        }

    def _path(self) -> Path:
        return places.path_of(self.settings.manifest, router=self.url)
