// A month's page: while a replay runs in the twin its part is brought up to date.

import { refresh } from "./refresh.js";

const EVERY_MS = 5000;
const isOpen = () => document.getElementById("value")?.dataset.open === "yes";

setInterval(() => {
  if (isOpen() && !document.hidden) refresh("value");
}, EVERY_MS);
