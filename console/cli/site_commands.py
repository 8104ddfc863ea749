"""Commands about the whole site: documents, approvals, alerts, tokens, events; any operation."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from console.cli.applied import applied_lines
from console.cli.command import (
    DONE,
    FOR,
    LIMIT,
    NEEDED_REASON,
    REASON,
    Command,
    Doing,
    Misused,
    arg,
    file_bytes,
    named_values,
    said,
    until,
)
from console.client.http import OPERATIONS

_MEDIA_TYPES = {
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".json": "application/json",
}


def _apply(doing: Doing) -> int:
    given = doing.given
    media_type = _MEDIA_TYPES.get(given.file.suffix)
    if media_type is None:
        raise Misused(f"{given.file}: must be named .toml, .yaml or .json")
    answer = doing.client.apply_create(
        file_bytes(given.file),
        content_type=media_type,
        dry_run=given.dry_run or None,
        prune=given.prune or None,
        confirm=",".join(given.confirm) or None,
        reason=given.reason or None,
        if_match=given.if_match,
    )
    if answer.is_proposal:
        return said(doing, answer, "")
    doing.out.said(answer.data, *applied_lines(answer.data))
    return DONE


def _export(doing: Doing) -> int:
    format_ = "json" if doing.out.as_json else doing.given.format
    data = doing.client.export_retrieve(format=format_).data
    if isinstance(data, bytes):
        doing.out.stream.write(data.decode())
    elif doing.out.as_json:
        doing.out.value(data)
    else:
        json.dump(data, doing.out.stream, indent=2, sort_keys=True, ensure_ascii=False)
        doing.out.stream.write("\n")
    return DONE


def _approvals(doing: Doing) -> int:
    state = None if doing.given.all else "open"
    rows = doing.client.approvals_list(state=state, fleet=doing.given.fleet)
    columns = ("id", "fleet", "command", "asked_by", "asked_at", "expires_at", "state", "needs",
               "reason")  # fmt: skip
    doing.out.table(islice(rows, doing.given.limit), columns)
    return DONE


def _approval(doing: Doing) -> int:
    doing.out.facts(doing.client.approvals_retrieve(doing.given.proposal).data)
    return DONE


def _decide(doing: Doing) -> int:
    act = {
        "approve": doing.client.approvals_approve_create,
        "reject": doing.client.approvals_reject_create,
        "withdraw": doing.client.approvals_withdraw_create,
    }[doing.given.words[-1]]
    answer = act(doing.given.proposal, {"reason": doing.given.reason})
    state, text = answer.data.get("state"), answer.data.get("text", "")
    line = f"proposal {doing.given.proposal} is {state}" + (f": {text}" if text else "")
    return said(doing, answer, line)


def _incidents(doing: Doing) -> int:
    given = doing.given
    rows = doing.client.incidents_list(open=None if given.all else True, fleet=given.fleet)
    columns = ("id", "severity", "fleet", "rule", "opened_at", "acknowledged_by", "sentence")
    doing.out.table(islice(rows, given.limit), columns)
    return DONE


def _acknowledge(doing: Doing) -> int:
    given = doing.given
    seen = doing.client.incidents_retrieve(given.incident).etag
    body = {"note": given.note}
    answer = doing.client.incidents_acknowledge_create(given.incident, body, if_match=seen)
    return said(doing, answer, f"incident {given.incident} is acknowledged")


def _rules(doing: Doing) -> int:
    columns = ("name", "enabled", "document.signal", "document.is", "document.threshold",
               "document.severity", "version")  # fmt: skip
    doing.out.table(doing.client.alert_rules_list(), columns)
    return DONE


def _silences(doing: Doing) -> int:
    columns = ("id", "fleet", "rule", "cluster", "severity", "ends_at", "created_by", "reason")
    doing.out.table(islice(doing.client.silences_list(), doing.given.limit), columns)
    return DONE


def _silence(doing: Doing) -> int:
    given = doing.given
    body = {
        "fleet": given.fleet or "",
        "rule": given.rule,
        "cluster": given.cluster,
        "severity": given.severity,
        "reason": given.reason,
        "ends_at": until(doing.now, given.span),
    }
    answer = doing.client.silences_create(body)
    return said(doing, answer, f"silence {answer.data.get('id')} until {answer.data['ends_at']}")


def _end_silence(doing: Doing) -> int:
    answer = doing.client.silences_end_create(doing.given.silence, {"reason": doing.given.reason})
    return said(doing, answer, f"silence {doing.given.silence} has ended")


def _tokens(doing: Doing) -> int:
    columns = ("id", "name", "prefix", "scopes", "fleet", "created_by", "expires_at", "revoked_at",
               "last_used_at")  # fmt: skip
    doing.out.table(islice(doing.client.tokens_list(), doing.given.limit), columns)
    return DONE


def _issue(doing: Doing) -> int:
    given = doing.given
    body: dict[str, Any] = {
        "name": given.name,
        "scopes": given.scope,
        "fleet": given.fleet or "",
        "reason": given.reason,
    }
    if given.span:
        body["expires_at"] = until(doing.now, given.span)
    answer = doing.client.tokens_create(body)
    return said(doing, answer, answer.data["secret"])


def _rotate(doing: Doing) -> int:
    body = {"reason": doing.given.reason}
    answer = doing.client.tokens_rotate_create(doing.given.token, body)
    return said(doing, answer, answer.data["secret"])


def _revoke(doing: Doing) -> int:
    answer = doing.client.tokens_revoke_create(doing.given.token, {"reason": doing.given.reason})
    return said(doing, answer, f"token {doing.given.token} is revoked")


def _audit(doing: Doing) -> int:
    rows = doing.client.audit_list(fleet=doing.given.fleet)
    columns = ("at", "actor", "via", "verb", "fleet", "target", "reason")
    doing.out.table(islice(rows, doing.given.limit), columns)
    return DONE


def _me(doing: Doing) -> int:
    doing.out.facts(doing.client.me_retrieve().data)
    return DONE


def _events(doing: Doing) -> int:
    """Events as they come, one JSON value a line, until one is as many as asked for."""
    client, given = doing.client, doing.given
    asked = {"kinds": given.kinds, "last_event_id": given.after}
    stream = (
        client.fleets_events_retrieve(given.fleet, **asked)
        if given.fleet
        else client.events_retrieve(**asked)
    )
    for event in islice(stream, given.limit):
        line = {"id": event.id, "kind": event.kind, "data": event.data}
        doing.out.stream.write(json.dumps(line, ensure_ascii=not doing.out.as_json) + "\n")
        doing.out.stream.flush()
    return DONE


def _call(doing: Doing) -> int:
    """Any operation by its name: path and query as NAME=VALUE, its body from a file."""
    given = doing.given
    operation = OPERATIONS.get(given.operation)
    if operation is None:
        raise Misused(f"{given.operation}: no operation; `operations` lists them")
    asked = named_values(given.value, "value")
    place = {name: asked.pop(name) for name in list(asked) if f"{{{name}}}" in operation.path}
    missing = [
        part for part in operation.path.split("/") if part[1:-1] not in place and "{" in part
    ]
    if missing:
        raise Misused(f"{given.operation}: needs {', '.join(m.strip('{}') for m in missing)}")
    body = file_bytes(given.body) if given.body is not None else None
    try:
        answer = doing.client.call(given.operation, asked, body, **place)
    except TypeError as exc:
        raise Misused(str(exc)) from None
    if isinstance(answer.data, bytes):
        doing.out.stream.buffer.write(answer.data)
    else:
        doing.out.value(answer.data)
    return DONE


_OF_FLEET = arg("--fleet", help="only of this fleet")
_ALL = arg("--all", action="store_true", help="those that are over too")
_PROPOSAL = arg("proposal", type=int, help="its id")
_TOKEN = arg("token", type=int, help="its id")
SCOPES = ("ingest", "router", "read", "operate", "approve", "admin")

COMMANDS = (
    Command(("apply",), "make a document of all that is kept by name so", _apply,
            (arg("file", type=Path, help="FILE.toml, .yaml or .json"),
             arg("--dry-run", action="store_true", help="only say what would change"),
             arg("--prune", action="store_true", help="delete what its kinds do not name"),
             arg("--confirm", action="append", default=[], metavar="FLEET",
                 help="may be deleted with its history"),
             arg("--if-match", metavar="DIGEST", help="only if the state is still this one"),
             REASON)),
    Command(("export",), "everything that is kept by name, as one document", _export,
            (arg("--format", choices=("toml", "yaml", "json"), default="toml"),)),
    Command(("approvals", "list"), "what waits for a second person", _approvals,
            (_OF_FLEET, _ALL, LIMIT)),
    Command(("approvals", "show"), "one proposal", _approval, (_PROPOSAL,)),
    Command(("approvals", "approve"), "carry it out, as its second person", _decide,
            (_PROPOSAL, REASON)),
    Command(("approvals", "reject"), "say no", _decide, (_PROPOSAL, NEEDED_REASON)),
    Command(("approvals", "withdraw"), "take back your own", _decide, (_PROPOSAL, REASON)),
    Command(("incidents", "list"), "what fires", _incidents, (_OF_FLEET, _ALL, LIMIT)),
    Command(("incidents", "ack"), "somebody is at it", _acknowledge,
            (arg("incident", type=int, help="its id"), arg("--note", default=""))),
    Command(("rules",), "alert rules", _rules),
    Command(("silences", "list"), "of what nobody is told", _silences, (LIMIT,)),
    Command(("silences", "begin"), "tell nobody for a while", _silence,
            (_OF_FLEET, arg("--rule", default="*"), arg("--cluster", default="*"),
             arg("--severity", default="*"), FOR, NEEDED_REASON)),
    Command(("silences", "end"), "tell again", _end_silence,
            (arg("silence", type=int, help="its id"), NEEDED_REASON)),
    Command(("tokens", "list"), "keys, never their secrets", _tokens, (LIMIT,)),
    Command(("tokens", "issue"), "make a key; its secret is printed once", _issue,
            (arg("name", help="who will hold it"),
             arg("--scope", action="append", required=True, choices=SCOPES), _OF_FLEET,
             arg("--for", dest="span", metavar="SPAN", help="30m, 2h, 90d"), REASON)),
    Command(("tokens", "rotate"), "a new secret; the old one is good for a while", _rotate,
            (_TOKEN, REASON)),
    Command(("tokens", "revoke"), "end a key at once", _revoke, (_TOKEN, REASON)),
    Command(("audit",), "who changed what", _audit, (_OF_FLEET, LIMIT)),
    Command(("events",), "what happens, as it happens, a JSON value a line", _events,
            (_OF_FLEET, arg("--kinds", help="apart by commas"),
             arg("--after", metavar="ID", help="the last that was seen"),
             arg("--limit", type=int, metavar="N", help="end after so many"))),
    Command(("me",), "who the token is, and what it may do", _me),
    Command(("call",), "any operation of the API", _call,
            (arg("operation"), arg("value", nargs="*", metavar="NAME=VALUE"),
             arg("--body", type=Path, help="a file; - for standard input"))),
)  # fmt: skip
