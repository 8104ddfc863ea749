"""Batches on disk until the console has them: append-only segment files in one folder.

Every batch is written here *before* it is offered, so a killed agent loses nothing it had read.

Identity. One folder is one `boot`: it is drawn once, when the folder is new (milliseconds since
1970, so a later folder has a later boot), and kept across restarts. Sequence numbers continue;
they are reserved in blocks in the `state` file, synced before the first of a block is used, so a
crash may skip numbers but never gives one to two batches. A batch therefore keeps the key (agent,
boot, seq) it was first offered under, and sending it again is recognised by the console. A boot
per process would instead make the console answer 409 to everything spooled before a restart, and
re-stamping those batches would store a reading twice whenever an answer was lost.

Records. `state length crc seq replaces | payload`; the state byte is overwritten in place when
the batch is acknowledged, and a segment whose records are all done is removed (the one being
written is emptied instead, so the normal state of this folder is an empty file). A torn last
record, left by a kill in the middle of a write, fails its checksum and is cut off.

Offers. Several batches may go in one POST, under the key of the last of them. How a batch was
offered is marked in its state byte before it leaves, `alone` or as one of the one `group`, and is
kept until the answer is certain: whoever offers it again, after a lost answer or a restart, offers
the same batches under the same key, so the console recognises what it has.

Replacing one batch by its two halves must survive a kill between any two writes: the halves are
written `staged`, then the whole is marked done, then the halves are made pending. On opening,
staged halves count only if their whole is no longer pending.

Durability. A write is in the page cache when `append` returns: a kill loses nothing. `sync_fd`
gives the caller a descriptor to fdatasync every few seconds, so a power cut loses those at most.

Bounds. Above `max_bytes` the oldest segment goes first and its unsent batches are counted in
`n_dropped`. If the disk refuses a write, the newest `MAX_IN_MEMORY` batches are kept in memory.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MAX_IN_MEMORY: Final = 64
SEQ_BLOCK: Final = 1 << 16
_SEGMENT_BYTES: Final = 4 * 1024 * 1024
# Each segment is one open descriptor.
_MAX_SEGMENTS: Final = 64
_HEADER: Final = struct.Struct(">cIIQQ")
_PENDING, _DONE, _STAGED = b"P", b"D", b"S"
_ALONE, _GROUPED = b"A", b"G"


class SpoolError(RuntimeError):
    """The folder cannot be used; says which and why."""


@dataclass
class _Segment:
    path: Path
    fd: int
    size: int = 0
    pending: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Place:
    """Where a pending batch is: in a segment, or in memory while the disk refuses."""

    segment: _Segment | None
    offset: int
    length: int
    payload: bytes = b""


class Spool:
    """The folder, opened by one process at a time. Not safe to use from several threads."""

    def __init__(self, folder: Path, *, max_bytes: int, now_s: float) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        # At least eight, so that a drop is a small part of the history.
        self._segment_bytes = max(min(_SEGMENT_BYTES, max_bytes // 8), max_bytes // _MAX_SEGMENTS)
        self.boot = self._number = self._next_seq = self._reserved = 0
        self._places: dict[int, _Place] = {}
        self._offers: dict[int, bytes] = {}
        self._segments: list[_Segment] = []
        self._dirty = False
        self.n_dropped = 0
        self.write_error: str | None = None
        self.warnings: list[str] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise SpoolError(f"spool_dir={str(folder)!r}: {exc.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open(now_s)
        except BlockingIOError:
            os.close(self._lock)
            raise SpoolError(f"spool_dir={str(folder)!r}: another agent is using it") from None
        except OSError as exc:
            self._close_all()
            raise SpoolError(f"spool_dir={str(folder)!r}: {exc.strerror}") from None

    # -- writing -----------------------------------------------------------------------------

    def take_seq(self) -> int:
        """The next unused sequence number."""
        if self._next_seq >= self._reserved:
            try:
                self._reserve(self._next_seq + SEQ_BLOCK)
            except OSError as exc:
                # Readings go on: only a crash before the disk is well again could reuse a number.
                self.write_error = _why(exc)
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def append(self, seq: int, payload: bytes) -> None:
        """Keep one batch until `done(seq)`. Never raises for a full disk: see `write_error`."""
        self._write(_PENDING, seq, payload, 0)

    def replace(self, seq: int, parts: list[tuple[int, bytes]]) -> None:
        """Put `parts` in the place of the pending batch `seq`, all or nothing."""
        for part_seq, payload in parts:
            self._write(_STAGED, part_seq, payload, seq)
        self.done(seq)
        for part_seq, _ in parts:
            # The bound may have dropped a part while the other was written.
            if (place := self._places.get(part_seq)) is not None:
                self._mark(place, _PENDING)

    def done(self, seq: int) -> None:
        """Forget a batch: the console has it, or it was set aside. Unknown numbers are ignored."""
        place = self._places.pop(seq, None)
        self._offers.pop(seq, None)
        if place is None or place.segment is None:
            return
        segment = place.segment
        segment.pending.discard(seq)
        if segment.pending:
            self._mark(place, _DONE)
        elif segment is self._segments[-1]:
            self._empty(segment)
        else:
            self._remove(segment)

    def offer(self, seqs: Sequence[int]) -> None:
        """Mark batches as about to leave in one POST: one alone, or several as the group."""
        self._set_offer(seqs, _ALONE if len(seqs) == 1 else _GROUPED)

    def ungroup(self, seqs: Sequence[int]) -> None:
        """The console certainly took nothing of the group: its batches go alone from now on."""
        self._set_offer(seqs, _ALONE)

    def withdraw(self, seqs: Sequence[int]) -> None:
        """They never left: as if they had not been offered."""
        self._set_offer(seqs, _PENDING)

    def _set_offer(self, seqs: Sequence[int], offer: bytes) -> None:
        for seq in seqs:
            place = self._places.get(seq)
            if place is None or self._offers.get(seq, _PENDING) == offer:
                continue
            if offer == _PENDING:
                del self._offers[seq]
            else:
                self._offers[seq] = offer
            self._mark(place, offer)

    # -- reading -----------------------------------------------------------------------------

    def group(self) -> list[int]:
        """The batches of the offered group that are still pending, oldest first."""
        return [seq for seq, offer in self._offers.items() if offer == _GROUPED]

    def fresh(self, n: int) -> list[tuple[int, int]]:
        """(seq, bytes) of the oldest pending batches, at most `n`, up to one offered before."""
        fresh = itertools.takewhile(lambda seq: seq not in self._offers, self._places)
        return [(seq, self._places[seq].length) for seq in itertools.islice(fresh, n)]

    @property
    def n_pending(self) -> int:
        return len(self._places)

    @property
    def n_bytes(self) -> int:
        """Bytes of the segment files."""
        return sum(segment.size for segment in self._segments)

    def oldest(self) -> int | None:
        """Sequence number of the pending batch written first."""
        return next(iter(self._places), None)

    def newest(self) -> int | None:
        """Sequence number of the pending batch written last."""
        return next(reversed(self._places), None)

    def read(self, seq: int) -> bytes | None:
        """The payload of a pending batch; None when it is gone or the disk will not give it."""
        place = self._places.get(seq)
        if place is None:
            return None
        if place.segment is None:
            return place.payload
        try:
            return os.pread(place.segment.fd, place.length, place.offset + _HEADER.size)
        except OSError as exc:
            self.write_error = _why(exc)
            return None

    def sync_fd(self) -> int | None:
        """A descriptor for the caller to fdatasync and close, None when nothing is unsynced."""
        if not self._dirty:
            return None
        self._dirty = False
        return os.dup(self._segments[-1].fd)

    def close(self) -> None:
        """Sync what is pending and let another process open the folder."""
        try:
            if self._dirty:
                os.fdatasync(self._segments[-1].fd)
            self._reserve(self._next_seq)
        except OSError as exc:
            self.write_error = _why(exc)
        finally:
            self._close_all()

    # -- inside ------------------------------------------------------------------------------

    def _write(self, state: bytes, seq: int, payload: bytes, replaces: int) -> None:
        record = _HEADER.pack(state, len(payload), _crc(seq, replaces, payload), seq, replaces)
        record += payload
        try:
            segment = self._room_for(len(record))
            self._append(segment, record)
        except OSError as exc:
            self.write_error = _why(exc)
            self._places[seq] = _Place(None, 0, len(payload), payload)
            self._bound_memory()
            return
        self.write_error = None
        self._places[seq] = _Place(segment, segment.size, len(payload))
        segment.pending.add(seq)
        segment.size += len(record)
        self._dirty = True

    def _append(self, segment: _Segment, record: bytes) -> None:
        try:
            if os.pwrite(segment.fd, record, segment.size) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(segment.fd, segment.size)
            raise

    def _room_for(self, n_bytes: int) -> _Segment:
        active = self._segments[-1] if self._segments else None
        if active is None or active.size + n_bytes > max(self._segment_bytes, n_bytes):
            active = self._roll()
        while self.n_bytes + n_bytes > self._max_bytes and len(self._segments) > 1:
            oldest = self._segments[0]
            self.n_dropped += len(oldest.pending)
            for seq in oldest.pending:
                del self._places[seq]
                self._offers.pop(seq, None)
            self._remove(oldest)
        return active

    def _roll(self) -> _Segment:
        if self._dirty:
            os.fdatasync(self._segments[-1].fd)
            self._dirty = False
        number = self._number + 1
        path = self._folder / f"{self.boot}-{number:012d}.segment"
        segment = _Segment(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._number = number
        self._segments.append(segment)
        return segment

    def _mark(self, place: _Place, state: bytes) -> None:
        if place.segment is not None:
            try:
                os.pwrite(place.segment.fd, state, place.offset)
                self._dirty = True
            except OSError as exc:
                # Not remembered: after a restart this batch is offered once more and recognised.
                self.write_error = _why(exc)

    def _empty(self, segment: _Segment) -> None:
        try:
            os.ftruncate(segment.fd, 0)
            segment.size = 0
            self._dirty = False
        except OSError as exc:
            self.write_error = _why(exc)

    def _remove(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        os.close(segment.fd)
        try:
            segment.path.unlink(missing_ok=True)
        except OSError as exc:
            # After a restart its batches are offered once more and recognised.
            self.write_error = _why(exc)

    def _bound_memory(self) -> None:
        held = [seq for seq, place in self._places.items() if place.segment is None]
        for seq in held[:-MAX_IN_MEMORY]:
            del self._places[seq]
            self._offers.pop(seq, None)
            self.n_dropped += 1

    # -- opening -----------------------------------------------------------------------------

    def _open(self, now_s: float) -> None:
        found = sorted(
            (int(boot), int(number), path)
            for path in self._folder.glob("*-*.segment")
            for boot, number in [path.stem.split("-", 1)]
            if boot.isdigit() and number.isdigit()
        )
        self._number = found[-1][1] if found else 0
        highest = 0
        for _, _, path in found:
            segment = _Segment(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
            self._segments.append(segment)
            highest = max(highest, self._load(segment))
        state = self._read_state()
        if state is not None:
            self.boot, self._next_seq = state
        else:
            self.boot = found[-1][0] if found else int(now_s * 1000)
            self._next_seq = int(now_s * 1000) if found else 1
        self._next_seq = max(self._next_seq, highest + 1)
        self._reserved = self._next_seq
        for segment in [entry for entry in self._segments if not entry.pending]:
            self._remove(segment)

    def _load(self, segment: _Segment) -> int:
        """Index a segment's records; returns the highest sequence number in it."""
        data = segment.path.read_bytes()
        offset, highest = 0, 0
        while offset < len(data):
            if offset + _HEADER.size > len(data):
                break
            state, length, crc, seq, replaces = _HEADER.unpack_from(data, offset)
            end = offset + _HEADER.size + length
            payload = data[offset + _HEADER.size : end]
            if (
                state not in (_PENDING, _DONE, _STAGED, _ALONE, _GROUPED)
                or len(payload) != length
                or _crc(seq, replaces, payload) != crc
            ):
                break
            highest = max(highest, seq)
            self._index(segment, state, seq, replaces, _Place(segment, offset, length))
            offset = end
        if offset < len(data):
            self.warnings.append(
                f"{segment.path.name}: {len(data) - offset} bytes after the last whole record, cut"
            )
            os.ftruncate(segment.fd, offset)
        segment.size = offset
        return highest

    def _index(
        self, segment: _Segment, state: bytes, seq: int, replaces: int, place: _Place
    ) -> None:
        if state == _STAGED:
            # The whole is still pending: the kill came before the halves took its place.
            state = _DONE if replaces in self._places else _PENDING
            os.pwrite(segment.fd, state, place.offset)
        if state in (_PENDING, _ALONE, _GROUPED):
            self._places[seq] = place
            segment.pending.add(seq)
            if state != _PENDING:
                self._offers[seq] = state

    def _read_state(self) -> tuple[int, int] | None:
        try:
            state = json.loads((self._folder / "state").read_text(encoding="utf-8"))
            return int(state["boot"]), int(state["next_seq"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as exc:
            self.warnings.append(f"state: cannot be read ({exc}), made anew")
            return None

    def _reserve(self, next_seq: int) -> None:
        """Write down, synced, that every number below `next_seq` may have been used."""
        temporary = self._folder / "state.new"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump({"boot": self.boot, "next_seq": next_seq}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._folder / "state")
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._reserved = next_seq

    def _close_all(self) -> None:
        for segment in self._segments:
            os.close(segment.fd)
        self._segments.clear()
        os.close(self._lock)


def _why(exc: OSError) -> str:
    return exc.strerror or str(exc)


def _crc(seq: int, replaces: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(f"{seq} {replaces}".encode()))
