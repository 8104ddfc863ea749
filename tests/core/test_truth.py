"""Truth checks by their facts: found, clear, or unknown because something is not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routing.core.effect import Effect
from routing.core.leaks import Leak
from routing.core.truth import disaggregation, kv_memory, meaning, prerequisites, split
from routing.core.truth import readiness as ready
from routing.core.truth.disaggregation import DecodeEngine, Moved, PdCluster, Prompts, RemoteLink
from routing.core.truth.finding import (
    CHECKS,
    GRADES,
    SEVERITIES,
    UNITS,
    Clear,
    Finding,
    Outcome,
    Unknown,
    named,
    report,
)

NOW_S = 10_000.0
SINCE_S = NOW_S - 300.0


def kind(outcome: Outcome | None) -> str | None:
    """`bad`, `warn`, `info` of a finding, else `clear` or `unknown`."""
    if outcome is None:
        return None
    if isinstance(outcome, Finding):
        return outcome.severity
    return "unknown" if isinstance(outcome, Unknown) else "clear"


def figure(outcome: Outcome | None, what: str) -> Any:
    assert isinstance(outcome, Finding), outcome
    (found,) = [each.value for each in outcome.evidence if each.what == what]
    return found


def prompts(*parts: tuple[float, float]) -> tuple[Prompts, ...]:
    """(computed, received) of intervals of 30 s up to now."""
    first_s = NOW_S - 30.0 * len(parts)
    return tuple(Prompts(first_s + 30.0 * i, c, r, 0.0) for i, (c, r) in enumerate(parts))


def engine(name: str = "d0", *parts: tuple[float, float], **facts: Any) -> DecodeEngine:
    known = {"prompts": prompts(*parts), "moved": Moved()}
    return DecodeEngine(f"f/pd/{name}", **{**known, **facts})


def pd(*decode: DecodeEngine, **facts: Any) -> PdCluster:
    known = {"n_prefill": 1, "prefilled_tokens": 50_000.0, "sent": Moved()}
    return PdCluster("f/pd", SINCE_S, decode, **{**known, **facts})


UNTOLD = {"prompts": None}


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("all computed on decode", pd(engine("d0", (5000, 0), (4000, 0))), "bad"),
        ("all received", pd(engine("d0", (0, 9000))), "clear"),
        ("the last block of each", pd(engine("d0", (200, 9000))), "clear"),
        ("half and half", pd(engine("d0", (2000, 2000))), "bad"),
        ("too few to tell", pd(engine("d0", (900, 0))), "unknown"),
        ("one of two", pd(engine("d0", (0, 9000)), engine("d1", (3000, 0))), "bad"),
        ("nobody prefills apart", pd(engine("d0", (9000, 0)), n_prefill=0), None),
        ("no decode engine", pd(), None),
        ("nothing is told", pd(engine(**UNTOLD)), "unknown"),
        ("no transfer at all", pd(engine(**UNTOLD, moved=Moved(0.0, 0.0))), "bad"),
        (
            "no transfer, and no prompt either",
            pd(engine(**UNTOLD, moved=Moved(0.0)), prefilled_tokens=0.0),
            "unknown",
        ),
        (
            "no transfer, and prefill is not read",
            pd(engine(**UNTOLD, moved=Moved(0.0)), prefilled_tokens=None),
            "unknown",
        ),
        ("the sender counted some", pd(engine(**UNTOLD), sent=Moved(transfers=3.0)), "clear"),
        (
            "bytes where transfers are not told",
            pd(engine(**UNTOLD, moved=Moved(None, 9.0))),
            "clear",
        ),
        (
            "short prompts stay on decode by design",
            pd(engine("d0", (9000, 1000), moved=Moved(5.0)), keeps_short=True),
            "clear",
        ),
        (
            "by design, and yet nothing ever moves",
            pd(engine("d0", (9000, 0), moved=Moved(0.0)), keeps_short=True),
            "bad",
        ),
    ],
)
def test_fake_disaggregation(what: str, seen: PdCluster, says: str | None) -> None:
    assert kind(disaggregation.of_cluster(seen)) == says


def test_fake_disaggregation_names_engines_shares_and_since_when() -> None:
    late = engine("d1", (0, 5000), (3000, 0), (2600, 100), moved=Moved(7.0, 4e6))
    found = disaggregation.of_cluster(pd(engine("d0", (0, 20_000)), late))
    assert isinstance(found, Finding)
    assert "(d1)" in found.sentence
    assert "every" not in found.sentence
    assert (found.since_s, found.longer) == (NOW_S - 60.0, False)
    assert figure(found, "of those of d1") == pytest.approx(5600 / 10_700)
    assert figure(found, "of these computed on decode") == pytest.approx(5600 / 30_700)
    assert figure(found, "KV transfers counted by engines") == 7.0
    assert all(each.grade == "measured" for each in found.evidence)


def test_what_was_so_all_along_is_at_least_that_old() -> None:
    found = disaggregation.of_cluster(pd(engine("d0", (0, 0), (3000, 0), (2600, 100))))
    assert isinstance(found, Finding)
    assert (found.since_s, found.longer) == (NOW_S - 60.0, True)


def sent(**facts: Any) -> RemoteLink:
    known = {
        "requests": 100.0,
        "least_tokens": 4000.0,
        "bytes_per_token": 17_280.0,
        "carried_bytes": 100 * 4000 * 17_280.0,
    }
    return RemoteLink("prfaas->pd", SINCE_S, **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("it carries what it must", sent(), "clear"),
        ("it carries next to nothing", sent(carried_bytes=1e6), "bad"),
        ("a tenth may be compressed", sent(carried_bytes=0.1 * 100 * 4000 * 17_280.0), "clear"),
        ("it is not read", sent(carried_bytes=None), "unknown"),
        ("too few requests", sent(requests=19.0, carried_bytes=0.0), None),
        ("no gate tells", sent(requests=None, carried_bytes=0.0), None),
        ("nothing has to cross", sent(least_tokens=0.0, carried_bytes=0.0), None),
    ],
)
def test_a_link_that_should_carry_kv(what: str, seen: RemoteLink, says: str | None) -> None:
    assert kind(disaggregation.of_link(seen)) == says


@pytest.mark.parametrize(
    ("events", "computed", "says"),
    [
        (None, 9000.0, None),
        (12.0, 9000.0, "clear"),
        (0.0, 9000.0, "bad"),
        (0.0, 100.0, "clear"),
        (0.0, None, "unknown"),
    ],
)
def test_kv_events_that_nobody_hears(events: float | None, computed: float | None, says) -> None:
    seen = prerequisites.KvEvents("f/pd/gw-1", "pd", SINCE_S, events, computed)
    assert kind(prerequisites.kv_events(seen)) == says


def pool(**facts: Any) -> prerequisites.PrefillPool:
    known: dict[str, Any] = {
        "instances": ("f/pd/p0", "f/pd/p1"),
        "silent": (),
        "queries_tokens": 10_000.0,
        "hits_tokens": 2_500.0,
        "computed_tokens": 10_000.0,
    }
    return prerequisites.PrefillPool("f/pd", SINCE_S, **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("all is counted", pool(), "clear"),
        ("nobody tells", pool(silent=("f/pd/p0", "f/pd/p1"), queries_tokens=None), "warn"),
        ("one does not tell", pool(silent=("f/pd/p1",)), "unknown"),
        ("nothing is looked up", pool(queries_tokens=0.0, hits_tokens=0.0), "warn"),
        (
            "nothing is looked up or computed",
            pool(queries_tokens=0.0, computed_tokens=0.0),
            "clear",
        ),
        ("nobody is there", pool(instances=()), None),
    ],
)
def test_prefix_caches(what: str, seen: prerequisites.PrefillPool, says: str | None) -> None:
    assert kind(prerequisites.prefix_cache(seen)) == says


@pytest.mark.parametrize(
    ("claimed", "engines", "says"),
    [
        (9_900.0, 0.25, "bad"),
        (5_400.0, 0.25, "clear"),
        (9_900.0, 0.85, "clear"),
        (9_900.0, None, "unknown"),
        (3_000.0, None, None),
        (None, 0.25, None),
    ],
)
def test_cached_tokens_that_prefill_engines_contradict(claimed, engines, says) -> None:
    """Of 10,000 prompt tokens. A gate that does not trust them counts none."""
    seen = prerequisites.CachedClaims("f/pd/gw-1", "local", SINCE_S, 10_000.0, claimed, engines)
    found = prerequisites.cached_tokens(seen)
    assert kind(found) == says
    if says == "bad":
        assert isinstance(found, Finding)
        assert "trust_cached_tokens = false" in found.next_step
        assert figure(found, "cached share by the answers") == 0.99


def ability(**facts: Any) -> prerequisites.RouterAbility:
    known = {"threshold": "none", "roles": "live", "why": "", "kind": "smg"}
    return prerequisites.RouterAbility("f/pd/smg-1", **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "threshold", "moves", "gate", "routers", "says"),
    [
        ("a gate applies t", 4000, False, True, [ability()], ["clear"]),
        ("nobody can", 4000, False, False, [ability()], ["bad"]),
        ("one can", 4000, False, False, [ability(), ability(threshold="roll")], ["clear"]),
        ("no plan with a threshold", None, False, False, [ability()], ["clear"]),
        ("nobody is known", 4000, False, False, [], ["unknown"]),
        ("roles cannot move", None, True, True, [ability(roles="none")], ["warn"]),
        ("roles need not move", None, False, True, [ability(roles="none")], ["clear"]),
        ("nothing is asked", None, False, True, [], []),
    ],
)
def test_what_routers_cannot_do(what, threshold, moves, gate, routers, says) -> None:
    wants = prerequisites.Wants("f/pd", threshold, moves, gate, routers)
    assert [kind(found) for found in prerequisites.capabilities(wants)] == says


def lease(**facts: Any) -> kv_memory.Lease:
    known = {"expired": 0.0, "failed": 0.0, "timeout_s": 300.0, "lease_s": None}
    return kv_memory.Lease("f/pd", SINCE_S, **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("nothing expired, the gate waits shorter", lease(), "clear"),
        ("KV expired", lease(expired=2.0), "bad"),
        ("KV expired, whoever waits", lease(expired=2.0, timeout_s=None), "bad"),
        ("it waits longer than the usual lease", lease(timeout_s=600.0), "info"),
        ("it waits longer than a lease that was told", lease(lease_s=120.0), "warn"),
        ("as long as the lease", lease(timeout_s=480.0), "clear"),
        ("no gate tells, nothing expired", lease(timeout_s=None), "clear"),
        ("engines count nothing", lease(expired=None, timeout_s=600.0), "unknown"),
        ("nobody tells anything", lease(expired=None, timeout_s=None), "unknown"),
    ],
)
def test_lease_against_timeout(what: str, seen: kv_memory.Lease, says: str) -> None:
    assert kind(kv_memory.lease(seen)) == says


def test_a_lease_that_nobody_told_is_assumed() -> None:
    assumed = kv_memory.lease(lease(expired=2.0))
    told = kv_memory.lease(lease(expired=2.0, lease_s=120.0))
    for found, grade, value in ((assumed, "assumed", 480.0), (told, "measured", 120.0)):
        assert isinstance(found, Finding)
        (each,) = [each for each in found.evidence if each.what == "lease of the engines"]
        assert (each.grade, each.value, each.unit) == (grade, value, "s")


def leak(name: str) -> Leak:
    return Leak(f"f/pd/{name}", 0.6, NOW_S - 500.0, 480.0)


def test_leaks_are_told_one_by_one_and_the_rest_as_one() -> None:
    few = kv_memory.leaks(kv_memory.Pool("f/pd", 8, [leak("d0"), leak("d1")], []))
    assert [(found.subject, kind(found)) for found in few] == [
        ("f/pd/d0", "bad"),
        ("f/pd/d1", "bad"),
    ]
    many = kv_memory.leaks(kv_memory.Pool("f/pd", 90, [leak(f"d{i}") for i in range(60)], []))
    assert len(many) == kv_memory.MOST_SINGLE + 1
    assert isinstance(many[-1], Finding)
    assert many[-1].sentence.startswith("55 more instances (d5, d6, d7 and 52 more)")


def test_who_does_not_tell_is_not_free_of_leaks() -> None:
    found = kv_memory.leaks(kv_memory.Pool("f/pd", 8, [], ["f/pd/d3"]))
    assert [kind(each) for each in found] == ["unknown"]
    assert kind(kv_memory.leaks(kv_memory.Pool("f/pd", 8, [], []))[0]) == "clear"
    assert kv_memory.leaks(kv_memory.Pool("f/pd", 0, [], [])) == []


def members(*words: str, for_s: float | None = 500.0) -> tuple[ready.Member, ...]:
    since_s = None if for_s is None else NOW_S - for_s
    return tuple(ready.Member(f"f/pd/p{i}", word, since_s) for i, word in enumerate(words))


def roles(found: tuple[ready.Member, ...] | None, **facts: Any) -> ready.RolePool:
    return ready.RolePool("f/pd", "prefill", "engines", found, **facts)


@pytest.mark.parametrize(
    ("what", "seen", "says"),
    [
        ("all are ready", roles(members("ready", "ready")), "clear"),
        ("the only one starts", roles(members("starting", for_s=1.0)), "bad"),
        ("all drain", roles(members("draining", "draining")), "bad"),
        ("none is listed and some are wanted", roles((), expected=3), "bad"),
        ("none is listed, none is wanted", roles((), expected=0), "clear"),
        ("nobody read it", roles(None, expected=3), "unknown"),
        ("one of two is down", roles(members("ready", "down")), "warn"),
        ("it went down a moment ago", roles(members("ready", "down", for_s=10.0)), "clear"),
        ("it drains, as long as it likes", roles(members("ready", "draining")), "clear"),
        ("a move is under way", roles(members("ready", "down"), moving=True), "clear"),
        ("a router says failed", roles(members("ready", "failed", for_s=None)), "warn"),
        ("metrics fail, which says nothing", roles(members("ready", "unread")), "clear"),
        ("of none it is known", roles(members("down", "unread")), "unknown"),
    ],
)
def test_role_readiness(what: str, seen: ready.RolePool, says: str) -> None:
    """sglang#33740: a router is healthy while its only prefill instance still loads."""
    assert kind(ready.of_pool(seen, NOW_S)) == says


