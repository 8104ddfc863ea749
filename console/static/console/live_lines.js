// Moves a chart's lines on without Plotly. From one second to the next a live chart shifts and gains
// a point: where nothing else changed, its paths and marks of time are put where Plotly would put
// them, for a small part of what asking Plotly costs. Whatever changes more (another scale, other
// marks, another size, a line that begins) is left to Plotly.

const COLUMNS = ["x", "y", "customdata", "text"];
const SHAPES = [undefined, "linear", "hv"];
const FILLS = [undefined, "none", "tozeroy"];
const TIMES = "path.xtick, .xtick text, .xgrid";
const NOTHING = "M0,0";
const EDGE_PX = 1.01;

const isLine = ({ type, mode, line, fill, connectgaps }) => type === "scatter" && mode === "lines"
  && !connectgaps && SHAPES.includes(line?.shape) && FILLS.includes(fill);
// Points that stay where they are, such as marks of decisions.
const isStill = ({ type, mode }) => type === "scatter" && mode === "markers";
const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const isSame = (a, b) => a.length === b.length && a.every((v, i) => Object.is(v, b[i]));

export class LiveLines {
  // What Plotly has just drawn of `traces`.
  constructor(node, traces) {
    this.node = node;
    this.layout = node._fullLayout;
    this.hasMoved = false;
    this.traces = traces;
    this.parts = traces.map((_trace, i) => partsOf(node, node._fullData[i].uid));
    this.extents = traces.map(extentOf);
    this.times = [...node.querySelectorAll(TIMES)].map((mark) =>
      [mark, (mark.__data__ ?? mark.parentNode.__data__).x]);
    this.isReady = traces.every((trace) => isLine(trace) || isStill(trace))
      && this.hasTimes(...this.layout.xaxis.range);
  }

  // Draws `traces` from one moment to another, in milliseconds, or touches nothing and says so.
  follow(traces, from, to) {
    if (!this.isReady || traces.length !== this.traces.length || !this.hasTimes(from, to)
      || this.node._fullLayout !== this.layout) return false;
    const { _length: width, _offset: left } = this.layout.xaxis;
    const x = { from, to, scale: width / (to - from) };
    const paths = traces.map((trace, i) => this.canFollow(trace, i)
      && (isStill(trace) || pathsOf(trace, x, this.yOf(trace))));
    if (!paths.every((path, i) => path && this.hasRoom(path, i))) return false;
    traces.forEach((trace, i) => {
      if (isStill(trace)) movePoints(this.parts[i].points, x, this.yOf(trace));
      else showPaths(this.parts[i], paths[i]);
      // What a picture and a change of size start from.
      for (const name of COLUMNS) if (trace[name]) this.node.data[i][name] = trace[name];
    });
    this.hasMoved = true;
    this.node.layout.xaxis.range = [from, to];
    for (const [mark, at] of this.times) {
      mark.setAttribute("transform", `translate(${left + Number(px((at - from) * x.scale))},0)`);
    }
    return true;
  }

  // Plotly leaves out what would touch the frame.
  hasTimes(from, to) {
    const pixel = (to - from) / this.layout.xaxis._length;
    return this.times.every(([, at]) => at - from > EDGE_PX * pixel && to - at > EDGE_PX * pixel);
  }

  // Another least or most is another scale.
  canFollow(trace, i) {
    const before = this.traces[i];
    if (isStill(trace)) return isSame(trace.x, before.x) && isSame(trace.y, before.y);
    return isLine(trace) && isSame(extentOf(trace), this.extents[i]);
  }

  // A line that was nowhere has no path yet.
  hasRoom(path, i) {
    return path === true || path.line === "" || this.parts[i].lines.length > 0;
  }

  yOf({ yaxis = "y" }) {
    const { range: [low, high], _length: height } = this.layout[`yaxis${yaxis.slice(1)}`];
    return { low, high, scale: height / (high - low) };
  }
}

function partsOf(node, uid) {
  const group = node.querySelector(`.trace${uid}`);
  return { lines: [...group?.querySelectorAll(".js-line") ?? []],
    fill: group?.querySelector(".js-fill"), points: [...group?.querySelectorAll(".point") ?? []] };
}

function extentOf({ y }) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of y) {
    if (value === null) continue;
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return [least, most];
}

// {line, fill} of what is in view, with the point before and the point behind; null where a fill
// has gaps, which Plotly bridges.
function pathsOf({ x: xs, y: ys, line, fill }, x, y) {
  const isStep = line?.shape === "hv";
  const xOf = (i) => px((xs[i] - x.from) * x.scale);
  const first = firstOf(xs, x.from);
  let [path, pen, begin, end, nGaps] = ["", "M", -1, -1, 0];
  for (let i = first; i < xs.length && (i === first || xs[i - 1] <= x.to); i += 1) {
    if (!isKnown(ys[i])) {
      pen = "M";
      continue;
    }
    const [left, top] = [xOf(i), px((y.high - ys[i]) * y.scale)];
    path += pen === "L" && isStep ? `H${left}V${top}` : `${pen}${left},${top}`;
    if (pen === "M") nGaps += 1;
    if (begin < 0) begin = i;
    [pen, end] = ["L", i];
  }
  if (!fill || fill === "none" || path === "") return { line: path, fill: null };
  const ground = px((y.high - Math.min(y.high, Math.max(y.low, 0))) * y.scale);
  return nGaps > 1 ? null
    : { line: path, fill: `M${xOf(end)},${ground}L${xOf(begin)},${ground}L${path.slice(1)}` };
}

// The last one that is not in view yet.
function firstOf(xs, from) {
  let [low, high] = [0, xs.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < from) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

// One path holds all pieces of a line.
function showPaths({ lines, fill }, paths) {
  lines.forEach((node, i) => node.setAttribute("d", (i === 0 && paths.line) || NOTHING));
  if (fill) fill.setAttribute("d", paths.fill ?? NOTHING);
}

function movePoints(points, x, y) {
  for (const point of points) {
    const { x: at, y: value } = point.__data__;
    point.setAttribute("transform", `translate(${px((at - x.from) * x.scale)},${
      px((y.high - value) * y.scale)})`);
  }
}

// Hundredths of a pixel, as Plotly writes them. Made of parts that are texts already: there are some
// ten thousand a second.
const WHOLE = Array.from({ length: 4096 }, (_none, i) => String(i));
const PARTS = Array.from({ length: 100 }, (_none, i) => String(i / 100).slice(1));

export function px(value) {
  const n = Math.round(value * 100);
  if (!(n >= 0 && n < 409600)) return String(n / 100);
  const whole = (n / 100) | 0;
  return WHOLE[whole] + PARTS[n - 100 * whole];
}
