"""Every address of the console: health, the API, then the pages."""

from __future__ import annotations

from django.urls import include, path

from console import api, chart_marks, cost_files, health, onboarding_api, people_api, ranked_series
from routing import api as routing_api
from routing import (
    backtest_api,
    cache_budget_api,
    explain_api,
    findings_api,
    history_api,
    link_api,
    managed_api,
    plan_api,
    planning_api,
    rebalance_api,
    token_api,
    undo,
)
from routing.alerts import api as alerts_api
from routing.approvals import api as approvals_api
from routing.costs import api as costs_api
from routing.declared import api as declared_api
from routing.forecast import api as forecast_api
from routing.jobs import api as jobs_api
from routing.refits import api as refits_api
from routing.rest import api as rest_api
from routing.windows import api as windows_api

api_urlpatterns = [
    path("schema/", api.SchemaView.as_view(), name="api-schema"),
    path("fleets/<slug:fleet>/snapshot", api.SnapshotView.as_view(), name="api-snapshot"),
    path("", include(routing_api.urlpatterns)),
    path("", include(plan_api.urlpatterns)),
    path("", include(undo.urlpatterns)),
    path("", include(token_api.urlpatterns)),
    path("", include(rebalance_api.urlpatterns)),
    path("", include(managed_api.urlpatterns)),
    path("", include(explain_api.urlpatterns)),
    path("", include(link_api.urlpatterns)),
    path("", include(findings_api.urlpatterns)),
    path("", include(planning_api.urlpatterns)),
    path("", include(history_api.urlpatterns)),
    path("", include(cache_budget_api.urlpatterns)),
    path("", include(backtest_api.urlpatterns)),
    path("", include(onboarding_api.urlpatterns)),
    path("", include(people_api.urlpatterns)),
    path("", include(chart_marks.urlpatterns)),
    path("", include(ranked_series.urlpatterns)),
    path("", include(alerts_api.urlpatterns)),
    path("", include(jobs_api.urlpatterns)),
    path("", include(rest_api.urlpatterns)),
    path("", include(costs_api.urlpatterns)),
    path("", include(cost_files.urlpatterns)),
    path("", include(forecast_api.urlpatterns)),
    path("", include(refits_api.urlpatterns)),
    path("", include(windows_api.urlpatterns)),
    path("", include(declared_api.urlpatterns)),
    path("", include(approvals_api.urlpatterns)),
]

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/v1/", include(api_urlpatterns)),
    path("", include("console.languages")),
    path("", include("console.pages")),
]

handler400 = api.bad_request
handler404 = api.not_found
handler500 = api.failed
