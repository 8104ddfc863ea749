"""Names that strangers chose: markup, formulas, right-to-left marks, 300 characters, emoji.

What a scenario or a form refuses comes in by another door: agents name instances and themselves,
routers tell reasons, people write notes. Every page shows it all and nothing of it acts.
"""

from __future__ import annotations

import csv
import io
import re
import time
from typing import Any

from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import CharField, JSONField
from django.utils import timezone

from routing.alerts.models import Incident, Silence
from routing.models import Action, Decision, Fleet, Hold, RouterState, Tick
from telemetry.models import ApiToken
from tests import servers
from tests.browser import layout, pages, scene
from tests.browser.conftest import Open
from tests.console import onboarding_case
from tests.console.api_case import token
from tests.rewriting import rewriting_audit
from tests.telemetry import batches

PD = "<img src=x onerror='ran=1'>{{7*7}}&amp;"
REMOTE = "=1+1|\u0645\u0631\u062d\u0628\u0627" + "W" * 80
NASTY = (
    "<script>ran=1</script>",
    "\"><svg onload=ran=1>'",
    "</script></title></textarea>-->",
    '=HYPERLINK("http://elsewhere.invalid";"x")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\u202e\u2066moc.elpmaxe\u2069 \u0645\u0631\u062d\u0628\u0627",
    "👩\u200d👩\u200d👧\u200d👦🔥\u200b\u2060\ufeff",
    "%00%0a../../etc/passwd\t{% now 'Y' %}${7*7}",
    "javascript:ran=1",
    "x" * 300,
)
BOTH = "".join(NASTY[:6])
NAMES = {"pd": PD, "prfaas": REMOTE}
MADE_OF_NAMES = """() => document.querySelector(
    "img, [onload], [onerror], main script:not([src]):not([type]), a[href^='javascript:' i]",
)?.outerHTML.slice(0, 80)"""
FILE_NAME = re.compile(r'attachment; filename="[A-Za-z0-9._-]{1,120}"')
HARMLESS = re.compile(r"-?[\d.]+(e[+-]?\d+)?|[^=+\-@\t\r\n\u2212].*|", re.DOTALL)


def renamed(value: Any) -> Any:
    """The same with both clusters named as above, wherever their names stand."""
    if isinstance(value, str):
        return re.sub(r"\b(pd|prfaas)\b", lambda found: NAMES[found[0]], value)
    if isinstance(value, list):
        return [renamed(one) for one in value]
    if isinstance(value, dict):
        return {renamed(key): one if key == "kind" else renamed(one) for key, one in value.items()}
    return value


def rename_everywhere() -> None:
    """Every row of the scene, as if its scenario had named the clusters so."""
    for model in (*apps.get_app_config("routing").get_models(), *_TOLD):
        fields = [
            field.attname
            for field in model._meta.concrete_fields
            if isinstance(field, CharField | JSONField) and field.name not in ("kind", "role")
        ]
        for row in model.objects.values("pk", *fields):
            changed = {name: renamed(row[name]) for name in fields}
            if model is Tick:  # kinds of clusters are the keys of what was observed
                seen = row["observed"]
                changed["observed"] = {key: renamed(one) for key, one in seen.items()}
            changed = {name: new for name, new in changed.items() if new != row[name]}
            if changed:
                model.objects.filter(pk=row["pk"]).update(**changed)


_TOLD = [apps.get_model("telemetry", name) for name in ("Source",)]


