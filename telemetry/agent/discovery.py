"""`[[discover]]` of `agent.toml`: instances that are found, not listed.

Whatever finds them tells targets (a name, a host, maybe a port, labels), and one template makes
instances of them. What cannot be asked changes nothing: the last answer stands until there is
another one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from telemetry import strict_toml
from telemetry.agent.instances import ROLES, Instance, Role
from telemetry.agent.instances import problems as instance_problems
from telemetry.strict_toml import TomlError

MAX_TARGETS = 1024
"""Instances one `[[discover]]` may bring; the others are left out and said."""
MAX_FILE_BYTES = 4 * 1024 * 1024
_FIELDS = ("name", "host", "port")
_PLACE = re.compile(r"\{([^{}]*)\}")


class Discover(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Where instances are found, and what each is taken for.

    `id`, `url` and `role_url` are templates with {name}, {host} and {port}. `file`: the targets
    of `path`, read again when it changes. `dns`: one instance for each answer to `names`.
    `kubernetes`: the running pods that `selector` selects, `port` by number or by `port_name`. A
    label named by `role_label` or `group_label` says it for each target.
    """

    source: Literal["file", "dns", "kubernetes"]
    id: str
    role: Role
    url: str = "http://{host}:{port}/metrics"
    engine: str = "auto"
    engine_version: str = ""
    group: str | None = None
    ranks: int | None = None
    role_url: str = ""
    role_key: str = "disagg_mode"
    timeout_s: float | None = None
    port: int | None = None
    role_label: str = ""
    group_label: str = ""
    refresh_s: float = 15.0
    path: str = ""
    names: tuple[str, ...] = ()
    record: Literal["A", "AAAA", "SRV"] = "A"
    nameserver: str = ""
    selector: str = ""
    namespace: str = ""
    port_name: str = ""
    api_url: str = ""
    api_token_file: str = ""
    api_ca_file: str = ""


@dataclass(frozen=True)
class Target:
    """Something to read. `name` is its part of the id; `port` None where nobody says one."""

    name: str
    host: str
    port: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class DiscoveryError(Exception):
    """Where the targets are told could not be asked, or the answer is none."""


Publish = Callable[[Sequence[Target]], None]


class Finder(Protocol):
    """Tells all targets each time they may have changed, until it is cancelled."""

    @property
    def problem(self) -> str | None:
        """Why what was told last may be out of date; None while all is well."""

    async def run(self, publish: Publish) -> None: ...


def instances_of(
    discover: Discover, targets: Sequence[Target]
) -> tuple[tuple[Instance, ...], tuple[str, ...]]:
    """(instances by id, why others are left out). One bad target takes no other with it."""
    found: dict[str, Instance] = {}
    warnings = []
    for target in sorted(targets, key=lambda entry: (entry.name, entry.host, entry.port or 0)):
        if len(found) >= MAX_TARGETS:
            warnings.append(f"more than {MAX_TARGETS} targets, the others are left out")
            break
        port = target.port if target.port is not None else discover.port
        said = target.labels.get(discover.role_label, discover.role)
        role = next((role for role in ROLES if role == said), None)
        if port is None and any("{port}" in text for text in (discover.url, discover.id)):
            warnings.append(f"{target.name}: nobody says its port")
            continue
        if role is None:
            warnings.append(f"{target.name}: {discover.role_label}={said!r:.80} is no role")
            continue
        group = target.labels.get(discover.group_label, discover.group)
        instance = _instance(discover, target, port, role, group)
        if instance.id in found:
            warnings.append(f"{instance.id} is found twice, {target.host} is left out")
        elif why := next(instance_problems("", instance), None):
            warnings.append(f"{target.name}: {why[0].lstrip('.')}={str(why[1])[:80]!r}: {why[2]}")
        else:
            found[instance.id] = instance
    return tuple(found.values()), tuple(warnings)


