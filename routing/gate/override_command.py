"""`python -m routing.gate override CONFIG ...`: a person's rule above the plan, on this gate.

    override gate.toml --threshold 8000 --for 1h --reason "link at half" --by ada
    override gate.toml --always-local --for 30m --reason "remote stack swapped" --by ada
    override gate.toml status
    override gate.toml release --by ada

Prints the override as JSON, or null. Exit 2: it cannot be meant; 1: no gate answers, or it said no.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from routing.gate.config import ConfigError, load_config
from routing.gate.override_door import SOCKET_SUFFIX, DoorError, ask

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def duration_s(text: str) -> float:
    """Seconds of `90s`, `30m`, `1.5h`, `2d`."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 90s, 30m, 1h or 2d")
    return float(found[1]) * _UNITS_S[found[2]]


def main(argv: list[str]) -> int:
    """The command; its exit code."""
    args = _parser().parse_args(argv)
    try:
        request = _request(args)
        config = load_config(args.config)
        path = config.beside_plan_file(SOCKET_SUFFIX)
        if path is None:
            raise ValueError(f"{args.config}: plan_file is absent: an override is kept beside it")
    except (ConfigError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 2
    try:
        print(json.dumps(ask(path, request)))
    except DoorError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m routing.gate override",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, help="the gate's TOML file")
    parser.add_argument("do", nargs="?", choices=("set", "status", "release"), default="set")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--threshold", type=int, metavar="N", help="remote iff uncached tokens > N")
    mode.add_argument("--always-local", action="store_const", const="always_local", dest="mode")
    mode.add_argument("--always-remote", action="store_const", const="always_remote", dest="mode")
    parser.add_argument("--for", type=duration_s, dest="for_s", metavar="1h", help="at most 7d")
    parser.add_argument("--reason", help="for the log and the console")
    parser.add_argument("--by", metavar="NAME", help="who you are")
    return parser


def _request(args: argparse.Namespace) -> dict[str, Any]:
    """What to ask of the gate. Raises ValueError naming the option."""
    if args.do == "status":
        return {"do": "status"}
    if not args.by:
        raise ValueError("--by: say who you are")
    if args.do == "release":
        return {"do": "release", "by": args.by}
    if args.threshold is None and args.mode is None:
        raise ValueError("--threshold N, --always-local or --always-remote: one is needed")
    if args.for_s is None:
        raise ValueError("--for: say how long, it ends by itself")
    if not args.reason:
        raise ValueError("--reason: say why")
    asked = {
        "mode": args.mode or "threshold",
        "threshold_tokens": args.threshold,
        "by": args.by,
        "reason": args.reason,
        "for_s": args.for_s,
    }
    return {"do": "set", "asked": asked}
