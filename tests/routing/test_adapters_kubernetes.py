"""What Kubernetes owns: AIBrix' annotations, role labels and replicas, as documents to apply."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routing.adapters import aibrix, kubernetes_patch
from routing.adapters.aibrix import Aibrix
from routing.adapters.kubernetes_patch import Kubernetes
from routing.adapters.registry import SettingsError, surface_of
from routing.adapters.rendered import Wanted
from routing.adapters.surface import CannotDo, Refused, SurfaceError
from tests.routing.fake_pages import Pages
from tests.routing.fake_router import serving

PODS = "GET /api/v1/namespaces/llm/pods"
SERVICE = "GET /apis/serving.kserve.io/v1alpha2/namespaces/llm/llminferenceservices/kimi"
MAX_INT32 = 2**31 - 1


def takes(annotation: str | None, prompt: int) -> bool:
    """AIBrix' rule as its source has it (pd_disaggregation.go, isPodSuitableForPromptLength)."""
    if annotation is None:
        return True
    config = json.loads(annotation)
    profile = config["profiles"].get(config.get("defaultProfile") or "default")
    routing = (profile or {}).get("routingConfig") or {}
    shortest = max(0, routing.get("promptLenBucketMinLength", 0))
    longest = routing.get("promptLenBucketMaxLength", 0) or MAX_INT32
    if shortest > longest:
        return False
    if shortest == 0 and longest == MAX_INT32:
        return True
    return shortest <= prompt <= longest


