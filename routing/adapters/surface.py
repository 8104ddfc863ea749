"""What a router of any make can be asked and told. Every make is one file that implements it.

A surface holds no state: it reads what is there now, and what it says twice it says once. Whoever
calls it reads again afterwards; `accepted` is never taken for `applied` (R-02).

    SurfaceError            no usable answer: ask again later
      Refused               the router understood and says no; asking again will not help
      Unheeded              the router said yes, and shows that it did not do it
      CannotDo              this make or version has no way to do it; `why` says what there is
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

Role = Literal["prefill", "decode"]
Status = Literal["ready", "draining", "starting", "failed"]
ROLES: Final[Mapping[str, Role]] = {"prefill": "prefill", "decode": "decode"}
"""Roles by the word that every make has for them; another word is no role."""


@dataclass(frozen=True)
class Capabilities:
    """What this router, in the version that answers, lets us do. Shown to people as it is.

    threshold: `live`; `roll`: by restarting its decode workers; `restart`: of the router itself;
    `patch`: by an object that others apply; `none`.
    roles: `live`: in place; `replace`: an instance is taken out and put in again; `patch`: by an
    object that others apply; `none`: cannot be changed safely, `why` says why.
    drain: what happens to requests of an instance that is taken out: `until_idle`: they finish;
    `fixed`: they are cut after a while; `none`: not known.
    """

    threshold: Literal["live", "roll", "restart", "patch", "none"]
    roles: Literal["live", "replace", "patch", "none"]
    drain: Literal["until_idle", "fixed", "none"]
    has_auth: bool
    is_readable: bool
    tried_versions: tuple[str, ...]
    threshold_means: str = ""
    """In words: which prompts go remote, and where the make's rule differs from the plan's."""
    why: str = ""


@dataclass(frozen=True)
class Listed:
    """One instance as a router lists it: `url` as that spells it, `key` its own name of it."""

    url: str
    role: Role | None
    status: Status
    key: str = ""
    requests: int | None = None
    """What the router knows to be on it; None: it does not tell."""


@dataclass(frozen=True)
class Threshold:
    """What a router runs by of the short timescale; `tokens` None: it has no threshold."""

    tokens: int | None
    words: str = ""


@dataclass(frozen=True)
class Actual:
    """A router as it is now. `workers` by base URL, spelled as `core.urls.base_url` does."""

    version: str | None
    workers: Mapping[str, Listed]
    threshold: Threshold | None = None
    findings: tuple[str, ...] = ()
    """Sentences about what does not hold although the router says nothing of it."""
    facts: Mapping[str, object] = field(default_factory=dict)

    def ready(self, role: Role) -> list[str]:
        """URLs of those that new requests of the role may go to."""
        return [
            url
            for url, listed in self.workers.items()
            if (listed.role, listed.status) == (role, "ready")
        ]


class SurfaceError(Exception):
    """A router that gives no usable answer; the message names its URL and the field."""


class Refused(SurfaceError):
    """The router understood, and says no."""


class Unheeded(SurfaceError):
    """The router says that it did what was asked, and shows that it did not."""


class CannotDo(SurfaceError):
    """This make, version or mode has no way to do it."""


class Surface(Protocol):
    """One router. Calls block, each bounded in time and bytes; raises SurfaceError.

    kind: the make and mode, a key of `registry.KINDS`. url: where it is controlled. serves_at: the
    base URL of its OpenAI API, for a canary; None: it has none, or is not told.
    """

    @property
    def kind(self) -> str: ...

    @property
    def url(self) -> str: ...

    @property
    def serves_at(self) -> str | None: ...

    def capabilities(self, actual: Actual) -> Capabilities:
        """What the version and mode that `actual` shows can do. An unknown version: reading only,
        with the reason in `why`."""
        ...

    def read(self) -> Actual:
        """What the router shows now."""
        ...

    def cordon(self, url: str) -> None:
        """No new requests for this instance from now on. Afterwards it is listed `draining`, or not
        at all. Returns once that is read back. Refused for the last ready one of its role."""
        ...

    def hold(self, url: str) -> None:
        """Keep it so (a lease is renewed); nothing where a cordon lasts by itself."""
        ...

    def list_as(self, url: str, role: Role) -> None:
        """List the instance as `role`, ready for requests. Returns once that is read back."""
        ...
