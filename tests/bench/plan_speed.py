"""How long the best plan takes, beside a vectorised search of every t and role split. By hand.

    .venv/bin/python -m tests.bench.plan_speed [--repeat 200]

The peer is what one writes first with numpy: all thresholds 50 tokens apart times all role splits
of one pair of clusters, each stage's capacity as an array, the best entry. Both start from the
distribution and the profiles: tables are part of what is timed. Then the joint plan of a large
fleet, and whole passes of the loop over one: with a gain in sight, which is the longest there is.
Printed are the best and the median of the repeats.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy.special import ndtr

from routing.core.decide import decide
from routing.core.model.curves import Array, Curve
from routing.core.model.kvcache import bytes_per_s
from routing.core.model.lengths import LogNormalLengths
from routing.core.model.optimize import Freedom, Optimum, optimise
from routing.core.model.site_work import Remote, Site
from routing.core.model.throughput import FleetModel
from routing.core.types import Memory, Params
from tests.core.big import big_fleet
from tests.core.cases import demo_model

_T_LOW, _T_HIGH, _T_STEP = 512.0, 131_072.0, 50.0
_INSTANCES = 8


def fresh(model: FleetModel) -> FleetModel:
    """The same fleet with nothing computed yet."""
    sites = tuple(
        dataclasses.replace(site, lengths=dataclasses.replace(site.lengths))  # type: ignore[type-var]
        for site in model.sites
    )
    return dataclasses.replace(model, sites=sites)


def exhaustive(model: FleetModel) -> float:
    """Requests/s of the best of all t and role splits of one pair, all at once."""
    site = model.sites[0]
    lengths, remote = site.lengths, site.remotes[0]
    assert isinstance(lengths, LogNormalLengths)
    grid = np.arange(_T_LOW, _T_HIGH + 1.0, _T_STEP)
    marks = np.unique(np.concatenate([[lengths.min_tokens, lengths.max_tokens], *_breaks(model)]))
    ends = np.concatenate([grid, marks])
    z = (np.log(np.clip(ends, lengths.min_tokens, lengths.max_tokens)) - lengths.mu) / lengths.sigma
    whole = np.exp(lengths.mu + lengths.sigma**2 / 2)
    mass, tokens = ndtr(z), whole * ndtr(z - lengths.sigma)
    order = np.argsort(ends, kind="stable")
    kept = mass[order[-1]] - mass[order[0]]

    def below(curve: Curve) -> Array:
        middle = 0.5 * (ends[order][1:] + ends[order][:-1])
        piece = np.searchsorted(np.asarray(curve.breaks), middle)
        steps = np.asarray(curve.constant)[piece] * np.diff(mass[order])
        steps += np.asarray(curve.linear)[piece] * np.diff(tokens[order])
        sums: Array = np.empty(len(ends))
        sums[order] = np.concatenate([[0.0], np.cumsum(steps)]) / kept
        return sums

    local, there, size = (
        below(curve) for curve in (site.profile.prefill.curve, remote.profile.curve, model.kv.curve)
    )
    last = int(order[-1])
    n = len(grid)
    shared = np.minimum(
        model.prefill[remote.name] / (there[last] - there[:n]),
        bytes_per_s(model.link_gbps[remote.link]) / (size[last] - size[:n]),
    )
    n_prefill = np.arange(1, _INSTANCES)[:, None]
    rates = np.minimum(n_prefill / local[:n], shared)
    rates = np.minimum(rates, (_INSTANCES - n_prefill) / site.decode_s)
    return float(rates.max())


def _breaks(model: FleetModel) -> list[Array]:
    site = model.sites[0]
    curves = (site.profile.prefill.curve, site.remotes[0].profile.curve, model.kv.curve)
    return [np.asarray(curve.breaks) for curve in curves]


def one_pair(model: FleetModel) -> Optimum:
    return optimise(model, {"pd": Freedom(_T_LOW, _T_HIGH, _INSTANCES, 1, _INSTANCES - 1)})


def fleet(n_pd: int, n_prfaas: int, seed: int) -> tuple[FleetModel, dict[str, Freedom]]:
    """PD clusters of 4 to 24 instances, every one linked to every PrfaaS cluster."""
    rng = np.random.default_rng(seed)
    case = demo_model()
    h20, h200 = case.sites[0].profile, case.sites[0].remotes[0].profile
    sites, freedom, links = [], {}, {}
    for k in range(n_pd):
        name, size = f"pd{k}", int(rng.integers(4, 25))
        remotes = tuple(
            Remote(f"prfaas{m}", f"prfaas{m}->{name}", h200, 1.0 / n_prfaas)
            for m in range(n_prfaas)
        )
        links.update({remote.link: float(rng.uniform(2.0, 40.0)) for remote in remotes})
        lengths = LogNormalLengths(rng.uniform(8.8, 10.2), rng.uniform(0.7, 1.3), 128, 131_072)
        sites.append(Site(name, size * rng.uniform(0.2, 0.4), lengths, 1024, h20, remotes))
        freedom[name] = Freedom(_T_LOW, _T_HIGH, size, 1, size - 1)
    prefill = {f"prfaas{m}": float(rng.integers(n_pd, 3 * n_pd)) for m in range(n_prfaas)}
    return FleetModel(case.kv, tuple(sites), prefill, links), freedom


def timed(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--fleet", type=int, nargs=2, default=[100, 4], metavar=("PD", "PRFAAS"))
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    model = demo_model()
    ours_s, peer_s = [], []
    for _ in range(args.repeat):
        new = fresh(model)
        ours_s.append(timed(partial(one_pair, new)))
        peer_s.append(timed(partial(exhaustive, new)))
    found, most = one_pair(model).prediction.lambda_max_rps, exhaustive(model)
    print(row("one pair", ours_s))
    print(row("exhaustive grid", peer_s))
    faster = statistics.median(peer_s) / statistics.median(ours_s)
    print(f"{faster:.2f}x as fast; {found:.6f} against {most:.6f} requests/s")
    joint, freedom = fleet(*args.fleet, args.seed)
    joint_s = [
        timed(lambda: optimise(fresh(joint), freedom)) for _ in range(max(3, args.repeat // 20))
    ]
    best = optimise(joint, freedom).prediction
    print(row("{} PD x {} PrfaaS".format(*args.fleet), joint_s))
    print(f"headroom {best.headroom:.4f}, limited by {best.bottleneck}")
    scenario, observation, plan = big_fleet(*args.fleet, args.seed)
    passes_s, memory, reasons = [], Memory(), set()
    for i in range(max(3, args.repeat // 20)):
        seen = dataclasses.replace(observation, now_s=observation.now_s + 2.0 * i)
        began_s = time.perf_counter()
        verdict = decide(seen, plan, memory, Params(mode="active"), scenario)
        passes_s.append(time.perf_counter() - began_s)
        memory = verdict.memory
        reasons.add(verdict.reason)
    print(row("decide of such", passes_s))
    print(f"reasons: {', '.join(sorted(reasons))}")


def row(name: str, took_s: list[float]) -> str:
    best_ms, median_ms = min(took_s) * 1e3, statistics.median(took_s) * 1e3
    return f"{name:<18} best {best_ms:8.3f} ms   median {median_ms:8.3f} ms"


if __name__ == "__main__":
    main()
