// The cells of the gates table that only live frames know.

import { setState, setText } from "./dom.js";
import * as f from "./format.js";
import { _ } from "./i18n.js";
import { refresh } from "./refresh.js";

// `fresh(atS)` tells whether a reading still counts.
export function showGates(routers, fresh) {
  for (const row of document.querySelectorAll("tr[data-router]")) {
    const gate = routers[row.dataset.router];
    const known = gate && gate.state === "ok" && fresh(gate.received_s);
    const cell = (name, text) => setText(row.querySelector(`[data-cell="${name}"]`), text);
    cell("requests_per_s", f.rate(known ? gate.requests_per_s : null));
    cell("in_flight", known
      ? `${f.significant(gate.in_flight.local)} / ${f.significant(gate.in_flight.remote)}` : f.NONE);
    silence(row, gate, fresh);
    heard(row.querySelector("time[data-ago]"), gate);
    cell("upstreams", known ? upstreams(gate.upstream_up) : f.NONE);
  }
}

// The page was told when a gate last acknowledged; being read by an agent is hearing of it too.
function heard(node, gate) {
  if (node && gate && gate.received_s > Number(node.dataset.ago)) {
    node.dataset.ago = gate.received_s;
  }
}

// The server judges what a gate runs; that it fell silent since is seen here first.
function silence(row, gate, fresh) {
  if (!gate) return;
  if (!fresh(gate.received_s)) {
    row.dataset.silent = "";
    setState(row, "warn", _("silent since %s", f.clock(gate.received_s)));
  } else if ("silent" in row.dataset) {
    delete row.dataset.silent;
    refresh("gates");
  }
}

function upstreams(up) {
  const sides = Object.keys(up);
  const down = sides.filter((side) => !up[side]);
  if (sides.length === 0) return f.NONE;
  return down.length ? _("down: %s", down.join(", ")) : _("%s up", sides.length);
}
