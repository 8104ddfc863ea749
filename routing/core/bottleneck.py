"""What limits a PD cluster, by measured signs and the model together, and what that forbids.

Signs come before the model, decode's before all others: a decode pool without room holds up prefill
and transfers behind it, so that everything upstream looks slow.

* `decode`: its KV memory is `FULL_KV` used; or `TIGHT_KV` used while requests are put back; or
  `WAITING_PER_INSTANCE` requests an instance wait for room, not counting those whose KV is on its
  way.
* `link`, `flow`, `burst`: a link the cluster sends over is congested or down, limited by the rate
  of its connections, or met by bursts.
* `prefill`: `WAITING_PER_INSTANCE` requests an instance wait for local prefill, or for that of a
  PrfaaS cluster it sends to.
* Without a sign, the stage that the model finds tightest.
* `unknown`: nothing is known; or requests wait for prefill where the model finds decode tightest
  and decode is seen to have room, so that one of the two is wrong.

A label forbids what would make its stage tighter; see `forbids`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from routing.core.links.state import LinkView
from routing.core.types import (
    Bottleneck,
    BottleneckLabel,
    PdObservation,
    Prediction,
    PrefillObservation,
    StageLoad,
)

FULL_KV, TIGHT_KV = 0.95, 0.90
"""Engines put requests back in the last tenth: blocks are reserved before they are full."""
LEAST_PREEMPTIONS_PER_S = 0.01
"""Fewer than one in 100 s is a straggler."""
WAITING_PER_INSTANCE = 2.0
"""One waiting while one is served is a pipeline that is kept full; two is a queue."""
LEAST_KV, MOST_KV = 0.0, 1.05
"""A ratio outside is no measurement; a little above 1 is rounding of blocks."""

_KINDS: dict[str, BottleneckLabel] = {
    "local_prefill": "prefill",
    "remote_prefill": "prefill",
    "decode": "decode",
    "link": "link",
}
_LINKS: dict[str, BottleneckLabel] = {"flow_limited": "flow", "burst": "burst"}
_GRAVEST: tuple[BottleneckLabel, ...] = ("decode", "link", "flow", "burst", "prefill")

Roles = tuple[int, int]
"""(n_prefill, n_decode)."""


def of_cluster(
    name: str,
    seen: PdObservation,
    links: Sequence[LinkView],
    predicted: Prediction | None,
    remotes: Mapping[str, PrefillObservation],
) -> Bottleneck:
    """What limits cluster `name`, which sends over `links`; `remotes` are their far ends."""
    full = _decode_signs(seen)
    if full:
        return Bottleneck("decode", f"decode:{name}", full, measured=True)
    for view in links:
        label = link_label(view)
        if label is not None:
            return Bottleneck(label, f"link:{view.id}", view.signs, measured=True)
    modelled = by_model(name, links, predicted)
    queued = _prefill_signs(seen)
    if not queued:
        return _remote_queue(links, remotes) or modelled
    if modelled.label != "decode":
        return Bottleneck("prefill", f"local_prefill:{name}", queued, measured=True)
    if _plausible_kv(seen) is None:
        # The queue may be decode's, backed up: nothing measured speaks against the model.
        return modelled
    signs = f"{queued}, while the model finds decode tightest and decode has room"
    return Bottleneck("unknown", "", signs, measured=True)


def of_fleet(clusters: Mapping[str, Bottleneck], predicted: Prediction | None) -> Bottleneck:
    """The gravest measured one, else the tightest stage of the model, else unknown."""
    for label in _GRAVEST:
        for found in clusters.values():
            if found.measured and found.label == label:
                return found
    tightest = None if predicted is None else predicted.bottleneck
    for found in clusters.values():
        if found.stage == tightest:
            return found
    return next(iter(clusters.values()), Bottleneck(signs="no PD cluster is observed"))


def link_label(view: LinkView) -> BottleneckLabel | None:
    """The label of a cluster whose traffic this link holds up; None where it does not."""
    if view.congested or view.down:
        return "link"
    return _LINKS.get(view.label)


def forbids(
    found: Bottleneck,
    name: str,
    before: Roles,
    after: Roles,
    *,
    predicted: Prediction | None,
    margin_ratio: float,
) -> str:
    """Why the roles of `name` may not go from `before` to `after`, empty if they may.

    Decode that limits forbids adding prefill, local prefill that limits forbids taking from it, and
    not knowing forbids both. A stage that only the model finds tightest, in `predicted`, has to be
    `margin_ratio` tighter than the role that would give: the best t of the new roles may well even
    them out.
    """
    if found.label == "unknown":
        return "what limits is unknown"
    taken, given = f"decode:{name}", f"local_prefill:{name}"
    if after[0] < before[0]:
        taken, given = given, taken
    if found.stage != taken:
        return ""
    used = {} if predicted is None else {stage.name: _used(stage) for stage in predicted.stages}
    if not found.measured and used.get(taken, 0.0) < (1 + margin_ratio) * used.get(given, 0.0):
        return ""
    return f"{found.label} limits"


def _decode_signs(seen: PdObservation) -> str:
    """Words for a decode pool without room, empty if none was measured."""
    used, preempted = _plausible_kv(seen), seen.preemptions_per_s
    put_back = preempted is not None and preempted >= LEAST_PREEMPTIONS_PER_S
    if used is not None and (used >= FULL_KV or (used >= TIGHT_KV and put_back)):
        text = f"{used:.0%} of decode's KV memory is used"
        return f"{text}, {preempted:.2g} requests/s are put back" if put_back else text
    waiting, moving = seen.queue_decode, seen.decode_in_transfer
    n = _warm(seen.n_decode, seen.decode_silent, seen.decode_warming)
    # Not knowing how many only wait for their KV, a queue says nothing of decode.
    if waiting is not None and moving is not None and waiting - moving >= WAITING_PER_INSTANCE * n:
        return f"{waiting - moving:.0f} requests wait for one of {n} decode instances"
    return ""


def _prefill_signs(seen: PdObservation) -> str:
    waiting = seen.queue_prefill
    n = _warm(seen.n_prefill, seen.prefill_silent, seen.prefill_warming)
    if waiting is not None and waiting >= WAITING_PER_INSTANCE * n:
        return f"{waiting:.0f} requests wait for one of {n} prefill instances"
    return ""


def _remote_queue(
    links: Sequence[LinkView], remotes: Mapping[str, PrefillObservation]
) -> Bottleneck | None:
    for view in links:
        source = view.id.partition("->")[0]
        seen = remotes.get(source)
        if seen is None or seen.queue_prefill is None or seen.n_prefill < 1:
            continue
        if seen.queue_prefill >= WAITING_PER_INSTANCE * seen.n_prefill:
            signs = f"{seen.queue_prefill:.0f} requests wait for one of {seen.n_prefill} instances"
            return Bottleneck("prefill", f"remote_prefill:{source}", signs, measured=True)
    return None


def _warm(n: int, silent: Iterable[str], warming: Iterable[str]) -> int:
    """How many instances a measured queue is of."""
    return max(n - len({*silent, *warming}), 1)


def _plausible_kv(seen: PdObservation) -> float | None:
    used = seen.decode_kv_usage_ratio
    return used if used is not None and LEAST_KV <= used <= MOST_KV else None


def by_model(name: str, links: Sequence[LinkView], predicted: Prediction | None) -> Bottleneck:
    """The stage of cluster `name` that a prediction finds tightest."""
    if predicted is None:
        return Bottleneck(signs="neither signs nor the model say what limits")
    own = {f"local_prefill:{name}", f"decode:{name}"}
    own |= {f"link:{view.id}" for view in links}
    own |= {f"remote_prefill:{view.id.partition('->')[0]}" for view in links}
    stages = [stage for stage in predicted.stages if stage.name in own]
    if not stages:
        return Bottleneck(signs="no request arrives here")
    tightest = max(stages, key=_used)
    return Bottleneck(
        _KINDS[tightest.name.partition(":")[0]],
        tightest.name,
        f"of its stages the model finds this one tightest, {min(_used(tightest), 99.0):.0%} used",
    )


def _used(stage: StageLoad) -> float:
    # A stage in use without any capacity is as tight as can be.
    return float("inf") if stage.utilisation_ratio is None else stage.utilisation_ratio
