"""How the schema describes one operation: beside what drf-spectacular reads of a view, its query,
its Idempotency-Key, who may, and what of it goes away.

It is read wherever a view is defined, and so imports none.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS

from console import deprecated

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.STR,
    OpenApiParameter.HEADER,
    description="A request repeated under one key within a day is done once.",
)


class Operation(AutoSchema):
    """`x-scopes`: any of them is needed, in the fleet of the address if it has one."""

    def get_override_parameters(self) -> list[Any]:
        found = list(super().get_override_parameters())
        if self.method == "GET" and (query := getattr(self.view, "query_class", None)):
            found += [query] if query().fields else []
        if getattr(getattr(self.view, self.method.lower(), None), "once", False):
            found.append(IDEMPOTENCY_KEY)
        return found

    def get_operation(self, *args: Any, **kwargs: Any) -> dict[str, Any] | None:
        operation: dict[str, Any] | None = super().get_operation(*args, **kwargs)
        if operation is None:
            return None
        operation["x-scopes"] = list(scopes(self.view, self.method))
        for entry in deprecated.TABLE:
            if self.path in deprecated.NOT_LISTS or not entry.is_of(self.method, self.path):
                continue
            if not entry.parameter:
                operation["deprecated"] = True
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == entry.parameter:
                    parameter["deprecated"] = True
        return operation


def scopes(view: Any, method: str) -> tuple[str, ...]:
    """As `console.auth.RolePermission` asks for them; `scopes_shown` where the query decides."""
    needed: tuple[str, ...] | None = getattr(view, "scopes_shown", None)
    needed = needed or getattr(view, "required_scope", None)
    return needed or (("read",) if method in SAFE_METHODS else ("operate",))


class StrictBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """A body that refuses fields it does not know, and empty words, says so."""

    target_class = "routing.serializers.Strict"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        found: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        if found.get("type") != "object":
            return found
        found["additionalProperties"] = False
        for name, field in self.target.fields.items():
            if isinstance(field, serializers.CharField) and not field.allow_blank:
                found["properties"][name].setdefault("minLength", 1)
        return found
