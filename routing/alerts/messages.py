"""What each kind of receiver is sent of an incident. Pure: bodies, no sending."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Final

EVENTS: Final = ("firing", "repeat", "acknowledged", "resolved")
KINDS: Final = ("webhook", "slack", "pagerduty", "alertmanager", "email")
SIGNATURE: Final = "X-PrfaaS-Signature"
_PAGERDUTY_SEVERITY: Final = {"page": "critical", "warn": "warning", "info": "info"}
_PAGERDUTY_ACTION: Final = {
    "firing": "trigger",
    "repeat": "trigger",
    "acknowledged": "acknowledge",
    "resolved": "resolve",
}
_WORDS: Final = {
    "firing": "FIRING",
    "repeat": "STILL FIRING",
    "acknowledged": "ACKNOWLEDGED",
    "resolved": "RESOLVED",
}
KEPT: Final = datetime.timedelta(hours=1)
"""Alertmanager forgets an alert that is not repeated: so long it keeps one of ours."""


@dataclass(frozen=True)
class Told:
    """One incident as it is told now, at `at`. `url` is its page, `by` who acknowledged it."""

    event: str
    incident: int
    rule: str
    kind: str
    group: str
    fleet: str
    cluster: str
    severity: str
    sentence: str
    summary: str
    signal: str
    n: int
    sources: tuple[str, ...]
    at: datetime.datetime
    opened_at: datetime.datetime
    resolved_at: datetime.datetime | None
    by: str
    note: str
    runbook_url: str
    url: str

    @property
    def key(self) -> str:
        """The same for all that is told of one incident."""
        return f"prfaas-incident-{self.incident}"

    @property
    def title(self) -> str:
        by = f" by {self.by}" if self.by else ""
        return f"[{_WORDS[self.event]}{by}] {self.summary or self.rule}: {self.sentence}"


def body(kind: str, told: Told, *, key: str) -> Any:
    """The JSON document for a receiver of this kind. `key` is PagerDuty's routing key."""
    if kind == "slack":
        return _slack(told)
    if kind == "pagerduty":
        return _pagerduty(told, key)
    if kind == "alertmanager":
        return _alertmanager(told)
    return _webhook(told)


def text(told: Told) -> str:
    """The body of an e-mail."""
    lines = [
        told.sentence,
        "",
        f"Rule: {told.rule} ({told.severity}), signal {told.signal}",
        f"Fleet: {told.fleet or '-'}, cluster: {told.cluster or '-'}",
        f"Sources ({told.n}): {', '.join(told.sources)}",
    ]
    lines += [f"Note: {told.note}"] if told.note else []
    lines += [f"Runbook: {told.runbook_url}"] if told.runbook_url else []
    return "\n".join([*lines, f"Evidence: {told.url}", ""])


def signature(secret: str, raw: bytes, *, now_s: float) -> str:
    """`t=SECONDS,v1=HEX`: HMAC-SHA256 with the secret of `SECONDS.BODY`, so that neither can be
    changed and an old message can be told."""
    at = str(int(now_s))
    digest = hmac.new(secret.encode(), at.encode() + b"." + raw, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def _webhook(told: Told) -> dict[str, Any]:
    return {
        "version": 1,
        "event": told.event,
        "incident": told.incident,
        "key": told.key,
        "rule": told.rule,
        "kind": told.kind,
        "group": told.group,
        "fleet": told.fleet,
        "cluster": told.cluster,
        "severity": told.severity,
        "sentence": told.sentence,
        "summary": told.summary,
        "signal": told.signal,
        "n_sources": told.n,
        "sources": list(told.sources),
        "opened_at_s": told.opened_at.timestamp(),
        "resolved_at_s": told.resolved_at and told.resolved_at.timestamp(),
        "by": told.by,
        "note": told.note,
        "runbook_url": told.runbook_url,
        "url": told.url,
    }


def _slack(told: Told) -> dict[str, Any]:
    """Incoming webhooks: `&`, `<` and `>` would be markup."""
    runbook = f" · <{_slack_text(told.runbook_url)}|runbook>" if told.runbook_url else ""
    note = f"\n{_slack_text(told.note)}" if told.note else ""
    title = _slack_text(told.title)
    return {"text": f"{title}{note}\n<{_slack_text(told.url)}|evidence>{runbook}"}


def _slack_text(said: str) -> str:
    return said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _pagerduty(told: Told, key: str) -> dict[str, Any]:
    """Events API v2."""
    links = [{"href": told.url, "text": "Evidence"}]
    if told.runbook_url:
        links.append({"href": told.runbook_url, "text": "Runbook"})
    return {
        "routing_key": key,
        "event_action": _PAGERDUTY_ACTION[told.event],
        "dedup_key": told.key,
        "payload": {
            "summary": told.title[:1024],
            "source": told.group,
            "severity": _PAGERDUTY_SEVERITY[told.severity],
            "timestamp": told.opened_at.isoformat(),
            "component": told.cluster,
            "group": told.fleet,
            "class": told.signal,
            "custom_details": {"sources": list(told.sources), "n_sources": told.n},
        },
        "links": links,
    }


def _alertmanager(told: Told) -> list[dict[str, Any]]:
    """API v2, POST /api/v2/alerts. An end that lies ahead means that it fires."""
    labels = {
        "alertname": told.rule,
        "severity": told.severity,
        "fleet": told.fleet,
        "cluster": told.cluster,
        "group": told.group,
        "kind": told.kind,
    }
    return [
        {
            "labels": {name: value for name, value in labels.items() if value},
            "annotations": {
                "summary": told.summary or told.rule,
                "description": told.sentence,
                "runbook_url": told.runbook_url,
            },
            "startsAt": told.opened_at.isoformat(),
            "endsAt": (told.resolved_at or told.at + KEPT).isoformat(),
            "generatorURL": told.url,
        }
    ]
