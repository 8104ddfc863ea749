"""`python -m telemetry.doors.pull`: an agent whose one source is a Prometheus that is there.

To try the console without touching a site: every few seconds it asks for the raw samples of what
the rules match, makes readings of them and ships these as any agent does, through a spool.

Exit codes: 0 stopped as asked, 1 `--once` did not reach the console or Prometheus, 2 bad rules,
token or spool, 3 superseded by another agent of the same name.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from telemetry import wire
from telemetry.agent import app
from telemetry.agent.config import TokenError
from telemetry.agent.ship import POST_TIMEOUT_S, Shipper, Superseded
from telemetry.agent.spool import Spool, SpoolError
from telemetry.doors import mapping
from telemetry.doors.intake import Intake, Receipt, Refused
from telemetry.doors.mapping import RuleEntry, Rules
from telemetry.doors.points import Point
from telemetry.doors.promql import Client, QueryFailed, quoted
from telemetry.doors.reporting import report
from telemetry.doors.snapshot import UP, Sample
from telemetry.engine_maps import ENDS, MAPS
from telemetry.strict_toml import TomlError

log = logging.getLogger(__name__)

LATE_S = 15.0
"""A scrape is stored when it ends, with the time it began: so far back is asked again."""
TTL_S = 60.0
"""Raw samples come without the marks that end a series, so a silent one is dropped sooner."""
REPORT_EVERY_S = 30.0
_SPOOL_MAX_BYTES = 256 * 1024 * 1024
_HOST_NAMES = r"node_(network|netstat|bonding|boot)_.+"


def questions(rules: Rules) -> list[str]:
    """One selector a rule, of the names that the maps know."""
    found = []
    for entry, _ in rules.entries:
        if entry.kind != "drop":
            match = {"__name__": _names(entry), **entry.match}
            found.append("{" + ",".join(f"{k}=~{quoted(v)}" for k, v in match.items()) + "}")
    return list(dict.fromkeys(found))


def _names(entry: RuleEntry) -> str:
    """A regular expression of the names that a rule's families know."""
    names = {UP}
    if entry.kind == "link":
        return f"{UP}|{_HOST_NAMES}"
    for family, engine_map in MAPS.items():
        if engine_map.kind != entry.kind or (
            entry.engine not in ("auto", family) and engine_map.layer == "engine"
        ):
            continue
        names.update(engine_map.start_time, engine_map.only_here)
        for prefix in engine_map.prefixes:
            if prefix:
                names.add(f"{prefix}.+")
            else:
                names.update(name + end for name in engine_map.series_names() for end in ENDS)
    return "|".join(sorted(names))


