"""`python -m routing.gate --config gate.toml`: runs one gate until SIGTERM or Ctrl-C.

Prints one JSON line when it listens, `{"ready": true, "url": "http://..."}`; logs go to stderr.
Exit 2: the configuration is wrong, one line on stderr says which file, key and value. SIGHUP reads
it again: upstreams, limits and certificates change without a word to streams, and a file that is
wrong changes nothing. `python -m routing.gate override` is another command (`override_command`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import random
import resource
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from routing.gate import override_command
from routing.gate.app import Gate
from routing.gate.config import ConfigError, load_config
from routing.gate.count import Tokenizer
from routing.gate.settings import GateConfig
from routing.gate.tls import Trust, load_trust
from routing.gate.tokenizer import TokenizerError, load_tokenizer

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

_ANY_HOST = ("0.0.0.0", "::", "")
_BACKLOG = 1024
_GC_THRESHOLDS = (10_000, 20, 20)
"""Objects made before a collection of the young, and how many of those before an older one."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_FROM_BYTES = 32 * 1024 * 1024
"""The most that glibc takes: what is smaller comes from memory that is kept."""
_KEPT_BYTES = 64 * 1024 * 1024
"""Free memory at the end of the heap that is not given back."""

log = logging.getLogger("routing.gate")


def _brief(record: logging.LogRecord) -> bool:
    """A client that does not speak HTTP is one line, not a traceback of ours."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg = f"not HTTP, answered {error.code}: {' '.join(error.message.split())[:200]!r}"
        record.args, record.exc_info = (), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _calm_gc() -> None:
    """Keeps collections out of the way of streams.

    What start-up made (modules, tables, a tokenizer) lives as long as the process: looking through
    it stops every stream for tens of milliseconds and frees nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _keep_memory() -> None:
    """Keeps freed memory for the next request, where the C library is glibc.

    It would give what a long prompt's few copies held back to the system and fault in every page of
    it again for the next: about a sixth of what such a request costs (tests/bench/README.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_FROM_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _open_as_many_files_as_allowed() -> None:
    """A stream is two sockets. At the 1,024 that a shell gives, a gate with 500 of them could open
    no connection to an upstream that is well, and would call it down."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Listener:
    """The listening socket, kept open while the certificate in front of it is exchanged.

    Connections that come in between wait in the socket's backlog; those that are open stay with the
    certificate they began with.
    """

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner = runner
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self.port: int = self._socket.getsockname()[1]
        self._site: web.SockSite | None = None

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Listens with this certificate from now on; None: plain HTTP."""
        site = web.SockSite(self._runner, self._socket.dup(), ssl_context=context, backlog=_BACKLOG)
        await site.start()
        before, self._site = self._site, site
        if before is not None:
            await before.stop()

    async def stop(self) -> None:
        """Takes no new connections."""
        self._socket.close()
        if self._site is not None:
            await self._site.stop()


async def serve(config: GateConfig, trust: Trust, tokenizer: Tokenizer | None, path: Path) -> None:
    """One gate from listening to its last stream. Raises OSError when it cannot listen."""
    stop, reload = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload.set)
    gate = Gate(
        config,
        trust=trust,
        tokenizer=tokenizer,
        started_at_s=time.time(),
        now_s=time.monotonic,
        epoch_s=time.time,
        rng=random.Random(),
    )
    runner = gate.runner()
    try:
        await runner.setup()
        listener = Listener(runner, config.host, config.port)
        await listener.listen(trust.listener)
        await gate.start()
        _calm_gc()
        host = "127.0.0.1" if config.host in _ANY_HOST else config.host
        scheme = "http" if trust.listener is None else "https"
        ready = {"ready": True, "url": f"{scheme}://{host}:{listener.port}"}
        print(json.dumps(ready), flush=True)
        reloading = asyncio.create_task(_reload_when(reload, gate, listener, path))
        await stop.wait()
        reloading.cancel()
        log.info("stopping: streams may go on for %g s", gate.config.drain_s)
        gate.proxy.draining = True
        await listener.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gate.proxy.idle.wait(), gate.config.drain_s)
    finally:
        await runner.cleanup()
        await gate.close()


async def _reload_when(asked: asyncio.Event, gate: Gate, listener: Listener, path: Path) -> None:
    """For ever: one reload that goes wrong must not be the last one."""
    while True:
        await asked.wait()
        asked.clear()
        try:
            await _reload(gate, listener, path)
        except ConfigError as exc:
            gate.reload_error = f"reload refused, the settings before stay: {exc}"
        except OSError as exc:
            gate.reload_error = f"reloaded, but the listener stays as it was: {exc}"
        except Exception as exc:
            log.exception("a reload failed")
            gate.reload_error = f"a reload failed: {type(exc).__name__}"
        else:
            gate.reload_error = None
            gate.metrics.reloads.add("applied")
            log.info("reloaded %s", path)
            continue
        gate.metrics.reloads.add("refused")
        log.error("%s", gate.reload_error)


async def _reload(gate: Gate, listener: Listener, path: Path) -> None:
    """Raises ConfigError for a file that is wrong, OSError where nothing can listen."""
    config = await asyncio.to_thread(load_config, path)
    trust = await asyncio.to_thread(load_trust, config, path)
    gate.reload(config, trust=trust, file=path)
    await listener.listen(trust.listener)


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["override"]:
        return override_command.main(argv[1:])
    parser = argparse.ArgumentParser(prog="python -m routing.gate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the gate's TOML file")
    path: Path = parser.parse_args(argv).config
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(_brief)
    try:
        config = load_config(path)
        trust = load_trust(config, path)
        tokenizer = load_tokenizer(Path(config.tokenizer_file)) if config.tokenizer_file else None
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    except TokenizerError as exc:
        print(f"{path}: tokenizer_file = {config.tokenizer_file!r}: {exc}", file=sys.stderr)
        return 2
    _keep_memory()
    _open_as_many_files_as_allowed()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
            runner.run(serve(config, trust, tokenizer, path))
    except OSError as exc:
        print(f"{path}: cannot listen on {config.host}:{config.port}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
