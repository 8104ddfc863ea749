"""What drf-spectacular cannot see by itself: the raw ASGI ingest, and the one error shape."""

from __future__ import annotations

from typing import Any

import msgspec

from routing.approvals.api import MAY_BE_PROPOSED
from telemetry import wire

_METHODS = ("get", "post", "patch", "put", "delete")
_REF = "#/components/schemas/{name}"
ERROR = {
    "type": "object",
    "description": "Every error of the API.",
    "required": ["ok", "error", "errors", "status", "code", "request_id"],
    "properties": {
        "ok": {"type": "boolean", "const": False},
        "error": {"type": "string", "description": "One sentence: what, where, which value."},
        "errors": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
        "status": {"type": "integer"},
        "code": {"type": "string", "description": "What went wrong, for programs."},
        "request_id": {"type": "string", "description": "As in the answer's X-Request-ID."},
    },
}


def complete(result: dict[str, Any], generator: Any, request: Any, public: Any) -> dict[str, Any]:
    """Spectacular postprocessing hook: add ingest with wire.Batch, and the error responses."""
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    schemas["Error"] = ERROR
    _, batch = msgspec.json.schema_components([wire.Batch, wire.Ack], ref_template=_REF)
    schemas.update({name: _without_titles(schema) for name, schema in batch.items()})
    for path, operations in result["paths"].items():
        for method in _METHODS:
            if method in operations:
                _add_proposal(path, method, operations[method])
                _add_error(operations[method])
    result["paths"]["/api/v1/ingest"] = {"post": _ingest()}
    result["paths"] = dict(sorted(result["paths"].items()))
    return _with_null_types(result)


def _add_proposal(path: str, method: str, operation: dict[str, Any]) -> None:
    """What reaches too far for one person is answered with a proposal (docs/approvals.md)."""
    if (method, path.removeprefix("/api/v1/")) in MAY_BE_PROPOSED:
        waits = {"application/json": {"schema": {"$ref": _REF.format(name="Proposal")}}}
        text = "It waits for a second person: `Location` is the proposal."
        operation["responses"]["202"] = {"description": text, "content": waits}


def _add_error(operation: dict[str, Any]) -> None:
    error = {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}}
    operation["responses"].setdefault("default", {"description": "An error", "content": error})
    for code, response in operation["responses"].items():
        if code.startswith("4"):
            response["content"] = error


def _ingest() -> dict[str, Any]:
    batch = {"schema": {"$ref": _REF.format(name="Batch")}}
    texts = {
        "401": "No token, or one that is unknown, revoked or expired.",
        "403": "The token has no scope ingest.",
        "409": "A newer boot of this agent has been seen.",
        "413": "Too large, or too many entries.",
        "422": "Nothing was stored; field and value say why.",
        "503": "The queue is full: Retry-After says when to come back.",
    }
    return {
        "operationId": "ingest",
        "description": "Ship one batch of samples. Answers after the commit; a batch that was "
        "committed before is acknowledged again.",
        "tags": ["ingest"],
        "security": [{"token": []}],
        "requestBody": {
            "required": True,
            "content": {"application/msgpack": batch, "application/json": batch},
        },
        "responses": {
            "200": {
                "description": "Committed.",
                "content": {
                    "application/json": {"schema": {"$ref": _REF.format(name="Ack")}},
                },
            },
            **{code: {"description": text} for code, text in texts.items()},
        },
    }


def _with_null_types(node: Any) -> Any:
    """OpenAPI 3.1 says null as a type; DRF's paginators still describe themselves as in 3.0."""
    if isinstance(node, list):
        return [_with_null_types(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _with_null_types(value) for key, value in node.items()}
    if found.get("nullable") is True and isinstance(found.get("type"), str):
        del found["nullable"]
        found["type"] = [found["type"], "null"]
    if {} in found.get("oneOf", ()):  # "anything, or null": null would match both and so neither
        del found["oneOf"]
    return found


def _without_titles(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
