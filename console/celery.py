"""The Celery application: `celery -A console worker`, `celery -A console beat`."""

from __future__ import annotations

import os
import warnings

from celery import Celery
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning

# The model's matrices are small: BLAS threads would only fight the tick for the same cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

# Started by root it would say so at length at each start; nothing here unpickles, the danger meant.
warnings.filterwarnings("ignore", category=SecurityWarning)
# Said at each lost connection, about tasks with late acknowledgement: there are none.
warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
