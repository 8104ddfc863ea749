// The list of backtests stays true while one of them runs.

import { refresh } from "./refresh.js";

const EVERY_MS = 3000;
const { is_over: isOver } = JSON.parse(document.getElementById("page-data").textContent);

if (!isOver) setInterval(() => !document.hidden && refresh("backtest-list"), EVERY_MS);
