// Time series of the page's charts in ring buffers: history from REST, then live values appended.
// A gap stays a gap: a value that comes after silence is preceded by NaN, and nothing is ever
// appended for a source that did not speak.

export class Ring {
  constructor(capacity) {
    this.t = new Float64Array(2 * capacity);
    this.v = new Float64Array(2 * capacity);
    this.capacity = capacity;
    this.start = 0;
    this.end = 0;
  }

  get length() {
    return this.end - this.start;
  }

  get lastT() {
    return this.length ? this.t[this.end - 1] : -Infinity;
  }

  get last() {
    return this.length ? this.v[this.end - 1] : NaN;
  }

  push(t, v) {
    if (this.length === this.capacity) this.start += 1;
    if (this.end === this.t.length) {
      // The free half in front lets views stay contiguous: moved once per `capacity` pushes.
      this.t.copyWithin(0, this.start, this.end);
      this.v.copyWithin(0, this.start, this.end);
      this.end -= this.start;
      this.start = 0;
    }
    this.t[this.end] = t;
    this.v[this.end] = v;
    this.end += 1;
  }

  dropBefore(t) {
    while (this.start < this.end && this.t[this.start] < t) this.start += 1;
  }

  clear() {
    this.start = 0;
    this.end = 0;
  }

  times() {
    return this.t.subarray(this.start, this.end);
  }

  values() {
    return this.v.subarray(this.start, this.end);
  }
}

export class SeriesSet {
  // `names` as the series endpoint knows them; `gapS` the silence after which a line ends.
  constructor(names, { points = 720, gapS = 15 } = {}) {
    this.points = points;
    this.gapS = gapS;
    this.binS = 1;
    this.rings = new Map(names.map((name) => [name, new Ring(2 * points)]));
    this.decisions = [];
  }

  ring(name) {
    return this.rings.get(name);
  }

  // An answer of the series endpoint replaces everything. Bins that have not begun are left out.
  load(answer, nowS) {
    this.binS = answer.bin_s;
    this.decisions = answer.decisions;
    for (const [name, ring] of this.rings) {
      const values = answer.series[name] ?? [];
      let last = values.length - 1;
      // Trailing nulls are "nothing yet", not a gap: the live values go on from there.
      while (last >= 0 && values[last] === null) last -= 1;
      ring.clear();
      for (let i = 0; i <= last && answer.t[i] <= nowS; i += 1) {
        ring.push(answer.t[i], values[i] ?? NaN);
      }
    }
  }

  // A live value. Nothing newer than what is known, or not measured: nothing is appended.
  append(name, t, value) {
    const ring = this.rings.get(name);
    if (!ring || value === null || value === undefined || !(t > ring.lastT)) return false;
    // On a long range a bin gets one value, as history has.
    if (this.binS > 2 && t - ring.lastT < this.binS && !Number.isNaN(ring.last)) return false;
    if (ring.length && t - ring.lastT > this.silenceS) {
      ring.push(ring.lastT + 0.001, NaN);
    }
    ring.push(t, value);
    return true;
  }

  get silenceS() {
    return Math.max(this.gapS, 3 * this.binS);
  }

  trim(fromS) {
    for (const ring of this.rings.values()) ring.dropBefore(fromS);
  }
}

export async function fetchHistory(api, names, since, until, points) {
  const query = new URLSearchParams({ names: names.join(","), since, until, points });
  const answer = await fetch(`${api}/series?${query}`, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`history: ${answer.status}`);
  return answer.json();
}

// Milliseconds for a date axis.
export function axisTimes(ring) {
  return ring.times().map((t) => t * 1000);
}

// Sums from the bottom up over one time axis, for filled areas: `[{x, y, words}]` in the order
// given. Where a layer was not measured, and in a silence of all (`gapS`), its outline drops to the
// ground and comes up again behind, so that nothing is filled there; `words` are what a hover says.
export function stacked(rings, gapS, write) {
  const columns = rings.map((ring) => {
    const at = new Map();
    ring.times().forEach((t, i) => {
      const value = ring.values()[i];
      if (!Number.isNaN(value)) at.set(t, value);
    });
    return at;
  });
  const times = [...new Set(columns.flatMap((at) => [...at.keys()]))].sort((a, b) => a - b);
  const below = new Float64Array(times.length);
  return columns.map((at) => {
    const layer = { x: [], y: [], words: [] };
    const put = (t, y, words) => {
      layer.x.push(t * 1000);
      layer.y.push(y);
      layer.words.push(words);
    };
    let previous = null;
    times.forEach((t, i) => {
      const value = at.get(t);
      if (value === undefined) return;
      below[i] += value;
      if (previous !== null && (t - times[previous] > gapS || previous < i - 1)) {
        put(times[previous], 0, "");
        put(t, 0, "");
      }
      put(t, below[i], write(value));
      previous = i;
    });
    return layer;
  });
}

// a / b where both were measured at the same time.
export function ratio(a, b) {
  const by = new Map();
  b.times().forEach((t, i) => by.set(t, b.values()[i]));
  return {
    x: axisTimes(a),
    y: Array.from(a.values(), (value, i) => {
      const under = by.get(a.times()[i]);
      return under > 0 ? value / under : NaN;
    }),
  };
}

// Decisions close together become one mark when there are more than `most` in view.
export function cluster(decisions, fromS, toS, most = 30) {
  const inView = decisions.filter((d) => d.at_s >= fromS && d.at_s <= toS);
  if (inView.length <= most) return inView.map((d) => ({ at_s: d.at_s, all: [d] }));
  const width = (toS - fromS) / most;
  const groups = new Map();
  for (const d of inView) {
    const bin = Math.floor((d.at_s - fromS) / width);
    const group = groups.get(bin) ?? groups.set(bin, { at_s: d.at_s, all: [] }).get(bin);
    group.all.push(d);
    group.at_s = d.at_s; // the newest of the group is where it ends up
  }
  return [...groups.values()];
}
