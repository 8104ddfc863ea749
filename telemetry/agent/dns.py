"""Instances by DNS: one for each answer to A, AAAA or SRV.

The system resolver has no call for SRV (RFC 2782), so this asks a name server itself: one question
by UDP, again by TCP where the answer was cut short (RFC 1035). Compressed names are followed
backwards only, so a hostile answer ends.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from telemetry.agent.discovery import DiscoveryError, Publish, Target, split_port

TIMEOUT_S: Final = 3.0
MAX_ANSWERS: Final = 4096
RESOLV_CONF: Final = Path("/etc/resolv.conf")
_HEADER: Final = struct.Struct(">HHHHHH")
_SRV: Final = 33
_TRUNCATED, _ANSWER, _RECURSION_DESIRED = 0x0200, 0x8000, 0x0100
_NO_ERROR, _NO_SUCH_NAME = 0, 3


@dataclass(frozen=True)
class Service:
    """One SRV record."""

    host: str
    port: int


class DnsFinder:
    """Asks for all names every `refresh_s`.

    An answer without any instance counts only once it comes twice in a row: a name server that
    loses its zone for a moment must not empty a pool.
    """

    def __init__(
        self,
        names: Sequence[str],
        record: Literal["A", "AAAA", "SRV"],
        *,
        nameserver: str,
        refresh_s: float,
        rng: random.Random,
    ) -> None:
        self._names, self._record = names, record
        self._nameserver, self._refresh_s, self._rng = nameserver, refresh_s, rng
        self._n_empty = 0
        self.problem: str | None = None

    async def run(self, publish: Publish) -> None:
        while True:
            await self.ask(publish)
            await asyncio.sleep(self._refresh_s)

    async def ask(self, publish: Publish) -> None:
        """Once: tell what the names stand for, or keep what was told and say why."""
        try:
            async with asyncio.timeout(TIMEOUT_S * len(self._names)):
                found = [target for name in self._names for target in await self._targets(name)]
        except TimeoutError:
            self.problem = f"{', '.join(self._names)}: no answer within {TIMEOUT_S:g} s a name"
            return
        except (DiscoveryError, OSError) as exc:
            self.problem = f"{', '.join(self._names)}: {exc}"
            return
        self.problem = None
        self._n_empty = 0 if found else self._n_empty + 1
        if found or self._n_empty > 1:
            publish(found)

    async def _targets(self, name: str) -> list[Target]:
        if self._record == "SRV":
            answers = await services(name, nameserver=self._nameserver, rng=self._rng)
            return [Target(entry.host.split(".")[0], entry.host, entry.port) for entry in answers]
        family = socket.AF_INET if self._record == "A" else socket.AF_INET6
        loop = asyncio.get_running_loop()
        try:
            answers_of = await loop.getaddrinfo(name, None, family=family, type=socket.SOCK_STREAM)
        except socket.gaierror as exc:
            if exc.errno in (socket.EAI_NONAME, socket.EAI_NODATA):
                return []
            raise
        addresses = sorted({str(answer[4][0]) for answer in answers_of})
        return [Target(address, address) for address in addresses]


async def services(name: str, *, nameserver: str, rng: random.Random) -> list[Service]:
    """The SRV records of `name`; none where there is no such name. Raises DiscoveryError, OSError.

    `nameserver` is `host` or `host:port`; empty takes the first of the system's.
    """
    host, port = split_port(nameserver or _system_nameserver())
    number = rng.randrange(1 << 16)
    question = _question(number, name)
    answer = await _ask_udp(question, host, port or 53)
    if _header(answer, number)[1] & _TRUNCATED:
        answer = await _ask_tcp(question, host, port or 53)
    return read_answer(answer, number)


def read_answer(answer: bytes, number: int) -> list[Service]:
    """SRV records of one message that answers question `number`. Raises DiscoveryError."""
    _, flags, n_questions, n_answers, _, _ = _header(answer, number)
    code = flags & 0xF
    if code == _NO_SUCH_NAME:
        return []
    if code != _NO_ERROR:
        raise DiscoveryError(f"the name server answers with error {code}")
    found = []
    try:
        offset = _HEADER.size
        for _ in range(n_questions):
            offset = _name(answer, offset)[1] + 4
        for _ in range(min(n_answers, MAX_ANSWERS)):
            offset = _name(answer, offset)[1]
            kind, _, _, length = struct.unpack_from(">HHIH", answer, offset)
            offset += 10
            if kind == _SRV:
                _, _, port = struct.unpack_from(">HHH", answer, offset)
                host, _ = _name(answer, offset + 6)
                if host:  # a single dot says that the service is not here
                    found.append(Service(host, port))
            offset += length
    except (struct.error, IndexError, UnicodeDecodeError):
        raise DiscoveryError("the name server's answer cannot be read") from None
    return sorted(set(found), key=lambda entry: (entry.host, entry.port))


def _header(answer: bytes, number: int) -> tuple[int, ...]:
    if len(answer) < _HEADER.size:
        raise DiscoveryError("the name server's answer is cut short")
    header = _HEADER.unpack_from(answer)
    if header[0] != number or not header[1] & _ANSWER:
        raise DiscoveryError("the name server answers another question")
    return header


def _question(number: int, name: str) -> bytes:
    head = _HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0)
    return head + written_name(name) + struct.pack(">HH", _SRV, 1)


def written_name(name: str) -> bytes:
    """A name as labels with their lengths. Raises DiscoveryError."""
    labels = name.rstrip(".").encode("idna" if not name.isascii() else "ascii").split(b".")
    if not all(0 < len(label) < 64 for label in labels) or len(name) > 253:
        raise DiscoveryError(f"{name!r} is no DNS name")
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def _name(message: bytes, offset: int) -> tuple[str, int]:
    """(name, offset behind it). Raises IndexError or UnicodeDecodeError for one that is none."""
    labels: list[str] = []
    end: int | None = None
    for _ in itertools.repeat(None, 128):
        length = message[offset]
        if length >= 0xC0:
            target = (length & 0x3F) << 8 | message[offset + 1]
            end = offset + 2 if end is None else end
            if target >= offset:
                raise IndexError
            offset = target
        elif length == 0:
            return ".".join(labels), offset + 1 if end is None else end
        else:
            label = message[offset + 1 : offset + 1 + length]
            if len(label) != length or length > 63:
                raise IndexError
            labels.append(label.decode("ascii"))
            offset += 1 + length
    raise IndexError


class _OneAnswer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _ask_udp(question: bytes, host: str, port: int) -> bytes:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(_OneAnswer, remote_addr=(host, port))
    try:
        transport.sendto(question)
        return await protocol.answer
    finally:
        transport.close()


async def _ask_tcp(question: bytes, host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(struct.pack(">H", len(question)) + question)
        (length,) = struct.unpack(">H", await reader.readexactly(2))
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise DiscoveryError("the name server hung up") from None
    finally:
        writer.close()


def _system_nameserver() -> str:
    try:
        lines = RESOLV_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as exc:
        raise DiscoveryError(f"{RESOLV_CONF}: {exc.strerror}") from None
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[0] == "nameserver":
            return words[1]
    raise DiscoveryError(f"{RESOLV_CONF} names no server")
