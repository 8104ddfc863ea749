"""The rule in force: the plan's, under a person's override and the limits of this gate."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from routing.core.placement.rule import Rule
from routing.gate.override import Override, OverrideKeeper
from routing.gate.plan import PlanState, Running


@dataclass(frozen=True, slots=True)
class InForce:
    """`rule` None: there never was a plan. `plan_name` is `epoch.version`, or `none`."""

    rule: Rule | None
    plan_name: str
    override: Override | None


class Rules:
    """Tells the rule in force, asked for every request. `remotes` are the places of this gate."""

    def __init__(
        self,
        plan: Callable[[], PlanState],
        keeper: OverrideKeeper,
        *,
        remotes: Collection[str],
        max_remote_in_flight: int | None,
    ) -> None:
        self._plan, self._keeper = plan, keeper
        self.configure(remotes=remotes, max_remote_in_flight=max_remote_in_flight)

    def configure(self, *, remotes: Collection[str], max_remote_in_flight: int | None) -> None:
        """Takes other places and limits."""
        self._remotes, self._limit = tuple(remotes), max_remote_in_flight
        self._of: tuple[Running | None, Override | None] | None = None
        self._in_force = InForce(None, "none", None)

    def now(self) -> InForce:
        """The rule of this moment."""
        running, override = self._plan().running, self._keeper.current()
        if self._of is None or self._of[0] is not running or self._of[1] is not override:
            self._of = (running, override)
            self._in_force = self._made(running, override)
        return self._in_force

    def _made(self, running: Running | None, override: Override | None) -> InForce:
        rule = running.rule if running else None
        if override is not None:
            rule = replace(
                rule or Rule("always_local", None, {}),
                mode=override.mode,
                threshold_tokens=override.threshold_tokens,
                band=None,
            )
            if not any(rule.remote.values()):
                # Nobody said which remotes to use: all that are configured.
                rule = replace(rule, remote=dict.fromkeys(self._remotes, 1.0))
        if rule is not None and self._limit is not None:
            limit = rule.max_remote_in_flight
            rule = replace(
                rule, max_remote_in_flight=self._limit if limit is None else min(limit, self._limit)
            )
        return InForce(rule, running.name if running else "none", override)
