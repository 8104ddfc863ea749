"""What only the twin reads of a scenario: `arrivals`, `cache`, `engine`, `faults` and `delays`.

As strict as the core is with the rest: an unknown key, an unknown cluster, a value out of range is
an error that names the field and the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from routing.core.scenario.document import Scenario
from routing.core.scenario.tables import Table
from routing.twin.arrival_settings import read_sites
from routing.twin.faults import Fault, read_faults
from routing.twin.sites import Sessions, Site

BLOCK_TOKENS = 512
_CACHE = ("capacity_tokens", "block_tokens", "linear_state", "scope", "decode_holds")
_ENGINE = ("layers", "chunk_tokens", "chunk_s")
_DELAYS = ("agent_s", "agent_loss_ratio", "gate_s", "drain_s", "tick_s", "n_gates")


@dataclass(frozen=True)
class CacheSettings:
    """`capacity_tokens` per cluster name, of one instance where `scope` is `instance`; a cluster
    that is not in it is unbounded.

    `linear_state` `exact`: a prefix serves only where a state was kept at exactly its length
    (paper, section 6); `none`: blocks alone decide. `decode_holds` `local_prefix`: KV that a PD
    cluster has cached does not cross the link again; `nothing`: every remote prompt ships whole.
    """

    capacity_tokens: dict[str, float]
    block_tokens: int
    linear_state: Literal["none", "exact"]
    scope: Literal["instance", "cluster"]
    decode_holds: Literal["local_prefix", "nothing"]


@dataclass(frozen=True)
class Engine:
    """How engines work, as far as profiles do not say.

    KV is shipped in `layers` parts while it is computed. A prefill of more than `chunk_tokens` runs
    in chunks, and each one after the first takes `chunk_s` longer; None: in one go. A profile that
    was measured with chunks has their cost in its seconds already.
    """

    layers: int = 60
    chunk_tokens: int | None = None
    chunk_s: float = 0.0


@dataclass(frozen=True)
class Delays:
    """Between the fleet and who decides.

    A sample reaches the console `agent_s` after it was taken, `agent_loss_ratio` of them never; a
    gate applies a plan `gate_s` after it was made. An instance serves in its new role no earlier
    than `drain_s` after it was cordoned, and not before what it runs is finished. A decision is
    made every `tick_s`. Requests come to the `n_gates` of a PD cluster in turns, and each gate goes
    by what it heard of its own.
    """

    agent_s: float = 1.0
    agent_loss_ratio: float = 0.0
    gate_s: float = 0.5
    drain_s: float = 30.0
    tick_s: float = 2.0
    n_gates: int = 1


@dataclass(frozen=True)
class Settings:
    """`sites` by PD cluster, in the scenario's order; None where the arrivals come from a trace.
    `cache` None: no prefix is ever found cached."""

    sites: dict[str, Site | Sessions | None]
    cache: CacheSettings | None
    engine: Engine
    faults: tuple[Fault, ...]
    delays: Delays


def parse_settings(document: dict[str, Any], scenario: Scenario) -> Settings:
    """The twin's part of the document that `scenario` was parsed from, its files inlined.

    Raises ScenarioError naming the field and the value.
    """
    root = Table(document, "", known=None)
    cache = _cache(root, scenario) if "cache" in root.data else None
    block_tokens = BLOCK_TOKENS if cache is None else cache.block_tokens
    return Settings(
        sites=read_sites(root, scenario, block_tokens=block_tokens),
        cache=cache,
        engine=_engine(root.table("engine", _ENGINE, optional=True)),
        faults=read_faults(root, scenario),
        delays=_delays(root.table("delays", _DELAYS, optional=True)),
    )


def _cache(root: Table, scenario: Scenario) -> CacheSettings:
    table = root.table("cache", _CACHE)
    block_tokens = table.count("block_tokens", BLOCK_TOKENS, low=1)
    # A model with a state cannot go on from a prefix whose state nobody kept.
    default = "exact" if scenario.model.state_bytes > 0 else "none"
    return CacheSettings(
        capacity_tokens=_capacities(table, scenario, block_tokens),
        block_tokens=block_tokens,
        linear_state=cast(
            Literal["none", "exact"], _word(table, "linear_state", ("none", "exact"), default)
        ),
        scope=cast(
            Literal["instance", "cluster"],
            _word(table, "scope", ("instance", "cluster"), "cluster"),
        ),
        decode_holds=cast(
            Literal["local_prefix", "nothing"],
            _word(table, "decode_holds", ("local_prefix", "nothing"), "local_prefix"),
        ),
    )


def _capacities(table: Table, scenario: Scenario, block_tokens: int) -> dict[str, float]:
    """One number for every cluster, or a table of them by cluster."""
    names = [cluster.name for cluster in scenario.clusters]
    given = table.take("capacity_tokens", None)
    if given is None:
        return {}
    if not isinstance(given, dict):
        capacity = table.number("capacity_tokens", low=block_tokens, inclusive=True)
        return dict.fromkeys(names, capacity)
    each = table.table("capacity_tokens", names)
    return {name: each.number(name, low=block_tokens, inclusive=True) for name in each.names}


def _word(table: Table, key: str, words: tuple[str, ...], default: str) -> str:
    return table.one_of(key, words) if key in table.data else default


def _engine(table: Table) -> Engine:
    chunked = "chunk_tokens" in table.data
    if "chunk_s" in table.data and not chunked:
        raise table.error("chunk_s", "needs chunk_tokens")
    return Engine(
        layers=table.count("layers", Engine.layers, low=1),
        chunk_tokens=table.count("chunk_tokens", low=1) if chunked else None,
        chunk_s=table.number("chunk_s", 0.0, low=0, inclusive=True),
    )


def _delays(table: Table) -> Delays:
    default = Delays()
    loss_ratio = table.number("agent_loss_ratio", default.agent_loss_ratio, low=0, inclusive=True)
    if loss_ratio >= 1.0:
        raise table.error("agent_loss_ratio", "must be below 1: nothing would ever arrive")
    return Delays(
        agent_s=table.number("agent_s", default.agent_s, low=0, inclusive=True),
        agent_loss_ratio=loss_ratio,
        gate_s=table.number("gate_s", default.gate_s, low=0, inclusive=True),
        drain_s=table.number("drain_s", default.drain_s, low=0, inclusive=True),
        tick_s=table.number("tick_s", default.tick_s, low=0),
        n_gates=table.count("n_gates", default.n_gates, low=1),
    )
