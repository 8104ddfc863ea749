"""Every address of the console: health, the API, then the pages."""

from __future__ import annotations

from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView

from console import api, health, onboarding_api
from console.auth import RolePermission
from routing import api as routing_api
from routing import (
    backtest_api,
    cache_budget_api,
    explain_api,
    history_api,
    link_api,
    planning_api,
    rebalance_api,
    undo,
)

api_urlpatterns = [
    path(
        "schema/",
        SpectacularAPIView.as_view(permission_classes=[RolePermission]),
        name="api-schema",
    ),
    path("fleets/<slug:fleet>/snapshot", api.SnapshotView.as_view(), name="api-snapshot"),
    path("", include(routing_api.urlpatterns)),
    path("", include(undo.urlpatterns)),
    path("", include(rebalance_api.urlpatterns)),
    path("", include(explain_api.urlpatterns)),
    path("", include(link_api.urlpatterns)),
    path("", include(planning_api.urlpatterns)),
    path("", include(history_api.urlpatterns)),
    path("", include(cache_budget_api.urlpatterns)),
    path("", include(backtest_api.urlpatterns)),
    path("", include(onboarding_api.urlpatterns)),
]

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/v1/", include(api_urlpatterns)),
    path("", include("console.pages")),
]

handler400 = api.bad_request
handler404 = api.not_found
handler500 = api.failed
