"""The Celery application: `celery -A console worker`, `celery -A console beat`."""

from __future__ import annotations

import gc
import os
import random
import warnings
from typing import Any

import kombu
from celery import Celery
from celery.app.amqp import AMQP
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.signals import task_prerun, worker_ready

from routing import request_ids

# The model's matrices are small: BLAS threads would only fight the tick for the same cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

# Started by root it would say so at length at each start; nothing here unpickles, the danger meant.
warnings.filterwarnings("ignore", category=SecurityWarning)
# Said at each lost connection, about tasks with late acknowledgement: there are none.
warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)


def broker_waits(rng: random.Random) -> dict[str, float]:
    """Seconds between attempts to reach a lost broker: the first, how much each grows, the longest.

    Soon, because the loop stands still meanwhile; each process at moments of its own.
    """
    return {
        "interval_start": rng.uniform(0.2, 1.0),
        "interval_step": rng.uniform(0.3, 0.9),
        "interval_max": rng.uniform(3.0, 5.0),
    }


class BrokerConnection(kombu.Connection):
    """A connection that comes back at its own moments. `rng` may be replaced."""

    rng = random.Random()

    def ensure_connection(self, *args: Any, **kwargs: Any) -> BrokerConnection:
        """Connect, retrying as asked; how long it waits is drawn unless the caller says."""
        super().ensure_connection(*args, **{**broker_waits(self.rng), **kwargs})
        return self


class _Amqp(AMQP):
    Connection = BrokerConnection


app = Celery("console", amqp=_Amqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@task_prerun.connect
def _one_id(task_id: str = "", **_: object) -> None:
    """What a task changes is audited under the task's own id."""
    request_ids.begin(task_id)


@worker_ready.connect
def _freeze(**_: object) -> None:
    """What is there now stays for good; compaction makes hundred thousands of objects a minute, and
    each thousand of them would have all of it looked through for cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
