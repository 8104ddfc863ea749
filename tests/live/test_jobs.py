"""Two jobs move roles in the running lab at one minute and back at another.

Everything is the demo's own: web server, worker, scheduler, lab, gates, agents. The witnesses are
the engines and the stack of the lab, which the console does not speak for.

Run by hand: `pytest tests/live/test_jobs.py -m slow -s`, some 6 minutes.
"""

from __future__ import annotations

import datetime
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.live.harness import Demo, free_port, say

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

AT_FIRST, BY_DAY = (3, 5), (4, 4)
DAY_S = 120.0
AHEAD_S = 45.0
"""So long the first minute is ahead at least, when the jobs are written."""
PATIENCE_S = 240.0
OPEN = ("due", "asking", "moving")
DAY, NIGHT = "day-shift", "night-shift"
ZONES = {DAY: ZoneInfo("Europe/Paris"), NIGHT: ZoneInfo("Asia/Kathmandu")}
EVERY_DAY = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


@dataclass(frozen=True)
class Seen:
    """Prefill and decode of cluster pd at one look: by the engines, by the stack, by the plan."""

    engines: tuple[int, int]
    listed: tuple[int, int]
    plan: tuple[int, int]


def look(demo: Demo) -> Seen:
    def roles(key: str, found: list[dict[str, Any]]) -> Counter[str]:
        return Counter(each[key] for each in found if "/pd/" in each["id"])

    engines = roles("role", demo.lab("admin", "/engines"))
    # Its stack also sends to the remote prefill instances.
    listed = roles("worker_type", demo.lab("admin", "/clusters/pd/workers")["workers"])
    plan = demo.get("/plan")["clusters"]["pd"]
    return Seen(
        (engines["prefill"], engines["decode"]),
        (listed["prefill"], listed["decode"]),
        (plan["n_prefill"], plan["n_decode"]),
    )


def write_jobs(demo: Demo) -> dict[str, float]:
    """Both jobs over REST; the moments they are due, in seconds.

    One is due on a date, the other on every day, each by the wall clock of its own zone; the second
    is due at the very moment at which what the first one holds is over.
    """
    day_s = (time.time() + AHEAD_S) // 60 * 60 + 60
    due = {DAY: day_s, NIGHT: day_s + DAY_S}
    roles = {DAY: BY_DAY, NIGHT: AT_FIRST}
    for name, at_s in due.items():
        local = datetime.datetime.fromtimestamp(at_s, ZONES[name])
        when = {"zone": ZONES[name].key, "at": f"{local:%H:%M}"}
        when |= {"on": f"{local:%F}"} if name == DAY else {"days": EVERY_DAY}  # type: ignore[dict-item]
        n_prefill, n_decode = roles[name]
        do = {"kind": "roles", "cluster": "pd", "n_prefill": n_prefill, "n_decode": n_decode}
        document = {"name": name, "fleet": "prfaas-1t", "do": {**do, "for_s": DAY_S}, "when": when}
        document["reason"] = f"the {name}"
        kept = demo.put(f"/jobs/{name}", {"document": document, "reason": "the proof's"})
        [first, *_] = kept["next_due_at"]
        assert datetime.datetime.fromisoformat(first).timestamp() == at_s
    return due


def watch(demo: Demo, until_s: float) -> list[tuple[float, Seen]]:
    """What is seen whenever it is something else, until both runs have ended."""
    path: list[tuple[float, Seen]] = []
    while time.time() < until_s:
        seen = look(demo)
        if not path or path[-1][1] != seen:
            path.append((time.time(), seen))
            print(f"\n{path[-1]}", flush=True)
        runs = demo.all("/job-runs")
        if len(runs) == len(ZONES) and not any(run["state"] in OPEN for run in runs):
            break
        time.sleep(0.5)
    return path


def first(path: list[tuple[float, Seen]], roles: tuple[int, int], after_s: float = 0.0) -> float:
    """When the engines themselves first had these roles."""
    return next(at_s for at_s, seen in path if seen.engines == roles and at_s >= after_s)


