"""Batches on disk: what survives a kill, what goes first when there is no room, and the keys."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from telemetry.agent import spool as spool_module
from telemetry.agent.spool import Spool, SpoolError

MIB = 1024 * 1024


def opened(folder: Path, *, max_bytes: int = MIB, now_s: float = 1.7e9) -> Spool:
    return Spool(folder, max_bytes=max_bytes, now_s=now_s)


def kill(spool: Spool) -> None:
    """What a SIGKILL leaves: descriptors closed by the kernel, nothing written any more."""
    spool._close_all()


def fill(spool: Spool, *payloads: bytes) -> list[int]:
    seqs = [spool.take_seq() for _ in payloads]
    for seq, payload in zip(seqs, payloads, strict=True):
        spool.append(seq, payload)
    return seqs


def pending(spool: Spool) -> list[bytes]:
    """Payloads in the order they were written."""
    return [payload for seq in list(spool._places) if (payload := spool.read(seq)) is not None]


def test_a_batch_stays_until_it_is_done(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    a, b = fill(spool, b"first", b"second")
    assert (spool.oldest(), spool.newest(), spool.n_pending) == (a, b, 2)
    assert spool.read(a) == b"first"
    spool.done(a)
    spool.done(a)
    assert (spool.oldest(), spool.read(a)) == (b, None)
    spool.done(b)
    assert (spool.oldest(), spool.newest(), spool.n_bytes) == (None, None, 0)
    spool.close()


def test_a_kill_loses_nothing_and_reuses_no_number(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    seqs = fill(spool, b"a", b"b", b"c")
    spool.done(seqs[1])
    boot = spool.boot
    kill(spool)
    again = opened(tmp_path, now_s=1.8e9)
    assert again.boot == boot == 1_700_000_000_000
    assert pending(again) == [b"a", b"c"]
    assert again.take_seq() > seqs[-1]
    again.close()


def test_a_number_given_out_before_a_kill_is_never_given_again(tmp_path: Path) -> None:
    """Even where its batch was sent and left nothing on disk."""
    used: set[int] = set()
    for _ in range(3):
        spool = opened(tmp_path)
        [seq] = fill(spool, b"x")
        spool.done(seq)
        assert seq not in used
        used.add(seq)
        kill(spool)


def test_a_clean_stop_skips_no_number(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, b"x")
    spool.close()
    again = opened(tmp_path)
    assert again.take_seq() == 2
    again.close()


@pytest.mark.parametrize("cut", [1, 5, 6, 29])
def test_a_torn_last_record_is_cut_off_and_the_rest_stands(tmp_path: Path, cut: int) -> None:
    spool = opened(tmp_path)
    fill(spool, b"whole", b"torn!")
    [segment] = tmp_path.glob("*.segment")
    kill(spool)
    os.truncate(segment, segment.stat().st_size - cut)
    again = opened(tmp_path)
    assert pending(again) == [b"whole"]
    assert [f"{30 - cut} bytes after the last whole record" in w for w in again.warnings] == [True]
    fill(again, b"next")
    kill(again)
    third = opened(tmp_path)
    assert pending(third) == [b"whole", b"next"]
    third.close()


def test_a_damaged_record_is_not_believed(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, b"good", b"bad..", b"after")
    [segment] = tmp_path.glob("*.segment")
    kill(spool)
    data = bytearray(segment.read_bytes())
    data[data.index(b"bad..")] ^= 1
    segment.write_bytes(bytes(data))
    again = opened(tmp_path)
    assert pending(again) == [b"good"]
    assert "cut" in again.warnings[0]
    again.close()


def test_the_bound_drops_the_oldest_and_counts(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=MIB)
    payloads = [bytes([i % 256]) * 10_000 for i in range(300)]
    fill(spool, *payloads)
    on_disk = sum(path.stat().st_size for path in tmp_path.glob("*.segment"))
    assert spool.n_bytes == on_disk <= MIB
    assert spool.n_dropped + spool.n_pending == 300
    assert spool.n_dropped > 0
    assert pending(spool) == payloads[spool.n_dropped :]
    spool.close()
    again = opened(tmp_path)
    assert pending(again) == payloads[-again.n_pending :]
    again.close()


def test_one_batch_larger_than_a_segment_is_kept(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    fill(spool, b"small", b"x" * (MIB // 2), b"small too")
    assert [len(payload) for payload in pending(spool)] == [5, MIB // 2, 9]
    spool.close()


def test_segments_that_are_done_are_removed(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    seqs = fill(spool, *[b"x" * 10_000] * 50)
    assert len(list(tmp_path.glob("*.segment"))) > 2
    for seq in seqs:
        spool.done(seq)
    [left] = tmp_path.glob("*.segment")
    assert left.stat().st_size == 0
    spool.close()


def test_halves_take_the_place_of_their_whole(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    before, whole = fill(spool, b"before", b"whole")
    parts = [(spool.take_seq(), b"left"), (spool.take_seq(), b"right")]
    spool.replace(whole, parts)
    assert pending(spool) == [b"before", b"left", b"right"]
    kill(spool)
    again = opened(tmp_path)
    assert pending(again) == [b"before", b"left", b"right"]
    assert again.oldest() == before
    again.close()


@pytest.mark.parametrize("n_writes", range(1, 6))
def test_a_kill_within_a_split_leaves_the_whole_or_its_halves(
    tmp_path: Path, n_writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never both: that would store one reading twice. Never neither."""

    class Killed(BaseException):
        pass

    spool = opened(tmp_path)
    [whole, _] = fill(spool, b"whole", b"other")
    parts = [(spool.take_seq(), b"left"), (spool.take_seq(), b"right")]
    left = n_writes
    write = os.pwrite

    def dying(fd: int, data: bytes, offset: int) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return write(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", dying)
    with pytest.raises(Killed):
        spool.replace(whole, parts)
    monkeypatch.setattr(os, "pwrite", write)
    kill(spool)
    again = opened(tmp_path)
    found = pending(again)
    assert found == ([b"whole", b"other"] if n_writes < 4 else [b"other", b"left", b"right"])
    kill(again)
    third = opened(tmp_path)
    assert pending(third) == found
    third.close()


def test_two_agents_cannot_share_a_folder(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(SpoolError, match="another agent is using it"):
        opened(tmp_path)
    spool.close()
    opened(tmp_path).close()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="spool_dir="):
        opened(tmp_path / "file" / "spool")


@pytest.mark.parametrize("state", [None, "not json", '{"boot": 1}'])
def test_a_lost_state_file_reuses_no_number(tmp_path: Path, state: str | None) -> None:
    spool = opened(tmp_path)
    seqs = fill(spool, *[b"x"] * 10)
    spool.done(seqs[-1])
    boot = spool.boot
    kill(spool)
    (tmp_path / "state").unlink()
    if state is not None:
        (tmp_path / "state").write_text(state)
    again = opened(tmp_path, now_s=1.8e9)
    assert again.boot == boot
    assert again.n_pending == 9
    assert again.take_seq() == 1_800_000_000_000
    again.close()
    assert json.loads((tmp_path / "state").read_text())["boot"] == boot


def test_a_new_folder_is_a_later_boot(tmp_path: Path) -> None:
    first = opened(tmp_path / "a", now_s=1.7e9)
    second = opened(tmp_path / "b", now_s=1.7e9 + 1)
    assert second.boot > first.boot
    first.close()
    second.close()


def test_a_full_disk_keeps_the_newest_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(tmp_path)
    fill(spool, b"on disk")
    write = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        return write(fd, data[: len(data) // 2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(spool_module, "MAX_IN_MEMORY", 3)
    seqs = fill(spool, *[b"%d" % i for i in range(5)])
    assert spool.write_error == "No space left on device"
    assert pending(spool) == [b"on disk", b"2", b"3", b"4"]
    assert spool.n_dropped == 2
    spool.done(seqs[-1])
    monkeypatch.setattr(os, "pwrite", write)
    fill(spool, b"on disk again")
    assert spool.write_error is None
    kill(spool)
    again = opened(tmp_path)
    assert pending(again) == [b"on disk", b"on disk again"]
    again.close()


def test_what_is_unsynced_is_offered_for_syncing_once(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    assert spool.sync_fd() is None
    fill(spool, b"x")
    descriptor = spool.sync_fd()
    assert descriptor is not None
    os.fdatasync(descriptor)
    os.close(descriptor)
    assert spool.sync_fd() is None
    spool.close()


def test_a_disk_that_only_reads_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system the kernel remounted read-only still lets batches be sent and forgotten."""
    spool = opened(tmp_path, max_bytes=16 * 1024)
    seqs = fill(spool, *[b"x" * 1000] * 10)
    n_segments = len(list(tmp_path.glob("*.segment")))
    assert n_segments > 1

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for name in ("unlink", "pwrite", "ftruncate"):
        monkeypatch.setattr(spool_module.os, name, read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    for seq in seqs:
        assert spool.read(seq) == b"x" * 1000
        spool.done(seq)
    assert spool.n_pending == 0
    assert spool.write_error == "Read-only file system"
    assert len(list(tmp_path.glob("*.segment"))) == n_segments


def test_a_disk_that_gives_nothing_back_costs_its_batches_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(tmp_path)
    [seq] = fill(spool, b"a")

    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(spool_module.os, "pread", broken)
    assert spool.read(seq) is None
    assert spool.write_error == "Input/output error"


def test_how_batches_were_offered_survives_a_kill(tmp_path: Path) -> None:
    """A group is offered again as it was, so the console knows it by its last key."""
    spool = opened(tmp_path)
    seqs = fill(spool, b"a", b"b", b"c", b"d", b"e")
    assert [seq for seq, _ in spool.fresh(3)] == seqs[:3]
    assert spool.fresh(1) == [(seqs[0], 1)]
    spool.offer(seqs[:3])
    spool.offer([seqs[4]])
    kill(spool)
    again = opened(tmp_path)
    assert (again.group(), again.fresh(9)) == (seqs[:3], [])
    again.done(seqs[0])
    assert again.group() == seqs[1:3]
    again.ungroup(seqs[1:3])
    assert (again.group(), again.fresh(9)) == ([], [])
    again.withdraw(seqs[1:3])
    assert [seq for seq, _ in again.fresh(9)] == seqs[1:4]
    kill(again)
    assert [seq for seq, _ in opened(tmp_path).fresh(9)] == seqs[1:4]


def test_a_group_keeps_its_last_batch_when_the_spool_runs_full(tmp_path: Path) -> None:
    spool = opened(tmp_path, max_bytes=8000)
    seqs = fill(spool, *(b"x" * 400 for _ in range(10)))
    spool.offer(seqs)
    fill(spool, *(b"y" * 400 for _ in range(12)))
    assert spool.n_dropped > 0
    assert spool.group() == seqs[spool.n_dropped :]
