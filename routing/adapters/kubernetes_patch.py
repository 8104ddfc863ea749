"""Roles and replicas that Kubernetes owns: read from its API, changed by documents for others.

The console holds no right to change anything in a cluster. What it wants is an object with only the
fields that it wants, for `kubectl apply --server-side` or a GitOps repository; who else has set one
of them comes out as a conflict there, instead of being overwritten.
"""

from __future__ import annotations

import ipaddress
import shlex
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from routing.adapters import answers, applied, base, places
from routing.adapters.places import Port
from routing.adapters.rendered import Rendered
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
)
from routing.core.urls import base_url

FIELD_MANAGER: Final = "prfaas-console"
TRIED_VERSIONS: Final = ("v1alpha2",)
"""Of LLMInferenceService; its fields were read in its documents, not run."""
MAX_LIST_BYTES: Final = 16_000_000
Object = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]

_WHY: Final = "its objects are Kubernetes' own: apply the rendered document"


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""
    podIP: str = ""
    conditions: list[_Condition] | None = None


class Pod(msgspec.Struct, frozen=True):
    """The little of a pod that says what it serves as."""

    metadata: _Meta
    status: _PodStatus = _PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_there(self) -> bool:
        """It has an address of its own. One that has ended keeps it, and another pod may have it
        by now."""
        return bool(self.status.podIP) and self.status.phase not in ("Failed", "Succeeded")

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    def state(self) -> Status:
        if self.metadata.deletion_timestamp is not None:
            return "draining"
        conditions = self.status.conditions or []
        is_ready = any((c.type, c.status) == ("Ready", "True") for c in conditions)
        return "ready" if is_ready else "starting"


class _Pods(msgspec.Struct, frozen=True):
    items: list[Pod]


class _Prefill(msgspec.Struct, frozen=True):
    replicas: int | None = None
    scaling: dict[str, Any] | None = None


class _ServiceSpec(msgspec.Struct, frozen=True):
    replicas: int | None = None
    prefill: _Prefill | None = None
    scaling: dict[str, Any] | None = None


class _Service(msgspec.Struct, frozen=True):
    spec: _ServiceSpec


class Pods(base.Behind, frozen=True, kw_only=True):
    """Pods of one `namespace`, which serve at `port`. `url` is the API server's (with
    `token_file`), or a `kubectl proxy`'s; `gateway_url` takes requests."""

    namespace: Object
    port: Port = 8000
    token_file: places.NameOrNone = ""

    def headers(self) -> dict[str, str]:
        """Raises SurfaceError."""
        return places.bearer(self.token_file, router=self.url)


class Settings(Pods, frozen=True, kw_only=True):
    """Those that `selector` names, whose label `role_label` is their role. `service` is the
    LLMInferenceService that makes them, if one does."""

    selector: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    role_label: str = "llm-d.ai/role"
    service: Object | None = None


