"""A rebalance of the lab's PD cluster, and how tests walk it through its passes."""

from __future__ import annotations

from collections.abc import Callable

from routing import delivery, rebalance, rebalance_driver, role_commands
from routing.models import Action, Decision, Fleet, Rebalance, RoleMove
from tests.routing.cases import after

DEADLINE_S = 600.0
STEPS = ("cordon", "drain", "switch", "verify", "uncordon")


def decide(fleet: Fleet, roles: tuple[int, int], *, at_s: float = 0.0) -> Decision:
    """A plan that wants those roles, in force."""
    version = Decision.objects.filter(fleet=fleet).count() + 1
    return Decision.objects.create(
        fleet=fleet,
        epoch=1,
        version=version,
        plan={"clusters": {"pd": {"n_prefill": roles[0], "n_decode": roles[1]}}},
        reason="Test",
        message="",
        created_at=after(at_s),
    )


def open_for(
    fleet: Fleet,
    roles: tuple[int, int],
    *,
    at_s: float = 0.0,
    deadline_s: float = DEADLINE_S,
    drain_timeout_s: float = 60.0,
) -> Rebalance:
    """Opened as the loop would, from 2/2."""
    return rebalance.open_for(
        decision=decide(fleet, roles, at_s=at_s),
        cluster="pd",
        from_n_prefill=2,
        from_n_decode=2,
        to_n_prefill=roles[0],
        to_n_decode=roles[1],
        deadline_s=deadline_s,
        drain_timeout_s=drain_timeout_s,
        now=after(at_s),
    )


def ack(fleet: Fleet, version: int | None, *, at_s: float, name: str = "gw-1") -> None:
    """A gate says that it runs that version, or no plan."""
    delivery.record_ack(
        fleet=fleet,
        router=f"{fleet.pk}/pd/{name}",
        running=None if version is None else (1, version),
        state="no_plan" if version is None else "running",
        error=None,
        transport="poll",
        now=after(at_s),
    )


def drive(row: Rebalance, at_s: float) -> Rebalance:
    """What one run of the task does at that second."""
    rebalance_driver.run(row.pk, lambda: after(at_s))
    row.refresh_from_db()
    return row


def cancel(row: Rebalance, at_s: float) -> None:
    """A person asks for the old roles back."""
    role_commands.cancel_rebalance(
        fleet=row.fleet_id,
        rebalance_id=row.pk,
        actor="ada",
        via="test",
        reason="",
        now=after(at_s),
    )


def finish(row: Rebalance, at_s: float, *, runs: int = 20) -> Rebalance:
    """Run it each second until it has ended."""
    for i in range(runs):
        if drive(row, at_s + i).state not in rebalance.ACTIVE:
            return row
    raise AssertionError(f"still {row.state} after {runs} runs: {row.waiting_for}")


def walk(row: Rebalance, at_s: float, until: Callable[[], bool]) -> float:
    """Pass by pass, a second each, until something holds; the second it then is."""
    for i in range(60):
        if until():
            return at_s + i
        rebalance_driver.one_pass(row.pk, after(at_s + i))
        row.refresh_from_db()
    raise AssertionError(f"it never held: {row.state}, {row.waiting_for}")


def to_step(row: Rebalance, step: str) -> float:
    """Walk it until a move is in that step; the second it then is."""
    return walk(row, 1.0, lambda: row.moves.filter(step=step).exists())


def move_of(row: Rebalance) -> RoleMove:
    """The newest move that has begun."""
    found = row.moves.exclude(step="planned").order_by("-seq").first()
    assert found is not None, row.waiting_for or row.reason
    return found


def steps_of(row: Rebalance, name: str | None = None) -> list[str]:
    """The steps its audit rows tell of, in order; of one instance, if one is named."""
    rows = Action.objects.filter(verb="rebalance.step", target=f"rebalance {row.pk} of pd")
    return [
        action.after["step"]
        for action in rows.order_by("id")
        if name is None or action.after["instance"].endswith(f"/{name}")
    ]


def verbs_of(row: Rebalance) -> list[str]:
    rows = Action.objects.filter(target=f"rebalance {row.pk} of pd").order_by("id")
    return [action.verb for action in rows if action.verb != "rebalance.step"]
