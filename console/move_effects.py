"""A move of roles before it is asked for, in words and rows. Pure: a preview in, sentences out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from console import figures
from console.effects import Effect, Effects
from console.plans import cluster_words
from routing.core.roles.asked import Held, Outlook
from routing.core.types import Prediction, StageLoad
from routing.rebalance_preview import Preview

MOST_NAMED = 50
"""Instances in the list of those that would go."""


def moves(found: Preview) -> str:
    """`Move 1 instance from decode to prefill in pd. 5 → 4 decode: capacity 3.91 → 3.13 req/s,
    demand now 2.51 req/s. 3 → 4 prefill: …`"""
    if found.present is None or found.to == found.present:
        return ""
    n = found.to[0] - found.present[0]
    words = {
        "n": abs(n),
        "from": "decode" if n > 0 else "prefill",
        "to": "prefill" if n > 0 else "decode",
        "cluster": found.cluster,
    }
    text = ngettext(
        "Move %(n)s instance from %(from)s to %(to)s in %(cluster)s.",
        "Move %(n)s instances from %(from)s to %(to)s in %(cluster)s.",
        abs(n),
    )
    roles = ("decode", "prefill") if n > 0 else ("prefill", "decode")
    return " ".join([text % words, *(_role(found, role) for role in roles)])


def _role(found: Preview, role: str) -> str:
    """What one role of the cluster has and carries before and after."""
    place = ("prefill", "decode").index(role)
    assert found.present is not None, "asked for only where roles are known"
    counts = f"{found.present[place]} → {found.to[place]} {role}"
    name = f"{'local_prefill' if role == 'prefill' else 'decode'}:{found.cluster}"
    expected = found.outlook
    loads = [] if expected is None else [_load(e, name) for e in (expected.before, expected.after)]
    if not loads or None in loads:
        return f"{counts}."
    before, after = (load for load in loads if load is not None)
    demand = None
    if before.utilisation_ratio is not None:
        demand = before.capacity_rps * before.utilisation_ratio
    text = _("%(counts)s: capacity %(before)s → %(after)s, demand now %(demand)s.")
    return text % {
        "counts": counts,
        "before": figures.significant(before.capacity_rps),
        "after": figures.rate(after.capacity_rps),
        "demand": figures.rate(demand),
    }


def _load(expected: Prediction, name: str) -> StageLoad | None:
    return next((stage for stage in expected.stages if stage.name == name), None)


def of_move(found: Preview, until: datetime) -> Effects:
    """What asking for the roles changes, what drains, what the loop does then, how to undo it."""
    items = [Effect.changes(text) for text in (moves(found), capacity(found, until)) if text]
    if found.refused:
        return Effects(tuple(items))  # what cannot be asked for drains nothing
    if found.going or not found.waits:
        items.append(Effect.changes(_draining(found)))
    if found.waits:
        items.append(Effect("warn", "wait", _("Begins later:"), _sentence(found, found.waits)))
    items += [Effect("warn", "warn", _("Mind:"), _sentence(found, text)) for text in found.warnings]
    stops = _(
        "the loop's own moves of roles in %(cluster)s until %(until)s: a hold of roles, in your "
        "name."
    )
    items += [
        Effect.stops(stops % {"cluster": found.cluster, "until": figures.stamp(until)}),
        _of_t(found),
        _afterwards(found, until),
        Effect.undo(
            _(
                "cancel the move while it is under way, or release the hold: instances that have "
                "moved stay as they are until the loop, or you, move them back."
            )
        ),
    ]
    return Effects(tuple(items))


def capacity(found: Preview, until: datetime) -> str:
    """`Capacity of the fleet 3.16 → 3.13 req/s, and 3.14 req/s once t suits the new roles; …`

    Where t stays as it is for as long as the roles are held, nothing is said of what would suit.
    """
    expected = found.outlook
    if expected is None:
        return _("What it does to capacity is unknown: no tick measured demand and lengths.")
    suits = _suits(expected, until)
    words = {
        "before": figures.significant(expected.before.lambda_max_rps),
        "after": figures.rate(expected.after.lambda_max_rps),
        "settled": "" if suits is None else figures.rate(suits.lambda_max_rps),
        "demand": figures.rate(demand_rps(expected.before)),
    }
    if expected.held:
        words["t"] = cluster_words(dataclasses.asdict(expected.held[0].plan))
        words["at"] = figures.stamp(expected.held[-1].until_s)
        text = _(
            "Capacity of the fleet %(before)s → %(after)s with %(t)s held; demand now %(demand)s."
        )
        if suits is not None:
            text = _(
                "Capacity of the fleet %(before)s → %(after)s with %(t)s held, and %(settled)s "
                "once the hold has ended (%(at)s) and t suits the new roles; demand now %(demand)s."
            )
    elif suits is None:
        text = _(
            "Capacity of the fleet %(before)s → %(after)s at the t that runs; demand now "
            "%(demand)s."
        )
    else:
        text = _(
            "Capacity of the fleet %(before)s → %(after)s, and %(settled)s once t suits the new "
            "roles; demand now %(demand)s."
        )
    return " ".join(filter(None, (text % words, _over(expected, suits))))


def _suits(expected: Outlook, until: datetime) -> Prediction | None:
    """What the new roles carry at the t that suits them; None where t does not get there while
    they are held."""
    outlasted = expected.held and expected.held[-1].until_s >= until.timestamp()
    return None if outlasted else expected.settled


def _over(expected: Outlook, suits: Prediction | None) -> str:
    """What arrives is more than that: for as long as t is held, or for good."""
    last = expected.after if suits is None else suits
    if (last.headroom or 0.0) < 1.0:
        return _("That is less than arrives: requests would queue without end.")
    if expected.held and (expected.after.headroom or 0.0) < 1.0:
        return _("With t held that is less than arrives: requests would queue until then.")
    return ""


def demand_rps(expected: Prediction) -> float | None:
    return expected.lambda_max_rps / expected.headroom if expected.headroom else None


def _draining(found: Preview) -> str:
    if not found.going:
        why = found.unknown or _("their routers were not read")
        text = _("Which instances go is chosen when the move begins: %(why)s")
        return text % {"why": _sentence(found, why)}
    names = _named([each.instance for each in found.going])
    if not found.requests:
        return _("%(names)s: nothing is on them now, so nothing has to drain.") % {"names": names}
    drains = ngettext(
        "%(names)s: %(n)s request will drain first (about %(span)s); none is cut off.",
        "%(names)s: %(n)s requests will drain first (about %(span)s); none is cut off.",
        found.requests,
    )
    span = figures.duration(float(f"{found.drain_s:.2g}"))
    return drains % {"names": names, "n": figures.exact(found.requests), "span": span}


def _named(paths: list[str], most: int = 4) -> str:
    names = [path.split("/", 1)[1] for path in paths[:most]]
    rest = len(paths) - len(names)
    return ", ".join(names) + (_(" and %(n)s more") % {"n": rest} if rest > 0 else "")


def _of_t(found: Preview) -> Effect:
    """Who says what t is while the roles are held: the loop, or a person until when."""
    expected = found.outlook
    if expected is not None and expected.held:
        return Effect("warn", "held", _("Stays:"), held_words(expected.held))
    if expected is not None and expected.stays:
        text = _("t as it runs, for now: %(why)s") % {"why": _sentence(found, expected.stays)}
        return Effect("warn", "held", _("Stays:"), text)
    return Effect.goes_on(
        _("t and the link: the loop goes on tuning them, to suit the roles there are.")
    )


def held_words(held: Sequence[Held]) -> str:
    """`t 9.8K tok until 2026-08-30 15:04:00 UTC, held by ann: load test. Then the loop …`"""
    parts = [
        _("%(t)s until %(until)s, held by %(owner)s: %(reason)s")
        % {
            "t": cluster_words(dataclasses.asdict(one.plan)),
            "until": figures.stamp(one.until_s),
            "owner": one.pin.owner,
            "reason": one.pin.reason or _("no reason given"),
        }
        for one in held
    ]
    return _("%(holds)s. Then the loop tunes t to the roles there are.") % {
        "holds": "; ".join(parts)
    }


def _afterwards(found: Preview, until: datetime) -> Effect:
    label = _("Afterwards:")
    expected = found.outlook
    wants = expected.loop_wants if expected else None
    if expected is not None and expected.held and expected.held[-1].until_s > until.timestamp():
        at = figures.stamp(expected.held[-1].until_s)
        text = _(
            "the loop leaves the roles alone until the hold of t ends too (%(at)s); at this "
            "traffic it would then leave them there."
        )
        if wants is not None:
            text = _(
                "the loop leaves the roles alone until the hold of t ends too (%(at)s); at this "
                "traffic it would then go to %(roles)s."
            )
        roles = "" if wants is None else f"{wants[0]}/{wants[1]}"
        return Effect(
            "" if wants is None else "warn", "wait", label, text % {"at": at, "roles": roles}
        )
    if wants is None:
        text = _("the roles are the loop's again; at this traffic it would leave them there.")
        if expected is None:
            text = _("the roles are the loop's again, and it may move them back.")
        return Effect("", "wait", label, text)
    text = _("the roles are the loop's again; at this traffic it would go to %(roles)s.")
    return Effect("warn", "wait", label, text % {"roles": f"{wants[0]}/{wants[1]}"})


def _sentence(found: Preview, text: str) -> str:
    """The machine's words with one full stop, and instances by the names of the fleet."""
    return f"{text.replace(f'{found.fleet}/', '').rstrip('.')}."


