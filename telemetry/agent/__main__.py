"""`python -m telemetry.agent --config agent.toml [--name NAME] [--once] [--print]`.

SIGHUP reads the file again, as a change of it does. `--once --print` writes the batch to stdout and
what was found of each source to stderr.

Exit codes: 0 stopped as asked, 1 `--once` did not reach the console (the batch stays spooled),
2 bad configuration or spool, 3 superseded by another agent of the same name.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import sys
from pathlib import Path

import msgspec

from telemetry.agent.app import Agent, read_once
from telemetry.agent.config import TokenError, load, read_token
from telemetry.agent.report import summary
from telemetry.agent.ship import Superseded
from telemetry.agent.spool import SpoolError
from telemetry.strict_toml import TomlError

GC_OBJECTS = 20_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m telemetry.agent", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="agent.toml")
    parser.add_argument("--name", default="", help="instead of the file's `agent`")
    parser.add_argument("--once", action="store_true", help="read every source once, then stop")
    parser.add_argument(
        "--print", action="store_true", help="with --once: print the batch, ship nothing"
    )
    options = parser.parse_args(arguments)
    if options.print and not options.once:
        parser.error("--print goes with --once")
    logging.basicConfig(format="%(asctime)s agent %(levelname)s %(message)s", level=logging.INFO)
    try:
        config = load(options.config, agent=options.name)
        if options.print:
            batch = asyncio.run(read_once(config))
            if batch.report is not None:
                print(summary(batch.report), file=sys.stderr)
            print(msgspec.json.format(msgspec.json.encode(batch), indent=2).decode())
            return 0
        read_token(config)
        agent = Agent(config, options.config, name=options.name)
        n_pending = asyncio.run(_serve(agent, once=options.once))
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


async def _serve(agent: Agent, *, once: bool) -> int:
    # A scrape makes thousands of small objects and hardly a cycle. Looking for one as often as is
    # usual, through everything that was imported, was a quarter of what the agent cost.
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 20)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, agent.reload)
    return await agent.run(stop, once=once)


if __name__ == "__main__":
    sys.exit(main())
