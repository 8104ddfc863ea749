"""Borders that hold the design together, each with the reason it exists.

Read from the source text, so a forbidden import inside a function is found as well.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("console", "routing", "telemetry")
MAX_LINES = 500

SERVER_ONLY = ("cramjam", "google", "numpy", "opentelemetry", "orjson", "pyroute2", "zstandard")
DJANGO_WORLD = ("django", "channels", "celery", "rest_framework", "psycopg", "redis", "uvicorn")

AGENT_MODULES = (
    "wire", "refusals", "exposition", "canonical", "folding", "counters", "buckets", "engine_maps",
    "series", "signals", "strict_toml",
)  # fmt: skip
PULL_MODULES = ("history", "intake", "mapping", "points", "promql", "pull", "reporting", "snapshot")
LAB = "the lab must be an independent witness of what the core predicts"
TWIN = "the twin is pure, and no copy of what it is compared with"
BASE = "it installs from the base package, without Django"
FORBIDDEN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("routing/lab", ("routing.core", "routing.twin", "routing.gate"), LAB),
    ("routing/core", ("routing.lab", "routing.twin", "routing.gate"), "the core imports nobody"),
    ("routing/twin", ("routing.lab", "routing.gate", "telemetry"), TWIN),
    ("routing/twin", DJANGO_WORLD, TWIN),
    ("routing/gate", ("routing.lab", "routing.twin", "telemetry"), "a gate stands alone"),
    ("routing/gate", DJANGO_WORLD, BASE),
    ("routing/lab", DJANGO_WORLD, BASE),
    ("routing/adapters", DJANGO_WORLD, BASE),
    ("telemetry/agent", (*DJANGO_WORLD, *SERVER_ONLY), BASE),
    ("telemetry/hosts", (*DJANGO_WORLD, *SERVER_ONLY, "telemetry.agent"), BASE),
    *((f"telemetry/{name}.py", (*DJANGO_WORLD, *SERVER_ONLY), BASE) for name in AGENT_MODULES),
    *((f"telemetry/doors/{name}.py", DJANGO_WORLD, BASE) for name in PULL_MODULES),
    ("telemetry", ("routing", "console"), "telemetry knows nothing of what it is used for"),
    ("routing", ("console",), "nobody imports the console"),
)

GATE_MAY_IMPORT_OF_CORE = {
    *("placement.credit", "placement.rule", "placement.sides", "placement.token_edges"),
    *("placement.wait", "types"),
}
"""The routing rule itself, so that gate, simulator and console have one; a gate has no numpy."""

CORE_MAY_IMPORT = {"numpy", "routing", "scipy"}


def modules(place: str) -> list[Path]:
    path = ROOT / place
    found = [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [p for p in found if "migrations" not in p.parts]


def imports(path: Path) -> list[tuple[str, int, bool]]:
    """(module, line, inside a function) of every import, relative ones resolved."""
    tree = ast.parse(path.read_text())
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found = []

    def visit(node: ast.AST, nested: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, child.lineno, nested) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parents = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*parents, base]).rstrip(".")
                found.append((base, child.lineno, nested))
                found.extend(
                    (f"{base}.{alias.name}", child.lineno, nested) for alias in child.names
                )
            inner = nested or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            visit(child, inner)

    visit(tree, False)
    return found


def hits(name: str, banned: str) -> bool:
    return name == banned or name.startswith(banned + ".")


@pytest.mark.parametrize(("place", "banned", "why"), FORBIDDEN, ids=lambda v: str(v)[:40])
def test_an_arrow_that_must_not_exist(place: str, banned: tuple[str, ...], why: str) -> None:
    assert modules(place), f"{place} is empty: this rule guards nothing"
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in modules(place)
        for name, line, _ in imports(path)
        if any(hits(name, b) for b in banned)
    ]
    assert not found, f"{why}: " + "; ".join(found)


def test_a_gate_shares_only_the_routing_rule_with_the_core() -> None:
    allowed = {f"routing.core.{name}" for name in GATE_MAY_IMPORT_OF_CORE}
    places = [
        "routing/gate",
        *(f"routing/core/{name.replace('.', '/')}.py" for name in GATE_MAY_IMPORT_OF_CORE),
    ]
    assert all(modules(place) for place in places), "a module that moved is not guarded"
    shared = [
        (path, imported)
        for place in places
        for path in modules(place)
        for imported in imports(path)
    ]
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path, (name, line, _) in shared
        if hits(name, "numpy")
        or hits(name, "scipy")
        or (
            hits(name, "routing.core")
            and name not in ("routing.core", "routing.core.placement")
            and not any(hits(name, module) for module in allowed)
        )
    ]
    assert not found, "it installs without numpy, and has no second rule: " + "; ".join(found)


def test_the_core_imports_only_the_standard_library_numpy_scipy_and_itself() -> None:
    allowed = CORE_MAY_IMPORT | set(sys.stdlib_module_names)
    found = [
        f"{path.name}:{line} imports {name}"
        for path in modules("routing/core")
        for name, line, _ in imports(path)
        if name.split(".")[0] not in allowed
        or (name != "routing" and hits(name, "routing") and not hits(name, "routing.core"))
    ]
    assert not found, "the core must be replayable anywhere: " + "; ".join(found)


def test_the_core_never_asks_the_clock_or_the_dice() -> None:
    clocks = {"time", "random", "datetime", "logging", "os", "socket"}
    found = [
        f"{path.name}:{line} imports {name}"
        for path in modules("routing/core")
        for name, line, _ in imports(path)
        if name.split(".")[0] in clocks
    ]
    assert not found, "now and randomness are arguments: " + "; ".join(found)


def test_only_observe_turns_telemetry_rows_into_core_values() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in modules("routing")
        if path.name != "observe.py"
        and any(hits(name, "telemetry.store") for name, _, _ in imports(path))
        and any(
            hits(name, "routing.core.types.Observation")
            or hits(name, "routing.core.types.PdObservation")
            for name, _, _ in imports(path)
        )
    ]
    assert not found, "a second translation would disagree with the first: " + "; ".join(found)


def test_no_import_hides_in_a_function() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for package in PACKAGES
        for path in modules(package)
        for name, line, nested in imports(path)
        if nested
    ]
    assert not found, "a local import means the arrow is wrong: " + "; ".join(found)


def test_no_module_is_a_drawer() -> None:
    too_long = [
        f"{path.relative_to(ROOT)} has {len(path.read_text().splitlines())} lines"
        for package in (*PACKAGES, "tests")
        for suffix in ("*.py", "*.js")
        for path in sorted((ROOT / package).rglob(suffix))
        if "migrations" not in path.parts
        and "vendor" not in path.parts
        and len(path.read_text().splitlines()) > MAX_LINES
    ]
    assert not too_long, f"split by idea, at most {MAX_LINES} lines: " + "; ".join(too_long)
    drawers = [str(p) for package in PACKAGES for p in (ROOT / package).rglob("utils.py")]
    assert not drawers


def test_each_table_is_written_by_one_module() -> None:
    """Writers are found by what they call on the model: create, save, update, delete."""
    owners = {
        "Policy": {"routing/commands.py"},
        "Hold": {"routing/commands.py"},
        "Fleet": {"routing/commands.py"},
        "Tick": {"routing/scheduler.py"},
        "Decision": {"routing/scheduler.py"},
        "Delivery": {"routing/delivery.py"},
        "RouterState": {"routing/delivery.py"},
        "Rebalance": {"routing/rebalance.py"},
        "RoleMove": {"routing/rebalance.py"},
        "ManagedRouter": {"routing/managed.py"},
        "EffectCheck": {"routing/effect_checks.py"},
        "TraceFile": {"routing/backtests.py"},
        "Backtest": {"routing/backtests.py"},
        "BacktestRun": {"routing/backtests.py"},
        "Action": {"routing/audit.py"},
        "ApiToken": {"telemetry/tokens.py"},
        # The shell's first account and the groups themselves are made by `prepare`.
        "User": {"console/people.py", "console/management/commands/prepare.py"},
        "Group": {"console/people.py", "console/management/commands/prepare.py"},
        "SocialAccount": {"console/sso.py"},
        "ActionSeal": set(),
        "AlertRule": {"routing/alerts/rules.py"},
        "AlertTracks": {"routing/alerts/passes.py"},
        "Incident": {"routing/alerts/incidents.py"},
        "Silence": {"routing/alerts/silences.py"},
        "Receiver": {"routing/alerts/receivers.py"},
        "Notification": {"routing/alerts/telling.py"},
        "Job": {"routing/jobs/jobs.py"},
        "JobRun": {"routing/jobs/runs.py"},
        "Event": {"routing/rest/events.py"},
        "Answer": {"routing/rest/once.py"},
        "UsageDay": {"routing/costs/usage.py"},
        "RecordedHour": {"routing/costs/recordings.py"},
        "PriceTable": {"routing/costs/prices.py"},
        "MonthReport": {"routing/costs/reports.py"},
        "DecisionValue": {"routing/costs/values.py"},
        "Forecast": {"routing/forecast/forecasts.py"},
        "ProfileProposal": {"routing/refits/proposals.py"},
        "ApprovalLimits": {"routing/approvals/limits_rows.py"},
        "Proposal": {"routing/approvals/rows.py"},
        "Window": {"routing/windows/windows.py"},
        "Override": {"routing/windows/windows.py"},
        "Maintenance": {"routing/windows/maintenance.py"},
    }
    verbs = {
        "create", "update", "delete", "bulk_create", "bulk_update", "get_or_create",
        "update_or_create",
    }  # fmt: skip
    found = []
    for package in PACKAGES:
        for path in modules(package):
            place = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                if node.func.attr not in verbs:
                    continue
                root = node.func.value
                while isinstance(root, ast.Call | ast.Attribute):
                    inner = root.func if isinstance(root, ast.Call) else root.value
                    if isinstance(root, ast.Attribute) and root.attr == "objects":
                        root = root.value
                        break
                    root = inner
                if isinstance(root, ast.Name) and place not in owners.get(root.id, {place}):
                    found.append(f"{place}:{node.lineno} writes {root.id}")
    assert not found, "each table has one writer: " + "; ".join(found)


def test_each_telemetry_table_is_filled_by_one_module() -> None:
    """These are written in SQL. `partitions` removes what is past retention, and adds nothing."""
    owners = {
        **{table: {"landing"} for table in ("batch", "landing", "layout", "source")},
        # What is stored becomes ranges of its agent; `floor` moves where partitions are dropped.
        "agent": {"landing", "compaction"},
        "compaction": {"compaction", "partitions"},
        "pending": {"rollups"},
        "signal": {"tables"},
        **{table: {"reports"} for table in ("storedreport", "refusal")},
        "apitoken": {"tokens"},
    }
    fills = re.compile(r"(?:INSERT INTO|UPDATE) telemetry_(\w+)")
    found = {
        (path.relative_to(ROOT).with_suffix("").as_posix(), table)
        for package in PACKAGES
        for path in modules(package)
        for table in fills.findall(path.read_text())
    }
    assert {table for _, table in found} == owners.keys(), "a rule that guards nothing, or no rule"
    others = [
        f"{place}.py fills telemetry_{table}"
        for place, table in sorted(found)
        if place not in {f"telemetry/{owner}" for owner in owners[table]}
    ]
    assert not others, "each table has one writer: " + "; ".join(others)
