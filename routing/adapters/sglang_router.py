"""sglang-router, the last release under that name, over its `/workers`.

Measured with 0.3.2:
* `PUT` with another role answers 202, takes the priority and leaves the role: never used here.
* `POST` of a URL that is listed answers 202 with the old id, and changes nothing. So a role is
  changed by taking the worker out and putting it in again.
* A `POST` of a URL where nobody answers waits for it in the background, so engines are asked first.
* `DELETE` takes it out at once; streams that run go on to their end.
* One key guards everything. It does not say its version: the settings do.
"""

from __future__ import annotations

from routing.adapters import gateway
from routing.adapters.surface import Actual, Capabilities


class Settings(gateway.Settings, frozen=True, kw_only=True):
    """`version`: the one installed, since it cannot be asked."""

    version: str = ""


class SglangRouter(gateway.Replacing[Settings]):
    kind = "sglang-router"
    _can = Capabilities(
        threshold="none",
        roles="replace",
        drain="until_idle",
        has_auth=True,
        is_readable=True,
        tried_versions=("0.3.2",),
        threshold_means=gateway.NO_THRESHOLD,
    )

    def read(self) -> Actual:
        workers, _ = gateway.listing(self.url, headers=self._headers())
        return Actual(
            version=self.settings.version or None,
            workers=workers,
            facts={"version_from": "settings"},
        )
