"""`pytest -p tests.services`: real PostgreSQL and Valkey before Django reads its settings."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

if not (os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")):
    from console.embedded import Embedded

    # A short path: a unix socket's may have at most 107 bytes.
    _folder = Path(tempfile.mkdtemp(prefix="prfaas-", dir="/tmp"))
    _folder.chmod(0o755)
    _services = Embedded(_folder, durable=False)
    os.environ.update(_services.start())

    @atexit.register
    def _stop() -> None:
        _services.stop()
        shutil.rmtree(_folder, ignore_errors=True)
