// Rows x time as a heat map: links or instances, the highest first. A cell that nobody measured
// stays empty; a click on a row goes to its page.

import { plain } from "./charts.js";
import { mix, token } from "./colours.js";
import { clock } from "./format.js";

const MOST_NAME = 22;
const ROW_PX = 14;
const LEAST_PX = 120;
const AROUND_PX = 40;
const isNarrow = () => matchMedia("(max-width: 760px)").matches;

export const heightOf = (nRows) => Math.max(LEAST_PX, nRows * ROW_PX + AROUND_PX);

// The end of a long name tells more than its beginning.
const short = (name) => (name.length > MOST_NAME ? `…${name.slice(-MOST_NAME + 1)}` : name);

// answer: {t, bin_s, rows: [{path, values}]}; write(value) -> words, name(path) -> what is shown.
// `top` is the value of the strongest colour, the largest if not given.
export function heatTraces(answer, { write, name, unit, top = null }) {
  const { t, bin_s: binS, rows } = answer;
  if (rows.length === 0) return [];
  const names = rows.map(({ path }) => name(path));
  const [accent, panel] = [token("accent"), token("panel")];
  const largest = rows.reduce((most, { values }) =>
    values.reduce((m, v) => (v > m ? v : m), most), 0);
  return [{
    name: "rows", type: "heatmap", x: [...t, t.at(-1) + binS].map((s) => s * 1000),
    y: rows.map((_row, i) => i), z: rows.map(({ values }) => values),
    zmin: 0, zmax: (top ?? largest) || 1, colorscale: [[0, mix(accent, panel, 0.12)], [1, accent]],
    hoverongaps: false, xgap: 0, ygap: 1,
    text: rows.map(({ values }, k) => values.map((v, i) =>
      (v === null ? "" : `${plain(names[k])}<br>${write(v)}, ${clock(t[i])}`))),
    hovertemplate: "%{text}<extra></extra>", meta: { rows: names, unit },
    colorbar: { thickness: 8, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, tickfont: { size: 11 },
      nticks: 4, tickformat: unit === "ratio" ? ".0%" : "~s" },
  }];
}

export function heatAxes(answer, { name }) {
  const names = answer.rows.map(({ path }) => plain(short(name(path))));
  return { yaxis: { autorange: false, range: [names.length - 0.5, -0.5], showgrid: false,
    tickmode: "array", tickvals: names.map((_name, i) => i), ticktext: names, rangemode: "normal",
    tickfont: { size: 10 } } };
}

export const heatMargin = () => ({ l: isNarrow() ? 84 : 148, r: 60 });
