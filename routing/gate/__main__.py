"""`python -m routing.gate --config gate.toml`: runs one gate until SIGTERM or Ctrl-C.

Prints one JSON line when it listens, `{"ready": true, "url": "http://..."}`; logs go to stderr.
Exit 2: the configuration is wrong, one line on stderr says which file, key and value.
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
import signal
import sys
import time
from pathlib import Path

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from routing.gate.app import Gate
from routing.gate.config import ConfigError, GateConfig, load_config
from routing.gate.count import Tokenizer
from routing.gate.tokenizer import TokenizerError, load_tokenizer

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

_ANY_HOST = ("0.0.0.0", "::", "")
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


async def serve(config: GateConfig, tokenizer: Tokenizer | None) -> None:
    """One gate from listening to its last stream. Raises OSError when it cannot listen."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gate = Gate(
        config,
        tokenizer=tokenizer,
        started_at_s=time.time(),
        now_s=time.monotonic,
        rng=random.Random(),
    )
    runner = gate.runner()
    try:
        await runner.setup()
        site = web.TCPSite(runner, config.host, config.port)
        await site.start()
        gate.start()
        _calm_gc()
        host = "127.0.0.1" if config.host in _ANY_HOST else config.host
        port = runner.addresses[0][1]
        print(json.dumps({"ready": True, "url": f"http://{host}:{port}"}), flush=True)
        await stop.wait()
        log.info("stopping: streams may go on for %g s", config.drain_s)
        gate.proxy.draining = True
        await site.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(gate.proxy.idle.wait(), config.drain_s)
    finally:
        await runner.cleanup()
        await gate.close()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.gate", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the gate's TOML file")
    path: Path = parser.parse_args(argv).config
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("aiohttp.server").addFilter(_brief)
    try:
        config = load_config(path)
        tokenizer = load_tokenizer(Path(config.tokenizer_file)) if config.tokenizer_file else None
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 2
    except TokenizerError as exc:
        print(f"{path}: tokenizer_file = {config.tokenizer_file!r}: {exc}", file=sys.stderr)
        return 2
    _keep_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if uvloop else None) as runner:
            runner.run(serve(config, tokenizer))
    except OSError as exc:
        print(f"{path}: cannot listen on {config.host}:{config.port}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
