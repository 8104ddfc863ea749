"""The demo: a live lab beside the console, steered by it like any site.

One process emulates both datacenters, two gates stand in front, one agent a site reports, one load
generator sends requests. Everything they need is written as their own configuration files under
the state folder, so each can be read, and run by hand, as at a real site.
"""

from __future__ import annotations

import json
import socket
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

import routing.lab
from console.supervisor import Program

SCENARIO = Path(routing.lab.__file__).parent / "prfaas_1t.toml"

Options = dict[str, Any]


class OptionError(ValueError):
    """A `--demo-option` that cannot be meant."""


@dataclass(frozen=True)
class Option:
    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str


def _within(low: float, high: float, kind: type = float) -> Callable[[str], Any]:
    def parse(raw: str) -> Any:
        number = kind(raw)
        if not low <= number <= high:
            raise ValueError(f"must be in {low:g}..{high:g}")
        return number

    return parse


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(raw: str) -> str:
        if raw not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return raw

    return parse


def _trace(raw: str) -> str:
    path = Path(raw).absolute()
    if not path.is_file():
        raise ValueError("is not a file")
    return str(path)


OPTIONS: tuple[Option, ...] = (
    Option("rate_rps", 2.5, _within(0.01, 50.0), "requests a second"),
    Option("seed", 1, _within(0, 2**32 - 1, int), "of the load's arrivals and lengths"),
    Option("threshold_tokens", 4000, _within(0, 1_048_576, int), "threshold of the first plan"),
    Option("n_prefill", 3, _within(1, 7, int), "of the 8 PD instances, how many prefill"),
    Option("link_gbps", 100.0, _within(0.1, 1000.0), "capacity of the link prfaas->pd"),
    Option(
        "mode", "active", _one_of("active", "advisory", "paused"), "policy mode when first created"
    ),
    Option("n_gates", 2, _within(1, 8, int), "gates in front of the PD cluster"),
    Option(
        "cache",
        "instance",
        _one_of("instance", "cluster"),
        "prefix caches: bounded, one an instance; or unbounded, one a cluster",
    ),
    Option("prompt", "text", _one_of("text", "ids"), "prompts as words, or as token ids"),
    Option("trace", None, _trace, "Mooncake .jsonl(.gz) or Azure .csv(.gz) to replay"),
)


def parse_options(pairs: Iterable[str]) -> Options:
    """`KEY=VALUE` words as checked options with defaults. Raises OptionError naming the key."""
    known = {option.name: option for option in OPTIONS}
    values: Options = {option.name: option.default for option in OPTIONS}
    for pair in pairs:
        key, equals, raw = pair.partition("=")
        if not equals:
            raise OptionError(f"--demo-option {pair!r}: write KEY=VALUE")
        if key not in known:
            raise OptionError(f"--demo-option {key!r}: unknown, one of {', '.join(known)}")
        try:
            values[key] = known[key].parse(raw)
        except ValueError as exc:
            raise OptionError(f"--demo-option {key}={raw!r}: {exc}") from None
    return values


def write_scenario(state: Path, options: Options) -> Path:
    """The demo's scenario with its options in it, under the state folder."""
    document = tomllib.loads(SCENARIO.read_text())
    document["workload"]["rate_rps"] = options["rate_rps"]
    document["links"][0]["gbps"] = options["link_gbps"]
    pd = next(c for c in document["clusters"] if c["kind"] == "pd")
    pd["start"] = {k: options[k] for k in ("n_prefill", "threshold_tokens")}
    return _write(_folder(state) / "scenario.toml", document)


def programs(
    env: dict[str, str], state: Path, options: Options, tokens: dict[str, str], console_url: str
) -> list[Program]:
    """The lab's processes in starting order; writes their configuration."""
    folder = _folder(state)
    scenario = tomllib.loads((folder / "scenario.toml").read_text())
    fleet = scenario["fleet"]["name"]
    gates = [f"gw-{i + 1}" for i in range(options["n_gates"])]
    ports = _kept_ports(folder, scenario, gates)
    for name, token in tokens.items():
        path = folder / f"{name}.token"
        path.touch(mode=0o600)
        path.write_text(token)
    base = {k: v for k, v in env.items() if not _secret(k)}

    def python(name: str, module: str, *words: str, ready_url: str | None = None) -> Program:
        return Program(name, (sys.executable, "-m", module, *words), base, ready_url=ready_url)

    started = [
        python(
            "lab",
            "routing.lab.stack",
            "--config",
            str(_write(folder / "stack.toml", _stack(ports, options))),
            ready_url=f"{_url(ports['admin'])}/engines",
        )
    ]
    for gate in gates:
        config = _gate(f"{fleet}/pd/{gate}", ports, console_url, options)
        started.append(
            python(
                gate,
                "routing.gate",
                "--config",
                str(_write(folder / f"{gate}.toml", config)),
                ready_url=f"{_url(ports[gate])}/healthz",
            )
        )
    for cluster in ("prfaas", "pd"):
        config = _agent(scenario, cluster, ports, console_url, gates)
        path = _write(folder / f"agent-{cluster}.toml", config)
        started.append(python(f"ag-{cluster}", "telemetry.agent", "--config", str(path)))
    load = _write(folder / "load.toml", _load(options, ports, gates))
    started.append(python("load", "routing.lab.load", "--config", str(load)))
    return started


