"""`python -m routing.adapters.pings --manifest FILE --router HOST:PORT`: instances of a vllm-router
that finds them by ZMQ (`--vllm-discovery-address`).

Such a router has whoever pings it, each time with a type (P or D), and forgets who has not for 5 s.
This process pings for the instances of a manifest, so that roles are what the file says and stay so
while the console is down. Engines must then not ping by themselves. Whom the router may have by it
is in `FILE.pinged`; that this cannot be written stops no ping.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import zmq

from routing.adapters import manifest, pinged, places
from routing.adapters.pinged import State, state_path
from routing.adapters.surface import Role, SurfaceError

EACH_S = 1.0
_TYPES: dict[Role, str] = {"prefill": "P", "decode": "D"}
_PORTS = {"http": 80, "https": 443}
log = logging.getLogger("pings")


def follow(path: Path, router: str, stop: threading.Event) -> None:
    """Ping until `stop`. A manifest that cannot be read leaves the last good one in force.

    Raises zmq.ZMQError for a `router` that is no HOST:PORT.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        # Pings that a router missed must not reach it later, in roles that are over.
        dealer.setsockopt(zmq.IMMEDIATE, 1)
        dealer.connect(f"tcp://{router}")
        wanted: dict[str, Role] = {}
        state, said = _left(path), ""
        while not stop.is_set():
            error = ""
            try:
                listed = manifest.read(path, router=router)
                wanted = {url: entry.worker_type for url, entry in listed.items()}
            except SurfaceError as exc:
                error = str(exc)
            due = state.due(wanted)
            sent = {url: role for url, role in due.items() if _ping(dealer, url, role)}
            if len(sent) < len(due):
                error = f"{router} takes no pings"
            state = state.after(sent, at_s=time.time(), steady_s=time.monotonic(), error=error)
            error = _leave(path, state) or error
            if error and error != said:
                log.warning("%s", error)
            said = error
            stop.wait(EACH_S)


def _left(path: Path) -> State:
    """What the process before this one left."""
    at_s, steady_s = time.time(), time.monotonic()
    try:
        raw = places.content(state_path(path), max_bytes=pinged.MAX_BYTES)
        left = msgspec.json.decode(raw, type=State)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        left = State(at_s, steady_s, {})
    return left.taken_over(at_s=at_s, steady_s=steady_s)


def _leave(path: Path, state: State) -> str:
    """Why it cannot be written, if so. The console then takes it as silent; the router does not."""
    try:
        raw = msgspec.json.encode(state)
        places.replace_file(state_path(path), raw, is_lasting=False)
    except OSError as exc:
        return f"{state_path(path)}: {exc.strerror}"
    return ""


def _ping(dealer: zmq.Socket[bytes], url: str, role: Role) -> bool:
    """Whether it went to a router that is there."""
    parts = urlsplit(url)
    address = parts.netloc if parts.port else f"{parts.netloc}:{_PORTS[parts.scheme]}"
    ping = {"type": _TYPES[role], "http_address": address, "zmq_address": address}
    try:
        dealer.send(msgspec.msgpack.encode(ping), zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.adapters.pings", description=__doc__)
    parser.add_argument("--manifest", type=Path, required=True, metavar="FILE")
    parser.add_argument("--router", required=True, metavar="HOST:PORT")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        follow(args.manifest, args.router, stop)
    except zmq.ZMQError as exc:
        print(f"--router {args.router}: {exc.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
