"""`manage.py up --demo` under observation: started, steered, measured and stopped by a proof."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Demo:
    """A demo of its own on `port`, its data under `state`. Use as a context manager."""

    def __init__(self, state: Path, port: int, **options: object) -> None:
        self.state, self.port = state, port
        self.env = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
        self.env["CONSOLE_STATE_DIR"] = str(state)
        self.options = [w for k, v in options.items() for w in ("--demo-option", f"{k}={v}")]
        self.log = state.parent / f"{state.name}.log"

    def __enter__(self) -> Demo:
        self.state.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        with self.log.open("a") as out:
            self.process = subprocess.Popen(
                self._manage("up", "--demo", "--port", str(self.port), *self.options),
                cwd=ROOT,
                env=self.env,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        deadline_s = time.monotonic() + 90
        while "ready after" not in self.log.read_text().rpartition("up       | stopped")[2]:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self.log.read_text()[-3000:]
            time.sleep(0.2)
        issued = self.manage("token", "issue", "proof", "--scope", "read", "--json")
        self.token = json.loads(issued)["secret"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def manage(self, *words: str) -> str:
        """A management command beside the running console; its stdout."""
        done = subprocess.run(
            self._manage(*words), cwd=ROOT, env=self.env, capture_output=True, text=True, check=True
        )
        return done.stdout

    def get(self, path: str) -> Any:
        """A REST answer of the console, `path` below the demo's fleet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/fleets/prfaas-1t{path}"
        return self._json(url, {"Authorization": f"Bearer {self.token}"})

    def all(self, path: str) -> list[Any]:
        """Every row of a paged list, oldest first."""
        rows: list[Any] = []
        url: str | None = f"http://127.0.0.1:{self.port}/api/v1/fleets/prfaas-1t{path}?limit=200"
        while url:
            page = self._json(url, {"Authorization": f"Bearer {self.token}"})
            rows += page["results"]
            url = page["next"]
        return rows[::-1]

    def lab(self, place: str, path: str) -> Any:
        """An answer of the lab's own ports: `admin` or `load`."""
        ports = json.loads((self.state / "demo" / "ports.json").read_text())
        return self._json(f"http://127.0.0.1:{ports[place]}{path}", {})

    def requests(self) -> list[dict[str, Any]]:
        """What the load generator recorded, a row per finished request."""
        text = (self.state / "demo" / "requests.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def scenario(self) -> dict[str, Any]:
        return tomllib.loads((self.state / "demo" / "scenario.toml").read_text())

    @staticmethod
    def _manage(*words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]

    @staticmethod
    def _json(url: str, headers: dict[str, str]) -> Any:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=20
        ) as answer:
            return json.load(answer)
