"""`python -m routing.lab.load`: seeded open-loop load on one or more gates, with a record of each
request. Settings come from flags, or from a TOML file of the same names, flags winning.

It prints a progress line every 10 s on stderr and a JSON summary as the last line of stdout. With
`--admin-port` it can be steered while it runs (and prints a ready line first): `GET /summary`,
`PUT /rate {"rate_rps": 1.8}`, `PUT /mix {"mu": 9.2, "sigma": 1.0}`. Nothing is sent twice: a
request that fails has failed, and the summary says with what. A scenario of several PD clusters is
driven by one process each, whose `cluster` says which.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tomllib
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web

from routing.lab.arrivals import Drawn, Replay, Source
from routing.lab.errors import LabError, convert
from routing.lab.lengths import LogNormalLengths, lognormal, parse_lengths
from routing.lab.openai import error
from routing.lab.profile import Workload, load_scenario
from routing.lab.run import run_until_signal
from routing.lab.runner import Runner
from routing.lab.serve import open_port
from routing.lab.traces import read_trace

log = logging.getLogger("lab.load")


class LoadConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`scenario` gives rate, lengths and output where they are not set here; `trace` replaces all
    three. `duration_s` and `limit` end the arrivals, then up to `drain_s` is waited for answers."""

    targets: Annotated[list[str], msgspec.Meta(min_length=1)]
    scenario: str | None = None
    cluster: str | None = None
    rate_rps: Annotated[float, msgspec.Meta(ge=0.0)] | None = None
    lengths: Any = None
    output_tokens: Any = None
    trace: str | None = None
    speed: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    seed: int = 0
    duration_s: Annotated[float, msgspec.Meta(gt=0.0)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    drain_s: Annotated[float, msgspec.Meta(ge=0.0)] = 120.0
    prompt: Literal["ids", "text"] = "ids"
    model: str = ""
    record: str | None = None
    admin_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    host: str = "127.0.0.1"


def parse_args(argv: list[str] | None) -> LoadConfig:
    """Flags over file over defaults. Raises LabError naming the setting."""
    parser = argparse.ArgumentParser(prog="python -m routing.lab.load", description=__doc__)
    parser.add_argument("--config", type=Path, metavar="load.toml")
    parser.add_argument("--target", action="append", dest="targets", metavar="URL")
    for name in ("scenario", "cluster", "trace", "record", "model", "host"):
        parser.add_argument(f"--{name}")
    for name in ("rate-rps", "speed", "duration-s", "drain-s"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("seed", "limit", "admin-port", "output-tokens"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--prompt", choices=("ids", "text"))
    flags = {k: v for k, v in vars(parser.parse_args(argv)).items() if v is not None}
    path: Path | None = flags.pop("config", None)
    document = {} if path is None else _read(path)
    return convert(document | flags, LoadConfig, source=str(path or "flags"))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise LabError(f"cannot be read: {exc.strerror}", source=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise LabError(f"is not valid TOML: {exc}", source=str(path)) from None
    for key in ("scenario", "trace", "record"):  # named relative to the file that names them
        if isinstance(document.get(key), str):
            document[key] = str(path.parent / document[key])
    return document


def source_of(config: LoadConfig) -> Source:
    """The arrivals a configuration asks for; on the running loop. Raises LabError."""
    if config.trace is not None:
        return Replay(read_trace(Path(config.trace)), speed=config.speed, seed=config.seed)
    workload = _workload(config)
    where = config.scenario or "load"
    values = {
        name: getattr(workload, name) if getattr(config, name) is None else getattr(config, name)
        for name in ("rate_rps", "lengths", "output_tokens")
    }
    return Drawn(
        rate_rps=values["rate_rps"],
        lengths=parse_lengths(values["lengths"], field="lengths", source=where),
        outputs=parse_lengths(values["output_tokens"], field="output_tokens", source=where),
        seed=config.seed,
    )


def _workload(config: LoadConfig) -> Workload:
    if config.scenario is None:
        if config.rate_rps is None:
            raise LabError("set it, or a scenario or a trace", source="load", field="rate_rps")
        return Workload(None, config.rate_rps, config.output_tokens, config.lengths)
    workloads = load_scenario(Path(config.scenario)).workloads
    fitting = [w for w in workloads if config.cluster in (None, w.cluster)]
    if len(fitting) != 1:
        raise LabError(
            f"{len(fitting)} of {len(workloads)} workloads fit, name one by its cluster",
            source=config.scenario,
            field="cluster",
            value=config.cluster,
        )
    return fitting[0]


def admin_app(runner: Runner, source: Source) -> web.Application:
    """Live control of drawn load; a replayed trace can only be watched."""

    async def summary(request: web.Request) -> web.Response:
        return web.json_response(runner.summary())

    async def change(request: web.Request) -> web.Response:
        if not isinstance(source, Drawn):
            return error(409, "a replayed trace keeps its own times and lengths", "Conflict")
        try:
            _change(source, request.path, msgspec.json.decode(await request.read()))
        except (LabError, msgspec.MsgspecError) as exc:
            return error(422, str(exc), "BadRequestError")
        log.info(
            "%s %s", request.path, source.lengths if request.path == "/mix" else source.rate_rps
        )
        return web.json_response(runner.summary())

    app = web.Application()
    app.router.add_get("/summary", summary)
    app.router.add_put("/rate", change)
    app.router.add_put("/mix", change)
    return app


class _Rate(msgspec.Struct, forbid_unknown_fields=True):
    rate_rps: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]


class _Mix(msgspec.Struct, forbid_unknown_fields=True):
    mu: float
    sigma: float
    min: float | None = None
    max: float | None = None


def _change(source: Drawn, path: str, document: Any) -> None:
    if path == "/rate":
        source.rate_rps = convert(document, _Rate, source="").rate_rps
        return
    mix, now = convert(document, _Mix, source=""), source.lengths
    low, high = (now.min, now.max) if isinstance(now, LogNormalLengths) else (1, 131_072)
    source.lengths = lognormal(
        mix.mu,
        mix.sigma,
        low if mix.min is None else mix.min,
        high if mix.max is None else mix.max,
        field="mix",
        source="",
    )


async def drive(config: LoadConfig, stop: asyncio.Event) -> None:
    source = source_of(config)
    async with AsyncExitStack() as closing:
        runner = await closing.enter_async_context(
            Runner(
                source,
                targets=config.targets,
                form=config.prompt,
                model=config.model,
                seed=config.seed,
                limit=config.limit,
                record=None if config.record is None else Path(config.record),
            )
        )
        if config.admin_port is not None:
            app = admin_app(runner, source)
            url = await open_port(app, config.host, config.admin_port, closing)
            print(msgspec.json.encode({"ready": True, "admin": url}).decode(), flush=True)
        await runner.run(stop, duration_s=config.duration_s, drain_s=config.drain_s)
        print(msgspec.json.encode(runner.summary()).decode(), flush=True)


def main(argv: list[str] | None = None) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        config = parse_args(argv)
        run_until_signal(lambda stop: drive(config, stop))
    except LabError as exc:
        print(exc, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