class Puller:
    """Asks one Prometheus and turns what is new into samples."""

    def __init__(
        self,
        client: Client,
        rules: Rules,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client, self._clock = client, clock
        self._questions = questions(rules)
        self.intake = Intake(rules, ttl_s=TTL_S)
        self._asked_s = 0.0

    def pull(self) -> list[Sample]:
        """Samples of every scrape since the last time. Raises QueryFailed."""
        now_s = self._clock()
        back_s = min(now_s - self._asked_s, TTL_S) + LATE_S
        receipt = Receipt(now_s)
        for question in self._questions:
            for labels, points in self._client.query(f"{question}[{round(back_s)}s]", at_s=now_s):
                self._take(labels, points, receipt)
        self._asked_s = now_s
        if receipt.problems:
            log.warning("%s", receipt.words())
        due = self.intake.due(now_s, all_of_them=True)
        for entry in due:
            self.intake.settle(entry, stored=True)
        return [entry.sample for entry in due if entry.sample is not None]

    def _take(
        self,
        labels: Mapping[str, str],
        points: Sequence[tuple[float, float | None]],
        receipt: Receipt,
    ) -> None:
        try:
            series = self.intake.series(tuple(labels.items()))
        except Refused as exc:
            receipt.refuse(str(exc), len(points))
            return
        fresh = [
            # A NaN in an answer is a measurement that is none, not the end of the series.
            Point(float("nan") if value is None else value, at_ms)
            for at_s, value in points
            if (at_ms := round(at_s * 1000)) > series.at_ms
        ]
        self.intake.take(series, fresh, receipt)


async def ship(puller: Puller, options: argparse.Namespace, stop: asyncio.Event) -> int:
    """Pull and ship until told to stop; returns the batches that the console does not have."""
    agent = f"pull/{puller.intake.rules.name}"
    spool = Spool(options.spool_dir, max_bytes=_SPOOL_MAX_BYTES, now_s=time.time())
    with contextlib.closing(spool):
        async with app.new_session() as session:
            shipper = _shipper(spool, session, options)
            shipping = asyncio.create_task(shipper.run())
            try:
                await _rounds(puller, agent, spool, shipper, (shipping, stop), options)
                if not shipper.away and not shipping.done():
                    settled = asyncio.create_task(shipper.until_settled())
                    await asyncio.wait(
                        (shipping, settled),
                        timeout=POST_TIMEOUT_S if options.once else app.LAST_SEND_S,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    settled.cancel()
            finally:
                shipping.cancel()
                # Ends by our cancelling it, or raises what ended it before: Superseded.
                with contextlib.suppress(asyncio.CancelledError):
                    await shipping
        return spool.n_pending


def _shipper(spool: Spool, session: aiohttp.ClientSession, options: argparse.Namespace) -> Shipper:
    return Shipper(
        spool=spool,
        session=session,
        console_url=options.console,
        token=lambda: _token(options.token_file),
        refused_file=options.spool_dir / "refused.jsonl",
        clock=time.time,
        rng=random.Random(),
    )


async def _rounds(
    puller: Puller,
    agent: str,
    spool: Spool,
    shipper: Shipper,
    ends: tuple[asyncio.Task[None], asyncio.Event],
    options: argparse.Namespace,
) -> None:
    shipping, stop = ends
    started_s, reported_s, trouble = time.time(), 0.0, ""
    if spool.n_pending:
        shipper.wake()
    while not stop.is_set() and not shipping.done():
        try:
            samples = await asyncio.to_thread(puller.pull)
            trouble = ""
        except QueryFailed as exc:
            if options.once:
                raise
            if not trouble:
                log.warning("%s", exc)
            samples, trouble = [], str(exc)
        told = None
        if time.time() - reported_s >= REPORT_EVERY_S:
            reported_s = time.time()
            told = report(puller.intake, started_s=started_s)
        _keep(samples, agent, spool, shipper, told)
        if options.once:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), options.interval)


def _keep(
    samples: Sequence[Sample],
    agent: str,
    spool: Spool,
    shipper: Shipper,
    told: wire.AgentReport | None,
) -> None:
    """Spool the samples as batches no larger than the console takes."""
    size = wire.MAX_ITEMS_PER_BATCH
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    for i, part in enumerate(parts or ([[]] if told is not None else [])):
        seq = spool.take_seq()
        batch = app.batch_of(
            part,
            agent=agent,
            boot=spool.boot,
            seq=seq,
            now_s=time.time(),
            report=told if i == 0 else None,
        )
        spool.append(seq, wire.encode(batch))
        shipper.wake()


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise TokenError(f"--token-file {path}: {exc.strerror}") from None
    if not token:
        raise TokenError(f"--token-file {path}: is empty")
    return token


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must be 'Name: value'")
    return name.strip(), value.strip()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m telemetry.doors.pull", description=__doc__)
    parser.add_argument("--prometheus", required=True, help="its URL, before /api/v1/query")
    parser.add_argument("--rules", type=Path, required=True, help="doors.toml")
    parser.add_argument("--console", required=True, help="the console's URL")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--spool-dir", type=Path, default=Path("pull-spool"))
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two questions")
    parser.add_argument("--header", type=_header, action="append", default=[], help="Name: value")
    parser.add_argument("--once", action="store_true", help="ask and ship once, then stop")
    options = parser.parse_args(arguments)
    if not 1.0 <= options.interval <= TTL_S:
        parser.error(f"--interval {options.interval:g}: must be in 1..{TTL_S:g} seconds")
    logging.basicConfig(format="%(asctime)s pull %(levelname)s %(message)s", level=logging.INFO)
    try:
        rules = mapping.load(options.rules)
        _token(options.token_file)
        client = Client(options.prometheus, headers=dict(options.header))
        puller = Puller(client, rules, clock=time.time)
        n_pending = asyncio.run(_serve(puller, options))
    except (TomlError, SpoolError, TokenError) as exc:
        print(exc, file=sys.stderr)
        return 2
    except QueryFailed as exc:
        print(exc, file=sys.stderr)
        return 1
    except Superseded as exc:
        print(exc, file=sys.stderr)
        return 3
    return 1 if options.once and n_pending else 0


async def _serve(puller: Puller, options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await ship(puller, options, stop)


if __name__ == "__main__":
    sys.exit(main())
