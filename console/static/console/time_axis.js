// Marks of a time axis in the page's own zone. Charts place moments as plain milliseconds: Plotly's
// dates know no zone but UTC, and reading them costs a chart a tenth of its drawing.

import { clock, fieldValue, offsetS } from "./format.js";

const DAY_S = 86400;
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  DAY_S, 2 * DAY_S, 7 * DAY_S];

// {tickvals, step}: at most `most` round moments between two, so many seconds apart.
export function moments(fromS, toS, most) {
  const step = STEPS_S.find((s) => (toS - fromS) / s <= most) ?? Math.ceil((toS - fromS) / most);
  const ahead = offsetS(toS);
  const tickvals = [];
  for (let at = Math.ceil((fromS + ahead) / step) * step - ahead; at <= toS; at += step) {
    tickvals.push(at * 1000);
  }
  return { tickvals, step };
}

// What they are called.
export function names(tickvals, step, fromS, toS) {
  return tickvals.map((x) => words(x / 1000, step, toS - fromS));
}

// {tickvals, ticktext}.
export function ticks(fromS, toS, most) {
  const { tickvals, step } = moments(fromS, toS, most);
  return { tickvals, ticktext: names(tickvals, step, fromS, toS) };
}

function words(atS, step, spanS) {
  const time = step < 60 ? clock(atS) : clock(atS).slice(0, 5);
  if (spanS <= DAY_S) return time;
  const day = fieldValue(atS).slice(5, 10);
  return step >= DAY_S ? day : `${day}<br>${time}`;
}

// An x axis for Plotly from these seconds to those.
export function timeAxis([fromS, toS], most = 6) {
  return { type: "linear", range: [fromS * 1000, toS * 1000], tickmode: "array",
    ticklabeloverflow: "allow", ...ticks(fromS, toS, most),
    // The crosshair tells the moment, on every chart; as a number it would tell nobody anything.
    unifiedhovertitle: { text: " " } };
}
