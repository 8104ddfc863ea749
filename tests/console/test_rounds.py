"""Connections read in rounds: all at once, nothing twice, nobody else's."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from console.rounds import Rounds

ROUND_S = 0.02


class Reader:
    """Keeps what it is given."""

    def __init__(self, *, ready: bool = True) -> None:
        self.ready = ready
        self.got: list[bytes] = []

    def is_ready(self) -> bool:
        return self.ready

    def read(self, data: bytes) -> None:
        self.got.append(data)


def pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    return near, far


async def rounds_pass(n: int = 3) -> None:
    await asyncio.sleep(n * ROUND_S)


async def test_what_came_between_two_rounds_is_one_reading_of_each() -> None:
    rounds = Rounds(asyncio.get_running_loop(), round_s=ROUND_S)
    pairs = [(*pair(), Reader()) for _ in range(50)]
    for near, _, reader in pairs:
        rounds.adopt(near.fileno(), reader)
    for i, (_, far, _) in enumerate(pairs):
        far.sendall(b"%d," % i)
        far.sendall(b"more")
    await rounds_pass()
    assert [reader.got for _, _, reader in pairs] == [[b"%d,more" % i] for i in range(50)]
    for near, far, _ in pairs:
        near.close()
        far.close()


async def test_who_is_not_ready_finds_it_later_and_who_closes_says_nothing_once() -> None:
    rounds = Rounds(asyncio.get_running_loop(), round_s=ROUND_S)
    near, far = pair()
    reader = Reader(ready=False)
    rounds.adopt(near.fileno(), reader)
    far.sendall(b"wait")
    await rounds_pass()
    assert reader.got == []
    reader.ready = True
    await rounds_pass()
    assert reader.got == [b"wait"]
    far.close()
    await rounds_pass(1)
    rounds.release(near.fileno(), reader)
    await rounds_pass()
    assert set(reader.got[1:]) == {b""}
    near.close()


async def test_one_that_fails_is_closed_and_stops_no_round(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Reader):
        def read(self, data: bytes) -> None:
            super().read(data)
            if data:
                raise ValueError("nobody foresaw this")

    rounds = Rounds(asyncio.get_running_loop(), round_s=ROUND_S)
    failing, other = Failing(), Reader()
    ends = [pair(), pair()]
    for (near, _), reader in zip(ends, (failing, other), strict=True):
        rounds.adopt(near.fileno(), reader)
    for word in (b"a", b"b"):
        for _, far in ends:
            far.sendall(word)
        await rounds_pass()
    assert failing.got == [b"a", b"", b"b", b""], "told each time that its connection is over"
    assert other.got == [b"a", b"b"]
    assert "nobody foresaw this" in caplog.text
    for near, far in ends:
        near.close()
        far.close()


async def test_who_left_is_not_read_and_a_number_used_again_is_the_new_ones() -> None:
    rounds = Rounds(asyncio.get_running_loop(), round_s=ROUND_S)
    old_near, old_far = pair()
    old, new = Reader(), Reader()
    number = old_near.fileno()
    rounds.adopt(number, old)
    near, far = pair()
    old_near.close()
    os.dup2(near.fileno(), number)
    rounds.adopt(number, new)
    rounds.release(number, old)  # it learns late that it is closed
    far.sendall(b"mine")
    await rounds_pass()
    assert (old.got, new.got) == ([], [b"mine"])
    rounds.release(number, new)
    far.sendall(b"nobody's")
    await rounds_pass()
    assert new.got == [b"mine"]
    os.close(number)
    for each in (old_far, near, far):
        each.close()
