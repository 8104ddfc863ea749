"""smg (the SGLang model gateway), over its `/workers`.

Measured with 1.13.0:
* `PUT` changes a role in place within a second; `PATCH` answers 202 and leaves the role as it is.
* `DELETE` shows the worker as draining for 5 s whatever it has to do, then no more; streams that
  run by then go on to their end, so only the engine's own counts prove it idle.
* A `PUT` within those 5 s is shown as done, and the worker is gone when they are over. So one that
  drains is waited out and put in anew.
* A `POST` of a URL where nobody answers is kept, and may be done when nobody waits for it any more.
  So engines are asked here first.
* The last worker of a role is given up without a word.
* A `user` key may look and not touch (403); without a key one may not even look (401).
"""

from __future__ import annotations

import msgspec

from routing.adapters import answers, applied, gateway, places
from routing.adapters.surface import Actual, Capabilities, Role

LEAVES_WITHIN_S = 15.0
"""After a DELETE: 5 s of draining, with room for a router that is busy."""
CAN = Capabilities(
    threshold="none",
    roles="live",
    drain="until_idle",
    has_auth=True,
    is_readable=True,
    tried_versions=("1.13.0",),
    threshold_means=gateway.NO_THRESHOLD,
)


class _Loads(msgspec.Struct, frozen=True):
    version: str


def read(settings: gateway.Settings) -> Actual:
    """Raises SurfaceError."""
    base, headers = settings.url, places.bearer(settings.token_file, router=settings.url)
    workers, _ = gateway.listing(base, headers=headers)
    loads = answers.get(
        f"{base}/get_loads", _Loads, headers=headers, max_bytes=gateway.MAX_LISTING_BYTES
    )
    return Actual(version=loads.version.removeprefix("smg-"), workers=workers)


class Smg(gateway.Gateway[gateway.Settings]):
    kind = "smg"
    _can = CAN

    def read(self) -> Actual:
        return read(self.settings)

    def _take_out(self, actual: Actual, url: str) -> Actual:
        self._delete(actual.workers[url].key)
        return self._until_out(url)

    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        listed = actual.workers.get(url)
        if listed is not None and listed.status == "draining":
            self._until_gone(url, what="gone after its removal", within_s=LEAVES_WITHIN_S)
            listed = None
        if listed is None:
            gateway.require_answer(url, router=self.url)
            self._post(url, role)
            return
        applied.not_last(actual, url, router=self.url)
        at, entry = gateway.worker_url(self.url, listed.key), self.settings.entry(listed.url, role)
        answers.call("PUT", at, headers=self._headers(), body=entry)