def pod(name: str, *, ip: str = "", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": more.pop("labels", {})}
    if (annotation := more.pop("annotation", None)) is not None:
        metadata["annotations"] = {aibrix.ANNOTATION: annotation}
    if more.pop("going", False):
        metadata["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    ready = {"type": "Ready", "status": "True" if more.pop("ready", True) else "False"}
    phase = more.pop("phase", "Running")
    return {
        "metadata": metadata,
        "status": {"phase": phase, "podIP": ip, "conditions": [ready]},
    }


def config(**routing: Any) -> str:
    profile = {"routingStrategy": "pd", "routingConfig": routing, "keep": 1}
    return json.dumps({"lockedRoutingStrategy": "pd", "profiles": {"default": profile}})


def aibrix_pods() -> list[dict[str, Any]]:
    group = {"roleset-name": "group-0"}
    return [
        pod("p", ip="10.0.0.1", labels=group | {"role-name": "prefill"}),
        pod("d", ip="10.0.0.2", labels=group | {"role-name": "decode"}, annotation=config()),
        pod(
            "c",
            ip="10.0.0.3",
            labels={"roleset-name": "group-1", "role-name": "both"},
            annotation=config(combined=True, prefillScorePolicy="least_request"),
        ),
    ]


@pytest.fixture
def api() -> Pages:
    return Pages()


@pytest.fixture
def url(api: Pages) -> Iterator[str]:
    with serving(api) as served:  # type: ignore[arg-type]
        yield served


@pytest.fixture
def gateway(api: Pages, url: str) -> Aibrix:
    api.at[PODS] = {"items": aibrix_pods()}
    return Aibrix(aibrix.Settings(url=url, namespace="llm", model="kimi"))


def apply(api: Pages, content: str) -> dict[str, str]:
    """What `kubectl apply` makes of it; the annotations by pod."""
    items = json.loads(content)["items"]
    annotations = {i["metadata"]["name"]: i["metadata"]["annotations"] for i in items}
    for each in api.at[PODS]["items"]:  # type: ignore[call-overload, index]
        each["metadata"]["annotations"] = annotations[each["metadata"]["name"]]
    return {name: found[aibrix.ANNOTATION] for name, found in annotations.items()}


@pytest.mark.parametrize(
    ("wanted", "remote"),
    [
        (Wanted("threshold", 100), lambda prompt: prompt > 100),
        (Wanted("threshold", 1), lambda prompt: prompt > 1),
        # A maximum of 0 would be unlimited, so 0 is not written as one.
        (Wanted("threshold", 0), lambda _: True),
        (Wanted("always_remote"), lambda _: True),
        (Wanted("always_local"), lambda _: False),
    ],
    ids=lambda v: str(v) if isinstance(v, Wanted) else "",
)
def test_each_length_has_one_kind_of_pod_and_the_plans(
    gateway: Aibrix, api: Pages, wanted: Wanted, remote: Any
) -> None:
    before = gateway.read()
    assert gateway.runs(wanted, before) is False
    annotations = apply(api, gateway.rendered(wanted, before).content)
    for prompt in (1, 2, 99, 100, 101, 200_000):
        assert takes(annotations["p"], prompt) is remote(prompt)
        assert takes(annotations["d"], prompt) is remote(prompt)
        assert takes(annotations["c"], prompt) is not remote(prompt)
    after = gateway.read()
    assert gateway.runs(wanted, after) is True
    assert after.threshold is not None
    assert after.threshold.tokens == (wanted.tokens or None)
    assert after.findings == ()


def test_what_is_not_ours_in_an_annotation_stays(gateway: Aibrix, api: Pages) -> None:
    annotations = apply(api, gateway.rendered(Wanted("threshold", 9), gateway.read()).content)
    combined = json.loads(annotations["c"])
    assert combined["lockedRoutingStrategy"] == "pd"
    assert combined["profiles"]["default"] == {
        "routingStrategy": "pd",
        "keep": 1,
        "routingConfig": {
            "combined": True,
            "prefillScorePolicy": "least_request",
            "promptLenBucketMinLength": 0,
            "promptLenBucketMaxLength": 9,
        },
    }
    assert json.loads(annotations["p"])["profiles"]["default"]["routingStrategy"] == "pd"


def test_it_says_that_it_counts_the_whole_prompt(gateway: Aibrix) -> None:
    actual = gateway.read()
    can = gateway.capabilities(actual)
    assert (can.threshold, can.roles) == ("patch", "none")
    assert "What is cached does not count" in can.threshold_means
    rendered = gateway.rendered(Wanted("threshold", 9), actual)
    assert "not what is uncached of it" in rendered.notes[0]
    assert rendered.apply.startswith("kubectl apply --server-side --field-manager=prfaas-console")
    assert {w.key: w.role for w in actual.workers.values()} == {
        "p": "prefill",
        "d": "decode",
        "c": None,
    }


def test_pods_that_differ_and_pods_that_are_passed_over(gateway: Aibrix, api: Pages) -> None:
    pods = aibrix_pods()
    pods[0]["metadata"]["annotations"] = {aibrix.ANNOTATION: config(promptLenBucketMinLength=5)}
    del pods[2]["metadata"]["labels"]["role-name"]
    api.at[PODS] = {"items": pods}
    actual = gateway.read()
    assert actual.threshold is None
    assert "Pod c is combined and has no label" in actual.findings[0]
    assert "prefill and decode 0.. and 5.." in actual.findings[1]
    assert gateway.runs(Wanted("threshold", 4), actual) is False


def test_without_combined_pods_there_is_no_other_side(gateway: Aibrix, api: Pages) -> None:
    api.at[PODS] = {"items": aibrix_pods()[:2]}
    actual = gateway.read()
    assert gateway.runs(Wanted("threshold", 4), actual) is None
    with pytest.raises(CannotDo, match="no pod of kimi is `combined`"):
        gateway.rendered(Wanted("threshold", 4), actual)
    for change in (gateway.cordon, lambda u: gateway.list_as(u, "decode")):
        with pytest.raises(CannotDo, match="StormService"):
            change("http://10.0.0.1:8000")


@pytest.fixture
def cluster(api: Pages, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    monkeypatch.setenv("CONSOLE_ROUTERS_DIR", str(tmp_path))
    (tmp_path / "k8s.key").write_text("secret\n")
    role = "llm-d.ai/role"
    api.at[PODS] = {
        "items": [
            pod("p", ip="10.0.0.1", labels={role: "prefill"}),
            pod("d", ip="10.0.0.2", labels={role: "decode"}, ready=False),
            pod("gone", ip="10.0.0.3", labels={role: "decode"}, going=True),
            # Ended: its address is another's by now.
            pod("bad", ip="10.0.0.1", labels={role: "decode"}, phase="Failed"),
            pod("job", ip="10.0.0.2", phase="Succeeded"),
            pod("new", labels={role: "decode"}),
            pod("other", ip="10.0.0.5"),
        ]
    }
    api.at[SERVICE] = {"spec": {"replicas": 4, "prefill": {"replicas": 2}}}
    return Kubernetes(
        kubernetes_patch.Settings(
            url=url,
            namespace="llm",
            selector="app=kimi,tier in (a, b)",
            service="kimi",
            token_file="k8s.key",
        )
    )


def test_pods_are_read_as_they_are(cluster: Kubernetes, api: Pages) -> None:
    actual = cluster.read()
    assert {w.key: (w.role, w.status) for w in actual.workers.values()} == {
        "p": ("prefill", "ready"),
        "d": ("decode", "starting"),
        "gone": ("decode", "draining"),
        "other": (None, "ready"),
    }
    assert (actual.facts["n_prefill"], actual.facts["n_decode"]) == (2, 4)
    assert actual.facts["other_writer"] is None
    assert api.asked[0][1].endswith("pods?labelSelector=app%3Dkimi%2Ctier+in+%28a%2C+b%29")
    assert set(api.keys) == {"Bearer secret"}
    assert [asked[0] for asked in api.asked] == ["GET", "GET"]


def test_a_role_is_a_document(cluster: Kubernetes) -> None:
    actual = cluster.read()
    assert cluster.capabilities(actual).roles == "patch"
    rendered = cluster.rendered_role("http://10.0.0.2:8000/", "prefill", actual)
    assert json.loads(rendered.content) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "d",
            "namespace": "llm",
            "labels": {"llm-d.ai/role": "prefill"},
        },
    }
    assert any("makes another one in its place" in note for note in rendered.notes)
    with pytest.raises(Refused, match="last ready prefill"):
        cluster.rendered_role("http://10.0.0.1:8000", "decode", actual)
    with pytest.raises(Refused, match="no pod of"):
        cluster.rendered_role("http://10.9.9.9:8000", "prefill", actual)
    for change in (cluster.cordon, lambda u: cluster.list_as(u, "decode")):
        with pytest.raises(CannotDo, match="apply the rendered document"):
            change("http://10.0.0.1:8000")


def test_replicas_are_a_document_with_floors(cluster: Kubernetes) -> None:
    actual = cluster.read()
    found = json.loads(cluster.rendered_replicas(3, 3, actual).content)
    assert found["spec"] == {"replicas": 3, "prefill": {"replicas": 3}}
    assert (found["kind"], found["metadata"]) == (
        "LLMInferenceService",
        {"name": "kimi", "namespace": "llm"},
    )
    for n_prefill, n_decode in ((0, 6), (6, 0)):
        with pytest.raises(Refused, match="at least one each"):
            cluster.rendered_replicas(n_prefill, n_decode, actual)


@pytest.mark.parametrize("spec", [{"scaling": {}}, {"prefill": {"scaling": {"wva": {}}}}])
def test_an_autoscaler_is_another_writer(
    cluster: Kubernetes, api: Pages, spec: dict[str, Any]
) -> None:
    api.at[SERVICE] = {"spec": spec}
    actual = cluster.read()
    assert "an autoscaler writes its replicas" in actual.findings[0]
    assert actual.facts["other_writer"] == "the autoscaler of kimi"
    with pytest.raises(CannotDo, match=r"spec\.scaling"):
        cluster.rendered_replicas(3, 3, actual)


def test_what_may_not_be_read_is_an_error(cluster: Kubernetes, api: Pages) -> None:
    api.at[PODS] = (403, {"message": "pods is forbidden"})
    with pytest.raises(Refused, match="pods is forbidden"):
        cluster.read()
    api.at[PODS] = {"items": [{"metadata": {"labels": []}}]}
    with pytest.raises(SurfaceError, match="labels"):
        cluster.read()


def test_a_pod_may_have_an_address_of_either_kind(cluster: Kubernetes, api: Pages) -> None:
    api.at[PODS] = {"items": [pod("p", ip="FD00:0:0::1", labels={"llm-d.ai/role": "prefill"})]}
    assert list(cluster.read().workers) == ["http://[fd00::1]:8000"]
    api.at[PODS] = {"items": [pod("p", ip="evil.example/x")]}
    with pytest.raises(SurfaceError, match="no IP address"):
        cluster.read()


@pytest.mark.parametrize(
    ("kind", "settings", "field"),
    [
        ("aibrix", {"namespace": "llm", "model": "a,b=c"}, "model"),
        ("aibrix", {"namespace": "llm", "model": "a", "token_file": "../x"}, "token_file"),
        ("kubernetes", {"namespace": "llm", "selector": "a", "token_file": "/x"}, "token_file"),
    ],
)
def test_a_setting_that_reaches_further_than_it_may(
    kind: str, settings: dict[str, Any], field: str
) -> None:
    with pytest.raises(SettingsError, match="regex") as raised:
        surface_of(kind, {"url": "http://api", **settings})
    assert raised.value.field == field