class Kubernetes(base.Unchanged[Settings]):
    kind = "kubernetes"
    _why_not = _WHY

    def capabilities(self, actual: Actual) -> Capabilities:
        return Capabilities(
            threshold="none",
            roles="patch",
            drain="none",
            has_auth=bool(self.settings.token_file),
            is_readable=True,
            tried_versions=TRIED_VERSIONS,
            threshold_means="It has none of its own: that of the router before its pods counts.",
            why=_WHY,
        )

    def read(self) -> Actual:
        found = pods(self.settings, self.settings.selector)
        workers = applied.by_url(
            [
                listed(pod, ROLES.get(pod.labels.get(self.settings.role_label, "")), self._port)
                for pod in found
                if pod.is_there
            ],
            router=self.url,
        )
        facts, findings = self._service()
        return Actual(TRIED_VERSIONS[0], workers, findings=findings, facts=facts)

    def rendered_role(self, url: str, role: Role, actual: Actual) -> Rendered:
        """The pod's role label. Raises Refused for a URL that no pod serves at, and for the last
        ready one of its role."""
        pod = actual.workers.get(base_url(url))
        if pod is None:
            raise Refused(f"{self.url}: no pod of {self.settings.selector} serves at {url}")
        if pod.role != role:
            applied.not_last(actual, url, router=self.url)
        return document(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod.key,
                    "namespace": self.settings.namespace,
                    "labels": {self.settings.role_label: role},
                },
            },
            what=f"pod {pod.key}: {self.settings.role_label}: {role}",
            notes=(
                "If the owner of the pod selects by this label, it makes another one in its place: "
                "change the owner's replicas then.",
                "A pod that is made anew has the label of its template again.",
            ),
        )

    def rendered_replicas(self, n_prefill: int, n_decode: int, actual: Actual) -> Rendered:
        """The numbers of an LLMInferenceService. Raises CannotDo where its scaling has them."""
        service = self.settings.service
        if service is None:
            raise CannotDo(f"{self.url}: service is not given: it is not known what makes the pods")
        if actual.facts.get("is_scaled_by_others"):
            raise CannotDo(
                f"{self.url}: {service} has spec.scaling, which excludes replicas: remove it first"
            )
        if min(n_prefill, n_decode) < 1:
            raise Refused(
                f"{self.url}: {n_prefill} prefill and {n_decode} decode: at least one each"
            )
        spec = {"replicas": n_decode, "prefill": {"replicas": n_prefill}}
        return document(
            {
                "apiVersion": f"serving.kserve.io/{TRIED_VERSIONS[0]}",
                "kind": "LLMInferenceService",
                "metadata": {"name": service, "namespace": self.settings.namespace},
                "spec": spec,
            },
            what=f"LLMInferenceService {service}: {n_prefill} prefill, {n_decode} decode",
            notes=("spec.replicas counts the decode workers, spec.prefill.replicas the prefill.",),
        )

    @property
    def _port(self) -> int:
        return self.settings.port

    def _service(self) -> tuple[dict[str, object], tuple[str, ...]]:
        name = self.settings.service
        if name is None:
            return {}, ()
        at = (
            f"{self.url}/apis/serving.kserve.io/{TRIED_VERSIONS[0]}/namespaces/"
            f"{self.settings.namespace}/llminferenceservices/{name}"
        )
        spec = answers.get(at, _Service, headers=self.settings.headers()).spec
        prefill = spec.prefill or _Prefill()
        is_scaled = spec.scaling is not None or prefill.scaling is not None
        facts: dict[str, object] = {
            "n_prefill": prefill.replicas,
            "n_decode": spec.replicas,
            "is_scaled_by_others": is_scaled,
            "other_writer": f"the autoscaler of {name}" if is_scaled else None,
        }
        words = f"{name} has spec.scaling: an autoscaler writes its replicas, not this console."
        return facts, (words,) if is_scaled else ()


def pods(of: Pods, selector: str) -> list[Pod]:
    """Those that a label selector names. Raises SurfaceError."""
    query = urllib.parse.urlencode({"labelSelector": selector})
    at = f"{of.url}/api/v1/namespaces/{of.namespace}/pods?{query}"
    return answers.get(at, _Pods, headers=of.headers(), max_bytes=MAX_LIST_BYTES).items


def listed(pod: Pod, role: Role | None, port: int) -> Listed:
    """A pod as an instance; `key` is its name. Raises SurfaceError."""
    try:
        address = ipaddress.ip_address(pod.status.podIP)
    except ValueError:
        raise SurfaceError(f"pod {pod.name}: podIP={pod.status.podIP!r}: no IP address") from None
    host = f"[{address}]" if address.version == 6 else f"{address}"
    return Listed(f"http://{host}:{port}", role, pod.state(), key=pod.name)


def document(object: dict[str, Any], *, what: str, notes: tuple[str, ...] = ()) -> Rendered:
    """An object with only the fields that are wanted, as JSON, which YAML contains."""
    content = msgspec.json.format(msgspec.json.encode(object), indent=2).decode() + "\n"
    command = ["kubectl", "apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-f", "-"]
    return Rendered(what=what, content=content, apply=shlex.join(command), notes=notes)
