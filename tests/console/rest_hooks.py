"""What schemathesis asks beside its own checks, in its own process: nobody does what is not theirs.

`REST_SCOPES` are the scopes of whoever asks, with all that they include; operations say in the
schema which they need.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

_HAS = frozenset(filter(None, os.environ.get("REST_SCOPES", "").split(",")))


@schemathesis.check
def no_role_leak(ctx: Any, response: Any, case: Any) -> None:
    """Who has none of the scopes is refused; who has one is not told that it is missing."""
    operation = case.operation.definition.raw
    needed = operation.get("x-scopes")
    if needed is None or "Authorization" not in response.request.headers:
        return
    if response.request.method.lower() != case.operation.method:
        return
    if _HAS.isdisjoint(needed):
        assert response.status_code >= 400, (
            f"{sorted(_HAS)} may not, of {needed} one is needed: {response.status_code}"
        )
