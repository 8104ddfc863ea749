"""Run in a network namespace of its own: sends over a narrow, lossy loopback, prints what counted.

`python netns_probe.py BYTES`: one JSON object with the readings of every source of a peer. It ends
with `REFUSED` where the machine lets nobody shape its loopback.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from dataclasses import asdict
from ipaddress import ip_network
from pathlib import Path

from telemetry.hosts import inet_diag, net_dev, net_stat, ss
from telemetry.hosts.tcp import Peer, PeerMeter

LOOPBACK = ("ip", "link", "set", "lo", "up", "mtu", "1500")
# A bucket smaller than a window: what does not fit in it is dropped and sent again.
SHAPER = ("tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "80mbit", "burst", "16kb")
SHAPER_LIMIT = ("limit", "30000")
REFUSED = 77


def main(n_bytes: int) -> None:
    for command in (LOOPBACK, (*SHAPER, *SHAPER_LIMIT)):
        if subprocess.run(command, check=False).returncode:
            sys.exit(REFUSED)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        meters = [
            PeerMeter(Peer((ip_network("127.0.0.0/8"),), remote_ports=frozenset({port})))
            for _ in range(2)
        ]
        for meter in meters:
            meter.read([])
        with socket.create_connection(("127.0.0.1", port)) as client:
            server, _ = listener.accept()
            with server:
                sender = threading.Thread(target=client.sendall, args=(bytes(n_bytes),))
                sender.start()
                left = n_bytes
                while left:
                    left -= len(server.recv(min(left, 65536)))
                sender.join()
                server.sendall(b"!")  # An answer acknowledges at once.
                client.recv(1)
                kernel = meters[0].read(inet_diag.read(timeout_s=5.0))
                said = subprocess.run(ss.COMMAND, check=True, capture_output=True, text=True)
                text = meters[1].read(ss.parse(said.stdout))
    snmp, netstat = (Path(f"/proc/net/{name}").read_text() for name in ("snmp", "netstat"))
    print(
        json.dumps(
            {
                "kernel": asdict(kernel),
                "ss": asdict(text),
                "loopback": asdict(net_dev.parse(Path("/proc/net/dev").read_text(), "lo")),
                "host": asdict(net_stat.host_tcp(snmp, netstat)),
            }
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
