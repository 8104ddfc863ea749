"""AIBrix' gateway: a length threshold by annotations of its pods, which it reads at each request.

Pods that do both (`combined`) take prompts up to t, prefill and decode pods those above it, by
`promptLenBucketMinLength` and `promptLenBucketMaxLength` in `model.aibrix.ai/config` (both bounds
inclusive, a maximum of 0 is none, a minimum above the maximum takes nothing; pkg/plugins/gateway/
algorithms/pd_disaggregation.go). Needs AIBRIX_PROMPT_LENGTH_BUCKETING=true on the gateway, which
cannot be asked of it.

The length is that of the whole prompt. What is cached does not count, so t is not the plan's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec

from routing.adapters import applied, base
from routing.adapters import kubernetes_patch as kubernetes
from routing.adapters.kubernetes_patch import Pod
from routing.adapters.rendered import Rendered, Wanted
from routing.adapters.surface import ROLES, Actual, CannotDo, Capabilities, Role, Threshold

TRIED_VERSIONS: Final = ("0.8",)
"""Read in its source, not run."""
ANNOTATION: Final = "model.aibrix.ai/config"
MEANS: Final = (
    "Remote iff the whole prompt has more than t tokens. What is cached does not count: a long "
    "prompt goes remote though all but a few of its tokens are cached, where the plan would keep "
    "it local. Holds only with AIBRIX_PROMPT_LENGTH_BUCKETING=true on the gateway, which it does "
    "not show. A prompt above t is refused, not taken by a combined pod, while no roleset is "
    "complete."
)
_ROLES_WHY: Final = "roles are replicas of a StormService's roles, which is for its owner to change"
_UNLIMITED: Final = 0
_LABEL: Final = r"^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
"""What Kubernetes takes as a label's value: a comma would be another condition."""
_ROLE_NAME, _ROLESET = "role-name", "roleset-name"
Bounds = tuple[int, int | None]
"""The shortest and the longest prompt that a pod takes, in tokens; None: there is no longest."""
_ANY: Final[Bounds] = (0, None)
_NONE: Final[Bounds] = (2, 1)
"""A minimum above the maximum, which takes no prompt."""


class _Routing(msgspec.Struct, frozen=True):
    promptLenBucketMinLength: int = 0
    promptLenBucketMaxLength: int = 0
    combined: bool = False

    @property
    def bounds(self) -> Bounds:
        longest = self.promptLenBucketMaxLength
        return max(0, self.promptLenBucketMinLength), None if longest == _UNLIMITED else longest


class _Profile(msgspec.Struct, frozen=True):
    routingConfig: _Routing = _Routing()


class _Config(msgspec.Struct, frozen=True):
    profiles: dict[str, _Profile]
    defaultProfile: str = "default"

    @property
    def routing(self) -> _Routing:
        """Of the profile that a request without a wish of its own gets."""
        return self.profiles.get(self.defaultProfile or "default", _Profile()).routingConfig


class Settings(kubernetes.Pods, frozen=True, kw_only=True):
    """The pods of one `model`."""

    model: Annotated[str, msgspec.Meta(pattern=_LABEL)]


class Aibrix(base.Unchanged[Settings]):
    kind = "aibrix"
    _why_not = _ROLES_WHY

    def capabilities(self, actual: Actual) -> Capabilities:
        return Capabilities(
            threshold="patch",
            roles="none",
            drain="none",
            has_auth=bool(self.settings.token_file),
            is_readable=True,
            tried_versions=TRIED_VERSIONS,
            threshold_means=MEANS,
            why=_ROLES_WHY,
        )

    def read(self) -> Actual:
        found = self._pods()
        threshold, findings = _threshold(found)
        workers = [
            kubernetes.listed(pod, _role(pod), self.settings.port) for pod in found if pod.is_there
        ]
        return Actual(
            None,
            applied.by_url(workers, router=self.url),
            threshold=threshold,
            findings=tuple(findings),
            facts={
                "combined": _distinct(pod for pod in found if _combined(pod)),
                "apart": _distinct(pod for pod in found if _role(pod)),
            },
        )

    def rendered(self, wanted: Wanted, actual: Actual) -> Rendered:
        """All pods' annotations with the wanted bounds. Raises CannotDo and SurfaceError."""
        found = self._pods()
        if not any(_combined(pod) for pod in found):
            raise CannotDo(
                f"{self.url}: no pod of {self.settings.model} is `combined`: every prompt is "
                "prefilled apart, and there is no other side to choose"
            )
        items = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod.name,
                    "namespace": self.settings.namespace,
                    "annotations": {ANNOTATION: _annotated(pod, wanted)},
                },
            }
            for pod in found
        ]
        return kubernetes.document(
            {"apiVersion": "v1", "kind": "List", "items": items},
            what=f"{ANNOTATION} of {len(items)} pods of {self.settings.model}: {wanted}",
            notes=(
                "It counts the whole prompt, not what is uncached of it.",
                "The pods' templates need the same, or a pod that is made anew has its old bounds.",
            ),
        )

    def runs(self, wanted: Wanted, actual: Actual) -> bool | None:
        combined, apart = _bounds(wanted)
        if not actual.facts["combined"] or not actual.facts["apart"]:
            return None
        shown = (actual.facts["combined"], actual.facts["apart"])
        return shown == ([list(combined)], [list(apart)])

    def _pods(self) -> list[Pod]:
        return kubernetes.pods(self.settings, f"model.aibrix.ai/name={self.settings.model}")