def test_an_empty_pool_is_as_old_as_its_last_member() -> None:
    one, other = members("down", "down")
    found = ready.of_pool(roles((replace(one, since_s=NOW_S - 20.0), other)), NOW_S)
    assert isinstance(found, Finding)
    assert found.since_s == NOW_S - 20.0


def rule(**facts: Any) -> meaning.RouterRule:
    known = {
        "kind": "dynamo",
        "version": "1.6.1",
        "means": "local only if fewer than N uncached tokens and a short rest",
        "tokens": 2048,
        "how": "roll",
    }
    return meaning.RouterRule("f/pd/dynamo-1", **{**known, **facts})


@pytest.mark.parametrize(
    ("what", "rules", "plan_tokens", "says"),
    [
        ("it runs by a number of another meaning", [rule()], 4000, ["warn"]),
        ("the plan has no number", [rule()], None, ["info"]),
        ("it has no number", [rule(tokens=None)], 4000, ["info"]),
        ("it has no threshold at all", [rule(how="none", tokens=None)], 4000, ["clear"]),
        ("it was never read", [rule(read=False)], 4000, ["unknown"]),
        ("two that mean the same", [rule(), rule()], 4000, ["warn"]),
        ("two that do not", [rule(), rule(means="other")], 4000, ["warn", "warn"]),
        ("no router", [], 4000, []),
    ],
)
def test_what_a_threshold_means(what, rules, plan_tokens, says) -> None:
    assert [kind(x) for x in meaning.of_cluster("f/pd", rules, plan_tokens)] == says


