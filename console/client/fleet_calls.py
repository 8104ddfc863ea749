"""The API's operations of one fleet: one method each, named as in the schema.

Written by `python -m tests.console.client_calls`; `asked` are the query and the headers, which
`http.OPERATIONS` knows (`if_match` for If-Match). Each raises `errors.ClientError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from console.client.http import Answer, Asked, Body, Calls, Event


class FleetCalls(Calls):
    """Operations of one fleet."""

    def fleets_approval_limits_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_approval_limits_retrieve", asked, fleet=fleet)

    def fleets_approval_limits_update(
        self, fleet: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_approval_limits_update", asked, body, fleet=fleet)

    def fleets_backtests_cancel_create(
        self, fleet: str, backtest_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_backtests_cancel_create", asked, body, fleet=fleet, backtest_id=backtest_id
        )

    def fleets_backtests_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_backtests_create", asked, body, fleet=fleet)

    def fleets_backtests_export_csv_retrieve(
        self, fleet: str, backtest_id: int, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_backtests_export_csv_retrieve", asked, fleet=fleet, backtest_id=backtest_id
        )

    def fleets_backtests_export_json_retrieve(
        self, fleet: str, backtest_id: int, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_backtests_export_json_retrieve", asked, fleet=fleet, backtest_id=backtest_id
        )

    def fleets_backtests_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_backtests_list", asked, fleet=fleet)

    def fleets_backtests_retrieve(self, fleet: str, backtest_id: int, **asked: Asked) -> Answer:
        return self.call("fleets_backtests_retrieve", asked, fleet=fleet, backtest_id=backtest_id)

    def fleets_bills_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_bills_list", asked, fleet=fleet)

    def fleets_breakers_reset_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_breakers_reset_create", asked, body, fleet=fleet)

    def fleets_cache_budget_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_cache_budget_retrieve", asked, fleet=fleet)

    def fleets_decisions_deliveries_cancel_create(
        self, fleet: str, decision_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_decisions_deliveries_cancel_create",
            asked,
            body,
            fleet=fleet,
            decision_id=decision_id,
        )

    def fleets_decisions_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_decisions_list", asked, fleet=fleet)

    def fleets_decisions_retrieve(self, fleet: str, decision_id: int, **asked: Asked) -> Answer:
        return self.call("fleets_decisions_retrieve", asked, fleet=fleet, decision_id=decision_id)

    def fleets_decisions_rollback_create(
        self, fleet: str, decision_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_decisions_rollback_create", asked, body, fleet=fleet, decision_id=decision_id
        )

    def fleets_epoch_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_epoch_create", asked, body, fleet=fleet)

    def fleets_events_retrieve(self, fleet: str, **asked: Asked) -> Iterator[Event]:
        return self.stream("fleets_events_retrieve", asked, fleet=fleet)

    def fleets_explain_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_explain_create", asked, body, fleet=fleet)

    def fleets_findings_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_findings_retrieve", asked, fleet=fleet)

    def fleets_forecast_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_forecast_retrieve", asked, fleet=fleet)

    def fleets_freezes_override_create(
        self, fleet: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_freezes_override_create", asked, body, fleet=fleet)

    def fleets_freezes_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_freezes_retrieve", asked, fleet=fleet)

    def fleets_holds_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_holds_create", asked, body, fleet=fleet)

    def fleets_holds_extend_create(
        self, fleet: str, hold_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_holds_extend_create", asked, body, fleet=fleet, hold_id=hold_id)

    def fleets_holds_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_holds_list", asked, fleet=fleet)

    def fleets_holds_release_create(
        self, fleet: str, hold_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_holds_release_create", asked, body, fleet=fleet, hold_id=hold_id)

    def fleets_instances_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_instances_list", asked, fleet=fleet)

    def fleets_job_runs_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_job_runs_list", asked, fleet=fleet)

    def fleets_jobs_destroy(self, fleet: str, name: str, **asked: Asked) -> Answer:
        return self.call("fleets_jobs_destroy", asked, fleet=fleet, name=name)

    def fleets_jobs_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_jobs_list", asked, fleet=fleet)

    def fleets_jobs_retrieve(self, fleet: str, name: str, **asked: Asked) -> Answer:
        return self.call("fleets_jobs_retrieve", asked, fleet=fleet, name=name)

    def fleets_jobs_run_create(
        self, fleet: str, name: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_jobs_run_create", asked, body, fleet=fleet, name=name)

    def fleets_jobs_update(
        self, fleet: str, name: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_jobs_update", asked, body, fleet=fleet, name=name)

    def fleets_last_known_good_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_last_known_good_retrieve", asked, fleet=fleet)

    def fleets_links_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_links_list", asked, fleet=fleet)

    def fleets_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_list", asked)

    def fleets_maintenance_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_maintenance_create", asked, body, fleet=fleet)

    def fleets_maintenance_end_create(
        self, fleet: str, maintenance_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_maintenance_end_create", asked, body, fleet=fleet, maintenance_id=maintenance_id
        )

    def fleets_maintenance_extend_create(
        self, fleet: str, maintenance_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_maintenance_extend_create",
            asked,
            body,
            fleet=fleet,
            maintenance_id=maintenance_id,
        )

    def fleets_maintenance_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_maintenance_list", asked, fleet=fleet)

    def fleets_maintenance_retrieve(
        self, fleet: str, maintenance_id: int, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_maintenance_retrieve", asked, fleet=fleet, maintenance_id=maintenance_id
        )

    def fleets_managed_routers_adopt_create(
        self, fleet: str, router_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_managed_routers_adopt_create", asked, body, fleet=fleet, router_id=router_id
        )

    def fleets_managed_routers_cancel_create(
        self, fleet: str, router_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_managed_routers_cancel_create", asked, body, fleet=fleet, router_id=router_id
        )

    def fleets_managed_routers_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_managed_routers_list", asked, fleet=fleet)

    def fleets_managed_routers_on_drift_create(
        self, fleet: str, router_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_managed_routers_on_drift_create", asked, body, fleet=fleet, router_id=router_id
        )

    def fleets_managed_routers_override_create(
        self, fleet: str, router_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_managed_routers_override_create", asked, body, fleet=fleet, router_id=router_id
        )

    def fleets_managed_routers_retrieve(self, fleet: str, router_id: int, **asked: Asked) -> Answer:
        return self.call("fleets_managed_routers_retrieve", asked, fleet=fleet, router_id=router_id)

    def fleets_marks_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_marks_retrieve", asked, fleet=fleet)

    def fleets_plan_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_plan_retrieve", asked, fleet=fleet)

    def fleets_policy_partial_update(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_policy_partial_update", asked, body, fleet=fleet)

    def fleets_policy_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_policy_retrieve", asked, fleet=fleet)

    def fleets_prices_destroy(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_prices_destroy", asked, fleet=fleet)

    def fleets_prices_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_prices_retrieve", asked, fleet=fleet)

    def fleets_prices_update(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_prices_update", asked, body, fleet=fleet)

    def fleets_profile_fits_apply_create(
        self, fleet: str, fit_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_profile_fits_apply_create", asked, body, fleet=fleet, fit_id=fit_id
        )

    def fleets_profile_fits_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_profile_fits_create", asked, body, fleet=fleet)

    def fleets_profile_fits_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_profile_fits_list", asked, fleet=fleet)

    def fleets_rebalances_cancel_create(
        self, fleet: str, rebalance_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call(
            "fleets_rebalances_cancel_create", asked, body, fleet=fleet, rebalance_id=rebalance_id
        )

    def fleets_rebalances_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_rebalances_create", asked, body, fleet=fleet)

    def fleets_rebalances_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_rebalances_list", asked, fleet=fleet)

    def fleets_rebalances_retrieve(self, fleet: str, rebalance_id: int, **asked: Asked) -> Answer:
        return self.call(
            "fleets_rebalances_retrieve", asked, fleet=fleet, rebalance_id=rebalance_id
        )

    def fleets_reports_create(
        self, fleet: str, month: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_reports_create", asked, body, fleet=fleet, month=month)

    def fleets_reports_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_reports_list", asked, fleet=fleet)

    def fleets_reports_retrieve(self, fleet: str, month: str, **asked: Asked) -> Answer:
        return self.call("fleets_reports_retrieve", asked, fleet=fleet, month=month)

    def fleets_reports_sheet_retrieve(self, fleet: str, month: str, **asked: Asked) -> Answer:
        return self.call("fleets_reports_sheet_retrieve", asked, fleet=fleet, month=month)

    def fleets_reports_table_retrieve(self, fleet: str, month: str, **asked: Asked) -> Answer:
        return self.call("fleets_reports_table_retrieve", asked, fleet=fleet, month=month)

    def fleets_reports_value_create(
        self, fleet: str, month: str, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("fleets_reports_value_create", asked, body, fleet=fleet, month=month)

    def fleets_reports_value_retrieve(self, fleet: str, month: str, **asked: Asked) -> Answer:
        return self.call("fleets_reports_value_retrieve", asked, fleet=fleet, month=month)

    def fleets_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_retrieve", asked, fleet=fleet)

    def fleets_routers_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_routers_list", asked, fleet=fleet)

    def fleets_series_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_series_retrieve", asked, fleet=fleet)

    def fleets_snapshot_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_snapshot_retrieve", asked, fleet=fleet)

    def fleets_telemetry_series_bands_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_telemetry_series_bands_retrieve", asked, fleet=fleet)

    def fleets_telemetry_series_heat_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_telemetry_series_heat_retrieve", asked, fleet=fleet)

    def fleets_telemetry_series_quantiles_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_telemetry_series_quantiles_retrieve", asked, fleet=fleet)

    def fleets_telemetry_series_ranked_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_telemetry_series_ranked_retrieve", asked, fleet=fleet)

    def fleets_telemetry_series_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_telemetry_series_retrieve", asked, fleet=fleet)

    def fleets_telemetry_sources_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_telemetry_sources_list", asked, fleet=fleet)

    def fleets_ticks_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_ticks_list", asked, fleet=fleet)

    def fleets_ticks_retrieve(self, fleet: str, seq: int, **asked: Asked) -> Answer:
        return self.call("fleets_ticks_retrieve", asked, fleet=fleet, seq=seq)

    def fleets_traces_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_traces_create", asked, body, fleet=fleet)

    def fleets_traces_list(self, fleet: str, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("fleets_traces_list", asked, fleet=fleet)

    def fleets_what_if_create(self, fleet: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("fleets_what_if_create", asked, body, fleet=fleet)

    def fleets_what_if_retrieve(self, fleet: str, **asked: Asked) -> Answer:
        return self.call("fleets_what_if_retrieve", asked, fleet=fleet)