def _bounds(wanted: Wanted) -> tuple[Bounds, Bounds]:
    """Of combined pods, and of prefill and decode pods."""
    if wanted.mode == "always_local":
        return _ANY, _NONE
    # A maximum of 0 would be none at all, so a threshold of 0 closes the combined pods.
    if not wanted.tokens:
        return _NONE, _ANY
    return (0, wanted.tokens), (wanted.tokens + 1, None)


def _threshold(found: list[Pod]) -> tuple[Threshold | None, list[str]]:
    findings = [
        f"Pod {pod.name} is combined and has no label {_ROLESET} or {_ROLE_NAME}: the gateway "
        "passes it over."
        for pod in found
        if _combined(pod) and not {_ROLESET, _ROLE_NAME} <= pod.labels.keys()
    ]
    combined = _distinct(pod for pod in found if _combined(pod))
    apart = _distinct(pod for pod in found if _role(pod))
    if not combined or not apart:
        return Threshold(None, "no combined pods: every prompt is prefilled apart"), findings
    if len(combined) > 1 or len(apart) > 1:
        findings.append(
            "Pods of one kind have different length bounds: "
            f"combined {_said(combined)}; prefill and decode {_said(apart)}."
        )
        return None, findings
    (local,), (remote,) = combined, apart
    longest = local[1]
    if local[0] == 0 and longest is not None and remote == [longest + 1, None]:
        return Threshold(longest, f"remote if the whole prompt is above {longest} tokens"), findings
    words = f"combined pods take {_said(combined)} tokens, prefill and decode {_said(apart)}"
    return Threshold(None, words), findings


def _distinct(found: Iterable[Pod]) -> list[list[int | None]]:
    """The bounds that there are, as the JSON of a fact."""
    return [list(each) for each in sorted({_routing(pod).bounds for pod in found}, key=str)]


def _said(bounds: list[list[int | None]]) -> str:
    return " and ".join(
        "no" if b is not None and (a or 0) > b else f"{a}..{'' if b is None else b}"
        for a, b in bounds
    )


def _role(pod: Pod) -> Role | None:
    return ROLES.get(pod.labels.get(_ROLE_NAME, ""))


def _combined(pod: Pod) -> bool:
    return _role(pod) is None and _routing(pod).combined


def _routing(pod: Pod) -> _Routing:
    """What the pod's annotation says; one that cannot be read is none, as for the gateway."""
    try:
        return msgspec.json.decode(pod.annotations.get(ANNOTATION, ""), type=_Config).routing
    except msgspec.DecodeError:
        return _Routing()


def _annotated(pod: Pod, wanted: Wanted) -> str:
    """The pod's annotation with other bounds in each profile, and nothing else changed."""
    try:
        config = msgspec.json.decode(pod.annotations.get(ANNOTATION, ""), type=dict[str, Any])
    except msgspec.DecodeError:
        config = {}
    if not config.get("profiles"):
        config["profiles"] = {"default": {"routingStrategy": "pd"}}
    combined, apart = _bounds(wanted)
    shortest, longest = combined if _combined(pod) else apart
    for profile in config["profiles"].values():
        profile["routingConfig"] = {
            **(profile.get("routingConfig") or {}),
            "promptLenBucketMinLength": shortest,
            "promptLenBucketMaxLength": _UNLIMITED if longest is None else longest,
        }
    return msgspec.json.encode(config).decode()
