"""1,000 pages of engine metrics for a server that scrapes: `scrape_target.py PORT N_VERSIONS`.

Run by the benchmark kit's Python with the kit's `fleet.py` beside it. `/a/N` is the page of agent
N: 8 instances of 20 series, uncompressed, so that nobody pays for gzip. A page has `N_VERSIONS`
versions and shows the next one each second, all made before the first line is printed.
"""

from __future__ import annotations

import asyncio
import sys
import time

import fleet

_N_AGENTS = 1000
_PER_AGENT = 8


def pages(n_versions: int) -> list[list[bytes]]:
    """Whole HTTP answers, (n_versions, n_agents)."""
    made = fleet.Fleet(_N_AGENTS, _PER_AGENT)
    heads = []
    for n in range(made.N):
        labels = ",".join(f'{k}="{v}"' for k, v in made.labels(n).items() if k != "job")
        heads.append([f"{name}{{{labels}}} " for name in fleet.NAMES])
    versions = []
    for _ in range(n_versions):
        rows = made.step().tolist()
        lines = [
            "".join(f"{head}{value!r}\n" for head, value in zip(heads[n], rows[n], strict=True))
            for n in range(made.N)
        ]
        texts = [
            "".join(lines[at : at + _PER_AGENT]).encode() for at in range(0, made.N, _PER_AGENT)
        ]
        versions.append([_answer(text) for text in texts])
    return versions


def _answer(text: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n"
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(text), text)


class Target(asyncio.Protocol):
    """One connection of the scraping server, kept open."""

    def __init__(self, versions: list[list[bytes]]) -> None:
        self._versions = versions
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            agent = int(head.split(b" ", 2)[1].rpartition(b"/")[2])
            version = self._versions[int(time.time()) % len(self._versions)]
            self._transport.write(version[agent])


async def serve(port: int, n_versions: int) -> None:
    versions = pages(n_versions)
    server = await asyncio.get_running_loop().create_server(
        lambda: Target(versions), "127.0.0.1", port, backlog=4096
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
