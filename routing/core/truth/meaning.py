"""What a router compares with its threshold, in words, where that is not the plan's rule.

The plan's t: remote if and only if uncached prompt tokens > t, the cache being the PD cluster's
(`core.placement.rule`). Routers of other makes count other tokens, by other bounds, and one number
then means another split. Nothing is converted silently: the words are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from routing.core.truth.finding import Clear, Figure, Finding, Outcome, Unknown, named

NAME = "ThresholdMeansOther"
PLAN_RULE: Final = "remote if and only if uncached prompt tokens > t"
HOW: Final[dict[str, str]] = {
    "live": "can be changed while it runs",
    "roll": "changes when its decode workers are restarted",
    "restart": "changes when the router is restarted",
    "patch": "changes when somebody applies the patch that is shown",
    "none": "cannot be changed",
}


@dataclass(frozen=True)
class RouterRule:
    """One router: what its threshold means in its adapter's words, what it runs by, and how that
    could be changed; `how` `none`: it has none of its own. `read` False: it never was."""

    router: str
    kind: str
    version: str
    means: str
    tokens: int | None
    how: str
    read: bool = True


def of_cluster(
    subject: str, routers: Sequence[RouterRule], plan_tokens: int | None
) -> list[Outcome]:
    """One finding a meaning: routers that mean the same stand together. `plan_tokens` None: the
    plan of the cluster has no threshold."""
    found: list[Outcome] = []
    by_meaning: dict[tuple[str, str, str], list[RouterRule]] = {}
    for router in routers:
        if not router.read:
            found.append(
                Unknown(
                    NAME,
                    router.router,
                    "the router was never read, so what its threshold means is unknown",
                    "See under Routers why it does not answer",
                )
            )
        elif router.how == "none":
            means = router.means or "it has no threshold"
            found.append(Clear(NAME, router.router, f"{router.kind}: {means.rstrip('.')}"))
        elif router.means:
            by_meaning.setdefault((router.kind, router.means, router.how), []).append(router)
    found += [_finding(subject, rules, plan_tokens) for rules in by_meaning.values()]
    return found


def _finding(subject: str, rules: Sequence[RouterRule], plan_tokens: int | None) -> Finding:
    rule = rules[0]
    # A number that is set by the wrong meaning splits wrongly; without one it is good to know.
    applies = plan_tokens is not None and any(each.tokens is not None for each in rules)
    names = named(each.router.rpartition("/")[2] for each in rules)
    return Finding(
        name=NAME,
        subject=subject if len(rules) > 1 else rule.router,
        severity="warn" if applies else "info",
        sentence=f"{rule.kind} ({names}) goes by another rule than the plan's t: "
        f"{rule.means.rstrip('.')}",
        evidence=(
            Figure("the plan's rule", PLAN_RULE, "", "measured"),
            Figure("t of the plan", plan_tokens, "tokens", "measured"),
            *(
                Figure(
                    f"{each.router.rpartition('/')[2]} runs by", each.tokens, "tokens", "measured"
                )
                for each in rules[:3]
            ),
            Figure("its threshold", HOW.get(rule.how, rule.how), "", "assumed"),
            Figure("version", rule.version or "not told", "", "measured"),
        ),
        next_step="Do not copy t into this router. Put a gate in front of it where the plan's rule "
        "shall hold; else choose its own number by its own rule and hold this cluster's plan "
        "(page Fleet, Hold)",
    )
