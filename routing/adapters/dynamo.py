"""Dynamo 1.6.1: which prompts are prefilled remotely is advertised by its decode workers.

A decode worker that names a router mode replaces the frontend's whole router configuration for its
set of workers, so another threshold is a matter of other decode workers; the frontend stays up.
While one decode worker with other settings is left, the frontend keeps to those and sends the new
ones nothing (its log: "Rejected incompatible workers; the first accepted configuration retains the
WorkerSet"), although its `/health` lists them. What it runs by cannot be asked of it.

The rule (lib/kv-router/src/conditional_disagg.rs, policy isl_bounding): a prompt stays local iff

    uncached < eff_isl_threshold  AND  uncached / prompt < eff_isl_ratio_threshold <= 1

with uncached = prompt tokens less the whole blocks that the chosen decode worker holds. With
eff_isl_threshold = t + 1 the first half is the plan's own "remote iff uncached > t". The second
half can be eased to 1 and not beyond, so a prompt of which nothing is cached goes remote always.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final

import msgspec

from routing.adapters import answers, applied, base, dynamo_cards, places
from routing.adapters.dynamo_cards import Card, KvRouter
from routing.adapters.dynamo_planner import Decision, Handshake, Planner
from routing.adapters.places import Url
from routing.adapters.rendered import Rendered, Wanted, shows
from routing.adapters.surface import (
    ROLES,
    Actual,
    CannotDo,
    Capabilities,
    Listed,
    Refused,
    SurfaceError,
    Threshold,
    Unheeded,
)

TRIED_VERSIONS: Final = ("1.6.1",)
MEANS: Final = (
    "A prompt stays local if fewer than eff_isl_threshold = t + 1 of its tokens are not cached on "
    "the decode worker (strictly fewer, in whole blocks, so this is the plan's rule) and, as well, "
    "these are less than eff_isl_ratio_threshold of it. That ratio can be at most 1, so a prompt "
    "of which nothing is cached is always prefilled remotely, however short it is. Without KV "
    "events of the decode workers nothing counts as cached, and all prompts go remote."
)
ROLES_WHY: Final = (
    "a Dynamo worker has its role from its start: end the process (SIGTERM) and start one with "
    "the other --disaggregation-mode"
)
PLANNERS_WHY: Final = (
    "its planner decides how many workers of each role there are: this console shows what to start "
    "and to end, and reports it as carried out once the frontend lists it"
)
_ADMISSIONS: Final = "dynamo_frontend_router_admission_received_total"


class Busy(msgspec.Struct, frozen=True):
    """When a worker counts as busy: with all of them busy, requests are answered 529.

    None is "not set". A value that was set once cannot be unset but by a new frontend.
    """

    model: str
    active_decode_blocks_threshold: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | None = None
    active_prefill_tokens_threshold: Annotated[int, msgspec.Meta(ge=0)] | None = None
    active_prefill_tokens_threshold_frac: Annotated[float, msgspec.Meta(ge=0.0)] | None = None


class _Thresholds(msgspec.Struct, frozen=True):
    thresholds: list[Busy]


class _About(msgspec.Struct, frozen=True):
    version: str


class _Api(msgspec.Struct, frozen=True):
    info: _About


class _Transport(msgspec.Struct, frozen=True):
    tcp: str | None = None


class _Instance(msgspec.Struct, frozen=True):
    namespace: str
    component: str
    endpoint: str
    instance_id: int
    transport: _Transport | str = _Transport()

    @property
    def address(self) -> str:
        """HOST:PORT; empty: it is not told."""
        at = self.transport
        return ((at.tcp if isinstance(at, _Transport) else at) or "").split("/", 1)[0]


class _Health(msgspec.Struct, frozen=True):
    instances: list[_Instance] = []


class Settings(base.Settings, frozen=True, kw_only=True):
    """One frontend. Its workers' cards are in the folder called `store` (discovery `file`: what
    DYN_FILE_KV names) or in `etcd_url` (discovery `etcd`); with neither, no threshold and no role
    can be read. `model` is needed where the namespace serves several. `roll_with` is the command by
    which the site starts its decode workers anew. `planner_etcd_url` is where its planner writes
    what it decides, if it has one (environment `virtual`); with `act_for_planner` this console
    tells it when that is carried out, and nobody else may."""

    store: places.Name | None = None
    etcd_url: Url | None = None
    namespace: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]+$")] = "dynamo"
    model: str | None = None
    roll_with: str | None = None
    planner_etcd_url: Url | None = None
    act_for_planner: bool = False

    def __post_init__(self) -> None:
        if self.act_for_planner and self.planner_etcd_url is None:
            raise ValueError("act_for_planner = true: needs planner_etcd_url")
        if self.act_for_planner and self.store is None and self.etcd_url is None:
            raise ValueError("act_for_planner = true: needs store or etcd_url, to count workers by")

    @property
    def planner(self) -> Planner | None:
        """Whose decisions this console may carry out."""
        at = self.planner_etcd_url
        return None if at is None else Planner(at, self.namespace)


class Dynamo(base.Unchanged[Settings]):
    kind = "dynamo"
    _why_not = ROLES_WHY

    def capabilities(self, actual: Actual) -> Capabilities:
        can = Capabilities(
            threshold="roll",
            roles="none",
            drain="none",
            has_auth=False,
            is_readable=self._has_cards,
            tried_versions=TRIED_VERSIONS,
            threshold_means=MEANS,
            why=PLANNERS_WHY if self.settings.act_for_planner else ROLES_WHY,
        )
        return applied.known(actual.version, can)

    def read(self) -> Actual:
        version = answers.get(f"{self.url}/openapi.json", _Api).info.version
        instances = [
            each
            for each in answers.get(f"{self.url}/health", _Health).instances
            if (each.namespace, each.endpoint) == (self.settings.namespace, "generate")
        ]
        cards = self._cards()
        sets = _sets(cards or [])
        counted = answers.metrics(f"{self.url}/metrics")
        threshold, findings = (None, []) if cards is None else _threshold(sets)
        facts: dict[str, Any] = {
            "busy_thresholds": [msgspec.to_builtins(busy) for busy in self.busy_thresholds()],
            # Each request is admitted to a decode worker, and to a prefill worker if it is remote.
            "requests_total": answers.total(counted, _ADMISSIONS, worker_type="decode"),
            "remote_requests_total": answers.total(counted, _ADMISSIONS, worker_type="prefill"),
            "advertised": [msgspec.to_builtins(_rule_of(each)) for each in sets],
        }
        if self.settings.planner is not None:
            decided, waiting = _decided(self.settings.planner.read())
            facts |= decided
            findings += waiting
        return Actual(
            version,
            _listed(instances, cards or []),
            threshold=threshold,
            findings=tuple(findings),
            facts=facts,
        )

    def rendered(self, wanted: Wanted, actual: Actual) -> Rendered:
        """The environment that all decode workers must be started with. Raises CannotDo."""
        return Rendered(
            what=f"decode workers of namespace {self.settings.namespace}: {wanted}",
            content="".join(f"{name}={value}\n" for name, value in _environment(wanted)),
            apply=self.settings.roll_with
            or "start every decode worker anew with these environment variables: the new ones "
            "beside the old ones first, then end the old ones (SIGTERM)",
            notes=(
                "The frontend goes on with the old settings, and sends the new workers nothing, "
                "until the last old decode worker of the namespace has gone.",
                "A worker that names a router mode replaces the frontend's whole router "
                "configuration: its other --router flags must be repeated on the worker.",
                *_cold(wanted),
            ),
        )

    def runs(self, wanted: Wanted, actual: Actual) -> bool | None:
        """By the cards: a set of decode workers that advertise one and the same configuration."""
        if wanted.mode == "threshold":
            return shows(actual.threshold, wanted)
        rules = actual.facts.get("advertised")
        if not isinstance(rules, list) or len(rules) != 1 or rules[0] is None:
            return None
        is_on: bool = rules[0]["conditional_disagg_enabled"]
        return wanted.mode == "always_remote" and not is_on

    def rendered_decision(self, decision: Decision, actual: Actual) -> Rendered | None:
        """What to start and to end for `decision` of its planner; None: it is carried out.

        Raises SurfaceError where a worker shows no role, so that nothing can be counted.
        """
        nameless = [url for url, listed in actual.workers.items() if listed.role is None]
        if nameless and self.settings.model is None:
            raise SurfaceError(
                f"{self.url}: {nameless[0]} shows no role yet: workers cannot be counted"
            )
        lines, wanted = [], []
        for role, n in (("prefill", decision.n_prefill), ("decode", decision.n_decode)):
            n_ready = len(actual.ready(ROLES[role]))
            wanted.append(f"{'as many' if n is None else n} {role}")
            if n is not None and n_ready < n:
                lines.append(f"start {n - n_ready}: --disaggregation-mode {role}")
            if n is not None and n_ready > n:
                lines.append(f"end {n_ready - n} of {n_ready} (SIGTERM): {role}")
        if not lines:
            return None
        return Rendered(
            what=f"decision {decision.id} of its planner, {' and '.join(wanted)} workers",
            content="".join(f"{line}\n" for line in sorted(lines, reverse=True)),
            apply="start what is missing first, then end what is too much: the frontend finds both "
            "by itself",
            notes=("The planner is told so once the frontend lists these counts.",),
        )

    def busy_thresholds(self) -> list[Busy]:
        """By model, as the frontend has them now. Raises SurfaceError."""
        return answers.get(f"{self.url}/busy_threshold", _Thresholds).thresholds

    def set_busy(self, wanted: Busy) -> Busy:
        """Set what is not None of one model's thresholds, live, and read it back.

        Raises Refused for a model that is not served or a value it does not take, Unheeded, and
        SurfaceError.
        """
        asked = {k: v for k, v in msgspec.to_builtins(wanted).items() if v is not None}
        if asked.keys() == {"model"}:
            raise Refused(f"{self.url}: a busy threshold cannot be unset: start the frontend anew")
        answers.post(f"{self.url}/busy_threshold", asked, Busy)
        for shown in self.busy_thresholds():
            if shown.model == wanted.model and asked.items() <= msgspec.to_builtins(shown).items():
                return shown
        raise Unheeded(f"{self.url}: took the busy thresholds {asked}, and does not show them")

    @property
    def _has_cards(self) -> bool:
        return self.settings.store is not None or self.settings.etcd_url is not None

    def _cards(self) -> list[Card] | None:
        if self.settings.store is not None:
            found = dynamo_cards.from_files(
                places.path_of(self.settings.store, router=self.url), self.settings.namespace
            )
        elif self.settings.etcd_url is not None:
            found = dynamo_cards.from_etcd(self.settings.etcd_url, self.settings.namespace)
        else:
            return None
        models = {card.model for card in found}
        if self.settings.model is None and len(models) > 1:
            names = ", ".join(sorted(models))
            raise SurfaceError(
                f"{self.url}: model: namespace {self.settings.namespace} serves {names}: name one"
            )
        return [card for card in found if self.settings.model in (None, card.model)]


def _decided(shown: Handshake) -> tuple[dict[str, Any], list[str]]:
    """What its planner wants of the fleet, and whether it waits for somebody to do it."""
    wanted, waits = shown.decision, shown.pending
    facts = {
        "planner_decision_id": wanted and wanted.id,
        "planner_n_prefill": wanted and wanted.n_prefill,
        "planner_n_decode": wanted and wanted.n_decode,
        "planner_waits": waits is not None,
    }
    if waits is None:
        return facts, []
    n_prefill, n_decode = (
        "as many" if n is None else str(n) for n in (waits.n_prefill, waits.n_decode)
    )
    return facts, [
        f"Its planner decided {n_prefill} prefill and {n_decode} decode workers (decision "
        f"{waits.id}), and decides nothing more until that is reported as carried out."
    ]


def _environment(wanted: Wanted) -> list[tuple[str, str]]:
    """Raises CannotDo for a rule that Dynamo does not have."""
    if wanted.mode == "always_local":
        raise CannotDo(
            "Dynamo has no rule that keeps every prompt local: what is not cached on the decode "
            "worker at all goes remote whatever the threshold. Without a prefill worker it is local"
        )
    mode = ("DYN_ROUTER_MODE", "kv")
    if wanted.tokens is None:
        return [mode, ("DYN_ROUTER_CONDITIONAL_DISAGG", "false")]
    config = {
        "policy": "isl_bounding",
        "eff_isl_threshold": wanted.tokens + 1,
        "eff_isl_ratio_threshold": 1.0,
    }
    return [
        mode,
        ("DYN_ROUTER_CONDITIONAL_DISAGG", "true"),
        ("DYN_ROUTER_CONDITIONAL_DISAGG_CONFIG", msgspec.json.encode(config).decode()),
    ]


def _cold(wanted: Wanted) -> tuple[str, ...]:
    if wanted.mode != "threshold":
        return ()
    return ("A prompt of which nothing is cached on the decode worker goes remote all the same.",)


def _sets(cards: list[Card]) -> list[list[Card]]:
    """The decode workers by what they advertise. The frontend serves one such set only."""
    found: dict[str, list[Card]] = {}
    for card in cards:
        if card.role == "decode":
            found.setdefault(card.as_advertised, []).append(card)
    return list(found.values())


def _rule_of(alike: list[Card]) -> KvRouter | None:
    advertised = alike[0].advertised
    return None if advertised is None else advertised.kv_router_config


def _threshold(sets: list[list[Card]]) -> tuple[Threshold | None, list[str]]:
    """What the decode workers make the frontend run by, and what does not hold of it."""
    if len(sets) > 1:
        sizes = " and ".join(str(len(each)) for each in sets)
        return None, [
            f"{sizes} decode workers advertise different router configurations. The frontend "
            "keeps to the one it saw first and sends the others nothing, though it lists them."
        ]
    config = _rule_of(sets[0]) if sets else None
    if config is None:
        words = "no decode worker advertises a rule: the frontend's own flags decide, unseen"
        return Threshold(None, words), []
    if not config.conditional_disagg_enabled:
        return Threshold(None, "every prompt is prefilled remotely"), []
    return _rule(config), _gaps(config, sets[0])


def _rule(config: KvRouter) -> Threshold:
    below = config.conditional_disagg_eff_isl_threshold
    ratio = config.conditional_disagg_eff_isl_ratio_threshold
    words = f"local if fewer than {below} tokens and less than {ratio:g} of the prompt are uncached"
    if config.conditional_disagg_policy == "isl_bounding":
        # Nothing is fewer than 0 tokens: all is remote then, which no threshold of the plan says.
        return Threshold(below - 1 if below > 0 and ratio == 1.0 else None, words)
    if config.conditional_disagg_policy == "isl_or_load":
        return Threshold(None, f"{words}, or if the prefill worker is busy")
    return Threshold(None, f"local by {config.conditional_disagg_policy}, whatever the length")


def _gaps(config: KvRouter, workers: list[Card]) -> list[str]:
    found = []
    ratio = config.conditional_disagg_eff_isl_ratio_threshold
    if config.conditional_disagg_policy != "prefill_load" and ratio < 1.0:
        found.append(
            f"eff_isl_ratio_threshold is {ratio:g}: a prompt of which {ratio:.0%} or more is "
            "uncached goes remote, whatever the threshold."
        )
    if config.conditional_disagg_decode_busy_threshold is not None:
        found.append("decode_busy_threshold is set: a busy decode worker keeps nothing local.")
    n_silent = sum(card.publishes_kv_events is False for card in workers)
    if n_silent and config.router_predicted_ttl_secs is None:
        found.append(
            f"{n_silent} of {len(workers)} decode workers publish no KV events: nothing counts as "
            "cached there, so none of their prompts is ever kept local."
        )
    return found


def _listed(instances: list[_Instance], cards: list[Card]) -> dict[str, Listed]:
    """Workers by the address that requests reach them at; they have no HTTP of their own. Several
    of one process share its address, and go by their names."""
    roles = {card.instance_id: card.role for card in cards}
    shared = Counter(each.address for each in instances)
    found: dict[str, Listed] = {}
    for each in instances:
        key = f"{each.component}/{each.instance_id}"
        is_alone = each.address and shared[each.address] == 1
        url = f"tcp://{each.address}" if is_alone else f"dynamo://{key}"
        found[url] = Listed(url, roles.get(each.instance_id), "ready", key=key)
    return found
