"""`python -m routing.lab.stack --config stack.toml`: one emulated fleet in one process.

It hosts the engines of the PD clusters and of the PrfaaS clusters linked to them, the links, and
per PD cluster two kinds of OpenAI upstream: local, and one remote per PrfaaS cluster. When all
ports answer it prints one JSON line on stdout (`{"ready": true, ...}`); logs go to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from routing.lab.config import StackConfig, load_config
from routing.lab.errors import LabError
from routing.lab.fleet import build
from routing.lab.run import run_until_signal
from routing.lab.serve import start

log = logging.getLogger("lab.stack")


async def serve(config: StackConfig, stop: asyncio.Event) -> None:
    async with AsyncExitStack() as closing:
        ready = await start(build(config), config, closing)
        print(msgspec.json.encode(ready).decode(), flush=True)
        log.info("serving %d engines, admin at %s", len(ready["engines"]), ready["admin"])
        await stop.wait()
        log.info("stopping")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m routing.lab.stack", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="stack.toml")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        config = load_config(args.config)
        run_until_signal(lambda stop: serve(config, stop))
    except LabError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
