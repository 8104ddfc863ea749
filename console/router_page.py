"""One router: a gate that runs plans, or one of another make that lists engines; what it should do,
was told, shows, and how far each plan got with it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from console import instance_page, router_rows, signal_rows, sources
from console.opened import opened_running
from console.plans import cluster_words
from console.roles import readable
from console.verdicts import delivery_mark
from routing.models import Delivery, Fleet, ManagedRouter
from telemetry import store

MOST_ACKS: Final = 15


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """A gate and a router of another make under one name are both shown."""
    found, _scenario, running = opened_running(request, fleet)
    now = timezone.now()
    asked_id = request.GET.get("id", "")
    cluster, _sep, name = asked_id.partition("/")
    path = f"{fleet}/{asked_id}"
    gates = sources.gates_under(found, running, now, cluster=cluster)
    gate = next((row for row in gates if row["router"] == path), None)
    managed = ManagedRouter.objects.filter(fleet=found, cluster=cluster, name=name)
    routers = [router_rows.router(row) for row in managed.select_related("fleet").order_by("pk")]
    source = instance_page.source_of("router", path)
    if gate is None and not routers and source is None:
        raise Http404(_("This fleet knows no router of that name."))
    earlier = instance_page.earlier_of("router", path, now)
    reading = earlier[-1] if earlier else instance_page.newest_of("router", path, now)
    context = {
        "fleet": found,
        "id": asked_id,
        "cluster_name": cluster,
        "name": name,
        "path": path,
        "gate": gate,
        "gates": [gate] if gate else [],
        "overridden": router_rows.overridden([gate] if gate else [], now),
        "routers": routers,
        "acks": acks_of(found, path),
        "running": running,
        "plan_words": cluster_words(running.plan["clusters"].get(cluster)) if running else "",
        "reading": reading,
        "mark": None if reading is None else _read_mark(reading, now),
        "signals": None
        if reading is None
        else signal_rows.rows(reading, earlier[0] if earlier else None),
        "source": source,
        "agent": instance_page.agent_row(source, now),
    }
    return render(request, "router.html", context)


def _read_mark(reading: store.Reading, now: datetime) -> Any:
    return sources.freshness(reading.state, reading.error, reading.received_s, now)


def acks_of(fleet: Fleet, path: str) -> list[dict[str, Any]]:
    """How far the newest plans got with it, the newest first."""
    rows = Delivery.objects.filter(router=path, decision__fleet=fleet).select_related("decision")
    return [
        {
            "delivery": row,
            "mark": delivery_mark(row.state),
            "took_s": None
            if row.sent_at is None or row.applied_at is None
            else (row.applied_at - row.sent_at).total_seconds(),
        }
        for row in rows.order_by("-decision_id")[:MOST_ACKS]
    ]
