"""What applying a document did, for people: the same words on the server and over REST."""

from __future__ import annotations

import json
from typing import Any

_SIGNS = {"create": "+", "change": "~", "delete": "-"}


def applied_lines(done: dict[str, Any]) -> list[str]:
    """A line for each object and for each value of it that differs; `done` is REST's answer."""
    lines = []
    for change in done["changes"]:
        why = f": {change['because']}" if change["because"] else ""
        lines.append(f"{_SIGNS[change['action']]} {change['kind']}.{change['name']}{why}")
        for each in change["differences"]:
            before, after = (json.dumps(each[side]) for side in ("before", "after"))
            lines.append(f"    {each['path']}: {before} -> {after}")
    lines += [f"a second person is needed: {why}" for why in done["needs_approval"]]
    would = "would be changed" if done["dry_run"] else "changed"
    return [*lines, f"{len(done['changes'])} {would}, {done['n_same']} as declared"]
