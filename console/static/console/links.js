// What the loop's newest pass found of a link: tones and words as console/link_states.py has them.

import { serverNow } from "./clock.js";
import { clock } from "./format.js";

const TONES = { clear: "good", congested: "bad", down: "bad" };
const WORDS = { near_limit: "near limit", flow_limited: "flow-limited" };
const LOOP_STALE_S = Math.max(3 * Number(document.body.dataset.tickS), 6);

// null where the loop knows nothing of the link; `old` where it has been silent since.
export function judged(loop, id) {
  const found = loop?.links?.[id];
  if (!found?.label) return null;
  const { label, signs, breaker } = found;
  const words = WORDS[label] ?? label.replaceAll("_", " ");
  const old = serverNow() - loop.at_s > LOOP_STALE_S;
  return { label, signs, breaker, old, tone: old ? "warn" : TONES[label] ?? "warn",
    words: old ? `${words} at ${clock(loop.at_s)}` : words };
}

// What to add to a link's figures where it has a trouble that they do not show; else nothing.
export function trouble(loop, id) {
  const found = judged(loop, id);
  return !found || found.old || ["clear", "unknown"].includes(found.label) ? null : found;
}
