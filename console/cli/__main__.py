"""`python -m console.cli`: reads what was typed, does one command, answers with an exit code."""

from __future__ import annotations

import argparse
import datetime
import getpass
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import shtab

from console.cli import config, fleet_commands, site_commands
from console.cli.command import (
    DONE,
    FAILED,
    MISUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    OUTDATED,
    Command,
    Doing,
    Misused,
)
from console.cli.shown import Out, clean
from console.client.client import Client
from console.client.errors import (
    ApiError,
    ClientError,
    Frozen,
    NotAllowed,
    NotFound,
    Outdated,
    Refused,
)
from console.client.http import OPERATIONS

COMMANDS: tuple[Command, ...] = (*fleet_commands.COMMANDS, *site_commands.COMMANDS)
_GROUPS = {
    "policy": "mode and knobs",
    "holds": "pinned plans",
    "roles": "who prefills and who decodes",
    "jobs": "what is done at a time",
    "approvals": "what needs a second person",
    "incidents": "what fires",
    "silences": "of what nobody is told",
    "tokens": "keys",
}
_EXIT: tuple[tuple[type[ClientError], int], ...] = (
    (NotAllowed, NOT_ALLOWED),
    (NotFound, NOT_FOUND),
    (Outdated, OUTDATED),
    (Frozen, OUTDATED),
    (Refused, MISUSED),
)


def parser() -> argparse.ArgumentParser:
    """Everything that can be typed."""
    root = argparse.ArgumentParser(
        prog="prfaas", description="A console of Prefill-as-a-Service, from the command line."
    )
    root.add_argument("--url", help=f"the console's address ({config.URL})")
    root.add_argument(
        "--token-file", type=Path, help=f"a file with the token, of mode 0600 ({config.TOKEN})"
    )
    root.add_argument("--json", action="store_true", help="one JSON value on stdout")
    root.add_argument("--timeout", type=float, default=30.0, metavar="S", help="of one question")
    groups: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    top = root.add_subparsers(dest="first", required=True, metavar="COMMAND")
    for command in COMMANDS:
        parent = top
        if len(command.words) > 1:
            group = command.words[0]
            if group not in groups:
                made = top.add_parser(group, help=_GROUPS[group])
                groups[group] = made.add_subparsers(dest="second", required=True, metavar="WHAT")
            parent = groups[group]
        leaf = parent.add_parser(command.words[-1], help=command.help, description=command.help)
        for argument in command.arguments:
            added = leaf.add_argument(*argument.names, **argument.options)
            if added.type is Path:
                added.complete = shtab.FILE  # type: ignore[attr-defined]
        leaf.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        leaf.set_defaults(run=command.run, words=command.words)
    login = top.add_parser("login", help="keep --url and a token in a file of your own")
    login.set_defaults(words=("login",))
    listed = top.add_parser("operations", help="all operations of the API, for `call`")
    listed.set_defaults(words=("operations",))
    shells = top.add_parser("completion", help="a script that completes words in your shell")
    shells.add_argument("shell", choices=("bash", "zsh", "fish"))
    shells.set_defaults(words=("completion",))
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code of one command; what went wrong stands on stderr, in a line for each reason."""
    root = parser()
    given = root.parse_args(arguments)
    if given.words == ("completion",):
        print(shtab.complete(root, shell=given.shell))
        return DONE
    if given.words == ("operations",):
        rows = [
            {"operation": name, "method": each.method, "path": each.path, "query": each.query}
            for name, each in OPERATIONS.items()
        ]
        Out(sys.stdout, as_json=given.json).table(rows, ("operation", "method", "path"))
        return DONE
    try:
        if given.words == ("login",):
            return _login(given)
        kept = config.read(os.environ, url=given.url, token_file=given.token_file)
        out = Out(sys.stdout, as_json=given.json)
        with Client(kept.url, kept.token, timeout_s=given.timeout) as client:
            run: Callable[[Doing], int] = given.run
            return run(Doing(client, given, out, datetime.datetime.now(datetime.UTC)))
    except (config.ConfigError, Misused) as exc:
        return _wrong([str(exc)], MISUSED)
    except ApiError as exc:
        code = next((code for kind, code in _EXIT if isinstance(exc, kind)), FAILED)
        lines = [f"{field}: {text}" for field, texts in exc.errors.items() for text in texts]
        if exc.request_id:
            lines = [*(lines or [exc.message]), f"request {exc.request_id}"] if code == 1 else lines
        return _wrong(lines or [exc.message], code)
    except ClientError as exc:
        return _wrong([str(exc)], FAILED)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def _login(given: argparse.Namespace) -> int:
    if not given.url:
        raise Misused("login needs --url")
    token = getpass.getpass("Token: ") if sys.stdin.isatty() else sys.stdin.readline()
    kept = config.Config(given.url, token.strip())
    with Client(kept.url, kept.token, timeout_s=given.timeout) as client:
        me = client.me_retrieve().data
    path = config.file_of(os.environ)
    config.write(path, kept)
    Out(sys.stdout, as_json=given.json).said(
        {"file": str(path), **me}, f"signed in as {me.get('name')}; kept in {path}"
    )
    return DONE


def _wrong(lines: list[str], code: int) -> int:
    for line in lines:
        print(clean(line), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
