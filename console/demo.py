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

_KV_EVENTS = "kv-events "
"""Begins the name of a port where the engine named behind it publishes."""

_CACHE_TOKENS = 2_097_152
"""Of prefixes, that an instance keeps."""
_RATE_RPS = {1: 2.5, 2: 3.6}
"""Requests a second by number of PD clusters: the best plan carries about 1.3 times that."""
_SECOND_PD = {"instances": 6, "mu": 9.5, "share": 4 / 9}
"""What the second PD cluster has and gets: fewer instances, shorter prompts, fewer of them."""


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
    Option(
        "n_pd", 1, _within(1, 2, int), "PD clusters: pd, or pd-a and pd-b that share one PrfaaS"
    ),
    Option(
        "rate_rps",
        None,
        _within(0.01, 50.0),
        "requests a second in all; "
        + ", ".join(f"with n_pd={n} {rate:g}" for n, rate in _RATE_RPS.items()),
    ),
    Option("seed", 1, _within(0, 2**32 - 1, int), "of the load's arrivals and lengths"),
    Option("threshold_tokens", 4000, _within(0, 1_048_576, int), "threshold of the first plan"),
    Option("n_prefill", 3, _within(1, 7, int), "of the 8 PD instances, how many prefill at first"),
    Option("link_gbps", 100.0, _within(0.1, 1000.0), "capacity of each link prfaas->pd"),
    Option(
        "link_back_gbps",
        0.0,
        _within(0.0, 1000.0),
        "capacity of each link pd->prfaas, which prefixes may move over; 0: there is none",
    ),
    Option(
        "mode", "active", _one_of("active", "advisory", "paused"), "policy mode when first created"
    ),
    Option("roles", "auto", _one_of("auto", "fixed"), "policy knob roles_mode when first created"),
    Option(
        "cache_mode",
        "auto",
        _one_of("auto", "scarce", "abundant"),
        "policy knob cache_mode when first created",
    ),
    Option("n_gates", 2, _within(1, 8, int), "gates in front of each PD cluster"),
    Option(
        "cache",
        "instance",
        _one_of("instance", "cluster"),
        "prefix caches: bounded, one an instance; or unbounded, one a cluster",
    ),
    Option(
        "linear_state",
        "none",
        _one_of("none", "exact"),
        "exact: the model's linear layers keep their state only where a request ended",
    ),
    Option(
        "kv_events",
        "off",
        _one_of("off", "on"),
        "engines tell gates what their caches hold; of use with prompt=ids",
    ),
    Option("prompt", "text", _one_of("text", "ids"), "prompts as words, or as token ids"),
    Option("trace", None, _trace, "Mooncake .jsonl(.gz) or Azure .csv(.gz) to replay"),
    Option("speed", 1.0, _within(0.01, 100.0), "how many times as fast the trace is replayed"),
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
    if values["rate_rps"] is None:
        values["rate_rps"] = _RATE_RPS[values["n_pd"]]
    if values["trace"] is not None and values["n_pd"] > 1:
        raise OptionError("--demo-option trace: replays to one PD cluster, so with n_pd=1 only")
    return values


def knobs(options: Options) -> dict[str, str]:
    """The policy's knobs that the options ask for, of a fleet that is new."""
    asked = {"cache_mode": options["cache_mode"], "roles_mode": options["roles"]}
    return {name: value for name, value in asked.items() if value != "auto"}


def write_scenario(state: Path, options: Options) -> Path:
    """The demo's scenario with its options in it, under the state folder. Takes the ports too,
    because the scenario names those of the control surfaces."""
    document = tomllib.loads(SCENARIO.read_text())
    pd = next(c for c in document["clusters"] if c["kind"] == "pd")
    start = {k: options[k] for k in ("n_prefill", "threshold_tokens")}
    document["workload"]["rate_rps"] = options["rate_rps"]
    clusters = [pd | {"start": start}]
    if options["n_pd"] > 1:
        clusters = _two_clusters(document, clusters[0])
    names = [cluster["name"] for cluster in clusters]
    there = document["links"][0] | {"gbps": options["link_gbps"]}
    back = there | {"to": there["from"], "gbps": options["link_back_gbps"]}
    document["links"] = [there | {"to": name} for name in names]
    if options["link_back_gbps"] > 0.0:
        document["links"] += [back | {"from": name} for name in names]
    document["clusters"] = [c for c in document["clusters"] if c["kind"] != "pd"] + clusters
    folder = _folder(state)
    ports = _kept_ports(folder, document, options["n_gates"])
    for cluster in clusters:
        control = f"{_url(ports['admin'])}/clusters/{cluster['name']}"
        serves_at = _url(ports[f"local{_suffix(cluster['name'])}"])
        cluster["routers"] = [{"kind": "stack", "url": control, "serves_at": serves_at}]
    return _write(folder / "scenario.toml", document)


