"""vllm-router, over its `/workers`. It has two modes, told apart by what it counts there.

Measured with 0.1.17:
* `--enable-igw`: `DELETE` takes a worker out at once and `POST` puts it in; streams that run go on
  to their end. `POST` of a listed URL replaces its role and id without a word. A URL where nobody
  answers is taken as healthy until the next probe (60 s), so engines are asked here first.
* Without it (static): `DELETE` works and nothing puts a worker in again. Whoever drains such a
  fleet cannot undo it, so nothing is changed there.
* It has no keys, and does not say its version: the settings do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from routing.adapters import gateway
from routing.adapters.surface import Actual, Capabilities, Listed, Role

_STATIC = (
    "it runs without --enable-igw: a worker can be removed and never be put back, so nothing is "
    "changed"
)


class Settings(gateway.Settings, frozen=True, kw_only=True):
    """`version`: the one installed, since it cannot be asked. `model_id`: the model its workers
    are listed under."""

    version: str = ""
    model_id: str = ""

    def entry(self, url: str, role: Role) -> dict[str, Any]:
        entry = super().entry(url, role)
        return {**entry, "model_id": self.model_id} if self.model_id else entry


class VllmRouter(gateway.Replacing[Settings]):
    kind = "vllm-router"
    _can = Capabilities(
        threshold="none",
        roles="replace",
        drain="until_idle",
        has_auth=False,
        is_readable=True,
        tried_versions=("0.1.17",),
        threshold_means=gateway.NO_THRESHOLD,
    )

    def capabilities(self, actual: Actual) -> Capabilities:
        can = super().capabilities(actual)
        if can.roles != "none" and actual.facts.get("mode") == "static":
            return replace(can, roles="none", why=_STATIC)
        return can

    def read(self) -> Actual:
        workers, answer = gateway.listing(self.url, headers=self._headers())
        mode = "igw" if "by_type" in answer.stats else "static"
        return Actual(
            version=self.settings.version or None,
            workers=workers,
            findings=(f"{self.url}: {_STATIC}",) if mode == "static" else (),
            facts={"mode": mode, "version_from": "settings"},
        )

    def _headers(self) -> dict[str, str]:
        return {}

    def _named(self, listed: Listed) -> str:
        """By its URL, only in the spelling that it shows."""
        return listed.url
