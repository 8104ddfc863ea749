// The page's one live connection, for the fleet the page is about.

import { LiveSocket } from "./socket.js";

export const fleet = document.body.dataset.fleet;
export const api = `/api/v1/fleets/${encodeURIComponent(fleet)}`;

const scheme = location.protocol === "https:" ? "wss" : "ws";

export const live = new LiveSocket({
  url: `${scheme}://${location.host}/ws/live?fleet=${encodeURIComponent(fleet)}`,
  snapshotUrl: `${api}/snapshot`,
});
