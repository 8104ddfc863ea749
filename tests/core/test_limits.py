"""Limits on every path: changes an hour, a clock that is set back; and what a change did."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from routing.core.steps import changed_to
from routing.core.types import Memory, RoleChange, Verdict
from tests.core.asked import GAINED, roles, says
from tests.core.cases import link, pd, plan, seen


class TestChangesAnHour:
    """`max_changes_per_hour` holds on every path; a tenth of it is kept for what fails."""

    def memory(self, n: int) -> Memory:
        return dataclasses.replace(
            GAINED, last_change_s=900.0, changes_s=tuple(600.0 + i for i in range(n))
        )

    @pytest.mark.parametrize(
        ("what", "n", "reason"),
        [
            ("tuning", 8, "PrefillImbalance"),
            ("tuning", 9, "RateLimited"),
            # Leaving a link takes two: with one left there would be no way back to it.
            ("link down", 8, "LinkDown"),
            ("link down", 9, "RateLimited"),
            ("link back", 9, "LinkBack"),
            ("link back", 10, "RateLimited"),
            ("bounds", 9, "OutOfBounds"),
            ("bounds", 10, "RateLimited"),
        ],
    )
    def test_what_is_left_for_whom(self, what, n, reason) -> None:
        observation = seen(link=link(capacity_gbps=0.0, tx_gbps=0.0)) if "down" in what else seen()
        bounds = {"t_min_tokens": 8_000} if what == "bounds" else {}
        running, memory = plan(4000), self.memory(n)
        if what == "link back":
            local = changed_to(running.clusters["pd"], "always_local", None)
            running = dataclasses.replace(running, clusters={"pd": local})
            memory = dataclasses.replace(memory, before_down={"pd": 4000})
        verdict = says(
            observation,
            running=running,
            memory=memory,
            max_changes_per_hour=10,
            roles_mode="fixed",
            **bounds,
        )
        assert verdict.reason == reason, verdict.message
        if reason == "RateLimited":
            assert verdict.next_action_at_s >= 600.0 + 3600.0


class TestClockSetBack:
    """Waits begin anew, they do not last until the clock is where it was."""

    def test_a_day_back_costs_one_wait(self) -> None:
        ahead = Memory(gain_since_s=90_000.0, last_change_s=90_000.0, changes_s=(90_000.0,))
        first = says(seen(1000.0), running=plan(4000), memory=ahead, roles_mode="fixed")
        assert first.action == "hold"
        later = says(seen(1025.0), running=plan(4000), memory=first.memory, roles_mode="fixed")
        assert (later.action, later.reason) == ("adopt", "PrefillImbalance"), later.message

    def test_an_end_in_the_future_does_not_block_roles(self) -> None:
        ended = RoleChange(7, "done", 6, 2, since_s=90_000.0, ended_at_s=90_040.0)
        observation = seen(pd=pd(n_prefill=6, n_decode=2, role_change=ended))
        verdict = says(observation)
        assert (verdict.reason, roles(verdict)) == ("RoleImbalance", (4, 4)), verdict.message


class TestEffect:
    """S-38: a t that was pushed and changed nothing is said after five minutes."""

    def after(self, passed_s: float, share: float | None, mode: Any = "active") -> Verdict:
        """4,000 -> 6,000 at a remote share of .90, and on to 13,500, which sends .64."""
        verdict = says(
            seen(pd=pd(remote_share=0.90)),
            running=plan(4000),
            memory=GAINED,
            roles_mode="fixed",
            mode=mode,
        )
        assert verdict.action == "adopt"
        running = plan(13_500)  # of further steps
        observation = seen(1000.0 + passed_s, pd=pd(remote_share=share))
        return says(
            observation,
            running=running,
            memory=verdict.memory,
            roles_mode="fixed",
            max_changes_per_hour=1,
        )

    @pytest.mark.parametrize(
        ("passed_s", "share", "warned"),
        [
            (299.0, 0.90, False),
            (300.0, 0.90, True),
            (300.0, 0.88, True),
            (300.0, 0.68, False),
            (300.0, None, False),
            (300.0, float("nan"), False),
            (3_000.0, 0.90, True),
        ],
    )
    def test_a_share_that_does_not_follow(self, passed_s, share, warned) -> None:
        verdict = self.after(passed_s, share)
        assert any("shows no effect" in said for said in verdict.warnings) is warned
        if warned:
            (said,) = [said for said in verdict.warnings if "no effect" in said]
            assert "after 90% before it, where 64% were expected" in said

    def test_what_has_shown_is_forgotten(self) -> None:
        assert self.after(60.0, 0.66).memory.awaited == {}
        assert self.after(60.0, 0.90).memory.awaited.keys() == {"pd"}

    def test_advice_awaits_nothing(self) -> None:
        assert self.after(300.0, 0.90, "advisory").memory.awaited == {}
