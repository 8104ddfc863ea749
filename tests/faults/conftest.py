"""A state folder that any service user may enter, with a path short enough for a socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def state() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder / "s"
    shutil.rmtree(folder, ignore_errors=True)
