// What the server tells the overview once: clusters, links, the SLO, the last changes of t.

import { serverNow } from "./clock.js";

const STALE_S = Number(document.body.dataset.staleS);

function read() {
  return JSON.parse(document.getElementById("page-data").textContent);
}

export const page = read();

// A decision changes the page's data; its region is then fetched anew.
export function reread() {
  Object.assign(page, read());
}

export const pds = page.clusters.filter((c) => c.kind === "pd").map((c) => c.name);

// [pool, hue] of each pool, in the order they are stacked: remote and local prefill, then decode.
export const pools = page.clusters.flatMap((c) => (c.kind === "pd"
  ? [[`${c.name}/prefill`, "local"], [`${c.name}/decode`, "decode"]]
  : [[`${c.name}/prefill`, "remote"]]));

export const fresh = (atS) => serverNow() - atS <= STALE_S;

export { arrow } from "./stages.js";