def _two_clusters(document: dict[str, Any], pd: dict[str, Any]) -> list[dict[str, Any]]:
    """The one PD cluster as pd-a, and a smaller pd-b with a mix of its own."""
    workload = document.pop("workload")
    del document["baselines"]  # of one cluster's instances
    rates = {"pd-b": round(workload["rate_rps"] * _SECOND_PD["share"], 3)}
    rates["pd-a"] = round(workload["rate_rps"] - rates["pd-b"], 3)
    lengths = {"pd-a": workload["lengths"], "pd-b": workload["lengths"] | {"mu": _SECOND_PD["mu"]}}
    document["workloads"] = [
        workload | {"cluster": name, "rate_rps": rates[name], "lengths": lengths[name]}
        for name in ("pd-a", "pd-b")
    ]
    n_prefill = min(pd["start"]["n_prefill"], _SECOND_PD["instances"] - 1)
    second = {
        "instances": _SECOND_PD["instances"],
        "start": pd["start"] | {"n_prefill": n_prefill},
    }
    return [pd | {"name": "pd-a"}, pd | {"name": "pd-b"} | second]


def programs(
    env: dict[str, str], state: Path, options: Options, tokens: dict[str, str], console_url: str
) -> list[Program]:
    """The lab's processes in starting order; writes their configuration.

    `write_scenario` has written scenario and ports before.
    """
    folder = _folder(state)
    scenario = tomllib.loads((folder / "scenario.toml").read_text())
    fleet = scenario["fleet"]["name"]
    ports: dict[str, int] = json.loads((folder / "ports.json").read_text())
    for name, token in tokens.items():
        path = folder / f"{name}.token"
        path.touch(mode=0o600)
        path.write_text(token)
    base = {k: v for k, v in env.items() if not _secret(k)}

    def python(name: str, module: str, file: str, config: dict[str, Any], **how: Any) -> Program:
        path = _write(folder / file, config)
        command = (sys.executable, "-m", module, "--config", str(path))
        return Program(name, command, base, **how)

    stack = _stack(scenario, ports, options)
    lab_url = f"{_url(ports['admin'])}/engines"
    started = [python("lab", "routing.lab.stack", "stack.toml", stack, ready_url=lab_url)]
    for cluster in _pd_clusters(scenario):
        for gate in _gates(cluster, options["n_gates"]):
            config = _gate(f"{fleet}/{cluster}/{gate}", ports, console_url, options)
            url = f"{_url(ports[gate])}/healthz"
            started.append(python(gate, "routing.gate", f"{gate}.toml", config, ready_url=url))
    for name in (c["name"] for c in scenario["clusters"]):
        config = _agent(scenario, name, ports, console_url, options)
        started.append(python(f"ag-{name}", "telemetry.agent", f"agent-{name}.toml", config))
    for cluster in _pd_clusters(scenario):
        load, config = f"load{_suffix(cluster)}", _load(scenario, cluster, ports, options)
        # A replayed trace ends; begun again it would not be the same trace.
        for_ever = options["trace"] is None
        started.append(python(load, "routing.lab.load", f"{load}.toml", config, restart=for_ever))
    return started


def places(state: Path) -> dict[str, str]:
    """Base URLs of the running lab by name. Raises FileNotFoundError when none ever ran."""
    ports: dict[str, int] = json.loads((state / "demo" / "ports.json").read_text())
    return {name: _url(port) for name, port in ports.items()}


def cluster_of_load(place: str) -> str:
    """The PD cluster that gets the load at `place` (of `places`)."""
    return "pd" + place.removeprefix("load")


def describe(state: Path) -> list[str]:
    """What a person may want to know of the lab."""
    gates = {name: url for name, url in places(state).items() if name.startswith("gw-")}
    scenario = tomllib.loads((state / "demo" / "scenario.toml").read_text())
    link = scenario["links"][0]
    return [
        f"demo gates: {', '.join(f'{name} {url}/v1' for name, url in gates.items())}",
        f"change the link: python3 -m uv run manage.py lab link '{link['from']}->{link['to']}' 5.8",
    ]


def _folder(state: Path) -> Path:
    folder = state / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _secret(name: str) -> bool:
    return name in ("DATABASE_URL", "REDIS_URL", "CONSOLE_SECRET_KEY")


def _pd_clusters(scenario: dict[str, Any]) -> list[str]:
    return [c["name"] for c in scenario["clusters"] if c["kind"] == "pd"]


def _suffix(cluster: str) -> str:
    """What the names of a PD cluster's own processes and ports end with; one cluster needs none."""
    return cluster.removeprefix("pd")


def _gates(cluster: str, n_gates: int) -> list[str]:
    return [f"gw{_suffix(cluster)}-{i + 1}" for i in range(n_gates)]


def _instances(scenario: dict[str, Any], cluster: str) -> list[tuple[str, str]]:
    """(id, first role) of a cluster's emulated engines, named and ordered as the lab does."""
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


