"""Writes `console.client`'s operations and calls from the schema: `python -m
tests.console.client_calls`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CLIENT = Path(__file__).resolve().parents[2] / "console" / "client"
_METHODS = ("get", "post", "put", "patch", "delete")
_HEAD = '''"""The API's operations {what}: one method each, named as in the schema.

Written by `python -m tests.console.client_calls`; `asked` are the query and the headers, which
`http.OPERATIONS` knows (`if_match` for If-Match). Each raises `errors.ClientError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from console.client.http import Answer, Asked, Body, Calls, Event


class {name}(Calls):
    """Operations {what}."""
'''


def operations(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every operation of the schema by the name of its method."""
    found = {}
    for path, methods in schema["paths"].items():
        for method in _METHODS:
            if method not in methods:
                continue
            operation = methods[method]
            parameters = operation.get("parameters", [])
            content = operation.get("requestBody", {}).get("content", {})
            found[operation["operationId"].replace(".", "_")] = {
                "method": method.upper(),
                "path": path.removeprefix("/api/v1"),
                "query": sorted(p["name"] for p in parameters if p["in"] == "query"),
                "headers": sorted(p["name"] for p in parameters if p["in"] == "header"),
                "media_types": sorted(content, key=lambda m: (m != "application/json", m)),
                "answers": _answers(operation),
            }
    return dict(sorted(found.items()))


def module(rows: dict[str, dict[str, Any]], name: str, what: str) -> str:
    """A class with a method for each of these operations."""
    text = _HEAD.format(name=name, what=what)
    for operation, row in rows.items():
        place = [part.strip("{}") for part in row["path"].split("/") if part.startswith("{")]
        signature = "".join(
            f", {p}: {'int' if p.endswith('_id') or p == 'seq' else 'str'}" for p in place
        )
        body = ", body: Body = None" if row["media_types"] else ""
        result, call = {
            "rows": ("Iterator[dict[str, Any]]", "rows"),
            "stream": ("Iterator[Event]", "stream"),
            "answer": ("Answer", "call"),
        }[row["answers"]]
        given = ", body" if body else ""
        placed = "".join(f", {p}={p}" for p in place)
        text += f"\n    def {operation}(self{signature}{body}, **asked: Asked) -> {result}:\n"
        text += f'        return self.{call}("{operation}", asked{given}{placed})\n'
    return text


def _answers(operation: dict[str, Any]) -> str:
    content = operation["responses"].get("200", {}).get("content", {})
    if "text/event-stream" in content:
        return "stream"
    names = {p["name"] for p in operation.get("parameters", [])}
    return "rows" if "cursor" in names else "answer"


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    import django

    django.setup()
    from tests.console.api_case import schema

    rows = operations(schema())
    (CLIENT / "operations.json").write_text(json.dumps(rows, indent=1) + "\n")
    mine = {name: row for name, row in rows.items() if row["path"].startswith("/fleets")}
    other = {name: row for name, row in rows.items() if name not in mine}
    files = {
        "fleet_calls.py": module(mine, "FleetCalls", "of one fleet"),
        "site_calls.py": module(other, "SiteCalls", "of the whole site"),
    }
    for file, text in files.items():
        (CLIENT / file).write_text(text)
    ruff = [sys.executable, "-m", "ruff"]
    for what in (["format", "-q"], ["check", "--fix", "-q"]):
        subprocess.run([*ruff, *what, *(str(CLIENT / file) for file in files)], check=True)


if __name__ == "__main__":
    main()