def _instance(
    discover: Discover, target: Target, port: int | None, role: Role, group: str | None
) -> Instance:
    return Instance(
        id=_filled(discover.id, target, port),
        role=role,
        url=_filled(discover.url, target, port, in_url=True),
        engine=discover.engine,
        engine_version=discover.engine_version,
        group=group,
        ranks=discover.ranks,
        role_url=_filled(discover.role_url, target, port, in_url=True),
        role_key=discover.role_key,
        timeout_s=discover.timeout_s,
    )


def _filled(template: str, target: Target, port: int | None, *, in_url: bool = False) -> str:
    host = f"[{target.host}]" if in_url and ":" in target.host else target.host
    values = {"name": target.name, "host": host, "port": str(port)}
    return _PLACE.sub(lambda place: values[place[1]], template)


def problems(key: str, discover: Discover) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of whatever the types cannot say."""
    for name in ("id", "url", "role_url"):
        template = getattr(discover, name)
        for place in _PLACE.findall(template):
            if place not in _FIELDS:
                known = ", ".join(f"{{{field}}}" for field in _FIELDS)
                yield f"{key}.{name}", template, f"{{{place}}} is none of {known}"
                return
    if "{name}" not in discover.id and "{host}" not in discover.id:
        yield f"{key}.id", discover.id, "needs {name} or {host}: each instance has its own id"
    example = _instance(discover, Target("name", "host"), 1, discover.role, discover.group)
    for field_path, value, why in instance_problems(key, example):
        template = getattr(discover, field_path.removeprefix(f"{key}."), value)
        yield field_path, template, why
    if not 1.0 <= discover.refresh_s <= 3600.0:
        yield f"{key}.refresh_s", discover.refresh_s, "must be in 1..3600 seconds"
    if discover.port is not None and not 1 <= discover.port <= 65535:
        yield f"{key}.port", discover.port, "must be in 1..65535"
    needed = {"file": "path", "dns": "names", "kubernetes": "selector"}[discover.source]
    if not getattr(discover, needed):
        yield f"{key}.{needed}", getattr(discover, needed), f"{discover.source} needs it"


class _FileTarget(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """One group of a targets file, as Prometheus' `file_sd` has it."""

    targets: tuple[str, ...]
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    targets: tuple[_FileTarget, ...] = ()


def read_file(path: Path) -> tuple[Target, ...]:
    """Targets of a file: JSON `[{"targets": ["host:port"], "labels": {}}]`, or TOML with the same
    as `[[targets]]` if it is named so. The label `name` names a group of one; else a target is
    named as it is written. An empty list is obeyed. Raises DiscoveryError.
    """
    try:
        if path.suffix == ".toml":
            groups = strict_toml.read(path, _File).targets
        else:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DiscoveryError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
            groups = msgspec.json.decode(path.read_bytes(), type=tuple[_FileTarget, ...])
    except TomlError as exc:
        raise DiscoveryError(str(exc)) from None
    except OSError as exc:
        raise DiscoveryError(f"{path}: {exc.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise DiscoveryError(f"{path}: {exc}") from None
    found = []
    for group in groups:
        for written in group.targets:
            host, port = split_port(written)
            named = group.labels.get("name", "") if len(group.targets) == 1 else ""
            found.append(Target(named or written, host, port, group.labels))
    return tuple(found)


def split_port(written: str) -> tuple[str, int | None]:
    """(host, port or None) of `host`, `host:port`, `[v6]:port` or a bare v6 address."""
    host, colon, port = written.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")) or not port.isdecimal():
        return written.strip("[]"), None
    return host.strip("[]"), int(port)


class FileFinder:
    """Watches one targets file: whatever replaces it, renamed or written in place, is seen."""

    def __init__(self, path: Path, *, refresh_s: float) -> None:
        self._path, self._refresh_s = path, refresh_s
        self.problem: str | None = None

    async def run(self, publish: Publish) -> None:
        seen: tuple[int, ...] | None = None
        while True:
            now = stamp(self._path)
            if now != seen or now is None:
                seen = now
                try:
                    publish(read_file(self._path))
                    self.problem = None
                except DiscoveryError as exc:
                    self.problem = str(exc)
            await asyncio.sleep(self._refresh_s)


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with a file's content; None while there is no such file."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