def moment(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def prove(demo: Demo) -> dict[str, Any]:
    """Have both jobs run. What was due, seen, kept and said."""
    before = look(demo)
    due = write_jobs(demo)
    path = watch(demo, due[NIGHT] + PATIENCE_S)
    runs = {run["job"]: run for run in demo.all("/job-runs")}
    found = {
        "due": due,
        "before": before,
        "path": path,
        "runs": runs,
        "rebalances": demo.all("/rebalances"),
        "audit": demo.audit(),
        "plan": demo.get("/plan"),
        "routers": demo.get("/routers")["results"],
        "failed": demo.failed(),
    }
    say(
        "jobs",
        due=due,
        path=[(round(at_s - due[DAY], 1), *vars(seen).values()) for at_s, seen in path],
        runs={name: (run["state"], run["text"], run["due_at"]) for name, run in runs.items()},
        audit=[(row["actor"], row["verb"], row["target"]) for row in found["audit"]],
        failed=found["failed"],
    )
    return found


def test_jobs_move_roles_at_a_minute_and_back_at_another(state: Path) -> None:
    options = {"n_prefill": AT_FIRST[0], "roles": "fixed", "threshold_tokens": 19_800}
    with Demo(state, free_port(), **options) as demo:
        found = prove(demo)
        jobs, audit = demo.pages("/fleets/prfaas-1t/jobs/", "/audit/?actor=job+day-shift")
    due, path, runs = found["due"], found["path"], found["runs"]
    assert found["before"] == Seen(AT_FIRST, AT_FIRST, AT_FIRST)

    # Not before its minute, by it, and not back before the other minute.
    assert [seen.engines for at_s, seen in path if at_s < due[DAY]] == [AT_FIRST]
    by_day_s = first(path, BY_DAY)
    back_s = first(path, AT_FIRST, after_s=by_day_s)
    assert due[DAY] <= by_day_s < due[NIGHT] <= back_s
    assert {seen.engines for _, seen in path} == {AT_FIRST, BY_DAY}
    assert Seen(BY_DAY, BY_DAY, BY_DAY) in [seen for _, seen in path]
    assert path[-1][1] == Seen(AT_FIRST, AT_FIRST, AT_FIRST)
    newest = (found["plan"]["epoch"], found["plan"]["version"])
    assert {(each["epoch_running"], each["version_running"]) for each in found["routers"]} == {
        newest
    }
    assert found["failed"] == 0

    moves = {row["requested_by"]: row for row in found["rebalances"]}
    assert list(moves) == [f"job {DAY}", f"job {NIGHT}"]
    for name, row in moves.items():
        run = runs[name.removeprefix("job ")]
        rows = [each for each in found["audit"] if each["actor"] == name]
        assert moment(run["due_at"]) == due[run["job"]]
        assert (run["state"], run["asked_by"]) == ("done", "")
        assert run["text"].endswith(f"rebalance {row['id']} is done")
        assert moment(run["began_at"]) // 60 == due[run["job"]] // 60
        assert [move["step"] for move in row["moves"]] == ["done"]
        verbs = [each["verb"] for each in rows]
        assert (verbs[0], verbs[-1]) == ("roles.move", "job.done")
        assert {each["via"] for each in rows} == {"job"}
        assert rows[0]["reason"] == f"Job {run['job']}: the {run['job']}"
        target = f"rebalance {row['id']} of pd"
        assert "rebalance.start" in [e["verb"] for e in found["audit"] if e["target"] == target]
        # In the list of runs and in the calendar, where the day's is of its own zone as well.
        assert jobs.count(run["text"]) == 2
    assert "roles.move" in audit
    calendar = jobs[jobs.index('id="job-calendar"') : jobs.index('id="job-runs"')]
    for name, at_s in due.items():
        local = datetime.datetime.fromtimestamp(at_s, ZONES[name])
        assert f"{local:%H:%M} {ZONES[name].key}" in calendar
