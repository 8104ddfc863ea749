"""`manage.py up`: the whole console from nothing, one supervisor, Ctrl-C stops all of it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
from django.core.management.base import BaseCommand, CommandError

from console import demo, embedded
from console.supervisor import Program, StartError, Supervisor, with_signals
from routing.tasks import TWIN_PROCESSES

_REACH_TIMEOUT_S = 5


class Command(BaseCommand):
    help = "Start PostgreSQL and Valkey (unless given), the web server, the workers and beat."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=_port, default=8000, help="port of the web server")
        parser.add_argument("--host", default="127.0.0.1", help="address of the web server")
        parser.add_argument(
            "--demo", action="store_true", help="also run a live two-datacenter lab with its load"
        )
        parser.add_argument(
            "--demo-option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="one of: " + ", ".join(f"{o.name} ({o.help})" for o in demo.OPTIONS),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        started_s = time.monotonic()
        try:
            demo_options = demo.parse_options(options["demo_option"])
        except demo.OptionError as exc:
            raise CommandError(str(exc), returncode=2) from None
        _require_free_port(options["host"], options["port"])
        state = embedded.state_dir()
        services: embedded.Embedded | None = None
        _require_reachable()
        given = {k: os.environ[k] for k in ("DATABASE_URL", "REDIS_URL") if os.environ.get(k)}
        supervisor = Supervisor(out=sys.stdout)
        try:
            if len(given) < 2:
                services = embedded.Embedded(state, without=tuple(given))
                given |= services.start()
                supervisor.services = services
                supervisor.say("up", f"embedded services answer, data in {state}")
            else:
                _make(state)
            env = os.environ | given | {"CONSOLE_SECRET_KEY": _secret_key(state)}
            prepared = _prepare(env, state, demo_options if options["demo"] else None)
            supervisor.say("up", "database is migrated")
            with_signals(supervisor.request_stop)
            url = _url(options["host"], options["port"])
            supervisor.start(_console_programs(env, options["host"], options["port"], url, state))
            if options["demo"]:
                lab = demo.programs(env, state, demo_options, prepared["tokens"], url)
                supervisor.start(lab)
                for line in demo.describe(state):
                    supervisor.say("up", line)
            for line in _welcome(url, prepared, time.monotonic() - started_s):
                supervisor.say("up", line)
            supervisor.run()
        except (embedded.EmbeddedError, StartError) as exc:
            raise CommandError(str(exc)) from None
        finally:
            supervisor.stop()
            if services is not None:
                services.stop()
            supervisor.say("up", "stopped")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise ArgumentTypeError(f"{text!r}: must be in 1..65535")
    return int(text)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _make(state: Path) -> None:
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise StartError(
            f"state folder {state} cannot be used ({exc.strerror}); "
            "choose another with CONSOLE_STATE_DIR"
        ) from None


def _require_reachable() -> None:
    """What the environment names must answer: nothing could start without it."""
    if url := os.environ.get("DATABASE_URL"):
        try:
            psycopg.connect(url, connect_timeout=_REACH_TIMEOUT_S).close()
        except psycopg.Error as exc:
            raise CommandError(_unreachable("DATABASE_URL", url, exc), returncode=2) from None
    if url := os.environ.get("REDIS_URL"):
        try:
            with redis.Redis.from_url(url, socket_connect_timeout=_REACH_TIMEOUT_S) as client:
                client.ping()
        except (redis.RedisError, OSError, ValueError) as exc:
            raise CommandError(_unreachable("REDIS_URL", url, exc), returncode=2) from None


def _unreachable(name: str, url: str, exc: Exception) -> str:
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    where = f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"
    return f"{name}: {where} cannot be used: {' '.join(str(exc).split())}"


def _require_free_port(host: str, port: int) -> None:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as exc:
        raise CommandError(
            f"--port {port}: cannot listen on {host}:{port} ({exc.strerror}); "
            "stop what uses it or choose another with --port",
            returncode=2,
        ) from None


def _secret_key(state: Path) -> str:
    if os.environ.get("CONSOLE_SECRET_KEY"):
        return os.environ["CONSOLE_SECRET_KEY"]
    path = state / "secret_key"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(48))
    return path.read_text()


def _prepare(env: dict[str, str], state: Path, demo_options: demo.Options | None) -> dict[str, Any]:
    """Migrate and make the first admin in a process that has the right settings."""
    command = [sys.executable, sys.argv[0], "prepare", "--json"]
    if demo_options is not None:
        command += ["--demo-scenario", str(demo.write_scenario(state, demo_options))]
        command += ["--demo-mode", demo_options["mode"], "--demo-tokens", str(state / "demo")]
        command += ["--demo-knobs", json.dumps(demo.knobs(demo_options))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise StartError(f"the database could not be prepared:\n{said}")
    prepared: dict[str, Any] = json.loads(done.stdout)
    return prepared


def _console_programs(
    env: dict[str, str], host: str, port: int, url: str, state: Path
) -> list[Program]:
    python = sys.executable
    uvicorn = (
        *(python, "-m", "uvicorn", "console.asgi:application", "--host", host),
        *("--port", str(port), "--lifespan", "on", "--http", "console.front:Front"),
        *("--ws-per-message-deflate", "false"),
        *(
            "--log-level",
            "warning",
            "--no-access-log",
            "--no-server-header",
            "--timeout-graceful-shutdown",
            "5",
        ),
    )
    # One for rebalances and one for routers, which may wait long; the others are for the ticks.
    worker = (
        *(python, "-m", "celery", "-A", "console", "--quiet", "worker", "--pool", "threads"),
        *("--concurrency", "4", "--loglevel", "warning", "--without-gossip", "--without-mingle"),
    )
    # Nice: what backtests compute is never worth a late tick or a late sample.
    twin = (
        *("nice", "-n", "10", python, "-m", "celery", "-A", "console", "--quiet", "worker"),
        *("--queues", "twin", "--hostname", "twin@%h", "--pool", "prefork"),
        *("--concurrency", str(TWIN_PROCESSES), "--max-memory-per-child", "1500000"),
        *("--loglevel", "warning", "--without-gossip", "--without-mingle"),
    )
    beat = (
        *(python, "-m", "celery", "-A", "console", "--quiet", "beat", "--loglevel", "warning"),
        *("--pidfile", "", "--schedule", str(state / "beat-schedule")),
    )
    return [
        Program("web", uvicorn, env, ready_url=f"{url}/healthz"),
        Program("worker", worker, env),
        Program("beat", beat, env),
        Program("twin", twin, env),
    ]


def _welcome(url: str, prepared: dict[str, Any], elapsed_s: float) -> list[str]:
    admin = prepared["admin"]
    change = "python3 -m uv run manage.py changepassword admin"
    lines = [f"ready after {elapsed_s:.1f} s: {url}/"]
    if admin:
        lines.append(f"log in as {admin['username']} with password {admin['password']}")
        lines.append(f"this password is shown once; change it: {change}")
    else:
        lines.append(f"log in as before; forgotten? {change}")
    return lines