def test_the_meaning_is_said_in_the_adapters_words() -> None:
    (found,) = meaning.of_cluster("f/pd", [rule()], 4000)
    assert isinstance(found, Finding)
    assert rule().means in found.sentence
    assert figure(found, "dynamo-1 runs by") == 2048
    assert figure(found, "the plan's rule") == "remote if and only if uncached prompt tokens > t"


def test_a_report_puts_the_gravest_first() -> None:
    outcomes: list[Outcome] = [
        Clear("FlowLimited", "b->a", "well"),
        Finding("SplitOffPrediction", "f/b", "warn", "s", (), "n"),
        Finding("LeakSuspected", "f/b/d1", "bad", "s", (), "n"),
        Finding("FakeDisaggregation", "f/b", "info", "s", (), "n"),
        Finding("LeakSuspected", "f/b/d0", "bad", "s", (), "n"),
        Unknown("NoEffect", "f/b", "w", "n"),
    ]
    found = report(outcomes, at_s=NOW_S)
    assert [(f.severity, f.subject) for f in found.findings] == [
        ("bad", "f/b/d0"),
        ("bad", "f/b/d1"),
        ("warn", "f/b"),
        ("info", "f/b"),
    ]
    assert (found.worst, found.count("bad"), len(found.unknown), len(found.clear)) == (
        "bad",
        2,
        1,
        1,
    )
    assert report([], at_s=NOW_S).worst is None


