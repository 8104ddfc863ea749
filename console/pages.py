"""The addresses of the pages people look at; `urls` adds the API around them."""

from __future__ import annotations

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from console import (
    backtests,
    changes,
    onboarding,
    planner,
    request_simulator,
    signals,
    undoing,
    views,
)

urlpatterns = [
    path(
        "login/",
        LoginView.as_view(template_name="login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("", views.home, name="overview"),
    path("fleets/<slug:fleet>/", views.overview, name="fleet-overview"),
    path("fleets/<slug:fleet>/fleet/", views.fleet_page, name="fleet"),
    path("fleets/<slug:fleet>/onboarding/", onboarding.fleet_page, name="fleet-onboarding"),
    path("fleets/<slug:fleet>/signals/", signals.page, name="signals"),
    path("fleets/<slug:fleet>/planner/", planner.page, name="planner"),
    path("fleets/<slug:fleet>/request/", request_simulator.page, name="request"),
    path("fleets/<slug:fleet>/backtests/", backtests.page, name="backtests"),
    path("fleets/<slug:fleet>/backtests/start/", backtests.start, name="start-backtest"),
    path("fleets/<slug:fleet>/backtests/<int:backtest_id>/", backtests.one, name="backtest"),
    path(
        "fleets/<slug:fleet>/backtests/<int:backtest_id>/cancel/",
        backtests.cancel,
        name="cancel-backtest",
    ),
    path("fleets/<slug:fleet>/mode/", changes.mode, name="mode"),
    path("fleets/<slug:fleet>/hold/", changes.hold, name="hold"),
    path("fleets/<slug:fleet>/holds/<int:hold_id>/release/", changes.release, name="release"),
    path(
        "fleets/<slug:fleet>/rebalances/<int:rebalance_id>/cancel/",
        undoing.cancel_rebalance,
        name="cancel-rebalance",
    ),
    path("fleets/<slug:fleet>/breakers/reset/", undoing.reset_breaker, name="reset-breaker"),
    path("fleets/<slug:fleet>/decisions/", views.decisions, name="decisions"),
    path("fleets/<slug:fleet>/decisions/<int:decision_id>/", views.decision, name="decision"),
    path(
        "fleets/<slug:fleet>/decisions/<int:decision_id>/rollback/",
        undoing.roll_back,
        name="roll-back",
    ),
    path(
        "fleets/<slug:fleet>/decisions/<int:decision_id>/deliveries/cancel/",
        undoing.cancel_delivery,
        name="cancel-delivery",
    ),
    path("fleets/<slug:fleet>/ticks/<int:seq>/", views.tick, name="tick"),
    path("onboarding/", onboarding.site_page, name="onboarding"),
    path("audit/", views.audit, name="audit"),
    path("tokens/", changes.tokens, name="tokens"),
    path("tokens/<int:token_id>/revoke/", changes.revoke_token, name="revoke-token"),
]
