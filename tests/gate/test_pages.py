"""What a gate answers besides completions: errors in OpenAI's shape, hints for who ships KV."""

from __future__ import annotations

import pytest

from tests.gate.peers import RunningGate, Upstream, plan


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("POST", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_what_it_does_not_have_is_an_error_in_openais_shape(
    gate: RunningGate, method: str, path: str, status: int, code: str
) -> None:
    async with gate.client.request(method, gate.url + path) as response:
        assert response.status == status
        error = (await response.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


async def test_a_fault_of_its_own_is_one_too(
    gate: RunningGate, local: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret of the gate")

    monkeypatch.setattr(gate.gate.proxy._chooser, "choose", fail)
    async with gate.client.post(gate.url + "/v1/completions", json={"prompt": "a"}) as response:
        assert response.status == 500
        error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    assert "secret" not in error["message"]
    await gate.gate.proxy.idle.wait()


async def test_the_plans_transport_is_published_by_link(gate: RunningGate) -> None:
    async def links() -> object:
        async with gate.client.get(gate.url + "/transport") as response:
            return await response.json()

    assert await links() == {"plan": None, "links": {}}
    hints = {"prfaas": {"connections": 8, "pacing_gbps": 40.5}, "other": {"connections": 2}}
    await gate.run_plan(plan(3, 1, transport=hints))
    assert await links() == {
        "plan": "3.1",
        "links": {"prfaas->pd": hints["prfaas"], "other->pd": {"connections": 2}},
    }
    await gate.run_plan(plan(3, 2))
    assert await links() == {"plan": "3.2", "links": {}}
