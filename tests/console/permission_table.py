"""Who may what, address by address. A new address belongs in here: `test_permission_table` says so.

A line is the name of an address, then methods with the scope that each needs (any of several, apart
by commas). `page` is GET and POST of a page. The scope must hold in the fleet of the address; where
that has no fleet, for the whole site, or with a `*` in any fleet: such a view keeps by itself to
the fleets that one may see. `login` is whoever signed in, `open` is everybody.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = """
healthz                      page open
readyz                       page open
metrics                      page open
set_language                 page open
catalogue                    GET open
login                        page open
logout                       page login
oidc-login                   page open
oidc-callback                page open
account                      page login
styleguide                   page login
search                       page read*
overview                     page read*
onboarding                   page read
audit                        page read*
tokens                       GET operate* POST admin*
revoke-token                 page admin*
rotate-token                 page admin*
document                     page admin
people                       page admin
new-person                   page admin
person                       page admin
person-join                  page admin
person-leave                 page admin
person-activate              page admin
person-password              page admin
person-unlock                page admin
alerts                       page read*
incident                     page read*
acknowledge                  page operate*
silence                      page operate*
end-silence                  page operate*
alert-rules                  page read*
new-alert-rule               page operate*
alert-rule                   page operate*
fleet-overview               page read
fleet                        page read
instances                    page read
instance                     page read
links                        page read
link                         page read
cluster                      page read
router                       page read
samples                      page read
routers                      page read
gate-adopt                   page operate
gate-release                 page operate
router-adopt                 page operate
router-override              page operate
router-cancel                page operate
router-on-drift              page operate
fleet-onboarding             page read
findings                     page read
signals                      page read
signals-csv                  page read
planner                      page read
request                      page read
backtests                    page read
start-backtest               page operate
backtest                     page read
cancel-backtest              page operate
jobs                         page read
new-job                      page operate
job                          page operate
run-job                      page operate
mode                         page operate
hold                         page operate
holds                        page read
extend                       page operate
release                      page operate
policy                       GET read POST operate
rebalance-new                page operate
rebalance-asked              page read
rebalance                    page read
cancel-rebalance             page operate
reset-breaker                page operate
decisions                    page read
decisions-diff               page read
decision                     page read
roll-back                    page operate
cancel-delivery              page operate
tick                         page read

api-schema                   GET read*
api-me                       GET read*
api-fleets                   GET read*
api-audit                    GET read*
api-tokens                   GET admin* POST admin*
api-revoke                   POST admin*
api-rotate                   POST admin*
api-users                    GET admin POST admin
api-user                     GET admin
api-user-join                POST admin
api-user-leave               POST admin
api-user-activate            POST admin
api-user-deactivate          POST admin
api-user-password            POST admin
api-user-unlock              POST admin
api-snapshot                 GET read
api-fleet                    GET read
api-policy                   GET read PATCH operate
api-holds                    GET read POST operate
api-release                  POST operate
api-extend                   POST operate
api-ticks                    GET read
api-tick                     GET read
api-decisions                GET read
api-decision                 GET read
api-routers                  GET read
api-instances                GET read
api-links                    GET read
api-series                   GET read
api-epoch                    POST admin
api-plan                     GET read,router
api-roll-back                POST operate
api-cancel-delivery          POST operate
api-rebalances               GET read POST operate
api-rebalance                GET read
api-cancel-rebalance         POST operate
api-managed-routers          GET read
api-managed-router           GET read
api-managed-adopt            POST operate
api-managed-override         POST operate
api-managed-cancel           POST operate
api-managed-on-drift         POST operate
api-last-good                GET read
api-explain                  POST read
api-bills                    GET read
api-reset-breaker            POST operate
api-findings                 GET read
api-what-if                  GET read POST read
api-signal-series            GET read
api-signal-bands             GET read
api-signal-quantiles         GET read
api-signal-heat              GET read
api-fleet-signal-series      GET read
api-fleet-signal-bands       GET read
api-fleet-signal-quantiles   GET read
api-fleet-signal-heat        GET read
api-fleet-signal-ranked      GET read
api-cache-budget             GET read
api-traces                   GET read POST operate
api-backtests                GET read POST operate
api-backtest                 GET read
api-cancel-backtest          POST operate
api-backtest-json            GET read
api-backtest-csv             GET read
api-telemetry-sources        GET read
api-fleet-telemetry-sources  GET read
api-marks                    GET read
api-alert-signals            GET read*
api-alert-rules              GET read*
api-alert-rule               GET read* PUT operate* DELETE operate*
api-incidents                GET read*
api-incident                 GET read*
api-acknowledge              POST operate*
api-silences                 GET read* POST operate*
api-end-silence              POST operate*
api-receivers                GET read
api-receiver                 GET read PUT admin DELETE admin
api-receiver-test            POST admin
api-jobs                     GET read
api-job                      GET read PUT operate DELETE operate
api-run-job                  POST operate
api-job-runs                 GET read
receivers                    page read
new-receiver                 page admin
receiver                     page admin
test-receiver                page admin
forget-receiver              page admin

api-docs                     page read*
approvals                    page read*
approval                     page read*
approve                      page approve*
reject                       page approve*
withdraw                     page operate*
break-glass                  page admin*
approval-limits              GET read POST admin
windows                      page read
new-window                   page admin
window                       page admin
override-freeze              page admin
plan-maintenance             page operate
extend-maintenance           page operate
end-maintenance              page operate
costs                        page read
cost-prices                  page operate
cost-make                    page operate
cost-value                   page operate
cost-table                   page read
cost-sheet                   page read
forecast                     page read
profile-fits                 page read
ask-profile-fit              page operate
apply-profile-fit            page operate

api-apply                    POST admin
api-export                   GET read
api-approvals                GET read*
api-approval                 GET read*
api-approve                  POST approve*
api-reject                   POST approve*
api-withdraw                 POST operate*
api-break-glass              POST admin*
api-approval-limits          GET read PUT admin
api-windows                  GET read*
api-window                   GET read* PUT operate* DELETE operate*
api-freezes                  GET read
api-override-freezes         POST admin
api-maintenance              GET read POST operate
api-one-maintenance          GET read
api-extend-maintenance       POST operate
api-end-maintenance          POST operate
api-prices                   GET read PUT operate DELETE operate
api-reports                  GET read
api-report                   GET read POST operate
api-report-value             GET read POST operate
api-report-table             GET read
api-report-sheet             GET read
api-forecast                 GET read
api-profile-fits             GET read POST operate
api-apply-profile-fit        POST operate
api-events                   GET read*
api-fleet-events             GET read
"""
