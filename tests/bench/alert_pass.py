"""How long one look of alerts takes: 1,000 rules over 3,000 instances. Run by hand.

    python3 -m uv run python -m tests.bench.alert_pass

Rules of five signals, a third each of all instances, of one cluster and of one role, each 1 in 50
firing. Readings are landed once, so that every look reads the same; the database is the embedded
one, made for it and thrown away.
"""

# ruff: noqa: E402, I001 -- Django reads its settings once the services are there

from __future__ import annotations

import statistics
import time

import tests.services  # noqa: F401
import django

django.setup()

from django.conf import settings
from django.core.management import call_command
from django.utils import timezone

from routing.alerts import passes, rules
from routing.alerts.models import Incident
from telemetry import wire
from tests.routing.cases import make_fleet
from tests.telemetry.rows import commit

N_INSTANCES, N_RULES, N_LOOKS, PER_BATCH = 3000, 1000, 30, 8
SIGNALS = (
    *("kv_cache_usage_ratio", "requests_waiting", "requests_running", "gpu_utilization_ratio"),
    "gpu_temperature_celsius",
)


def land(now_s: float) -> None:
    batches = []
    for agent in range(N_INSTANCES // PER_BATCH):
        samples = [
            wire.InstanceSample(
                id=f"f1/c{n % 30}/i{n:04}",
                role="prefill" if n % 3 else "decode",
                engine="vllm",
                at_s=now_s,
                signals=wire.InstanceSignals(
                    kv_cache_usage_ratio=n % 50 / 50,
                    requests_waiting=float(n % 50),
                    requests_running=float(n % 50),
                    gpu_utilization_ratio=n % 50 / 50,
                    gpu_temperature_celsius=float(n % 50),
                ),
            )
            for n in range(agent * PER_BATCH, (agent + 1) * PER_BATCH)
        ]
        batches.append(
            wire.Batch(
                v=wire.WIRE_VERSION,
                agent=f"a{agent}",
                boot=1,
                seq=1,
                sent_at_s=now_s,
                instances=samples,
            )
        )
    commit(*batches, received_s=now_s)


def main() -> None:
    call_command("prepare", verbosity=0)
    make_fleet("f1")
    now = timezone.now()
    land(now.timestamp())
    where = ({}, {"cluster": "c7"}, {"role": "decode"})
    for i in range(N_RULES):
        signal = SIGNALS[i % len(SIGNALS)]
        rules.put(
            document={
                "name": f"r{i}",
                "signal": f"instance.{signal}",
                "is": "above",
                "threshold": 0.97 if signal.endswith("ratio") else 48.5,
                "where": where[i % len(where)],
            },
            if_version=None,
            actor="bench",
            via="bench",
            reason="",
            now=now,
        )
    took_s = []
    for _ in range(N_LOOKS):
        began_s = time.perf_counter()
        seen = passes.look(lambda: now)
        took_s.append(time.perf_counter() - began_s)
        assert seen is not None
        assert seen.n_rules == N_RULES
    n_open = Incident.objects.filter(resolved_at=None).count()
    p95_s = statistics.quantiles(took_s, n=20)[-1]
    print(
        f"{N_RULES} rules x {N_INSTANCES} instances, {n_open} incidents open: median "
        f"{statistics.median(took_s):.2f} s, p95 {p95_s:.2f} s, first {took_s[0]:.2f} s"
        f" (tick {settings.ENV['CONSOLE_TICK_S']} s)"
    )


if __name__ == "__main__":
    main()
