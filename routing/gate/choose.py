"""Which upstream takes a request: measure it, apply the rule in force, count its arrival."""

from __future__ import annotations

from collections.abc import Callable, Collection

from aiohttp import web

from routing.core.placement.rule import Judged, Route, Rule, Side, Situation, WeightedTurns, route
from routing.gate.exchange import Exchange
from routing.gate.measure import Measured, Measurer, Move
from routing.gate.metrics import JUDGED, Metrics
from routing.gate.pool import Pool
from routing.gate.prompt import Fields, Prompt, wants_stream
from routing.gate.reading import Reading
from routing.gate.rules import Rules
from routing.gate.sse import ask_for_usage
from routing.gate.upstream import Upstream


class Chooser:
    """Chooses for the places `local` and `remotes`, of which the latter may change.

    `rules` tells the rule in force, `now_s` is a monotonic clock.
    """

    def __init__(
        self,
        *,
        local: Pool,
        remotes: dict[str, Pool],
        rules: Rules,
        measurer: Measurer,
        metrics: Metrics,
        now_s: Callable[[], float],
    ) -> None:
        self.local, self.remotes = local, remotes
        self._rules, self._measurer, self._metrics = rules, measurer, metrics
        self._now_s = now_s
        self._turns = WeightedTurns()

    def choose(
        self,
        request: web.Request,
        arrived_s: float,
        body: bytes,
        fields: Fields,
        prompt: Prompt | None,
    ) -> Exchange:
        """Measures and routes; no await, so that counts, index and turns agree with each other."""
        in_force = self._rules.now()
        rule = in_force.rule
        weights = {
            name: weight
            for name, weight in (rule.remote if rule else {}).items()
            if weight > 0.0 and name in self.remotes
        }
        admissible = [name for name in weights if self.remotes[name].admits(arrived_s)]
        candidate = self._turns.next(weights, admissible)
        # With nobody to take it, the remote side is still judged: by any remote there is.
        compared = candidate or next(iter(weights or self.remotes), None)
        reading = self._measurer.read(prompt) if prompt is not None else None
        local = self.next_of(self.local, reading, ())
        assert local is not None, "a place has at least one upstream"
        remote = self.next_of(self.remotes[compared], reading, ()) if compared else None
        measured = None
        if reading is not None:
            measured = self._measurer.measure(
                reading, rule, local=local, remote=remote, admits=candidate is not None
            )
        judged = measured.judged if measured else None
        chosen = route(
            rule,
            Situation(
                judged=judged,
                remotes=weights,
                admissible=admissible,
                remote_in_flight=sum(remote.in_flight for remote in self.remotes.values()),
                local_up=self.local.is_reachable(arrived_s),
                waits_s=self._waits_s(rule, judged, local, remote, now_s=arrived_s),
            ),
        )
        pool, upstream = self.local, local
        if chosen.side == "remote" and candidate is not None and remote is not None:
            self._turns.take(candidate, weights, admissible)
            pool, upstream = self.remotes[candidate], remote
        move = self._measurer.move(chosen, measured, local=local, remote=remote)
        self._count_arrival(chosen, measured, move)
        is_stream = wants_stream(fields)
        asked = ask_for_usage(body, fields) if is_stream else None
        return Exchange(
            request=request,
            arrived_s=arrived_s,
            body=body if asked is None else asked,
            is_stream=is_stream,
            strip_usage=asked is not None,
            measured=measured,
            in_force=in_force,
            route=chosen,
            pool=pool,
            upstream=upstream,
            move=move,
        )

    def next_of(
        self, pool: Pool, reading: Reading | None, tried: Collection[Upstream]
    ) -> Upstream | None:
        """Who of the place takes it, or who is tried for want of anybody that does."""
        now_s = self._now_s()
        able = pool.pick(reading, now_s=now_s, without=tried)
        return able or pool.last_resort(reading, now_s=now_s, without=tried)

    def _waits_s(
        self,
        rule: Rule | None,
        judged: Judged | None,
        local: Upstream,
        remote: Upstream | None,
        *,
        now_s: float,
    ) -> dict[Side, float | None]:
        if rule is None or judged is None or not rule.in_band(judged.uncached_tokens):
            return {}
        return {
            upstream.side: upstream.wait.expected_s(
                tokens=judged.compute_tokens[upstream.side], now_s=now_s
            )
            for upstream in filter(None, (local, remote))
        }

    def _count_arrival(self, chosen: Route, measured: Measured | None, move: Move | None) -> None:
        self._metrics.requests.add(chosen.side, chosen.reason)
        if move is not None:
            self._metrics.moves.add(move.link)
            self._metrics.move_tokens.add(move.link, by=move.new_tokens)
        if measured is None:
            return
        if measured.prompt.n_media:
            self._metrics.media_requests.add()
        self._metrics.prompt_tokens.add(by=measured.length.tokens)
        cached = measured.cached_tokens
        self._metrics.movable_tokens.add(by=max(0, cached["remote"] - cached["local"]))
        self._metrics.cached_tokens.add(chosen.side, by=cached[chosen.side])
        kind = measured.length.source, measured.prompt.modality
        for side in cached:
            self._metrics.uncached.observe(side, *kind, value=measured.uncached_tokens(side))
        self._metrics.uncached.observe(JUDGED, *kind, value=measured.judged.uncached_tokens)
