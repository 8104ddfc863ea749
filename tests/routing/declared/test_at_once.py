"""Two who apply at once: one after the other, and what one has made so the other finds so."""

from __future__ import annotations

import threading

import pytest
from django.db import connection

from routing.declared.apply import Applied
from routing.models import Action, Fleet
from tests.routing.cases import scenario
from tests.routing.declared.case import applied

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_same_document_is_made_so_once() -> None:
    document = {
        "fleets": {"f1": scenario("f1")},
        "policies": {"f1": {"mode": "paused", "knobs": {"t_dwell_s": 30}}},
    }
    found: list[Applied] = []
    ready = threading.Barrier(3)

    def one() -> None:
        ready.wait()
        try:
            found.append(applied(document))
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(len(each.changes) for each in found) == [0, 0, 2]
    assert len({each.digest for each in found}) == 1
    assert list(Action.objects.order_by("id").values_list("verb", flat=True)) == [
        *("fleet.create", "policy.change"),
    ]
    assert Fleet.objects.count() == 1
