"""Commands about one fleet: what it is, does and decided; its policy, holds, roles and jobs."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

from console.cli.command import (
    DONE,
    FLEET,
    FOR,
    LIMIT,
    NEEDED_REASON,
    NOT_SO,
    REASON,
    Command,
    Doing,
    Misused,
    arg,
    file_bytes,
    first,
    named_values,
    said,
    until,
)

_PLAN_MODES = ("always_local", "always_remote", "threshold")
_HOLDS = ("id", "cluster", "mode", "threshold_tokens", "n_prefill", "n_decode", "owner",
          "expires_at", "released_at", "reason")  # fmt: skip
_DECISION = arg("decision", type=int, nargs="?", help="its id; the newest if not given")


def _fleets(doing: Doing) -> int:
    doing.out.table(doing.client.fleets_list(), ("name", "mode", "epoch"))
    return DONE


def _fleet(doing: Doing) -> int:
    doing.out.facts(
        doing.client.fleets_retrieve(doing.given.fleet).data,
        ("name", "mode", "epoch", "tick.at", "tick.reason", "tick.message", "plan.version"),
    )
    return DONE


def _snapshot(doing: Doing) -> int:
    doing.out.value(doing.client.fleets_snapshot_retrieve(doing.given.fleet).data)
    return DONE


def _decisions(doing: Doing) -> int:
    rows = islice(doing.client.fleets_decisions_list(doing.given.fleet), doing.given.limit)
    columns = (
        "id",
        "created_at",
        "epoch",
        "version",
        "kind",
        "reason",
        "delivery.state",
        "message",
    )
    doing.out.table(rows, columns)
    return DONE


def _why(doing: Doing) -> int:
    client, fleet = doing.client, doing.given.fleet
    if doing.given.decision is None:
        tick = first(client.fleets_ticks_list(fleet, limit=1), "tick")
        found = client.fleets_ticks_retrieve(fleet, tick["seq"]).data
        head: tuple[str, ...] = ("seq", "at", "mode", "action", "reason", "message")
    else:
        found = client.fleets_decisions_retrieve(fleet, doing.given.decision).data
        head = ("id", "created_at", "version", "kind", "reason", "message", "changes")
    doing.out.facts(found, head)
    return DONE


def _instances(doing: Doing) -> int:
    given = doing.given
    rows = doing.client.fleets_instances_list(given.fleet, cluster=given.cluster, limit=200)
    doing.out.table(islice(rows, given.limit), ("id", "cluster", "role", "state", "age_s"))
    return DONE


def _links(doing: Doing) -> int:
    rows = doing.client.fleets_links_list(doing.given.fleet)
    doing.out.table(islice(rows, doing.given.limit), ("id", "state", "label", "breaker", "age_s"))
    return DONE


def _findings(doing: Doing) -> int:
    found = doing.client.fleets_findings_retrieve(doing.given.fleet).data
    lines = [f"{each.get('code', '')}: {each.get('text', each)}" for each in found["findings"]]
    doing.out.said(found, *(lines or ["nothing is claimed that does not hold"]))
    return DONE


def _propose(doing: Doing) -> int:
    given = doing.given
    body: dict[str, Any] = {"numbers": named_values(given.set, "--set")}
    if given.cluster:
        body["cluster"] = given.cluster
    found = doing.client.fleets_what_if_create(given.fleet, body).data
    optimum = found["optimum"]
    lines = [f"headroom {optimum['headroom']:.3f}, carries {optimum['lambda_max_rps']:.3f} req/s"]
    for name, plan in optimum["clusters"].items():
        t = "" if plan["threshold_tokens"] is None else f" t = {plan['threshold_tokens']} tokens,"
        roles = f"{plan['n_prefill']} prefill and {plan['n_decode']} decode"
        lines.append(f"{name}: {plan['mode']},{t} {roles}")
    doing.out.said(found, *lines)
    return DONE


def _plan(doing: Doing) -> int:
    plan = doing.client.fleets_plan_retrieve(doing.given.fleet).data
    rows = [{"cluster": name, **values} for name, values in plan["clusters"].items()]
    if doing.out.as_json:
        doing.out.value(plan)
        return DONE
    doing.out.line(f"plan {plan['epoch']}.{plan['version']}: {plan['reason']}")
    doing.out.table(
        rows, ("cluster", "mode", "threshold_tokens", "n_prefill", "n_decode", "remote")
    )
    return DONE


def _policy(doing: Doing) -> int:
    answer = doing.client.fleets_policy_retrieve(doing.given.fleet)
    doing.out.facts(answer.data, ("mode", "version", "knobs", "updated_by", "updated_at"))
    return DONE


def _set_policy(doing: Doing) -> int:
    given = doing.given
    body: dict[str, Any] = {"reason": given.reason}
    if given.mode:
        body["mode"] = given.mode
    if given.set:
        body["knobs"] = named_values(given.set, "--set")
    if len(body) == 1:
        raise Misused("nothing to change: --mode or --set")
    seen = given.if_version
    if seen is None:
        seen = doing.client.fleets_policy_retrieve(given.fleet).etag
    answer = doing.client.fleets_policy_partial_update(given.fleet, body, if_match=seen)
    mode = answer.data.get("mode", "")
    return said(doing, answer, f"{given.fleet} is {mode}, version {answer.data.get('version')}")


def _push(doing: Doing) -> int:
    doing.given.mode, doing.given.set, doing.given.if_version = "active", [], None
    return _set_policy(doing)


def _verify(doing: Doing) -> int:
    """The newest plan is one that its routers run, or this one is."""
    given, client = doing.given, doing.client
    ends_s = time.monotonic() + given.wait
    while True:
        pk = (
            given.decision
            or first(
                (row for row in client.fleets_decisions_list(given.fleet) if row["version"]), "plan"
            )["id"]
        )
        found = client.fleets_decisions_retrieve(given.fleet, pk).data
        delivery = found["delivery"]
        applied = delivery["n_routers"] > 0 and delivery["n_applied"] == delivery["n_routers"]
        if applied or time.monotonic() >= ends_s:
            break
        time.sleep(min(1.0, given.every))
    doing.out.said(
        delivery,
        f"plan {found['epoch']}.{found['version']}: {delivery['state']},"
        f" {delivery['n_applied']} of {delivery['n_routers']} routers run it",
        *(f"  {row['router']}: {row['state']} {row.get('error', '')}"
          for row in delivery["routers"]),
    )  # fmt: skip
    return DONE if applied else NOT_SO


def _routers(doing: Doing) -> int:
    rows = doing.client.fleets_routers_list(doing.given.fleet)
    columns = ("router", "cluster", "state", "version_running", "age_s", "error")
    doing.out.table(islice(rows, doing.given.limit), columns)
    return DONE


def _hold(doing: Doing) -> int:
    given = doing.given
    body = {
        "cluster": given.cluster,
        "mode": given.mode,
        "threshold_tokens": given.threshold,
        "reason": given.reason,
        "expires_at": until(doing.now, given.span),
    }
    answer = doing.client.fleets_holds_create(given.fleet, body)
    held = f"hold {answer.data.get('id')} until {answer.data.get('expires_at')}"
    return said(doing, answer, held)


def _holds(doing: Doing) -> int:
    rows = doing.client.fleets_holds_list(doing.given.fleet, open=None if doing.given.all else True)
    doing.out.table(islice(rows, doing.given.limit), _HOLDS)
    return DONE


def _extend(doing: Doing) -> int:
    given = doing.given
    body = {"expires_at": until(doing.now, given.span), "reason": given.reason}
    answer = doing.client.fleets_holds_extend_create(given.fleet, given.hold, body)
    return said(doing, answer, f"hold {given.hold} until {answer.data.get('expires_at')}")


def _release(doing: Doing) -> int:
    given = doing.given
    body = {"reason": given.reason}
    answer = doing.client.fleets_holds_release_create(given.fleet, given.hold, body)
    return said(doing, answer, f"hold {given.hold} is released")


def _revert(doing: Doing) -> int:
    given = doing.given
    body = {"reason": given.reason, "expires_at": until(doing.now, given.span)}
    answer = doing.client.fleets_decisions_rollback_create(given.fleet, given.decision, body)
    return said(doing, answer, f"{given.fleet} is held at the plan of decision {given.decision}")


def _move(doing: Doing) -> int:
    given = doing.given
    plan = doing.client.fleets_plan_retrieve(given.fleet).data["clusters"].get(given.cluster)
    if plan is None:
        raise Misused(f"{given.cluster}: no PD cluster of {given.fleet}")
    body = {
        "cluster": given.cluster,
        "n_prefill": given.prefill,
        "n_decode": given.decode,
        "expected": {"n_prefill": plan["n_prefill"], "n_decode": plan["n_decode"]},
        "expires_at": until(doing.now, given.span),
        "reason": given.reason,
    }
    answer = doing.client.fleets_rebalances_create(given.fleet, body)
    roles = f"{given.prefill} prefill and {given.decode} decode"
    return said(doing, answer, f"{given.cluster} is asked to have {roles}")


def _rebalances(doing: Doing) -> int:
    rows = doing.client.fleets_rebalances_list(doing.given.fleet)
    columns = ("id", "cluster", "from_n_prefill", "from_n_decode", "to_n_prefill", "to_n_decode",
               "state", "waiting_for", "reason")  # fmt: skip
    doing.out.table(islice(rows, doing.given.limit), columns)
    return DONE


def _jobs(doing: Doing) -> int:
    rows = doing.client.fleets_jobs_list(doing.given.fleet)
    doing.out.table(rows, ("name", "enabled", "next_due_at", "version", "updated_by"))
    return DONE


def _put_job(doing: Doing) -> int:
    given = doing.given
    try:
        document = json.loads(file_bytes(given.file))
    except ValueError as exc:
        raise Misused(f"{given.file}: is not JSON: {exc}") from None
    body = {"document": document, "enabled": not given.off, "reason": given.reason}
    seen = given.if_version
    if seen is None:
        kept = [r for r in doing.client.fleets_jobs_list(given.fleet) if r["name"] == given.job]
        seen = kept[0]["version"] if kept else None
    answer = doing.client.fleets_jobs_update(given.fleet, given.job, body, if_match=seen)
    due = (answer.data.get("next_due_at") or ["never"])[0]
    return said(doing, answer, f"{given.job}: next due {due}")


def _run_job(doing: Doing) -> int:
    given = doing.given
    body = {"reason": given.reason}
    answer = doing.client.fleets_jobs_run_create(given.fleet, given.job, body)
    return said(doing, answer, f"run {answer.data.get('id')} of {given.job} is due")


def _job_runs(doing: Doing) -> int:
    rows = doing.client.fleets_job_runs_list(doing.given.fleet, job=doing.given.job)
    columns = ("id", "job", "due_at", "state", "text", "asked_by")
    doing.out.table(islice(rows, doing.given.limit), columns)
    return DONE


def _delete_job(doing: Doing) -> int:
    given = doing.given
    seen = given.if_version or doing.client.fleets_jobs_retrieve(given.fleet, given.job).etag
    answer = doing.client.fleets_jobs_destroy(given.fleet, given.job, if_match=seen)
    return said(doing, answer, f"{given.job} is deleted")


def _report(doing: Doing) -> int:
    given = doing.given
    if given.again is not None:
        body = {"reason": given.again}
        found = doing.client.fleets_reports_create(given.fleet, given.month, body).data
    elif given.file is None:
        found = doing.client.fleets_reports_retrieve(given.fleet, given.month).data
    if given.file is None:
        doing.out.value(found)
        return DONE
    get = {
        ".csv": doing.client.fleets_reports_table_retrieve,
        ".pdf": doing.client.fleets_reports_sheet_retrieve,
    }.get(given.file.suffix)
    if get is None:
        raise Misused(f"{given.file}: must be named .csv or .pdf")
    data = get(given.fleet, given.month).data
    try:
        given.file.write_bytes(data)
    except OSError as exc:
        raise Misused(f"{given.file}: {exc.strerror or exc}") from None
    doing.out.said({"file": str(given.file), "bytes": len(data)}, f"wrote {given.file}")
    return DONE


_IF_VERSION = arg("--if-version", type=int, metavar="N", help="only if it is still at this version")
_HOLD_ID = arg("hold", type=int, help="its id")
_JOB = arg("job", help="its name")
_SET = arg("--set", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")

COMMANDS = (
    Command(("fleets",), "every fleet with its mode", _fleets),
    Command(("fleet",), "one fleet: its mode, newest tick and plan", _fleet, (FLEET,)),
    Command(("snapshot",), "what pages show live, as JSON", _snapshot, (FLEET,)),
    Command(("instances",), "engines and how they are", _instances,
            (FLEET, arg("--cluster"), LIMIT)),
    Command(("links",), "links and how they are", _links, (FLEET, LIMIT)),
    Command(("findings",), "what is claimed and does not hold", _findings, (FLEET,)),
    Command(("decisions",), "plans and advice, newest first", _decisions, (FLEET, LIMIT)),
    Command(("why",), "the newest pass of the loop, or a decision: what and why", _why,
            (FLEET, _DECISION)),
    Command(("propose",), "the best plan, with changed numbers if you like", _propose,
            (FLEET, _SET, arg("--cluster"))),
    Command(("plan",), "the plan in force", _plan, (FLEET,)),
    Command(("policy", "show"), "mode and knobs", _policy, (FLEET,)),
    Command(("policy", "set"), "change mode and knobs (NAME=default: as if never set)", _set_policy,
            (FLEET, arg("--mode", choices=("active", "advisory", "paused")), _SET, _IF_VERSION,
             REASON)),
    Command(("push",), "have the loop push its plans: mode active", _push, (FLEET, REASON)),
    Command(("verify",), "whether every router runs the plan; 7 if not", _verify,
            (FLEET, _DECISION, arg("--wait", type=float, default=0.0, metavar="S"),
             arg("--every", type=float, default=1.0, metavar="S"))),
    Command(("routers",), "gates and what they run", _routers, (FLEET, LIMIT)),
    Command(("holds", "list"), "holds in force", _holds,
            (FLEET, arg("--all", action="store_true"), LIMIT)),
    Command(("holds", "place"), "pin a plan", _hold,
            (FLEET, arg("--mode", choices=_PLAN_MODES, required=True),
             arg("--threshold", type=int, metavar="TOKENS"), arg("--cluster", default=""), FOR,
             NEEDED_REASON)),
    Command(("holds", "extend"), "let a hold end at another moment", _extend,
            (FLEET, _HOLD_ID, FOR, NEEDED_REASON)),
    Command(("holds", "release"), "end a hold", _release, (FLEET, _HOLD_ID, REASON)),
    Command(("revert",), "hold the fleet at an earlier plan", _revert,
            (FLEET, arg("decision", type=int, help="its id"), FOR, NEEDED_REASON)),
    Command(("roles", "move"), "move a cluster to other roles", _move,
            (FLEET, arg("cluster"), arg("--prefill", type=int, required=True),
             arg("--decode", type=int, required=True), FOR, NEEDED_REASON)),
    Command(("roles", "list"), "moves of roles, newest first", _rebalances, (FLEET, LIMIT)),
    Command(("jobs", "list"), "what is done at a time", _jobs, (FLEET,)),
    Command(("jobs", "put"), "make or change a job", _put_job,
            (FLEET, _JOB, arg("file", type=Path, help="its document, JSON; - for standard input"),
             arg("--off", action="store_true"), _IF_VERSION, REASON)),
    Command(("jobs", "run"), "do it now as well", _run_job, (FLEET, _JOB, NEEDED_REASON)),
    Command(("jobs", "runs"), "what became of due times", _job_runs,
            (FLEET, arg("--job"), LIMIT)),
    Command(("jobs", "delete"), "forget a job", _delete_job, (FLEET, _JOB, _IF_VERSION)),
    Command(("report",), "costs of a month", _report,
            (FLEET, arg("month", help="as 2026-10"),
             arg("--again", metavar="REASON", help="put it together anew, with prices of now"),
             arg("--file", type=Path, help="write FILE.csv or FILE.pdf"))),
)  # fmt: skip
