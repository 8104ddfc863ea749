"""Counters of the host's network stack: `/proc/net/snmp`, `/proc/net/netstat`, `/proc/net/snmp6`.

They are of the whole network namespace, not of a link. What TCP counts here (RFC 4022 and the
kernel's extensions) covers IPv4 and IPv6 together; `snmp6` has no TCP.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.hosts.errors import HostError, count


@dataclass(frozen=True)
class HostTcp:
    """TCP of a whole host. `timeouts` are expired retransmission timers; None: not told."""

    segments_sent: int
    segments_retransmitted: int
    timeouts: int | None


def host_tcp(snmp: str, netstat: str) -> HostTcp:
    """Out of the texts of `/proc/net/snmp` and `/proc/net/netstat`. Raises HostError."""
    tcp = tables(snmp).get("Tcp", {})
    extended = tables(netstat).get("TcpExt", {}) if netstat else {}
    timeouts = extended.get("TCPTimeouts")
    return HostTcp(
        segments_sent=_counter(tcp, "OutSegs"),
        segments_retransmitted=_counter(tcp, "RetransSegs"),
        timeouts=None if timeouts is None else count(timeouts, "TCPTimeouts"),
    )


def _counter(table: dict[str, str], name: str) -> int:
    if name not in table:
        raise HostError(f"Tcp has no {name}")
    return count(table[name], name)


def tables(text: str) -> dict[str, dict[str, str]]:
    """Pairs of lines, `Tcp: NAME ...` over `Tcp: VALUE ...`, as {"Tcp": {NAME: VALUE}}.

    Kernels differ in their columns, so a place says nothing and a table whose lines do not match
    (cut short) is left out. Values stay text: some are signed (`MaxConn` -1).
    """
    found: dict[str, dict[str, str]] = {}
    table, columns = "", list[str]()
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        cells = rest.split()
        if name == table and len(cells) == len(columns):
            found[table] = dict(zip(columns, cells, strict=True))
            table, columns = "", []
        else:
            table, columns = name, cells
    return found


def named_counters(text: str, *, separator: str | None = None) -> dict[str, int]:
    """Lines of one name and one counter each, as `snmp6` has them.

    With `separator=":"` it is what `ethtool -S` prints, whose names may have blanks and colons of
    their own. Anything else (headings, remarks, a line cut short) is left out; of a name given
    twice the first counts.
    """
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = [word.strip() for word in line.strip().rsplit(separator, 1)]
        try:
            if len(words) == 2:
                found.setdefault(words[0], count(words[1], words[0]))
        except HostError:
            continue
    return found
