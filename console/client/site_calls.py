"""The API's operations of the whole site: one method each, named as in the schema.

Written by `python -m tests.console.client_calls`; `asked` are the query and the headers, which
`http.OPERATIONS` knows (`if_match` for If-Match). Each raises `errors.ClientError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from console.client.http import Answer, Asked, Body, Calls, Event


class SiteCalls(Calls):
    """Operations of the whole site."""

    def alert_rules_destroy(self, name: str, **asked: Asked) -> Answer:
        return self.call("alert_rules_destroy", asked, name=name)

    def alert_rules_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("alert_rules_list", asked)

    def alert_rules_retrieve(self, name: str, **asked: Asked) -> Answer:
        return self.call("alert_rules_retrieve", asked, name=name)

    def alert_rules_update(self, name: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("alert_rules_update", asked, body, name=name)

    def alert_signals_list(self, **asked: Asked) -> Answer:
        return self.call("alert_signals_list", asked)

    def apply_create(self, body: Body = None, **asked: Asked) -> Answer:
        return self.call("apply_create", asked, body)

    def approvals_approve_create(
        self, proposal_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("approvals_approve_create", asked, body, proposal_id=proposal_id)

    def approvals_break_glass_create(
        self, proposal_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("approvals_break_glass_create", asked, body, proposal_id=proposal_id)

    def approvals_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("approvals_list", asked)

    def approvals_reject_create(
        self, proposal_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("approvals_reject_create", asked, body, proposal_id=proposal_id)

    def approvals_retrieve(self, proposal_id: int, **asked: Asked) -> Answer:
        return self.call("approvals_retrieve", asked, proposal_id=proposal_id)

    def approvals_withdraw_create(
        self, proposal_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("approvals_withdraw_create", asked, body, proposal_id=proposal_id)

    def audit_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("audit_list", asked)

    def events_retrieve(self, **asked: Asked) -> Iterator[Event]:
        return self.stream("events_retrieve", asked)

    def export_retrieve(self, **asked: Asked) -> Answer:
        return self.call("export_retrieve", asked)

    def incidents_acknowledge_create(
        self, incident_id: int, body: Body = None, **asked: Asked
    ) -> Answer:
        return self.call("incidents_acknowledge_create", asked, body, incident_id=incident_id)

    def incidents_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("incidents_list", asked)

    def incidents_retrieve(self, incident_id: int, **asked: Asked) -> Answer:
        return self.call("incidents_retrieve", asked, incident_id=incident_id)

    def ingest(self, body: Body = None, **asked: Asked) -> Answer:
        return self.call("ingest", asked, body)

    def me_retrieve(self, **asked: Asked) -> Answer:
        return self.call("me_retrieve", asked)

    def receivers_destroy(self, name: str, **asked: Asked) -> Answer:
        return self.call("receivers_destroy", asked, name=name)

    def receivers_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("receivers_list", asked)

    def receivers_retrieve(self, name: str, **asked: Asked) -> Answer:
        return self.call("receivers_retrieve", asked, name=name)

    def receivers_test_create(self, name: str, **asked: Asked) -> Answer:
        return self.call("receivers_test_create", asked, name=name)

    def receivers_update(self, name: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("receivers_update", asked, body, name=name)

    def silences_create(self, body: Body = None, **asked: Asked) -> Answer:
        return self.call("silences_create", asked, body)

    def silences_end_create(self, silence_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("silences_end_create", asked, body, silence_id=silence_id)

    def silences_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("silences_list", asked)

    def telemetry_series_bands_retrieve(self, **asked: Asked) -> Answer:
        return self.call("telemetry_series_bands_retrieve", asked)

    def telemetry_series_heat_retrieve(self, **asked: Asked) -> Answer:
        return self.call("telemetry_series_heat_retrieve", asked)

    def telemetry_series_quantiles_retrieve(self, **asked: Asked) -> Answer:
        return self.call("telemetry_series_quantiles_retrieve", asked)

    def telemetry_series_retrieve(self, **asked: Asked) -> Answer:
        return self.call("telemetry_series_retrieve", asked)

    def telemetry_sources_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("telemetry_sources_list", asked)

    def tokens_create(self, body: Body = None, **asked: Asked) -> Answer:
        return self.call("tokens_create", asked, body)

    def tokens_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("tokens_list", asked)

    def tokens_revoke_create(self, token_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("tokens_revoke_create", asked, body, token_id=token_id)

    def tokens_rotate_create(self, token_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("tokens_rotate_create", asked, body, token_id=token_id)

    def users_activate_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_activate_create", asked, body, user_id=user_id)

    def users_create(self, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_create", asked, body)

    def users_deactivate_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_deactivate_create", asked, body, user_id=user_id)

    def users_join_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_join_create", asked, body, user_id=user_id)

    def users_leave_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_leave_create", asked, body, user_id=user_id)

    def users_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("users_list", asked)

    def users_password_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_password_create", asked, body, user_id=user_id)

    def users_retrieve(self, user_id: int, **asked: Asked) -> Answer:
        return self.call("users_retrieve", asked, user_id=user_id)

    def users_unlock_create(self, user_id: int, body: Body = None, **asked: Asked) -> Answer:
        return self.call("users_unlock_create", asked, body, user_id=user_id)

    def windows_destroy(self, name: str, **asked: Asked) -> Answer:
        return self.call("windows_destroy", asked, name=name)

    def windows_list(self, **asked: Asked) -> Iterator[dict[str, Any]]:
        return self.rows("windows_list", asked)

    def windows_retrieve(self, name: str, **asked: Asked) -> Answer:
        return self.call("windows_retrieve", asked, name=name)

    def windows_update(self, name: str, body: Body = None, **asked: Asked) -> Answer:
        return self.call("windows_update", asked, body, name=name)
