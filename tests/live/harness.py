"""`manage.py up --demo` under observation: started, steered, measured and stopped by a proof."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from console import demo

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(title: str, **figures: object) -> None:
    """The figures of a proof, one line of JSON."""
    print(f"\n{title}: {json.dumps(figures, default=str)}", flush=True)


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
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
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
        deadline_s = time.monotonic() + 600
        while "ready after" not in self.log.read_text().rpartition("up       | stopped")[2]:
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, self.log.read_text()[-3000:]
            time.sleep(0.2)
        scopes = ("--scope", "read", "--scope", "operate")
        issued = self.manage("token", "issue", "proof", *scopes, "--json")
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

    def set_knobs(self, **knobs: object) -> None:
        """Change the policy's knobs, whatever its version is."""
        url = f"http://127.0.0.1:{self.port}/api/v1/fleets/prfaas-1t/policy"
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": "application/json",
            "If-Match": f'"{self.get("/policy")["version"]}"',
        }
        self._json(url, headers, "PATCH", {"knobs": knobs, "reason": "the proof's setting"})

    def put(self, path: str, body: Any) -> Any:
        """What REST answers to something new, `path` below the demo's fleet."""
        url = f"http://127.0.0.1:{self.port}/api/v1/fleets/prfaas-1t{path}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return self._json(url, headers, "PUT", body)

    def audit(self) -> list[dict[str, Any]]:
        """What was changed in the fleet and by whom, oldest first."""
        return self._all(f"http://127.0.0.1:{self.port}/api/v1/audit?fleet=prfaas-1t&limit=200")

    def admin(self) -> tuple[str, str]:
        """Name and first password of the administrator that the first start made."""
        found = re.search(r"log in as (\S+) with password (\S+)", self.log.read_text())
        assert found is not None
        return found[1], found[2]

    def pages(self, *paths: str) -> list[str]:
        """Pages as its administrator sees them."""
        base, jar = f"http://127.0.0.1:{self.port}", http.cookiejar.CookieJar()
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
        opener.open(f"{base}/login/", timeout=30).close()
        token = next(cookie.value for cookie in jar if "csrf" in cookie.name)
        name, password = self.admin()
        said = {"username": name, "password": password, "csrfmiddlewaretoken": token or ""}
        request = urllib.request.Request(
            f"{base}/login/", urllib.parse.urlencode(said).encode(), {"Referer": f"{base}/login/"}
        )
        opener.open(request, timeout=30).close()
        found = []
        for path in paths:
            with opener.open(f"{base}{path}", timeout=30) as answer:
                found.append(answer.read().decode())
        return found

    def roles(self) -> dict[str, dict[str, int]]:
        """How many engines of each cluster say that they prefill and decode."""
        found: dict[str, dict[str, int]] = {}
        for row in self.get("/instances")["results"]:
            cluster = found.setdefault(row["id"].split("/")[1], {"prefill": 0, "decode": 0})
            cluster[row["role"]] += 1
        return found

    def changes(self) -> list[dict[str, Any]]:
        """Every adopted decision after the first, oldest first."""
        return [d for d in self.all("/decisions") if d["kind"] == "adopted"][1:]

    def failed(self) -> int:
        """Requests that failed at any load generator."""
        loads = [place for place in demo.places(self.state) if place.startswith("load")]
        return sum(self.lab(load, "/summary")["failed"] for load in loads)

    def all(self, path: str) -> list[Any]:
        """Every row of a paged list, oldest first."""
        return self._all(f"http://127.0.0.1:{self.port}/api/v1/fleets/prfaas-1t{path}?limit=200")

    def _all(self, first: str) -> list[Any]:
        rows: list[Any] = []
        url: str | None = first
        while url:
            page = self._json(url, {"Authorization": f"Bearer {self.token}"})
            rows += page["results"]
            url = page["next"]
        return rows[::-1]

    def lab(self, place: str, path: str) -> Any:
        """An answer of the lab's own ports: `admin`, or a load's."""
        return self._json(f"{self.url(place)}{path}", {})

    def url(self, place: str) -> str:
        """The base URL of one of the demo's listeners, by its name in `ports.json`."""
        return demo.places(self.state)[place]

    def requests(self, file: str = "requests.jsonl") -> list[dict[str, Any]]:
        """What a load generator recorded, a row per finished request."""
        text = (self.state / "demo" / file).read_text()
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]

    def scenario(self) -> dict[str, Any]:
        return tomllib.loads((self.state / "demo" / "scenario.toml").read_text())

    @staticmethod
    def _manage(*words: str) -> list[str]:
        return [sys.executable, "manage.py", *words]

    @staticmethod
    def _json(url: str, headers: dict[str, str], method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)
