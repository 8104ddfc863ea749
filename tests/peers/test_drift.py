"""What somebody does to a real router by hand shows within one cycle, and is put back (S-31)."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest

from routing import managed_work, router_commands
from routing.models import Fleet, ManagedRouter
from tests.peers.routers import Routed
from tests.peers.test_rebalances import end, listed
from tests.routing.cases import NOW, after
from tests.routing.rebalancing import move_of, open_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]


class Cycles:
    """Cycles of the console, a clock that goes on with ours."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def now(self) -> datetime:
        return NOW + timedelta(seconds=time.monotonic() - self._began_s)

    def run(self) -> ManagedRouter:
        managed_work.reconcile(self.now)
        return ManagedRouter.objects.get()


def test_an_instance_taken_out_by_hand_is_seen_in_one_cycle_and_put_back(
    routed: Routed, fleet: Fleet
) -> None:
    cycles = Cycles()
    row = cycles.run()
    assert row.state == "sync", row.findings
    before = listed(routed)
    url = routed.engines.decodes[1]
    with routed.engines.load(routed.url, routed.headers):
        routed.surface.cordon(url)
        row = cycles.run()
        assert (row.state, row.cause) == ("drifted", "change")
        assert [words for words in row.findings if url in words]
        row = router_commands.override(
            fleet=fleet.pk,
            router_id=row.pk,
            if_version=row.version,
            actor="ada",
            via="test",
            reason="by hand",
            now=cycles.now(),
        ).router
        row = cycles.run()
        assert row.operation is not None
        assert (row.operation["state"], row.state) == ("applied", "sync"), row.operation
    assert listed(routed) == before
    assert routed.engines.failures == []
    assert cycles.run().state == "sync"


def test_what_a_rebalance_does_is_no_drift_and_is_desired_afterwards(
    routed: Routed, fleet: Fleet
) -> None:
    cycles = Cycles()
    cycles.run()
    row = end(open_for(fleet, (1, 3)), 1.0)
    assert row.state == "done", row.reason
    url = move_of(row).url.rstrip("/")
    managed_work.reconcile(lambda: after(300.0))
    found = ManagedRouter.objects.get()
    assert found.state == "sync", found.findings
    assert found.desired[url] == {"role": "decode", "status": "ready"}
