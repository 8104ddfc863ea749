"""What the makes have in common, so that a make's file says only what is its own.

    Router        where it is controlled and where it serves
      Changing    roles are changed here; the make says how one is taken out and how it is put in
      Unchanged   roles are for others to change; the make says why

A make whose drains have a lease is a Router, and does all of it itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from routing.adapters import applied
from routing.adapters.places import Url
from routing.adapters.surface import Actual, CannotDo, Capabilities, Role, Surface
from routing.core.urls import base_url


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`url`: where the router is controlled and serves."""

    url: Url

    @property
    def serves_at(self) -> str | None:
        return self.url


class Behind(Settings, frozen=True, kw_only=True):
    """Of one that takes no requests itself: `gateway_url` does."""

    gateway_url: Url | None = None

    @property
    def serves_at(self) -> str | None:
        return self.gateway_url


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Router(Surface, Generic[S]):
    settings: S

    @property
    def url(self) -> str:
        return self.settings.url

    @property
    def serves_at(self) -> str | None:
        return self.settings.serves_at

    def hold(self, url: str) -> None:
        """Nothing: a cordon lasts, or there is none."""


class Changing(Router[S]):
    @property
    @abstractmethod
    def _can(self) -> Capabilities:
        """In the versions that were tried."""

    @property
    def _within_s(self) -> float:
        """For what the router is told to be shown."""
        return applied.APPLIED_WITHIN_S

    @abstractmethod
    def _take_out(self, actual: Actual, url: str) -> Actual:
        """No new requests for the instance, which is listed; the reading that shows it."""

    @abstractmethod
    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        """List it as `role`, whatever it is listed as now. The last of another role is kept."""

    def _is_told(self, url: str, role: Role | None) -> bool:
        """What the router follows says so already. One that is told itself follows nothing."""
        return True

    def capabilities(self, actual: Actual) -> Capabilities:
        return applied.known(actual.version, self._can)

    def cordon(self, url: str) -> None:
        url, actual = base_url(url), self._changeable()
        if applied.is_cordoned(actual, url) and self._is_told(url, None):
            return
        applied.not_last(actual, url, router=self.url)
        after = self._take_out(actual, url)
        applied.not_emptied(self, actual, after, url)

    def list_as(self, url: str, role: Role) -> None:
        url, actual = base_url(url), self._changeable()
        if applied.is_listed(actual, url, role) and self._is_told(url, role):
            return
        self._put_in(actual, url, role)
        applied.until_shown(
            self,
            lambda a: applied.is_listed(a, url, role),
            what=f"{url} as a ready {role}",
            within_s=self._within_s,
        )

    def _changeable(self) -> Actual:
        actual = self.read()
        applied.may(self, actual)
        return actual

    def _until_out(self, url: str) -> Actual:
        return applied.until_shown(
            self,
            lambda a: applied.is_cordoned(a, url),
            what=f"{url} as draining or gone",
            within_s=self._within_s,
        )

    def _until_gone(self, url: str, *, what: str = "gone", within_s: float | None = None) -> Actual:
        return applied.until_shown(
            self, lambda a: url not in a.workers, what=f"{url} as {what}", within_s=within_s
        )


class Unchanged(Router[S]):
    @property
    @abstractmethod
    def _why_not(self) -> str: ...

    def cordon(self, url: str) -> None:
        raise CannotDo(f"{self.url}: {url} cannot be cordoned: {self._why_not}")

    def list_as(self, url: str, role: Role) -> None:
        raise CannotDo(f"{self.url}: {url} cannot be made {role}: {self._why_not}")