def places(state: Path) -> dict[str, str]:
    """Base URLs of the running lab by name. Raises FileNotFoundError when none ever ran."""
    ports: dict[str, int] = json.loads((state / "demo" / "ports.json").read_text())
    return {name: _url(port) for name, port in ports.items()}


def describe(state: Path) -> list[str]:
    """What a person may want to know of the lab."""
    gates = {name: url for name, url in places(state).items() if name.startswith("gw-")}
    return [
        f"demo gates: {', '.join(f'{name} {url}/v1' for name, url in gates.items())}",
        "change the link: python3 -m uv run manage.py lab link 'prfaas->pd' 5.8",
    ]


def _folder(state: Path) -> Path:
    folder = state / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _secret(name: str) -> bool:
    return name in ("DATABASE_URL", "REDIS_URL", "CONSOLE_SECRET_KEY")


def _instances(scenario: dict[str, Any], cluster: str) -> list[tuple[str, str]]:
    """(id, role) of a cluster's emulated engines, named and ordered as the lab does."""
    found = next(c for c in scenario["clusters"] if c["name"] == cluster)
    n_prefill = found.get("start", {}).get("n_prefill", found["instances"])
    fleet = scenario["fleet"]["name"]
    return [
        (
            f"{fleet}/{cluster}/{found['profile']}-{i + 1}",
            "prefill" if i < n_prefill else "decode",
        )
        for i in range(found["instances"])
    ]


def _kept_ports(folder: Path, scenario: dict[str, Any], gates: list[str]) -> dict[str, int]:
    """A free port for each listener, the same at each start so that bookmarks stay good."""
    names = ["admin", "local", "remote", "load", *gates]
    names += [name for c in ("prfaas", "pd") for name, _ in _instances(scenario, c)]
    path = folder / "ports.json"
    kept: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    ports: dict[str, int] = {}
    probes: list[socket.socket] = []
    try:
        for name in names:
            probe = socket.socket()
            probes.append(probe)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", kept.get(name, 0)))
            except OSError:
                probe.bind(("127.0.0.1", 0))
            ports[name] = probe.getsockname()[1]
    finally:
        for probe in probes:
            probe.close()
    path.write_text(json.dumps(ports))
    return ports


def _stack(ports: dict[str, int], options: Options) -> dict[str, Any]:
    engines = {name: port for name, port in ports.items() if name.count("/") == 2}
    unbounded = {"cache_capacity_tokens": "infinite"} if options["cache"] == "cluster" else {}
    return {
        "scenario": "scenario.toml",
        "cache_scope": options["cache"],
        **unbounded,
        "ports": {
            "admin": ports["admin"],
            "local": {"pd": ports["local"]},
            "remote": {"pd": {"prfaas": ports["remote"]}},
            "engines": engines,
        },
    }


def _gate(router: str, ports: dict[str, int], console_url: str, options: Options) -> dict[str, Any]:
    name = router.rpartition("/")[2]
    unbounded = {"cache_capacity_tokens": "infinite"} if options["cache"] == "cluster" else {}
    return {
        "router": router,
        "port": ports[name],
        "console_url": console_url,
        "token_file": "gate.token",
        "plan_file": f"{name}.plan.json",
        "upstreams": {
            "local": {"url": _url(ports["local"]), **unbounded},
            "remote": {"prfaas": {"url": _url(ports["remote"]), **unbounded}},
        },
    }


def _agent(
    scenario: dict[str, Any],
    cluster: str,
    ports: dict[str, int],
    console_url: str,
    gates: list[str],
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "agent": f"agent-{cluster}",
        "console_url": console_url,
        "token_file": "agent.token",
        "spool_dir": f"spool-{cluster}",
        "instances": [
            {"id": name, "role": role, "engine": "vllm", "url": f"{_url(ports[name])}/metrics"}
            for name, role in _instances(scenario, cluster)
        ],
    }
    if cluster == "pd":
        fleet = scenario["fleet"]["name"]
        config["routers"] = [
            {"id": f"{fleet}/pd/{gate}", "url": f"{_url(ports[gate])}/metrics"} for gate in gates
        ]
    else:
        config["links"] = [
            {
                "id": "prfaas->pd",
                "source": "lab",
                "measured_layer": "tcp",
                "url": f"{_url(ports['admin'])}/links",
            }
        ]
    return config


def _load(options: Options, ports: dict[str, int], gates: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "scenario": "scenario.toml",
        "targets": [_url(ports[gate]) for gate in gates],
        "rate_rps": options["rate_rps"],
        "seed": options["seed"],
        "admin_port": ports["load"],
        "prompt": options["prompt"],
        "record": "requests.jsonl",
    }
    if options["trace"]:
        config["trace"] = options["trace"]
    return config


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(document))
    return path
