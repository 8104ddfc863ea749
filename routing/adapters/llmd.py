"""llm-d router (endpoint picker, EPP): roles by its endpoints file, live; the threshold by restart.

The endpoints file (plugin `file-discovery` with `watchFile: true`) is read again whenever another
one is renamed over it; the configuration is read at start only (docs/discovery.md, pkg/epp/server/
options.go). So the file's number is not what runs until the process has started after the file was
written, which its `process_start_time_seconds` shows.

The rule (prefix_based_pd_decider.go): remote iff uncached >= nonCachedTokens and nonCachedTokens is
not 0, which means "never remote". With nonCachedTokens = t + 1 that is the plan's own rule.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from routing.adapters import answers, applied, base, places
from routing.adapters.rendered import Rendered, Wanted
from routing.adapters.surface import (
    ROLES,
    Actual,
    CannotDo,
    Capabilities,
    Listed,
    Refused,
    Role,
    Status,
    SurfaceError,
    Threshold,
)
from telemetry.exposition import Exposition

TRIED_VERSIONS: Final = ("v0.9", "v0.10")
"""Read in their source, not run: there is no package of them."""
ROLE_LABEL: Final = "llm-d.ai/role"
CORDONED: Final = "cordoned"
"""A role that neither `prefill-filter` nor `decode-filter` takes, so nothing is sent there. No
label at all would not do: the decode filter lets that pass."""
MAX_FILE_BYTES: Final = 1 << 20
"""The router's own bound for its endpoints file."""
MEANS: Final = (
    "Remote iff at least nonCachedTokens = t + 1 tokens are not cached on the decode worker, which "
    "is the plan's rule. nonCachedTokens = 0 means never, not always. Where the router has no "
    "tokenizer it counts characters / 4, and t is off by as much as the text is. Where "
    "promptTokens is set, shorter prompts stay local whatever is cached."
)
_KEY: Final = r"^[ \t\-{{,\"']*{0}[\"']?[ \t]*:[ \t]*(\d+)[ \t]*(?:[,}}#].*)?$"
_NUMBER: Final = re.compile(_KEY.format("nonCachedTokens"), re.MULTILINE)
_GATE: Final = re.compile(_KEY.format("promptTokens"), re.MULTILINE)
_UNSEEN: Final = (
    "it shows nothing of its list: what is told is its endpoints file, and a request is the proof"
)
_DECISIONS: Final = "llm_d_epp_disagg_decision_total"
_NEVER = 0


