"""`[[links]]`: each source needs its own keys, reads no others, and says which one is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.agent.link_config import Link, problems

GOOD: dict[str, dict[str, Any]] = {
    "lab": {"url": "http://127.0.0.1:9000/links"},
    "proc_net_dev": {"interface": "eth0", "host_tcp": True, "path": "/host/proc/net/dev"},
    "interface": {"interface": "bond0.100", "counters": "driver"},
    "peer": {
        "peers": ("10.2.0.0/16", "fd00::/8", "10.9.0.1"),
        "remote_ports": (8998,),
        "local_ports": (40000,),
        "via": "ss",
    },
    "infiniband": {"device": "mlx5_0", "port": 2},
    "node_exporter": {"url": "http://10.0.0.1:9100/metrics", "interface": "bond0"},
}


def _said(source: str, *, interval_s: float = 1.0, **values: Any) -> list[str]:
    given: dict[str, Any] = {"id": "prfaas->pd", "measured_layer": "nic", "source": source}
    link = Link(**(given | GOOD[source] | values))
    found = problems("links[0]", link, interval_s=interval_s)
    return [f"{key}={value!r}: {why}" for key, value, why in found]


@pytest.mark.parametrize("source", GOOD)
def test_a_good_link(source: str) -> None:
    assert _said(source, capacity_gbps=100.0) == []


def test_node_exporter_of_an_infiniband_port() -> None:
    assert _said("node_exporter", interface="", device="mlx5_0", port=1) == []


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("lab", {"url": ""}, "links[0].url='': a lab link needs its url"),
    ("lab", {"url": "ftp://h/links"}, "links[0].url='ftp://h/links': must be an http(s) URL"),
    ("lab", {"interface": "eth0"}, "links[0].interface='eth0': a lab link does not read it"),
    ("proc_net_dev", {"interface": ""}, "links[0].interface='': a proc_net_dev link needs its"),
    ("proc_net_dev", {"peers": ("::/0",)}, "links[0].peers=('::/0',): a proc_net_dev link does"),
    ("interface", {"port": 2}, "links[0].port=2: an interface link does not read it"),
    ("interface", {"interface": "-S"}, "links[0].interface='-S': is no name of an interface"),
    ("interface", {"interface": "../x"}, "links[0].interface='../x': is no name of an interface"),
    ("peer", {"peers": ()}, "links[0].peers=(): a peer link needs its peers"),
    ("peer", {"peers": ("::/0", "10.2.0.1/16")}, "links[0].peers[1]='10.2.0.1/16': "),
    ("peer", {"peers": ("pd.example",)}, "links[0].peers[0]='pd.example': "),
    ("peer", {"remote_ports": (8998, 0)}, "links[0].remote_ports[1]=0: must be in 1..65535"),
    ("peer", {"local_ports": (65536,)}, "links[0].local_ports[0]=65536: must be in 1..65535"),
    ("peer", {"peers": ("::/0",) * 1001}, "links[0].peers=1001: at most 1000 networks"),
    ("peer", {"width_bits": 32}, "links[0].width_bits=32: a peer link does not read it"),
    ("infiniband", {"device": ""}, "links[0].device='': an infiniband link needs its device"),
    ("infiniband", {"width_bits": 32}, "links[0].width_bits=32: an infiniband link does not"),
    ("node_exporter", {"interface": ""}, "links[0].interface='': give interface, or device"),
    ("node_exporter", {"device": "mlx5_0"}, "links[0].interface='bond0': give interface, or"),
    ("lab", {"id": "prfaas-pd"}, "links[0].id='prfaas-pd': a link id is"),
    ("lab", {"measured_layer": ""}, "links[0].measured_layer='': say at which layer"),
    ("lab", {"capacity_gbps": 0.0}, "links[0].capacity_gbps=0.0: must be a positive number"),
    ("lab", {"capacity_gbps": float("nan")}, "links[0].capacity_gbps=nan: must be a positive"),
]


@pytest.mark.parametrize(("source", "values", "want"), BAD, ids=[case[2][:40] for case in BAD])
def test_a_mistake_is_named(source: str, values: dict[str, Any], want: str) -> None:
    said = _said(source, **values)
    assert any(line.startswith(want) for line in said), said


@pytest.mark.parametrize(
    ("gbps", "interval_s", "want"),
    [
        (1.0, 1.0, ""),
        (1.0, 8.0, ""),
        (1.0, 9.0, "wraps within 34 s at 1 Gbps, too soon for readings every 9 s"),
        (10.0, 1.0, "wraps within 3.4 s at 10 Gbps, too soon for readings every 1 s"),
        (100.0, 0.1, "wraps within 0.34 s at 100 Gbps, too soon for readings every 0.1 s"),
        (None, 1.0, "say capacity_gbps"),
    ],
)
def test_s09_32_bits_are_refused_where_they_would_wrap_unseen(
    gbps: float | None, interval_s: float, want: str
) -> None:
    """S-09: at 100 Gb/s a counter of 32 bits wraps within 0.34 s."""
    said = _said("proc_net_dev", width_bits=32, capacity_gbps=gbps, interval_s=interval_s)
    assert len(said) == bool(want)
    assert not want or want in said[0]
