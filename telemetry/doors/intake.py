"""What the doors know: the newest value of every series, by the target it belongs to.

Samples of one scrape share a timestamp but may come in several requests. So they wait in a window
of their timestamp until it has settled; then the windows are applied in their order and each
becomes one sample of its target, as if an agent had read it. Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from telemetry.canonical import Canonical
from telemetry.doors import snapshot
from telemetry.doors.mapping import Place, Rules, Unmatched
from telemetry.doors.points import Labels, Point
from telemetry.refusals import WireError

TTL_S = 300.0
"""A series without a new value for so long is gone, as in Prometheus' own look-back."""
SETTLE_S = 0.25
HOLD_S = 1.0
"""A window is complete when nothing came for `SETTLE_S`, at the latest after `HOLD_S`."""
STEP_MS = 400
"""Timestamps nearer than this are one scrape: some exporters stamp each instrument by itself."""
FUTURE_S = 300.0
MAX_SERIES = 200_000
MAX_SERIES_PER_TARGET = 20_000
MAX_TARGETS = 5_000
MAX_PENDING = 500_000
MAX_LABEL_CHARS = 128 * 1024 * 1024
"""Characters of all labels together."""
MAX_IGNORED = 100_000
MAX_IGNORED_CHARS = 32 * 1024 * 1024
MAX_LISTED = 200
_RESTART_MS = 1000
_SWEEP_S = 30.0


class Refused(Exception):
    """Series beyond what is kept; the text names the limit."""


class Forbidden(Exception):
    """The sender may not report for this target."""


class Series:
    """One series. `at_ms` is its newest sample, which may still wait; `value` is what counts."""

    __slots__ = (
        "alive",
        "at_ms",
        "labels",
        "name",
        "start_ms",
        "target",
        "total",
        "value",
        "won_ms",
    )

    def __init__(self, name: str, labels: dict[str, str], target: Target | None) -> None:
        self.name, self.labels, self.target = name, labels, target
        self.alive = True
        self.at_ms = self.won_ms = self.start_ms = 0
        self.value = 0.0
        self.total = 0.0


class Window:
    """The samples of one scrape of one target. `state`: waiting, done or refused."""

    __slots__ = ("at_ms", "first_s", "last_s", "points", "state")

    def __init__(self, at_ms: int, now_s: float) -> None:
        self.at_ms = at_ms
        self.first_s = self.last_s = now_s
        self.points: dict[Series, Point] = {}
        self.state = "waiting"