class Endpoint(msgspec.Struct, frozen=True):
    """One entry of the endpoints file. The address is an IPv4 literal, the port a string."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    address: str
    port: str
    namespace: str = "default"
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        try:
            ipaddress.IPv4Address(self.address)
        except ValueError:
            raise ValueError(f"address={self.address!r}: not an IPv4 address") from None
        if re.fullmatch(r"[0-9]{1,5}", self.port) is None or not 0 < int(self.port) < 65_536:
            raise ValueError(f"port={self.port!r}: not a port")

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def listed(self) -> Listed:
        label = self.labels.get(ROLE_LABEL)
        status: Status = "draining" if label == CORDONED else "ready"
        return Listed(self.url, ROLES.get(label or ""), status, key=f"{self.namespace}/{self.name}")


class Settings(base.Behind, frozen=True, kw_only=True):
    """One endpoint picker: `url` serves its metrics, `gateway_url` the requests.

    `endpoints_file` is what it discovers its endpoints by, as JSON (which is YAML as well), and
    `config_file` its configuration. `restart_with` is the site's command to start it anew.
    """

    endpoints_file: places.Name | None = None
    config_file: places.Name | None = None
    restart_with: str | None = None


class Llmd(base.Changing[Settings]):
    kind = "llm-d"

    @property
    def _can(self) -> Capabilities:
        has_file = self.settings.endpoints_file is not None
        return Capabilities(
            threshold="restart" if self.settings.config_file is not None else "none",
            roles="live" if has_file else "none",
            drain="until_idle",
            has_auth=False,
            is_readable=False,
            tried_versions=TRIED_VERSIONS,
            threshold_means=MEANS,
            why=_UNSEEN
            if has_file
            else f"no endpoints_file is given: pods' labels {ROLE_LABEL} are for Kubernetes to set",
        )

    def read(self) -> Actual:
        counted = answers.metrics(f"{self.url}/metrics")
        started_s = answers.total(counted, "process_start_time_seconds")
        workers = {} if self.settings.endpoints_file is None else self._workers()
        number, words, findings = self._running(started_s)
        threshold = Threshold(number - 1 if number else None, words) if words else None
        return Actual(
            _version(counted),
            workers,
            threshold=threshold,
            findings=tuple(findings),
            facts={
                "requests_total": answers.total(counted, _DECISIONS),
                "remote_requests_total": answers.total(
                    counted, _DECISIONS, decision_type="prefill-decode"
                ),
                "non_cached_tokens": number,
                "started_at_s": started_s,
            },
        )

    def _take_out(self, actual: Actual, url: str) -> Actual:
        """Its role label becomes one that no filter takes."""
        self._relabel(url, CORDONED)
        return self._until_out(url)

    def _put_in(self, actual: Actual, url: str, role: Role) -> None:
        applied.not_last(actual, url, router=self.url)
        self._relabel(url, role)

    def rendered(self, wanted: Wanted, actual: Actual) -> Rendered:
        """The whole configuration with the wanted number. Raises CannotDo and SurfaceError."""
        path, text, _ = self._config()
        found = list(_NUMBER.finditer(text))
        if len(found) != 1:
            raise CannotDo(
                f"{path}: nonCachedTokens stands there {len(found)} times: once, as a number and "
                "on a line of its own, can be changed"
            )
        number = _number(wanted)
        notes = ["It is read at start only: until the process has started anew the old one runs."]
        if wanted.mode == "always_remote":
            notes.append("A prompt that is cached to the last token stays local all the same.")
        return Rendered(
            what=f"{path}: nonCachedTokens: {number} ({wanted})",
            content=f"{text[: found[0].start(1)]}{number}{text[found[0].end(1) :]}",
            apply=self.settings.restart_with
            or f"write this to {path}, and start the endpoint picker anew",
            notes=tuple(notes),
        )

    def runs(self, wanted: Wanted, actual: Actual) -> bool | None:
        running = actual.facts.get("non_cached_tokens")
        return None if running is None else running == _number(wanted)

    def _running(self, started_s: float | None) -> tuple[int | None, str, list[str]]:
        """nonCachedTokens of the process that runs, if that is known; in words; what is wrong."""
        if self.settings.config_file is None:
            return None, "", []
        path, text, written_s = self._config()
        found = _NUMBER.findall(text)
        if len(found) != 1:
            return None, f"{path} has {len(found)} numbers nonCachedTokens", []
        if started_s is None:
            return None, f"{path} says {found[0]}; whether that was read is not known", []
        if written_s >= started_s:
            return None, f"{path} was written since the process started: pending restart", []
        number, gate = int(found[0]), _GATE.search(text)
        findings = []
        if gate is not None and int(gate[1]) > 0:
            findings.append(f"promptTokens is {gate[1]}: shorter prompts stay local, whatever t.")
        words = "never remote" if number == _NEVER else f"remote from {number} uncached tokens on"
        return number, words, findings

    def _config(self) -> tuple[Path, str, float]:
        """Where the configuration is, what stands there, and since when. Raises SurfaceError."""
        if self.settings.config_file is None:
            raise CannotDo(f"{self.url}: no config_file is given")
        path = places.path_of(self.settings.config_file, router=self.url)
        return path, _text(path), _written_s(path)

    def _workers(self) -> dict[str, Listed]:
        path, document = self._endpoints()
        return applied.by_url([each.listed() for each in _checked(path, document)], router=self.url)

    def _endpoints(self) -> tuple[Path, dict[str, Any]]:
        if self.settings.endpoints_file is None:
            raise CannotDo(f"{self.url}: no endpoints_file is given")
        path = places.path_of(self.settings.endpoints_file, router=self.url)
        return path, _decoded(path, _text(path))

    def _relabel(self, wanted: str, role: str) -> None:
        """Another endpoints file in place of this one, with another role of one endpoint."""
        path = self._endpoints()[0]
        try:
            with places.changing(path):
                text = _text(path)
                document = _decoded(path, text)
                found = _checked(path, document)
                i = next((i for i, each in enumerate(found) if each.url == wanted), None)
                if i is None:
                    raise Refused(f"{path}: lists no endpoint {wanted}")
                # Again, of what stands there now: somebody may have taken another one out.
                shown = applied.by_url([each.listed() for each in found], router=self.url)
                if shown[wanted].role != role:
                    applied.not_last(Actual(None, shown), wanted, router=self.url)
                entry = document["endpoints"][i]
                entry["labels"] = {**(entry.get("labels") or {}), ROLE_LABEL: role}
                raw = msgspec.json.format(msgspec.json.encode(document), indent=2)
                places.replace_file(path, raw + b"\n", instead_of=text.encode())
        except OSError as exc:
            raise SurfaceError(f"{path}: cannot be written: {exc.strerror}") from None


def _number(wanted: Wanted) -> int:
    """The plan's rule as nonCachedTokens: remote iff uncached >= n, and 0 is never."""
    if wanted.mode == "always_local":
        return _NEVER
    return 1 if wanted.tokens is None else wanted.tokens + 1


def _decoded(path: Path, text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise SurfaceError(
            f"{path}: {exc}. It must be JSON, which is YAML too, so that it can be written"
        ) from None


def _checked(path: Path, document: dict[str, Any]) -> list[Endpoint]:
    try:
        return msgspec.convert(document.get("endpoints"), list[Endpoint])
    except msgspec.ValidationError as exc:
        raise SurfaceError(f"{path}: endpoints: {exc}") from None


def _version(counted: Exposition) -> str | None:
    """Of the build: its `v0.9.1` counts as v0.9."""
    for sample in counted.samples.get("llm_d_epp_info", ()):
        match = re.match(r"v\d+\.\d+", sample.labels.get("build_ref", ""))
        return match[0] if match else sample.labels.get("build_ref") or None
    return None


def _text(path: Path) -> str:
    try:
        return places.content(path, max_bytes=MAX_FILE_BYTES).decode()
    except OSError as exc:
        raise SurfaceError(f"{path}: {exc.strerror}") from None
    except UnicodeDecodeError:
        raise SurfaceError(f"{path}: not text") from None


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError as exc:
        raise SurfaceError(f"{path}: {exc.strerror}") from None