def spoil(fleet: Fleet) -> None:
    """Hostile words wherever somebody may write some."""
    now = timezone.now()
    for i, nasty in enumerate(NASTY):
        onboarding_case.agent(nasty[:200], silent_s=300.0 * (i % 2))
        onboarding_case.source(f"{fleet.pk}/{PD}/{nasty}"[:300], role="decode", by=nasty[:200])
        onboarding_case.refusal(422, name=nasty[:200], field=nasty, error=nasty)
        Action.objects.create(
            actor=nasty[:150],
            via="ui",
            verb="policy.set",
            fleet=fleet.pk,
            target=nasty,
            before={nasty: nasty},
            after={nasty: BOTH},
            reason=nasty,
        )
        scene.drifted_router(
            fleet,
            name=nasty[:100],
            url=f"http://{i}.invalid/{nasty}",
            other_writer=nasty,
            findings=[nasty, BOTH],
            make_version=nasty[:100],
        )
    told = onboarding_case.tells(f"{fleet.pk}/{PD}/x", role="decode", unmatched=list(NASTY))
    onboarding_case.report(NASTY[0], told, warnings=[BOTH], version=NASTY[1])
    Decision.objects.filter(fleet=fleet).update(message=BOTH[:500])
    Hold.objects.filter(fleet=fleet).update(owner=BOTH[:150], reason=BOTH[:500])
    ApiToken.objects.filter(fleet=fleet.pk).update(name=BOTH[:120], created_by=BOTH[:150])
    RouterState.objects.filter(fleet=fleet).update(error=BOTH[:500], last_seen_at=now)
    Incident.objects.filter(fleet=fleet.pk).update(
        sentence=BOTH,
        summary=NASTY[1],
        note=NASTY[2],
        acknowledged_by=BOTH[:150],
        acknowledged_at=now,
    )
    Silence.objects.update(reason=BOTH[:500], created_by=BOTH[:150], rule=NASTY[9][:200])
    fleet.policy.updated_by = NASTY[0]
    fleet.policy.save()
    last = fleet.ticks.order_by("-seq")[0]
    last.verdict["message"] = BOTH
    last.save()


def send(server: servers.Server, fleet: Fleet) -> None:
    """The same by the door that agents have, so that live frames carry it too."""
    at_s = time.time()
    samples: list[Any] = [
        batches.instance(f"{fleet.pk}/{PD}/{nasty}"[:300], at_s, role="decode")
        for nasty in NASTY
        if "/" not in nasty and nasty.isprintable()  # the door refuses the others
    ]
    samples += [
        batches.link(f"{REMOTE}->{PD}", at_s, tx_gbps=9.4, capacity_gbps=100.0),
        batches.link(f"{NASTY[1]}->{NASTY[9]}"[:300], at_s, tx_gbps=9.4),
        batches.router(f"{fleet.pk}/{PD}/{NASTY[1]}", at_s, signals={"requests_per_s": 1.0}),
    ]
    answer = server.post(batches.batch(NASTY[1], *samples, boot=2), token("ingest"))
    assert answer.status == 200, answer


def test_hostile_names_are_shown_and_nothing_more(
    tab: Open, fleet: Fleet, server: servers.Server
) -> None:
    made = scene.build(fleet)
    with rewriting_audit():
        rename_everywhere()
    spoil(Fleet.objects.get(pk=fleet.pk))
    send(server, fleet)
    named = {key: renamed(one) for key, one in made.named.items()}
    named |= dict.fromkeys(("instance", "router"), f"{PD}/{NASTY[1]}")
    made = scene.Scene(fleet, made.arguments, named)
    found = tab("admin", width=390)
    User.objects.filter(username__startswith="admin").update(username=BOTH[:150])
    page = found.page
    page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
    wrong: list[str] = []
    exports: set[str] = set()
    for name, path in pages.addresses(made):
        answer = page.goto(found.base + path)
        assert answer is not None
        if not answer.ok:
            wrong.append(f"{name}: answers {answer.status}")
        if page.evaluate("window.ran") is not None:
            wrong.append(f"{name}: something ran")
        if made_of := page.evaluate(MADE_OF_NAMES):
            wrong.append(f"{name}: a name became {made_of}")
        if wide := layout.too_wide(page):
            wrong.append(f"{name}: {wide}")
        exports |= set(
            page.eval_on_selector_all(
                "a[download], a[href*='format=']", "(found) => found.map((a) => a.href)"
            )
        )
    for address in sorted(exports):
        wrong += [f"{address}: {what}" for what in _export(page.request.get(address))]
    assert not wrong, "\n".join(wrong)


def _export(answer: Any) -> list[str]:
    """What of a file would surprise whoever opens it."""
    wrong = []
    if not FILE_NAME.fullmatch(answer.headers.get("content-disposition", "")):
        wrong.append(f"a file named {answer.headers.get('content-disposition')}")
    if "csv" in answer.headers["content-type"]:
        cells = {cell for row in csv.reader(io.StringIO(answer.text())) for cell in row}
        wrong += [f"a cell {cell!r:.60}" for cell in cells if not HARMLESS.fullmatch(cell)]
    return wrong
