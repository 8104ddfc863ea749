"""What a scenario may name: URLs, and files in the one folder of routers' keys and manifests.

A scenario says only names, so that whoever may write one cannot have any file of this machine read
out to a URL, or written over.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Final

import msgspec

from routing.adapters.surface import SurfaceError

Url = Annotated[
    str,
    msgspec.Meta(
        max_length=500, pattern=r"^https?://[^\s\x00-\x1f\x7f/?#@]+(/[^\s\x00-\x1f\x7f?#]*)?$"
    ),
]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]

FOLDER_SETTING: Final = "CONSOLE_ROUTERS_DIR"
LOCKED_WITHIN_S: Final = 5.0
"""For another process of this console to finish its change, which takes it milliseconds."""
_LOOK_EACH_S: Final = 0.02
_MAX_KEY_BYTES: Final = 8192
_MODE: Final = 0o644
"""Of a file that was not there before: a manifest is read by another user's router."""
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
Name = Annotated[str, msgspec.Meta(max_length=100, pattern=f"^{_NAME}$")]
NameOrNone = Annotated[str, msgspec.Meta(max_length=100, pattern=f"^({_NAME})?$")]
"""Empty: no file."""


def path_of(name: str, *, router: str) -> Path:
    """The file by that name. Raises SurfaceError where no folder is set, and for a path."""
    if re.fullmatch(_NAME, name) is None:
        raise SurfaceError(f"{router}: {name!r} must be the name of a file in {FOLDER_SETTING}")
    folder = os.environ.get(FOLDER_SETTING)
    if not folder:
        raise SurfaceError(f"{router}: {FOLDER_SETTING} is not set, where {name} would be")
    return Path(folder) / name


def bearer(token_file: str, *, router: str) -> dict[str, str]:
    """The header that shows the key in that file; none where no file is named.

    Read at each call, so a key that is renewed needs no restart. Raises SurfaceError.
    """
    if not token_file:
        return {}
    path = path_of(token_file, router=router)
    try:
        token = content(path, max_bytes=_MAX_KEY_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "is not text"
        raise SurfaceError(f"{router}: token_file={token_file!r}: {why}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise SurfaceError(f"{router}: token_file={token_file!r}: holds no key")
    return {"Authorization": f"Bearer {token}"}


def content(path: Path, *, max_bytes: int) -> bytes:
    """What the file holds. Raises OSError whose `strerror` says why not: also for one that is no
    file (a pipe would be waited for without end), or holds more."""
    with io.BufferedReader(io.FileIO(path, opener=_open_at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is not a file")
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise OSError(errno.EFBIG, f"holds more than {max_bytes} bytes")
    return raw


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """One process of this console at a time changes the file. Raises OSError, also where another
    one does not come to its end."""
    path = path.resolve()
    with path.with_name(f".{path.name}.lock").open("a") as lock:
        _lock(lock, time.monotonic() + LOCKED_WITHIN_S)
        yield


def replace_file(
    path: Path, raw: bytes, *, instead_of: bytes | None = None, is_lasting: bool = True
) -> None:
    """Whoever reads it sees the old content or the new, whole; permissions stay. Raises OSError.

    `instead_of`: what it must still hold when the new content takes its place. A person with an
    editor knows of no lock, and what he has written since it was read is not lost. `is_lasting`
    False: a crash of the machine may lose it, and no slow disk is waited for.
    """
    path = path.resolve()
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mode = _MODE
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(raw)
            file.flush()
            if is_lasting:
                os.fsync(file.fileno())
        Path(name).chmod(mode)
        if instead_of is not None and not _holds(path, instead_of):
            raise OSError(errno.EBUSY, "somebody else has changed it meanwhile: it is left so")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _holds(path: Path, raw: bytes) -> bool:
    try:
        return content(path, max_bytes=len(raw)) == raw
    except OSError:
        return False


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _lock(file: IO[Any], until_s: float) -> None:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                why = f"another process has been changing it for {LOCKED_WITHIN_S:g} s"
                raise TimeoutError(errno.ETIMEDOUT, why) from None
            time.sleep(_LOOK_EACH_S)
        else:
            return
