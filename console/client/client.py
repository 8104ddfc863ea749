"""The client: `Client(url, token).fleets_policy_retrieve("demo")`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from console.client.fleet_calls import FleetCalls
from console.client.site_calls import SiteCalls


class Client(FleetCalls, SiteCalls):
    """A console's API. Use it in a `with`, or close it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
