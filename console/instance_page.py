"""One instance: its role as planned, as it reports it and as each router lists it; every signal
with its state and age; who reads it; the moves it took part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from console import instances, router_rows, signal_rows, sources
from console.context import BAD, FORGOTTEN_AFTER_S, GOOD, OFF, WARN, Mark
from console.opened import opened_running
from console.rebalances import move_mark
from console.roles import readable
from routing import managed
from routing.core.scenario.document import Cluster
from routing.models import Decision, Fleet, ManagedRouter, RoleMove
from telemetry import reports, store, wire
from telemetry.models import Agent, Source

MOST_MOVES: Final = 10


@dataclass(frozen=True)
class Listed:
    """How one router has the instance: desired, and as it showed it last."""

    router: ManagedRouter
    desired: str
    observed: str
    requests: float | None
    mark: Mark


@readable
def page(request: HttpRequest, fleet: str) -> HttpResponse:
    """All that is known of it. What was read is from the last day, or not there."""
    found, scenario, running = opened_running(request, fleet)
    now = timezone.now()
    asked_id = request.GET.get("id", "")
    cluster_name, _sep, name = asked_id.partition("/")
    cluster = scenario.cluster(cluster_name)
    path = f"{fleet}/{asked_id}"
    source = source_of("instance", path)
    routers = listed_by(found, cluster, name)
    if source is None and not _is_named(cluster, name) and not routers:
        raise Http404(_("No instance of that name ever reported, and the scenario names none."))
    earlier = earlier_of("instance", path, now)
    reading = earlier[-1] if earlier else newest_of("instance", path, now)
    if reading is not None and reading.state == "gone":
        reading = None
    told = report_of(source)
    kinds = {each.name: each.kind for each in scenario.clusters}
    context = {
        "fleet": found,
        "cluster": cluster,
        "cluster_name": cluster_name,
        "name": name,
        "id": asked_id,
        "path": path,
        "source": source,
        "reading": reading,
        "row": None if reading is None else instances.row_of(reading, kinds, now),
        "since": None if reading is None else _moment(reading.epoch_s),
        "signals": None
        if reading is None
        else signal_rows.rows(reading, earlier[0] if earlier else None, told and told.missing),
        "ttft": instances.ttft_of(earlier),
        "told": told,
        "agent": agent_row(source, now),
        "routers": routers,
        "role": role_words(reading, routers),
        "plan": plan_of(running, cluster_name),
        "group": group_of(cluster, name),
        "moves": moves_of(path),
        "page_data": {"fleet": fleet, "id": path, "charts": charts_of(path)},
    }
    return render(request, "instance.html", context)


def _is_named(cluster: Cluster | None, name: str) -> bool:
    return cluster is not None and name in cluster.engines


def _moment(at_s: float) -> datetime | None:
    return datetime.fromtimestamp(at_s, UTC) if at_s else None


def newest_of(kind: str, path: str, now: datetime) -> store.Reading | None:
    """The newest reading of exactly this source in the last day."""
    found = sources.newest(kind, path, now)
    return next((reading for reading in found if reading.path == path), None)


def earlier_of(kind: str, path: str, now: datetime) -> list[store.Reading]:
    """Its readings at both ends of the last minute; what histograms saw lies between them."""
    now_s, width_s = now.timestamp(), instances.WINDOW_S
    span = {"since_s": now_s - width_s, "until_s": now_s, "bin_s": width_s / 2}
    return store.window(kind, prefix=path, **span).get(path, [])


def listed_by(fleet: Fleet, cluster: Cluster | None, name: str) -> list[Listed]:
    """The routers of its cluster that should list it, or do."""
    if cluster is None:
        return []
    rows = ManagedRouter.objects.filter(fleet=fleet, cluster=cluster.name).order_by("name")
    found = []
    for row in rows:
        urls = [url for url, known in managed.instances(row, cluster).items() if known == name]
        desired, seen = row.desired or {}, (row.observed or {}).get("workers", {})
        for url in urls:
            if url in desired or url in seen:
                found.append(_listed(row, desired.get(url), seen.get(url)))
    return found


def _listed(
    row: ManagedRouter, desired: dict[str, Any] | None, seen: dict[str, Any] | None
) -> Listed:
    wanted, shown = router_rows.entry(desired), router_rows.entry(seen)
    if row.observed is None:
        mark = Mark(*OFF, _("not read yet"))
    elif row.state == "unreachable":
        mark = Mark(*BAD, _("unreachable"))
    elif wanted == shown:
        mark = Mark(*GOOD, _("as desired"))
    else:
        mark = Mark(*BAD, _("differs"))
    return Listed(row, wanted, shown, (seen or {}).get("requests"), mark)


def role_words(reading: store.Reading | None, routers: list[Listed]) -> Mark:
    """Whether its own word and those of its routers agree."""
    if reading is None or reading.state != "ok":
        return Mark(*WARN, _("its role is not known: it is not read"))
    seen = {one.observed.split(",")[0] for one in routers if one.router.observed is not None}
    odd = sorted(role for role in seen if role != reading.role)
    if not routers:
        return Mark(*OFF, _("no router that is read lists it by name"))
    if odd:
        words = _("it says %(role)s, a router has it as %(odd)s")
        return Mark(*BAD, words % {"role": reading.role, "odd": ", ".join(odd)})
    return Mark(*GOOD, _("engine and routers agree"))


def plan_of(running: Decision | None, cluster: str) -> dict[str, Any] | None:
    """The plan in force for its cluster, with the decision that made it: plans count roles."""
    plan = running.plan["clusters"].get(cluster) if running else None
    return None if plan is None else {"decision": running, "plan": plan}


def group_of(cluster: Cluster | None, name: str) -> tuple[str, tuple[str, ...]] | None:
    """The group that it changes its role with, if any: its name and its members."""
    groups: Mapping[str, tuple[str, ...]] = {} if cluster is None else cluster.groups
    return next(((group, names) for group, names in groups.items() if name in names), None)


def moves_of(path: str) -> list[dict[str, Any]]:
    """The newest moves of roles it took part in."""
    rows = RoleMove.objects.filter(instance=path).select_related("rebalance__decision")
    return [
        {"move": row, "mark": move_mark(row), "rebalance": row.rebalance}
        for row in rows.order_by("-id")[:MOST_MOVES]
    ]


def source_of(kind: str, path: str) -> Any:
    """What is known of a source, and in `agent_at` when its agent was heard last; None if it never
    reported."""
    heard = Agent.objects.filter(name=OuterRef("agent")).values("last_seen_at")[:1]
    rows = Source.objects.filter(kind=kind, path=path)
    return rows.annotate(agent_at=Subquery(heard)).first()


def agent_row(source: Any, now: datetime) -> dict[str, Any] | None:
    """The agent that read it last, and how fresh that one is. `source` is of `source_of`."""
    if source is None:
        return None
    if source.agent_at is None:
        mark = Mark(*OFF, _("not known any more"))
    elif (now - source.agent_at).total_seconds() > FORGOTTEN_AFTER_S:
        mark = Mark(*OFF, _("gone for over a day"))
    else:
        mark = sources.freshness("ok", None, source.agent_at.timestamp(), now)
    return {"name": source.agent, "mark": mark}


def report_of(source: Source | None) -> wire.SourceReport | None:
    """What its agent said of it at its last reading: what it lacks, and why."""
    if source is None:
        return None
    told = reports.told([source.agent]).get(source.agent)
    if told is None:
        return None
    mine = (s for s in told.report.sources if s.kind == source.kind and s.id == source.path)
    return next(mine, None)


def charts_of(path: str) -> list[dict[str, Any]]:
    """What the page's script draws (`static/console/detail.js`), each a link to its signal."""

    def signal(name: str, label: str, look: str) -> dict[str, str]:
        return {"signal": name, "path": path, "label": label, "look": look}

    return [
        {
            "id": "queue",
            "unit": "req",
            "lines": [
                signal("requests_waiting", _("waiting"), "bad"),
                signal("requests_running", _("running"), "local"),
            ],
        },
        {
            "id": "kv",
            "unit": "ratio",
            "lines": [signal("kv_cache_usage_ratio", _("KV in use"), "decode")],
        },
        {
            "id": "tokens",
            "unit": "tok/s",
            "lines": [
                signal("prompt_tokens_per_s", _("prompt"), "remote"),
                signal("generation_tokens_per_s", _("output"), "good"),
            ],
        },
        {
            "id": "ttft",
            "unit": "s",
            "lines": [
                {"histogram": "ttft_seconds", "path": path, "share": "0.5", "label": "P50",
                 "look": "local"},
                {"histogram": "ttft_seconds", "path": path, "share": "0.9", "label": "P90",
                 "look": "remote dash"},
            ],
        },
    ]  # fmt: skip
