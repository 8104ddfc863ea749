"""Every page that people open, by the name of its address, for tests that walk through all of them.

A page that nobody lists here fails `test_every_page.py` by name: add it to `OPENED` with the
queries that it needs, or to `NOT_OPENED` with the reason. Arguments of addresses are filled from
the scene; a new kind of argument gets its row in `scene.build`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.urls import reverse

from console import pages
from tests.browser.scene import Scene

ONCE = ("",)
OPENED: dict[str, tuple[str, ...]] = {
    "fleet-overview": ONCE,
    "fleet": ONCE,
    "routers": ONCE,
    "gate-adopt": ("?router={gate}",),
    "gate-release": ("?router={gate}",),
    "router-adopt": ONCE,
    "router-override": ONCE,
    "router-cancel": ONCE,
    "router-on-drift": ("?to=override",),
    "fleet-onboarding": ONCE,
    "findings": ONCE,
    "signals": ("", "?signal=instance.ttft_seconds&cluster={cluster}&range=1h"),
    "instances": ONCE,
    "instance": ("?id={instance}",),
    "links": ONCE,
    "link": ("?id={link}",),
    "cluster": ("?id={cluster}", "?id={remote}"),
    "router": ("?id={router}",),
    "samples": ("?kind=instance&id={instance}", "?kind=link&id={link}"),
    "planner": ONCE,
    "request": ("?total=30000",),
    "backtests": ONCE,
    "backtest": ONCE,
    "jobs": ONCE,
    "new-job": ONCE,
    "job": ONCE,
    "costs": ("", "?list=links", "?list=days"),
    "cost-prices": ONCE,
    "forecast": ONCE,
    "profile-fits": ONCE,
    "windows": ONCE,
    "new-window": ONCE,
    "window": ONCE,
    "override-freeze": ONCE,
    "plan-maintenance": ("", "?link={link}"),
    "extend-maintenance": ONCE,
    "end-maintenance": ONCE,
    "mode": ("?to=paused",),
    "hold": ("", "?cluster={cluster}&mode=threshold&threshold_tokens=9000&reason=x&span_s=3600"),
    "release": ONCE,
    "cancel-rebalance": ONCE,
    "reset-breaker": ("?link={link}",),
    "search": ("?q=pd",),
    "holds": ONCE,
    "extend": ONCE,
    "policy": ONCE,
    "rebalance-new": ("", "?cluster={cluster}"),
    "rebalance-asked": ONCE,
    "rebalance": ONCE,
    "decisions": ONCE,
    "decisions-diff": ("?a=1&b=2",),
    "decision": ONCE,
    "roll-back": ONCE,
    "cancel-delivery": ("?router={gate}",),
    "tick": ONCE,
    "onboarding": ONCE,
    "approvals": ONCE,
    "approval": ONCE,
    "approval-limits": ONCE,
    "alerts": ONCE,
    "incident": ONCE,
    "silence": ONCE,
    "receivers": ONCE,
    "new-receiver": ONCE,
    "receiver": ONCE,
    "alert-rules": ONCE,
    "new-alert-rule": ONCE,
    "alert-rule": ONCE,
    "styleguide": ONCE,
    "api-docs": ("", "?operation=fleets_holds_create"),
    "audit": ONCE,
    "tokens": ONCE,
    "revoke-token": ONCE,
    "rotate-token": ONCE,
    "document": ONCE,
    "people": ONCE,
    "new-person": ONCE,
    "person": ONCE,
    "account": ONCE,
}
"""By name of the address: the queries it is opened with."""
NOT_OPENED = {
    "login": "leads on whoever is signed in; opened signed out, SIGNED_OUT",
    "logout": "answers a form and no link",
    "overview": "leads on to the only fleet's overview; opened with two fleets, test_every_page",
    "start-backtest": "answers a form and no link",
    "cancel-backtest": "answers a form and no link",
    "run-job": "answers a form and no link",
    "acknowledge": "answers a form and no link",
    "test-receiver": "answers a form and no link",
    "forget-receiver": "answers a form and no link",
    "end-silence": "answers a form and no link",
    "approve": "answers a form and no link",
    "reject": "answers a form and no link",
    "withdraw": "answers a form and no link",
    "break-glass": "answers a form and no link",
    "oidc-login": "leads to the identity provider",
    "oidc-callback": "leads back from the identity provider",
    **dict.fromkeys(
        ("person-join", "person-leave", "person-activate", "person-password", "person-unlock"),
        "answers a form and no link",
    ),
    "signals-csv": "a file",
    "cost-table": "a file",
    "cost-sheet": "a file",
    "cost-make": "answers a form and no link",
    "cost-value": "answers a form and no link",
    "ask-profile-fit": "answers a form and no link",
    "apply-profile-fit": "answers a form and no link",
}
SIGNED_OUT = ("/login/", "/login/?next=/audit/")


def address(name: str, arguments: dict[str, Any], query: str = "") -> str:
    """Of one page, with those of the arguments that its address has."""
    entry = next(entry for entry in pages.urlpatterns if entry.name == name)
    filled = {
        key: arguments.get(f"{name}.{key}", arguments.get(key)) for key in entry.pattern.converters
    }
    return reverse(name, kwargs=filled) + query


PARTS = range(4)
"""Tests that open every page open a part of them each: all at once take minutes."""


def addresses(scene: Scene, part: int | None = None) -> list[tuple[str, str]]:
    """(name, address) of every page that is opened, or of one of `PARTS`, filled from the scene."""
    names = {key: quote(name, safe="") for key, name in scene.named.items()}
    found = [
        (entry.name, address(entry.name, scene.arguments, query.format(**names)))
        for entry in pages.urlpatterns
        for query in OPENED.get(entry.name, ())
    ]
    return found if part is None else found[part :: len(PARTS)]
