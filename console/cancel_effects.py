"""What giving up a delivery or a move of roles does, and what closing a breaker lets through."""

from __future__ import annotations

from django.utils.translation import gettext as _

from console import figures
from console.effects import Effect, Effects, roles_wanted
from console.link_states import probed_at
from routing.core.types import LinkMemory
from routing.models import Decision, Rebalance, RouterState


def of_delivery_cancel(decision: Decision, router: RouterState | None, name: str) -> Effects:
    """What it means that nobody waits for a router to run `decision` any more."""
    goes_on = _("%(name)s is not known any more.") % {"name": name}
    if router is not None:
        runs = _("no plan, everything local")
        if router.version_running is not None:
            runs = f"v{router.version_running}"
        goes_on = _(
            "%(name)s, last heard of at %(last_seen_at)s, routes by %(runs)s "
            "for as long as it lives."
        ) % {"name": name, "last_seen_at": figures.clock(router.last_seen_at), "runs": runs}
    return Effects(
        (
            Effect.changes(
                _("v%(version)s counts as cancelled for %(name)s, with your reason.")
                % {"version": decision.version, "name": name}
            ),
            Effect.goes_on(goes_on),
            Effect.goes_on(
                _("when %(name)s is back it is sent the newest plan, and that only.")
                % {"name": name}
            ),
            Effect.undo(_("nothing to undo: once it says it runs the plan, that is recorded.")),
        )
    )


def of_rebalance_cancel(row: Rebalance) -> Effects:
    """What is put back when a move of roles is given up, and what stays as it is."""
    items = [
        Effect.stops(
            _("moving instances of %(cluster)s towards %(row)s.")
            % {"cluster": row.cluster, "row": roles_wanted(row)}
        )
    ]
    for move in row.moves.order_by("seq"):
        name = move.instance.split("/", 1)[1]
        if move.step == "planned":
            items.append(
                Effect.goes_on(
                    _("%(name)s stays %(from_role)s: its move has not begun.")
                    % {"name": name, "from_role": move.from_role}
                )
            )
        elif move.step == "done":
            items.append(
                Effect.goes_on(
                    _("%(name)s stays %(to_role)s: it has moved.")
                    % {"name": name, "to_role": move.to_role}
                )
            )
        elif move.step == "uncordon":
            text = _("%(name)s has its new role, %(to_role)s, and is opened with it.") % {
                "name": name,
                "to_role": move.to_role,
            }
            items.append(Effect.goes_on(text))
        elif move.step not in ("restore", "restored"):
            where = _("step %(step)s") % {"step": move.step}
            if move.requests:
                where = _("step %(step)s, with %(requests)s requests on it") % {
                    "step": move.step,
                    "requests": move.requests,
                }
            back = _(
                "%(name)s (%(where)s) is put back: %(role)s again, and it takes requests again."
            )
            if move.step == "verify":
                back = _("%(name)s (%(where)s) is emptied once more and goes back to %(role)s.")
            values = {"name": name, "where": where, "role": move.from_role}
            items.append(Effect.changes(back % values))
    items += [
        Effect.goes_on(_("requests: none is cut off. The plan itself, with t, stays in force.")),
        Effect.undo(
            _(
                "the loop may ask for these roles again after its rest; set "
                "roles_mode to fixed in the policy to keep them."
            )
            if row.hold is None
            else _(
                "ask for them again. %(owner)s's hold of these roles ends "
                "with the move, and the roles are the loop's again."
            )
            % {"owner": row.hold.owner}
        ),
    ]
    return Effects(tuple(items))


def of_breaker_reset(name: str, memory: LinkMemory | None) -> Effects:
    """What closing a breaker lets through at once, and what goes on watching it."""
    probe = _("It is half open now: without a reset the probe alone decides.")
    if memory is not None and memory.breaker == "open":
        at = figures.clock(probed_at(memory))
        probe = _(
            "Without a reset a few requests probe it from %(at)s on, and close it if they pass."
        ) % {"at": at}
    return Effects(
        (
            Effect.changes(
                _(
                    "from the next tick on %(name)s is used again for all that "
                    "the plan sends over it. %(probe)s"
                )
                % {"name": name, "probe": probe}
            ),
            Effect.changes(
                _("that it ever opened is forgotten: its waits do not double from here on.")
            ),
            Effect.goes_on(
                _("counting transfers; too many that fail open it again in the same tick.")
            ),
            Effect.undo(
                _("nothing to undo by hand: hold everything local to keep the link unused.")
            ),
        )
    )
