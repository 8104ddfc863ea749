"""`python -m telemetry.agent --config agent.toml [--once] [--print]`.

Exit codes: 0 stopped as asked, 1 `--once` did not reach the console (the batch stays spooled),
2 bad configuration or spool, 3 superseded by another agent of the same name.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import msgspec

from telemetry.agent.app import Agent, read_once
from telemetry.agent.config import Config, TokenError, load, read_token
from telemetry.agent.ship import Superseded
from telemetry.agent.spool import SpoolError
from telemetry.strict_toml import TomlError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m telemetry.agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="agent.toml")
    parser.add_argument("--once", action="store_true", help="read every source once, then stop")
    parser.add_argument(
        "--print", action="store_true", help="with --once: print the batch, ship nothing"
    )
    options = parser.parse_args(arguments)
    if options.print and not options.once:
        parser.error("--print goes with --once")
    logging.basicConfig(format="%(asctime)s agent %(levelname)s %(message)s", level=logging.INFO)
    try:
        config = load(options.config)
        if options.print:
            batch = asyncio.run(read_once(config))
            print(msgspec.json.format(msgspec.json.encode(batch), indent=2).decode())
            return 0
        read_token(config)
        n_pending = asyncio.run(_serve(config, once=options.once))
    except (TomlError, SpoolError) as exc:
        print(exc, file=sys.stderr)
        return 2
    except TokenError as exc:
        print(f"{options.config}: {exc}", file=sys.stderr)
        return 2
    except Superseded as exc:
        print(exc, file=sys.stderr)
        return 3
    return 1 if options.once and n_pending else 0


async def _serve(config: Config, *, once: bool) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return await Agent(config).run(stop, once=once)


if __name__ == "__main__":
    sys.exit(main())
