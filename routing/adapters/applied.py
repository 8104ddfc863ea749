"""What every make does the same way: read back within a time, and keep each role served."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from routing.adapters.surface import (
    Actual,
    CannotDo,
    Capabilities,
    Listed,
    Refused,
    Role,
    Surface,
    SurfaceError,
    Unheeded,
)
from routing.core.urls import base_url

APPLIED_WITHIN_S = 10.0
"""For what a router has accepted to show. smg keeps a removed worker for 5 s; others take 1 s."""
_READ_EACH_S = 0.1


def until_shown(
    surface: Surface,
    shows: Callable[[Actual], bool],
    *,
    what: str,
    within_s: float | None = None,
) -> Actual:
    """Read until `shows`; the reading that does. A reading that fails is one that does not show.

    Raises Unheeded after `within_s` (None: APPLIED_WITHIN_S), and SurfaceError when the last
    reading failed: never Refused, since what was asked for has been taken.
    """
    within_s = APPLIED_WITHIN_S if within_s is None else within_s
    until_s = time.monotonic() + within_s
    while True:
        failed: SurfaceError | None = None
        try:
            actual = surface.read()
            if shows(actual):
                return actual
        except SurfaceError as exc:
            failed = exc
        if time.monotonic() >= until_s:
            break
        time.sleep(_READ_EACH_S)
    if failed is not None:
        raise SurfaceError(f"accepted, and cannot be read back: {failed}")
    raise Unheeded(f"{surface.url}: accepted, and {within_s:g} s later it does not show {what}")


def is_listed(actual: Actual, url: str, role: Role) -> bool:
    """Ready for new requests in that role."""
    listed = actual.workers.get(base_url(url))
    return listed is not None and (listed.role, listed.status) == (role, "ready")


def is_cordoned(actual: Actual, url: str) -> bool:
    """No new requests go to it: not listed, or listed as draining."""
    listed = actual.workers.get(base_url(url))
    return listed is None or listed.status == "draining"


def not_last(actual: Actual, url: str, *, router: str) -> None:
    """Raises Refused when without this instance no ready one of its role is left."""
    listed = actual.workers.get(base_url(url))
    if listed is None or listed.status != "ready" or listed.role is None:
        return
    if actual.ready(listed.role) == [base_url(url)]:
        raise Refused(f"{router}: {url} is the last ready {listed.role} instance it lists")


def not_emptied(surface: Surface, before: Actual, after: Actual, url: str) -> None:
    """Puts it back, and raises Refused, where taking it out left no ready one of its role.

    Two consoles, or one and a failure, may each take one of the last two: no router refuses that.
    """
    was = before.workers.get(base_url(url))
    if was is None or was.role is None or was.status != "ready" or after.ready(was.role):
        return
    surface.list_as(url, was.role)
    raise Refused(
        f"{surface.url}: with {url} the last ready {was.role} instance went, as another one was "
        "taken out or failed meanwhile: it was put back"
    )


def may(surface: Surface, actual: Actual) -> None:
    """Raises CannotDo for a version that is not known, or a mode without roles."""
    can = surface.capabilities(actual)
    if can.roles == "none":
        raise CannotDo(f"{surface.url}: {can.why or 'roles cannot be changed'}")


def known(version: str | None, can: Capabilities) -> Capabilities:
    """`can` where the version was tried, else reading only, with the reason."""
    if version in can.tried_versions:
        return can
    shown = f"version {version}" if version else "it does not say its version, which"
    tried = ", ".join(can.tried_versions)
    why = f"{shown} was not tried (only {tried}): it is read, and not changed"
    return replace(can, threshold="none", roles="none", why=why)


def by_url(workers: Sequence[Listed], *, router: str) -> dict[str, Listed]:
    """Keyed as `Actual.workers` is. Raises SurfaceError for one that is listed twice."""
    found: dict[str, Listed] = {}
    for worker in workers:
        url = base_url(worker.url)
        if url in found:
            raise SurfaceError(f"{router}: {worker.url} is listed twice")
        found[url] = worker
    return found
