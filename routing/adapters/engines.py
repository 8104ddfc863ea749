"""Engines themselves: what is on them, and whether and how one can take another role.

`engine`: SGLang 0.5.23 and our own lab, by `POST /pd_role_switch`, which an idle engine takes.
`label`: vLLM with `kv_role=kv_both`, whose role is only what routers say of it: nothing to switch,
and nothing that could be read back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from routing.adapters import answers, http, places
from routing.adapters.surface import ROLES, CannotDo, Refused, Role, SurfaceError, Unheeded
from telemetry.canonical import Canonical, canonicalise

RoleSwitch = Literal["engine", "label"]
SGLANG_SINCE: Final = (0, 5, 23)
"""The first release that has `/pd_role_switch`."""
SGLANG_BACKENDS: Final = ("mooncake", "mori")
"""Transfer backends that can be rebuilt for the other role; nixl cannot."""
SWITCH_TIMEOUT_S: Final = 10.0
"""It rebuilds its queues before it answers. One that takes longer is found switched by the next
look."""
NOT_IDLE, RESTART_REQUIRED = "not idle", "restart required"
"""What SGLang says, in words only, when it still has requests, and when a switch broke it."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_NO_SUCH_CALL: Final = (404, 405)
_COUNTED: Final = ("prompt_tokens_total", "generation_tokens_total")


class Busy(SurfaceError):
    """An engine that does not switch because it is not idle yet: drain on, and ask again."""


class Broken(Refused):
    """A switch failed half-way: the engine has neither role until its process starts anew."""


@dataclass(frozen=True)
class Engine:
    """What an engine shows. `requests` is everything on it, KV on its way included; `role` None: it
    has none of its own."""

    role: Role | None
    requests: int
    version: str | None = None


@dataclass(frozen=True)
class Ability:
    """Whether an engine can take another role without a restart; `why` is empty if it can."""

    can: bool
    why: str
    version: str | None = None


class _Disaggregation(msgspec.Struct, frozen=True):
    mode: str = "null"
    prefill_bootstrap_queue_reqs: _Count = 0
    prefill_inflight_queue_reqs: _Count = 0
    decode_prealloc_queue_reqs: _Count = 0
    decode_transfer_queue_reqs: _Count = 0
    decode_retracted_queue_reqs: _Count = 0

    @property
    def requests(self) -> int:
        """What is on its way between prefill and decode, which running and waiting leave out."""
        return (
            self.prefill_bootstrap_queue_reqs
            + self.prefill_inflight_queue_reqs
            + self.decode_prealloc_queue_reqs
            + self.decode_transfer_queue_reqs
            + self.decode_retracted_queue_reqs
        )


class _Load(msgspec.Struct, frozen=True):
    """Of one data-parallel rank (SGLang), or of the engine (our lab)."""

    num_running_reqs: _Count
    num_waiting_reqs: _Count
    disagg_mode: str | None = None
    disaggregation: _Disaggregation = _Disaggregation()

    @property
    def requests(self) -> int:
        return self.num_running_reqs + self.num_waiting_reqs + self.disaggregation.requests

    @property
    def mode(self) -> str:
        return self.disagg_mode or self.disaggregation.mode


class _Loads(msgspec.Struct, frozen=True):
    loads: list[_Load]
    version: str | None = None


class _Info(msgspec.Struct, frozen=True):
    version: str | None = None
    enable_pd_role_switch: bool | None = None
    disaggregation_mode: str | None = None
    disaggregation_transfer_backend: str | None = None


class _Switched(msgspec.Struct, frozen=True):
    success: bool
    new_role: str = ""
    message: str = ""
    safe_to_restore: bool | None = None


def look(url: str, role_switch: RoleSwitch, *, token_file: str = "") -> Engine:
    """The engine now. Raises SurfaceError, also where it does not count its requests: nothing
    would then prove it idle."""
    headers = places.bearer(token_file, router=url)
    return _labelled(url, headers) if role_switch == "label" else _switched(url, headers)


def ability(url: str, role_switch: RoleSwitch, *, token_file: str = "") -> Ability:
    """By SGLang's `/server_info`. An engine without it is asked when it is to switch, and says no
    then before anything is changed. Raises SurfaceError for one that does not answer."""
    if role_switch == "label":
        return Ability(True, "")
    headers = places.bearer(token_file, router=url)
    try:
        info = http.ask("GET", f"{url}/server_info", headers=headers).read_as(_Info)
    except http.Status as exc:
        if exc.status in _NO_SUCH_CALL:
            return Ability(True, "")
        raise answers.no_of(exc) from None
    except http.HttpError as exc:
        raise SurfaceError(str(exc)) from None
    return Ability(*_able(info), version=info.version)


