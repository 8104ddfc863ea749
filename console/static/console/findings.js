// The findings page is made anew while somebody looks: checks are of the last minutes.

import { refresh } from "./refresh.js";

const EVERY_MS = 10000;

setInterval(() => document.hidden || refresh("findings"), EVERY_MS);
