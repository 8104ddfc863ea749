"""The files the onboarding page writes are files the agent reads, as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from console import onboarding_steps
from console.onboarding_rows import Inventory, Site
from console.wanted import WANTED
from telemetry import wire
from telemetry.agent import config

INVENTORY = Inventory(
    fleet="f1",
    sites={
        "prfaas": Site("prefill", "h200", 4),
        "pd": Site("pd", "h20", 8, n_prefill=2),
    },
    links={"prfaas->pd": 100.0, "pd->prfaas": 12.5},
    gates=("f1/pd/gw-7",),
)


def read(text: str, folder: Path) -> config.Config:
    (folder / "agent.toml").write_text(text)
    return config.load(folder / "agent.toml")


def test_a_cluster_s_agent_reads_its_instances_and_the_links_it_sends_on(tmp_path: Path) -> None:
    found = read(onboarding_steps.agent_toml(INVENTORY, "prfaas", "https://c.example"), tmp_path)
    assert [one.id for one in found.instances] == [f"f1/prfaas/h200-{n}" for n in (1, 2, 3)]
    assert {one.role for one in found.instances} == {"prefill"}
    assert [(one.id, one.capacity_gbps) for one in found.links] == [("prfaas->pd", 100.0)]
    assert found.routers == ()
    assert found.console_url == "https://c.example"


def test_a_pd_cluster_s_agent_reads_its_gates_and_both_roles(tmp_path: Path) -> None:
    text = onboarding_steps.agent_toml(INVENTORY, "pd", "http://127.0.0.1:8000")
    found = read(text, tmp_path)
    assert [one.role for one in found.instances] == ["prefill", "prefill", "decode"]
    assert [one.id for one in found.routers] == ["f1/pd/gw-7"]
    assert [one.id for one in found.links] == ["pd->prfaas"]
    assert "# 5 more like these" in text


@pytest.mark.parametrize("want", WANTED, ids=lambda want: want.name)
def test_every_wanted_signal_is_one_of_the_wire(want) -> None:
    of = {
        "instance": wire.InstanceSignals,
        "link": wire.LinkSignals,
        "router": wire.RouterSignals,
    }[want.kind]
    assert set(want.any_of) <= set(of.__struct_fields__)
    assert want.without[0].islower()
    assert not want.without.endswith(".")
