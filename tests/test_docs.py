"""The documentation names every setting, endpoint, socket, command and reason there is.

`python -m tests.test_docs` rewrites the tables that are generated from code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from console import env
from routing.core.placement.sides import REASONS as GATE_REASONS
from routing.core.reasons import REASONS
from telemetry import wire

ROOT = Path(__file__).resolve().parent.parent


def settings_table() -> str:
    def shown(value: object) -> str:
        if value is None:
            return "-"
        if isinstance(value, list):
            return ",".join(value) or "-"
        return f"{int(value)}" if isinstance(value, bool) else f"{value}"

    rows = [f"| `{s.name}` | {shown(s.default)} | {s.help} |" for s in env.SETTINGS]
    return "\n".join(["| name | default | meaning |", "|---|---|---|", *rows])


def reasons_table(reasons: dict[str, str]) -> str:
    rows = [f"| `{name}` | {text} |" for name, text in reasons.items()]
    return "\n".join(["| reason | what it means |", "|---|---|", *rows])


GENERATED = (
    ("README.md", "settings", settings_table),
    ("docs/operations.md", "verdict-reasons", lambda: reasons_table(REASONS)),
    ("docs/gate.md", "gate-reasons", lambda: reasons_table(GATE_REASONS)),
)


def block(text: str, name: str) -> re.Match[str]:
    found = re.search(rf"(<!-- {name} -->\n)(.*?)(<!-- /{name} -->)", text, re.DOTALL)
    assert found, f"no block {name}"
    return found


@pytest.mark.parametrize(
    ("file", "name", "make"), GENERATED, ids=[name for _, name, _ in GENERATED]
)
def test_generated_tables_are_current(file, name, make) -> None:
    held = block((ROOT / file).read_text(), name).group(2).strip()
    assert held == make().strip(), "run: python -m tests.test_docs"


def endpoints() -> list[str]:
    """Every concrete route of the product outside static files, as documented paths."""
    from django.urls import URLPattern, get_resolver

    found = []

    def walk(patterns, prefix: str) -> None:
        for pattern in patterns:
            route = prefix + str(pattern.pattern)
            if isinstance(pattern, URLPattern):
                found.append("/" + re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route))
            else:
                walk(pattern.url_patterns, route)

    walk(get_resolver().url_patterns, "")
    return sorted(set(found))


def test_every_endpoint_is_documented() -> None:
    text = (ROOT / "docs/api.md").read_text()
    missing = [path for path in endpoints() if f"`{path}`" not in text and f" {path}`" not in text]
    assert not missing, f"docs/api.md does not name {missing}"
    for path in ("/api/v1/ingest", "/ws/live", "/ws/plan"):
        assert path in text


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs/operations.md").read_text() + (ROOT / "README.md").read_text()
    commands = (ROOT / "console/management/commands").glob("[a-z]*.py")
    missing = [c.stem for c in commands if f"manage.py {c.stem}" not in text]
    assert not missing, f"no document shows manage.py {missing}"


def test_every_signal_and_state_is_documented() -> None:
    text = (ROOT / "docs/contracts.md").read_text()
    signals = (wire.InstanceSignals, wire.LinkSignals, wire.RouterSignals)
    names = {name for kind in signals for name in kind.__struct_fields__}
    names |= set(get_args(wire.InstanceState))
    missing = [name for name in sorted(names) if not re.search(rf"`{name}[`{{]", text)]
    assert not missing, f"docs/contracts.md does not name {missing}"


def test_links_between_documents_lead_somewhere() -> None:
    for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def main() -> None:
    for file, name, make in GENERATED:
        path = ROOT / file
        text = path.read_text()
        found = block(text, name)
        path.write_text(text[: found.start(2)] + make() + "\n" + text[found.end(2) :])


if __name__ == "__main__":
    main()
