"""`pytest -p tests.services`: real PostgreSQL and Valkey before Django reads its settings.

Each process that runs tests beside others has services of its own: a channel of Valkey is heard by
all who share it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

_OURS = "PRFAAS_TEST_SERVICES"
"""Set where a parent process started them, for itself."""

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

# Hundreds of processes are started here: each would compile every module of ours anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ARE_OURS = _OURS in os.environ or not (
    os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL")
)
"""Whether this process started them and they end with it, databases and all."""

if ARE_OURS:
    from console.embedded import Embedded

    # A short path: a unix socket's may have at most 107 bytes.
    _folder = Path(tempfile.mkdtemp(prefix="prfaas-", dir="/tmp"))
    _folder.chmod(0o755)
    for _name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(_name, None)
    _services = Embedded(_folder, durable=False)
    os.environ.update(_services.start())
    os.environ[_OURS] = "1"

    @atexit.register
    def _stop() -> None:
        _services.stop()
        shutil.rmtree(_folder, ignore_errors=True)