def test_names_are_named_or_counted() -> None:
    assert named(["a", "b", "c"]) == "a, b, c"
    assert named(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"


EVERY = [
    disaggregation.of_cluster(pd(engine("d0", (9000, 0)))),
    disaggregation.of_cluster(pd(engine(**UNTOLD, moved=Moved(0.0)))),
    disaggregation.of_link(sent(carried_bytes=0.0)),
    prerequisites.kv_events(prerequisites.KvEvents("f/pd/g", "pd", SINCE_S, 0.0, 9000.0)),
    prerequisites.prefix_cache(pool(silent=("f/pd/p0", "f/pd/p1"))),
    prerequisites.prefix_cache(pool(queries_tokens=0.0)),
    *prerequisites.capabilities(
        prerequisites.Wants("f/pd", 1, True, False, [ability(roles="none")])
    ),
    kv_memory.lease(lease(expired=1.0)),
    kv_memory.lease(lease(timeout_s=600.0)),
    *kv_memory.leaks(kv_memory.Pool("f/pd", 9, [leak(f"d{i}") for i in range(9)], [])),
    ready.of_pool(roles((), expected=1), NOW_S),
    ready.of_pool(roles(members("ready", "down")), NOW_S),
    *meaning.of_cluster("f/pd", [rule()], 4000),
    split.no_effect("f/pd", Effect("pd", 0.0, 0.9, 0.9, 0.5), NOW_S),
    split.off_prediction("f/pd", [split.Look(0.0, 0.8, (0.5, 0.5), 600.0)] * 6),
]


@pytest.mark.parametrize("found", EVERY, ids=lambda f: f"{f.name} {f.sentence[:30]}")
def test_every_finding_has_its_whole_shape(found: Finding) -> None:
    assert isinstance(found, Finding)
    assert found.name in CHECKS
    assert found.severity in SEVERITIES
    assert found.evidence, "a finding without figures is an opinion"
    assert all(each.unit in UNITS and each.grade in GRADES for each in found.evidence)
    assert found.next_step
    # Pages end them with a full stop.
    assert not found.sentence.endswith(".")
    assert not found.next_step.endswith(".")