def switch(
    url: str,
    role: Role,
    *,
    token_file: str = "",
    decode_cuda_graph_memory_gb: float | None = None,
) -> None:
    """Have an idle engine take the role, and read it back.

    `decode_cuda_graph_memory_gb`: SGLang asks for it before a prefill's first turn to decode,
    measured on a decode engine of the same kind. Raises SurfaceError, of it Busy for an engine that
    is not idle, CannotDo, Refused, Broken, and Unheeded for one that keeps its role.
    """
    at = f"{url}/pd_role_switch"
    asked: dict[str, Any] = {"new_role": role}
    if decode_cuda_graph_memory_gb is not None:
        asked["decode_cuda_graph_memory_gb"] = decode_cuda_graph_memory_gb
    headers = places.bearer(token_file, router=url)
    try:
        raw = http.ask("POST", at, body=asked, headers=headers, timeout_s=SWITCH_TIMEOUT_S)
    except http.Status as exc:
        raise _refused(exc) from None
    except http.HttpError as exc:
        raise SurfaceError(str(exc)) from None
    answer = answers.read_as(raw, _Switched)
    if not answer.success or answer.new_role != role:
        raise Unheeded(
            f"{at}: answers 200 with success {answer.success}, new_role {answer.new_role}: "
            f"{answer.message[:200] or 'no message'}"
        )
    shown = look(url, "engine", token_file=token_file).role
    if shown != role:
        raise Unheeded(f"{at}: answers that it switched to {role}, and still is {shown}")


def worked_tokens(url: str) -> float | None:
    """Prompt and answer tokens it counted since its start; None where it does not tell."""
    try:
        shown = _canonical(url, {})
    except SurfaceError:
        return None
    values = [s.value for name in _COUNTED if (s := shown.signals.get(name)) is not None]
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _switched(url: str, headers: Mapping[str, str]) -> Engine:
    """SGLang, or an emulated engine of the lab, whose answers are SGLang's in small."""
    at = f"{url}/v1/loads"
    raw = answers.call("GET", at, headers=headers)
    document = answers.read_as(raw, dict[str, Any])
    if "loads" not in document:
        load = answers.read_as(raw, _Load)
        return Engine(ROLES.get(load.mode), load.requests)
    loads = answers.read_as(raw, _Loads)
    modes = {load.mode for load in loads.loads}
    if len(modes) != 1:
        shown = ", ".join(sorted(modes)) or "none"
        raise SurfaceError(f"{at}: loads: {len(loads.loads)} ranks, of the roles {shown}")
    requests = sum(load.requests for load in loads.loads)
    return Engine(ROLES.get(modes.pop()), requests, loads.version)


def _labelled(url: str, headers: Mapping[str, str]) -> Engine:
    """By its metrics. What a prefill engine keeps for a decode that has not fetched it is in none
    of them: nothing shows that its KV has been taken."""
    shown = _canonical(url, headers)
    counts = {}
    for name in ("requests_running", "requests_waiting"):
        signal = shown.signals.get(name)
        if signal is None or signal.value is None:
            why = (signal and signal.reason) or "not exposed"
            raise SurfaceError(f"{url}/metrics: {name} is missing ({why}): idle cannot be proven")
        counts[name] = signal.value
    return Engine(None, round(sum(counts.values())))


def _canonical(url: str, headers: Mapping[str, str]) -> Canonical:
    return canonicalise(answers.metrics(f"{url}/metrics", headers=headers), kind="instance")


def _able(info: _Info) -> tuple[bool, str]:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", info.version or "")
    if numbers is not None and tuple(map(int, numbers.groups())) < SGLANG_SINCE:
        first = ".".join(map(str, SGLANG_SINCE))
        return False, f"SGLang {info.version} cannot switch roles: {first} is the first that can"
    if info.enable_pd_role_switch is False:
        return False, "it was started without --enable-pd-role-switch"
    if info.disaggregation_mode not in (None, *ROLES):
        return False, f"its --disaggregation-mode is {info.disaggregation_mode}: it has no role"
    backend = info.disaggregation_transfer_backend
    if backend is not None and backend not in SGLANG_BACKENDS:
        return False, (
            f"its transfer backend {backend} cannot be rebuilt for another role: "
            f"{' or '.join(SGLANG_BACKENDS)} can"
        )
    return True, ""


def _refused(exc: http.Status) -> SurfaceError:
    """409 is our lab's word for an engine that is not idle; SGLang answers 400 and says it."""
    if exc.status == 409 or (exc.status == 400 and NOT_IDLE in exc.words):
        return Busy(str(exc))
    if exc.status == 400 and RESTART_REQUIRED in exc.words:
        return Broken(str(exc))
    if exc.status in _NO_SUCH_CALL:
        return CannotDo(f"{exc.url}: it has no such call: this version cannot switch its role")
    return answers.no_of(exc)