def _kept_ports(folder: Path, scenario: dict[str, Any], n_gates: int) -> dict[str, int]:
    """A free port for each listener, the same at each start so that bookmarks stay good."""
    names = ["admin"]
    for cluster in _pd_clusters(scenario):
        suffix = _suffix(cluster)
        names += [f"local{suffix}", f"remote{suffix}", f"load{suffix}", *_gates(cluster, n_gates)]
    engines = [name for c in scenario["clusters"] for name, _ in _instances(scenario, c["name"])]
    names += [*engines, *(_KV_EVENTS + name for name in engines)]
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


def _stack(scenario: dict[str, Any], ports: dict[str, int], options: Options) -> dict[str, Any]:
    listed = {name: port for name, port in ports.items() if name.count("/") == 2}
    publishers = {name: port for name, port in listed.items() if name.startswith(_KV_EVENTS)}
    clusters = _pd_clusters(scenario)
    return {
        "scenario": "scenario.toml",
        "cache_scope": options["cache"],
        **_caches(options, _CACHE_TOKENS),
        "kv_events": options["kv_events"] == "on",
        "ports": {
            "admin": ports["admin"],
            "local": {name: ports[f"local{_suffix(name)}"] for name in clusters},
            "remote": {name: {"prfaas": ports[f"remote{_suffix(name)}"]} for name in clusters},
            "engines": {name: port for name, port in listed.items() if name not in publishers},
            "kv_events": {name.removeprefix(_KV_EVENTS): port for name, port in publishers.items()},
        },
    }


def _caches(options: Options, capacity_tokens: int) -> dict[str, Any]:
    """What stack and gates must agree on about prefix caches; the capacity where it is bounded."""
    exact = {"linear_state": "exact"} if options["linear_state"] == "exact" else {}
    bounded = options["cache"] == "instance"
    return exact | {"cache_capacity_tokens": capacity_tokens if bounded else "infinite"}


def _gate(router: str, ports: dict[str, int], console_url: str, options: Options) -> dict[str, Any]:
    fleet, cluster, name = router.split("/")
    suffix = _suffix(cluster)

    def caches(place: str) -> dict[str, Any]:
        """All that the cluster's instances keep together."""
        n = sum(engine.startswith(f"{fleet}/{place}/") for engine in ports)
        return _caches(options, n * _CACHE_TOKENS)

    def events(place: str) -> dict[str, Any]:
        if options["kv_events"] == "off":
            return {}
        begins = f"{_KV_EVENTS}{fleet}/{place}/"
        published = [port for engine, port in ports.items() if engine.startswith(begins)]
        return {"kv_events": [f"tcp://127.0.0.1:{port}" for port in published]}

    return {
        "router": router,
        "port": ports[name],
        "console_url": console_url,
        "token_file": "gate.token",
        "plan_file": f"{name}.plan.json",
        "upstreams": {
            "local": {"url": _url(ports[f"local{suffix}"]), **caches(cluster), **events(cluster)},
            "remote": {
                "prfaas": {
                    "url": _url(ports[f"remote{suffix}"]),
                    **caches("prfaas"),
                    **events("prfaas"),
                }
            },
        },
    }


def _agent(
    scenario: dict[str, Any],
    cluster: str,
    ports: dict[str, int],
    console_url: str,
    options: Options,
) -> dict[str, Any]:
    """A site's agent: its engines and gates, and the links that begin there."""
    fleet = scenario["fleet"]["name"]
    config: dict[str, Any] = {
        "agent": f"agent-{cluster}",
        "console_url": console_url,
        "token_file": "agent.token",
        "spool_dir": f"spool-{cluster}",
        "instances": [
            {
                "id": name,
                "role": role,
                "role_url": f"{_url(ports[name])}/v1/loads",
                "engine": "vllm",
                "url": f"{_url(ports[name])}/metrics",
            }
            for name, role in _instances(scenario, cluster)
        ],
    }
    if cluster in _pd_clusters(scenario):
        config["routers"] = [
            {"id": f"{fleet}/{cluster}/{gate}", "url": f"{_url(ports[gate])}/metrics"}
            for gate in _gates(cluster, options["n_gates"])
        ]
    links = [
        {
            "id": f"{link['from']}->{link['to']}",
            "source": "lab",
            "measured_layer": "tcp",
            "url": f"{_url(ports['admin'])}/links",
        }
        for link in scenario["links"]
        if link["from"] == cluster
    ]
    return config | ({"links": links} if links else {})


def _load(
    scenario: dict[str, Any], cluster: str, ports: dict[str, int], options: Options
) -> dict[str, Any]:
    suffix, clusters = _suffix(cluster), _pd_clusters(scenario)
    config: dict[str, Any] = {
        "scenario": "scenario.toml",
        "targets": [_url(ports[gate]) for gate in _gates(cluster, options["n_gates"])],
        # Not the same requests at the same moments everywhere.
        "seed": options["seed"] + clusters.index(cluster),
        "admin_port": ports[f"load{suffix}"],
        "prompt": options["prompt"],
        "record": f"requests{suffix}.jsonl",
    }
    if len(clusters) > 1:
        config["cluster"] = cluster
    if options["trace"]:
        config |= {"trace": options["trace"], "speed": options["speed"]}
    return config


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(document))
    return path
