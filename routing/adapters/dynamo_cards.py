"""What Dynamo's workers advertise: one card each, in its discovery store (files, or etcd).

A card of a decode worker may carry a router configuration, which then replaces the frontend's for
its set of workers. A field at its default is left out of it; the defaults here are those of 1.6.1.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from routing.adapters import etcd, places
from routing.adapters.surface import ROLES, Role, SurfaceError

MAX_CARDS = 4096
MAX_CARD_BYTES = 1_000_000
CARDS = "v1/mdc"

_Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Tokens = Annotated[int, msgspec.Meta(ge=0)]


class KvRouter(msgspec.Struct, frozen=True):
    """The part of a router configuration that says which prompts are prefilled where."""

    conditional_disagg_enabled: bool = False
    conditional_disagg_policy: str = "isl_bounding"
    conditional_disagg_eff_isl_threshold: _Tokens = 2048
    conditional_disagg_eff_isl_ratio_threshold: _Ratio = 0.7
    conditional_disagg_prefill_busy_threshold: float | None = None
    conditional_disagg_decode_busy_threshold: float | None = None
    router_predicted_ttl_secs: float | None = None


class Advertised(msgspec.Struct, frozen=True):
    """A router configuration on a card. `kv_router_config` is there in mode `k_v` only."""

    router_mode: str = ""
    kv_router_config: KvRouter | None = None


class _Runtime(msgspec.Struct, frozen=True):
    kv_event_publishing_enabled: bool | None = None


class _Model(msgspec.Struct, frozen=True):
    display_name: str
    worker_type: str | None = None
    runtime_config: _Runtime = _Runtime()
    router_config: dict[str, Any] | None = None


class _Card(msgspec.Struct, frozen=True):
    namespace: str
    component: str
    endpoint: str
    instance_id: int
    card_json: _Model


@dataclass(frozen=True)
class Card:
    """One worker. `publishes_kv_events` None: it does not say, as old workers do not.

    `as_advertised` is all of its router configuration as text: the frontend takes two workers for
    one set only if not even a field differs that does not concern us.
    """

    namespace: str
    component: str
    instance_id: int
    model: str
    role: Role | None
    publishes_kv_events: bool | None
    advertised: Advertised | None
    as_advertised: str


def from_files(store: Path, namespace: str) -> list[Card]:
    """Cards under `store`, the folder that DYN_FILE_KV names. Raises SurfaceError."""
    folder = store / CARDS
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as exc:
        raise SurfaceError(f"{folder}: {exc.strerror or exc}") from None
    if len(names) > MAX_CARDS:
        raise SurfaceError(f"{folder}: more than {MAX_CARDS} cards")
    raws = {name: _read(folder / name) for name in names}
    return _cards(str(folder), {name: raw for name, raw in raws.items() if raw}, namespace)


def from_etcd(url: str, namespace: str) -> list[Card]:
    """Cards in etcd. Raises SurfaceError."""
    found = etcd.prefix(url, f"{CARDS}/")
    return _cards(url, {key: entry.value for key, entry in found.items()}, namespace)


def _read(path: Path) -> bytes | None:
    """None for a card that has gone, or is being written, since the folder was listed."""
    try:
        return places.content(path, max_bytes=MAX_CARD_BYTES)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SurfaceError(f"{path}: {exc.strerror}") from None


def _cards(where: str, raws: dict[str, bytes], namespace: str) -> list[Card]:
    found = []
    for name, raw in raws.items():
        try:
            card = msgspec.json.decode(raw, type=_Card)
            advertised = msgspec.convert(card.card_json.router_config, Advertised | None)
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise SurfaceError(f"{where}: {name}: {exc}") from None
        if (card.namespace, card.endpoint) == (namespace, "generate"):
            found.append(_card(card, advertised))
    return found


def _card(card: _Card, advertised: Advertised | None) -> Card:
    model = card.card_json
    return Card(
        namespace=card.namespace,
        component=card.component,
        instance_id=card.instance_id,
        model=model.display_name,
        role=ROLES.get(model.worker_type or ""),
        publishes_kv_events=model.runtime_config.kv_event_publishing_enabled,
        advertised=advertised,
        as_advertised=msgspec.json.encode(model.router_config, order="sorted").decode(),
    )
