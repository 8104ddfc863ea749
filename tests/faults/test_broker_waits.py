"""Workers and beats that lost the broker together do not come back together."""

from __future__ import annotations

import random
from typing import Any

import kombu.utils.functional
import pytest
from kombu.exceptions import OperationalError

from console.celery import BrokerConnection, app


def test_celery_waits_by_drawn_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real retry loop against a port where nobody listens, without the sleeping."""
    monkeypatch.setattr(kombu.utils.functional, "sleep", lambda s: None)

    def waits(seed: int) -> list[float]:
        waited: list[float] = []
        connection = app.connection_for_read("redis://127.0.0.1:1/0")
        assert isinstance(connection, BrokerConnection), "what a worker and a beat connect with"
        monkeypatch.setattr(BrokerConnection, "rng", random.Random(seed))

        def heard(exc: Any, interval_s: float) -> None:
            waited.append(interval_s)

        with pytest.raises(OperationalError):
            connection.ensure_connection(heard, 12)
        return waited

    first, again, other = waits(1), waits(1), waits(2)
    assert first == again
    assert len(first) == 12
    assert not set(first) & set(other)
    assert all(0.2 <= waited[0] <= 1.0 and max(waited) <= 5.0 for waited in (first, other))
    assert first == sorted(first)