class Target:
    """One instance, router or link, with all that is known of it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fleet = "" if place.kind == "link" else place.id.split("/")[0]
        self.series: dict[Series, None] = {}
        self.alive = True
        self.windows: list[Window] = []
        self.in_flight: list[Window] = []
        self.shown_ms = 0
        self.start_ms = 0
        self.heard_s = 0.0
        self.memory = snapshot.Memory()
        self.canonical: Canonical | None = None
        self.error: str | None = None

    def window(self, at_ms: int, now_s: float) -> Window:
        """The window a timestamp falls into."""
        for window in reversed(self.windows):
            if abs(at_ms - window.at_ms) < STEP_MS:
                window.at_ms = max(window.at_ms, at_ms)
                return window
        window = Window(at_ms, now_s)
        self.windows.append(window)
        self.windows.sort(key=lambda each: each.at_ms)
        return window

    def uncommitted(self) -> Iterator[Window]:
        """Windows that are not stored yet."""
        yield from self.windows
        yield from self.in_flight


_UNMATCHED = Series("", {}, None)
_DROPPED = Series("", {}, None)


@dataclass
class Receipt:
    """What became of one request: counts of samples, and the windows its answer waits for.

    `problems` are samples that can never be taken, by reason.
    """

    received_s: float
    n_taken: int = 0
    n_repeated: int = 0
    n_left_out: int = 0
    problems: dict[str, int] = field(default_factory=dict)
    windows: set[Window] = field(default_factory=set)

    @property
    def n_refused(self) -> int:
        return sum(self.problems.values())

    def refuse(self, why: str, n: int = 1) -> None:
        """Count samples that were not taken."""
        self.problems[why] = self.problems.get(why, 0) + n

    def words(self) -> str:
        """The refusals as one line, most frequent first."""
        worst = sorted(self.problems.items(), key=lambda entry: -entry[1])
        return "; ".join(f"{n} samples: {why}" for why, n in worst[:5])


@dataclass(frozen=True)
class Due:
    """A settled window and the sample it became; None where a newer one was already shown."""

    target: Target
    window: Window
    sample: snapshot.Sample | None


class Intake:
    """All targets of one door process."""

    def __init__(self, rules: Rules, *, ttl_s: float = TTL_S) -> None:
        self.rules = rules
        self._ttl_ms = int(ttl_s * 1000)
        self._series: dict[Labels, Series] = {}
        self._ignored: dict[Labels, Series] = {}
        self._targets: dict[tuple[str, str], Target] = {}
        self._dirty: dict[Target, None] = {}
        self._swept_s = 0.0
        self.unmatched: dict[str, str] = {}
        """Names that no rule takes, with the reason; the first `MAX_LISTED`."""
        self.n_unmatched = 0
        self.n_refused_series = 0
        self.n_pending = 0
        self.n_late = 0
        self._n_chars = self._n_ignored_chars = 0

    @property
    def n_series(self) -> int:
        return len(self._series)

    @property
    def targets(self) -> Iterable[Target]:
        return self._targets.values()

    @property
    def full(self) -> bool:
        """More samples wait than may: nothing can be taken now."""
        return self.n_pending >= MAX_PENDING

    def series(self, labels: Labels) -> Series:
        """The series of these labels; not `alive` ones are looked up again.

        Raises Refused where it would be one too many.
        """
        ignore = self.rules.ignore_labels
        key = tuple(sorted(pair for pair in labels if pair[1] and pair[0] not in ignore))
        found = self._series.get(key) or self._ignored.get(key)
        if found is not None:
            return found
        names = dict(key)
        try:
            place = self.rules.place(names)
        except Unmatched as exc:
            self._list(names, str(exc))
            return self._ignore(key, _UNMATCHED)
        if place is None:
            return self._ignore(key, _DROPPED)
        target = self._target(place)
        self._check_room(target, key)
        name = names.pop("__name__", "")
        series = Series(name, names, target)
        self._keep(key, series, target)
        return series

    def _keep(self, key: Labels, series: Series, target: Target) -> None:
        self._series[key] = series
        self._n_chars += _n_chars(key)
        target.series[series] = None

    def _list(self, labels: dict[str, str], why: str) -> None:
        self.n_unmatched += 1
        name = labels.get("__name__", "")[:200]
        if len(self.unmatched) < MAX_LISTED:
            about = ", ".join(f"{k}={labels[k]!r}" for k in ("job", "instance") if k in labels)
            self.unmatched.setdefault(name, f"{why} ({about})"[:200] if about else why)

    def _ignore(self, key: Labels, what: Series) -> Series:
        self._n_ignored_chars += _n_chars(key)
        if len(self._ignored) >= MAX_IGNORED or self._n_ignored_chars > MAX_IGNORED_CHARS:
            self._ignored.clear()
            self._n_ignored_chars = _n_chars(key)
        self._ignored[key] = what
        return what

    def _target(self, place: Place) -> Target:
        key = (place.kind, place.id)
        target = self._targets.get(key)
        if target is None:
            try:
                snapshot.check_place(place)
            except WireError as exc:
                field, value = exc.field.lstrip("."), repr(exc.value)[:80]
                raise Refused(f"{field}={value}: {exc.error}") from None
            if len(self._targets) >= MAX_TARGETS:
                self.n_refused_series += 1
                raise Refused(f"more than {MAX_TARGETS} targets")
            target = self._targets[key] = Target(place)
        target.place = place  # the role may have moved
        return target

    def _check_room(self, target: Target, key: Labels) -> None:
        if len(target.series) >= MAX_SERIES_PER_TARGET:
            self.n_refused_series += 1
            raise Refused(f"more than {MAX_SERIES_PER_TARGET} series of {target.place.id}")
        if len(self._series) >= MAX_SERIES:
            self.n_refused_series += 1
            raise Refused(f"more than {MAX_SERIES} series")
        if self._n_chars + _n_chars(key) > MAX_LABEL_CHARS:
            self.n_refused_series += 1
            raise Refused(f"more than {MAX_LABEL_CHARS} characters of labels")

    def take(
        self, series: Series, points: Iterable[Point], receipt: Receipt, *, delta: bool = False
    ) -> None:
        """The samples of one series, in the order of their time. `delta`: each is a gain."""
        target = series.target
        if target is None:
            receipt.n_left_out += sum(1 for _ in points)
            return
        if not target.alive:
            target = self._rejoin(series, target)
        now_s = receipt.received_s
        for point in points:
            if not 10**12 <= point.at_ms < 10**13:
                receipt.refuse("the timestamp is not in milliseconds since 1970")
            elif point.at_ms > (now_s + FUTURE_S) * 1000:
                receipt.refuse("the timestamp is in the future: the sender's clock is wrong")
            elif point.at_ms < series.at_ms:
                receipt.refuse("out of order: a newer sample of the series is known")
            elif point.at_ms == series.at_ms:
                # Sent again because the answer was lost or refused: the answer waits like then.
                receipt.n_repeated += 1
                receipt.windows.update(target.uncommitted())
            else:
                series.at_ms = point.at_ms
                if delta and point.value is not None:
                    series.total += point.value
                    point = point._replace(value=series.total)
                window = target.window(point.at_ms, now_s)
                window.points[series] = point
                window.last_s = now_s
                target.heard_s = now_s
                self._dirty[target] = None
                self.n_pending += 1
                receipt.n_taken += 1
                receipt.windows.add(window)

    def due(self, now_s: float, *, all_of_them: bool = False, most: int | None = None) -> list[Due]:
        """The samples of windows that have settled, each target's in the order of time.

        `all_of_them`: settled or not. `most`: no more than so many at once.
        """
        out: list[Due] = []
        for target in list(self._dirty):
            while target.windows and (most is None or len(out) < most):
                window = target.windows[0]
                settled = now_s - window.last_s >= SETTLE_S or now_s - window.first_s >= HOLD_S
                if not (settled or all_of_them):
                    break
                target.windows.pop(0)
                target.in_flight.append(window)
                out.append(Due(target, window, self._apply(target, window)))
            if not target.windows:
                del self._dirty[target]
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._sweep(now_s)
        return out

    def settle(self, due: Due, *, stored: bool) -> None:
        """Say that a window is committed, or that the database will never take it."""
        due.window.state = "done" if stored else "refused"
        due.target.in_flight.remove(due.window)

    def _apply(self, target: Target, window: Window) -> snapshot.Sample | None:
        self.n_pending -= len(window.points)
        restarted_ms = 0
        for series, point in window.points.items():
            if point.value is None:
                self._drop(series)
                continue
            if not series.alive:
                self._revive(series)
            if series.start_ms and point.start_ms > series.start_ms + _RESTART_MS:
                restarted_ms = max(restarted_ms, point.start_ms)
            series.start_ms = point.start_ms
            series.value, series.won_ms = point.value, point.at_ms
        self._begin(target, restarted_ms)
        window.points.clear()
        gone_ms = max(window.at_ms - self._ttl_ms, restarted_ms)
        for series in [s for s in target.series if s.won_ms < gone_ms and s.won_ms]:
            self._drop(series)
        if window.at_ms <= target.shown_ms:
            self.n_late += 1
            return None
        known = [s for s in target.series if s.won_ms]
        if not known and target.series:
            return None  # all it had ended, and its series under other labels are on their way
        target.shown_ms = window.at_ms
        if not known:
            return snapshot.gone(target.place, at_s=window.at_ms / 1000)
        sample, target.canonical = snapshot.sample(
            target.place, known, target.memory, at_s=window.at_ms / 1000, start_ms=target.start_ms
        )
        target.error = sample.error
        return sample

    @staticmethod
    def _begin(target: Target, restarted_ms: int) -> None:
        """Since when the process behind the target counts: its oldest counter, or its restart."""
        if restarted_ms:
            target.start_ms = max(target.start_ms, restarted_ms)
        elif not target.start_ms:
            target.start_ms = min((s.start_ms for s in target.series if s.start_ms), default=0)

    def _drop(self, series: Series) -> None:
        if not series.alive or series.target is None:
            return
        series.alive = False
        series.target.series.pop(series, None)
        key = _key(series)
        if self._series.pop(key, None) is not None:
            self._n_chars -= _n_chars(key)

    def _revive(self, series: Series) -> None:
        assert series.target is not None
        series.alive = True
        self._keep(_key(series), series, series.target)

    def _rejoin(self, series: Series, target: Target) -> Target:
        """The target of a series that was looked up just before its target was forgotten."""
        current = self._targets.setdefault((target.place.kind, target.place.id), target)
        current.alive = True
        series.target = current
        return current

    def _sweep(self, now_s: float) -> None:
        for key, target in list(self._targets.items()):
            silent = now_s - target.heard_s >= self._ttl_ms / 1000
            if silent and not target.windows and not target.in_flight:
                for series in list(target.series):
                    self._drop(series)
                target.alive = False
                del self._targets[key]


def _key(series: Series) -> Labels:
    return tuple(sorted({"__name__": series.name, **series.labels}.items()))


def _n_chars(key: Labels) -> int:
    return sum(len(name) + len(value) for name, value in key)
