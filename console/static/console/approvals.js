// What waits for a second person, and what became of it, stays true while somebody looks.

import { refresh } from "./refresh.js";

const EVERY_MS = 10000;

setInterval(
  () => document.hidden || refresh("proposals", "proposal-state", "proposal-facts"), EVERY_MS);