_STAGES: tuple[tuple[str, Callable[[], str]], ...] = (
    ("local_prefill", lambda: _("Prefill of %(where)s")),
    ("decode", lambda: _("Decode of %(where)s")),
    ("remote_prefill", lambda: _("Remote prefill in %(where)s")),
    ("link", lambda: _("Link %(where)s")),
)


def rows(found: Preview, until: datetime) -> list[dict[str, Any]]:
    """t, capacity and use of every stage of the cluster, and of the fleet: now, with the new roles,
    and once t suits them, if it may."""
    expected = found.outlook
    if expected is None:
        return []
    suits = _suits(expected, until)
    columns = {
        _("Now"): expected.before,
        _("With these roles, t held") if expected.held else _("With these roles"): expected.after,
    }
    if suits is not None:
        columns[_("Once the hold of t ended") if expected.held else _("Once t suits them")] = suits
    whole = [
        (
            label,
            figures.rate(each.lambda_max_rps),
            _full(1.0 / each.headroom if each.headroom else None),
        )
        for label, each in columns.items()
    ]
    split = [
        (
            label,
            _t(t),
            _("fleet: %(share)s remote") % {"share": figures.percent(each.remote_fraction)},
        )
        for (label, each), t in zip(columns.items(), expected.thresholds, strict=False)
    ]
    lines = [
        {"name": _("t of %(where)s") % {"where": found.cluster}, "cells": split},
        {"name": _("Fleet, at its tightest stage"), "cells": whole, "whole": True},
    ]
    for name in _stages(found.cluster, columns.values()):
        kind, _sep, where = name.partition(":")
        words = dict(_STAGES).get(kind, lambda: "%(where)s")()
        cells = [(label, *_cell(each, name)) for label, each in columns.items()]
        lines.append({"name": words % {"where": where.replace("->", " → ")}, "cells": cells})
    return lines


def _t(threshold: float) -> str:
    if threshold <= 0.0:
        return _("everything remote")
    return _("everything local") if math.isinf(threshold) else figures.tokens(round(threshold))


def _stages(cluster: str, three: Iterable[Prediction]) -> list[str]:
    known = dict.fromkeys(stage.name for each in three for stage in each.stages)
    own = (f"local_prefill:{cluster}", f"decode:{cluster}")
    into = [n for n in known if n.startswith("link:") and n.endswith(f"->{cluster}")]
    remotes = {f"remote_prefill:{n.removeprefix('link:').split('->')[0]}" for n in into}
    return [n for n in known if n in own or n in into or n in remotes]


def _cell(expected: Prediction, name: str) -> tuple[str, str]:
    load = _load(expected, name)
    if load is None:
        return _("not used"), ""
    return figures.rate(load.capacity_rps), _full(load.utilisation_ratio)


def _full(used: float | None) -> str:
    if used is None:
        return _("nothing is left of it")
    return _("%(ratio)s used") % {"ratio": figures.percent(used)}


def going_rows(found: Preview) -> list[dict[str, Any]]:
    """The instances that would go, in their order."""
    return [
        {
            "name": each.instance.split("/", 1)[1],
            "from_role": each.from_role,
            "to_role": each.to_role,
            "unit": each.unit,
            "requests": each.requests,
            "drain": figures.duration(float(f"{each.drain_s:.2g}")) if each.requests else "",
        }
        for each in found.going[:MOST_NAMED]
    ]
